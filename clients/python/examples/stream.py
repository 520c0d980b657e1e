import os

import belfry

client = belfry.Client(os.environ.get("BELFRY_URL", "http://127.0.0.1:8420"), token=os.environ.get("BELFRY_HTTP_TOKEN"))

for item in client.stream("orders", on_open=lambda _: print("open", flush=True)):
    print(f"{item.event['id']} fired {item.event['lateness_ms']} ms late", flush=True)
