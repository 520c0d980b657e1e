import os

import belfry

client = belfry.Client(os.environ.get("BELFRY_URL", "http://127.0.0.1:8420"), token=os.environ.get("BELFRY_HTTP_TOKEN"))

for letter in client.dead_letters(service="orders"):
    print(f"{letter['id']}: {letter['error_data']} after {letter['attempts']} attempts")
replayed = client.replay(service="orders", limit=100, by="anna")
print(f"{replayed['replayed']} replayed")
