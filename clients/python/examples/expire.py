import belfry

orders = {17: {"paid": False}, 19: {"paid": False, "locked": True}}
done = set()  # in a real service a table, with the key written in the transaction that expires the order


def expire(run: belfry.Run):
    if run.key in done:
        return "done before"
    order = orders.get(run.data["order"])
    if order is None:
        raise belfry.DeadLetterNow(f"there is no order {run.data['order']}")
    if order.get("locked"):
        raise belfry.NotNow(30, "the order is being changed")
    order["expired"] = not order["paid"]
    done.add(run.key)
    return {"expired": order["expired"]}
