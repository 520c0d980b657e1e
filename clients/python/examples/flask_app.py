import os

import belfry
from expire import expire
from flask import Flask, request

app = Flask(__name__)
callbacks = belfry.Receiver(expire, secrets=os.environ["BELFRY_SECRET"])


@app.post("/expired")
def expired():
    return callbacks.answer(request.headers, request.get_data())


if __name__ == "__main__":
    app.run(port=int(os.environ.get("PORT", "3000")))
