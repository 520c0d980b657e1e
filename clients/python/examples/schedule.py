import os

import belfry

client = belfry.Client(os.environ.get("BELFRY_URL", "http://127.0.0.1:8420"), token=os.environ.get("BELFRY_HTTP_TOKEN"))
nightly = {"source": "/reports", "id": "nightly"}

client.add(**nightly, cron="30 2 * * *", tz="Europe/Berlin", svc="reports")
client.pause(nightly, note="stocktaking")
client.resume(nightly, catchup="one")
client.trigger(nightly)
for run in client.runs(nightly):
    print(run["run"], run.get("scheduled"), run.get("state"))
