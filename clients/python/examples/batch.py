import os

import belfry

client = belfry.Client(os.environ.get("BELFRY_URL", "http://127.0.0.1:8420"), token=os.environ.get("BELFRY_HTTP_TOKEN"))

reminders = [{"in": f"{n}h", "id": f"reminder-{n}", "source": "/shop", "svc": "reminders"} for n in (1, 2, 3)]
results = client.add_batch(reminders)
failed = [result for result in results if isinstance(result, belfry.BelfryError)]
for error in failed:
    print(f"{error.code}: {error}")
print(f"{len(results) - len(failed)} stored")
