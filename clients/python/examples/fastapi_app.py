import os

import belfry
from expire import expire
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

app = FastAPI()
callbacks = belfry.Receiver(expire, secrets=os.environ["BELFRY_SECRET"])


@app.post("/expired")
async def expired(request: Request):
    body = await request.body()
    answer = await run_in_threadpool(callbacks.answer, request.headers, body)
    return Response(answer.body, answer.status, answer.headers)
