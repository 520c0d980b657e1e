import os

import belfry

client = belfry.Client(os.environ.get("BELFRY_URL", "http://127.0.0.1:8420"), token=os.environ.get("BELFRY_HTTP_TOKEN"))

for timer in client.list(service="orders", state=["pending", "retrying"]):
    print(timer["id"], timer["due"])
for timer in client.search(q="order-17"):
    print(timer["id"], timer["state"])
