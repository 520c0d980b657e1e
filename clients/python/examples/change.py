import os

import belfry

client = belfry.Client(os.environ.get("BELFRY_URL", "http://127.0.0.1:8420"), token=os.environ.get("BELFRY_HTTP_TOKEN"))
order = {"source": "/shop", "id": "order-17"}

client.reschedule(order, in_="30m", by="checkout")
try:
    client.cancel(order, by="checkout")
    print("paid in time")
except belfry.TooLateError:
    print("too late: the order has expired")
