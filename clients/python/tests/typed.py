"""Checked by mypy, not run: a program of a user has the types that it expects."""

from typing import List

import belfry


def user(client: belfry.Client) -> List[str]:
    added = client.add(in_="15m", svc="orders", data={"order": 17}, idempotency_key="order-17")
    ids = [r.code if isinstance(r, belfry.BelfryError) else r["timer"] for r in client.add_batch([{"in": "1s", "id": "1"}])]
    for timer in client.list(state=["pending", "paused"], schedule=False):
        if "schedule" in timer and "last" in timer["schedule"]:
            ids.append(timer["schedule"]["last"]["scheduled"])
    client.reschedule({"source": "/shop", "id": "order-17"}, in_="1h", if_match=client.get(added["timer"])["revision"])
    client.add(inn="15m")  # type: ignore[call-arg]
    client.add_batch([{"inn": "15m"}])  # type: ignore[typeddict-item]
    return ids
