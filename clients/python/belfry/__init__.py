"""Client of Belfry's HTTP API, and receiver of its callbacks.

    client = belfry.Client("http://127.0.0.1:8420")
    added = client.add(in_="15m", svc="orders", callback="https://shop.example/expired", data={"order": 17})

Client adds, shows, lists, changes and follows timers and schedules. Receiver answers callbacks in any web framework.
Answers are dictionaries with the members of the API, whose types are in belfry.types. docs/http.md describes each
operation, docs/reference.md each attribute of a timer.

The package needs only the standard library, of Python 3.9 or later. A Client may be used by any number of threads.
"""

from ._callbacks import Answer, DeadLetterNow, NotNow, Receiver, Run, SignatureError, parse, verify
from ._client import Client, StreamItem
from ._errors import (
    ERROR_CLASSES,
    AccessError,
    BelfryError,
    ConflictError,
    InvalidError,
    LimitedError,
    NotFoundError,
    TooLateError,
    UnavailableError,
)

__all__ = [
    "ERROR_CLASSES",
    "AccessError",
    "Answer",
    "BelfryError",
    "Client",
    "ConflictError",
    "DeadLetterNow",
    "InvalidError",
    "LimitedError",
    "NotFoundError",
    "NotNow",
    "Receiver",
    "Run",
    "SignatureError",
    "StreamItem",
    "TooLateError",
    "UnavailableError",
    "parse",
    "verify",
]
