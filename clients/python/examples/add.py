import os

import belfry

client = belfry.Client(os.environ.get("BELFRY_URL", "http://127.0.0.1:8420"), token=os.environ.get("BELFRY_HTTP_TOKEN"))

added = client.add(
    in_="15m",
    id="order-17",
    source="/shop",
    type="order.timeout",
    svc="orders",
    callback="https://shop.example/expired",
    data={"order": 17},
)
print(f"timer {added['timer']} is due at {added['due']}")
