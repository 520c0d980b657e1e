"""What the tests against a node share. test/clients starts the node and sets the environment."""

import os
import time
import unittest

import belfry

URL = os.environ.get("BELFRY_URL", "")
TOKEN = os.environ.get("BELFRY_HTTP_TOKEN")
SECRET = os.environ.get("BELFRY_SECRET")  # of the services signed and signed-binary
BOUND = 60.0  # seconds

needs_node = unittest.skipUnless(URL, "BELFRY_URL names no node")
client = belfry.Client(URL or "http://127.0.0.1:8420", token=TOKEN, timeout=BOUND)


def until(what, find):
    """Returns what find returns, once that is true."""
    end = time.monotonic() + BOUND
    while True:
        found = find()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"waited {BOUND} s in vain: {what}")
        time.sleep(0.02)


def in_state(timer, state):
    def find():
        found = client.get(timer)
        return found if found["state"] == state else None

    return until(f"{state} of {timer}", find)
