import asyncio
import json
import math
import os
import signal

import belfry
import nats
from expire import expire


async def main():
    nc = await nats.connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222"), max_reconnect_attempts=-1)

    async def answer(message):
        try:
            result = expire(belfry.parse(message.headers, message.data))
            await nc.publish(message.reply, json.dumps(result).encode())
        except Exception as error:
            failed = {"Nats-Service-Error": " ".join(str(error).split()), "Nats-Service-Error-Code": "500"}
            if isinstance(error, belfry.NotNow):
                failed["Retry-After"] = str(math.ceil(error.seconds))
            await nc.publish(message.reply, b"", headers=failed)

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await nc.subscribe("callbacks.orders.expire", queue="orders", cb=answer)
    await nc.flush()
    print("serving callbacks.orders.expire", flush=True)
    await stop.wait()
    await nc.drain()  # take no more, answer the callbacks that have arrived, and end


asyncio.run(main())
