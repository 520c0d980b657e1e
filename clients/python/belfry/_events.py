"""Timers as JSON and as CloudEvents."""

from __future__ import annotations

import base64
import uuid
from datetime import datetime, timedelta
from typing import Any, Dict, Mapping, Optional

from ._errors import InvalidError
from ._transport import format_time

# The fields of a new timer whose attribute of the event is timer<field>. The attribute of in is timerafter.
_TIMER_FIELDS = frozenset(
    "at cron every tz svc callback group flow key maxattempts backoff timeout start end limit jitter dst days misfire grace overlap"
    " expect exclude excludeshift".split()
)
# The fields that are attributes of the event, or its data.
_EVENT_FIELDS = frozenset("id source type subject time dataschema datacontenttype data data_base64".split())


def sendable(timer: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns the fields of a timer that are not None, as JSON can have them."""
    out = {}
    for name, value in timer.items():
        if value is None:
            continue
        if name == "data" and isinstance(value, (bytes, bytearray)):
            out["data_base64"] = base64.b64encode(value).decode()
            out.setdefault("datacontenttype", "application/octet-stream")
        elif name != "data" and isinstance(value, datetime):
            out[name] = format_time(value)
        elif name != "data" and isinstance(value, timedelta):
            out[name] = format_duration(value)
        else:
            out[name] = value
    return out


def format_duration(d: timedelta) -> str:
    """Returns a duration in microseconds, which are exact."""
    micros = (d.days * 86400 + d.seconds) * 1_000_000 + d.microseconds
    if micros < 0:
        raise ValueError("a duration must not be negative")
    return f"PT{micros // 1_000_000}.{micros % 1_000_000:06d}S"


def event_of(timer: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns the CloudEvent of a timer, for POST /v1/events, which takes no fields.

    The defaults are those of POST /v1/timers.
    """
    event: Dict[str, Any] = {"specversion": "1.0", "id": str(uuid.uuid4()), "source": "/http", "type": "belfry.timer"}
    for name, value in sendable(timer).items():
        if name == "attributes":
            event.update(_own(value))
        elif name == "in":
            event["timerafter"] = value
        elif name in _TIMER_FIELDS:
            event["timer" + name] = str(value) if name == "limit" else value
        elif name in _EVENT_FIELDS:
            event[name] = value
        else:
            raise InvalidError({"code": "bad_request", "detail": f"unknown field {name!r}", "pointer": f"#/{name}"})
    return event


def _own(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the attributes of a user, which must not have the names of fields."""
    for name in attributes:
        pointer = f"#/attributes/{name}"
        if field_pointer(f"#/{name}") != pointer:
            detail = f"{name} is not an attribute of your own: use the field of the timer"
            raise InvalidError({"code": "bad_request", "detail": detail, "pointer": pointer})
    return attributes


def field_pointer(pointer: Optional[str]) -> Optional[str]:
    """Returns the pointer to a field of a timer from the pointer to its attribute, #/timerafter for example."""
    name = (pointer or "")[len("#/") :]
    if not name or name == "specversion" or name in _EVENT_FIELDS:
        return pointer
    if name == "timerafter":
        return "#/in"
    if name.startswith("timer") and name[len("timer") :] in _TIMER_FIELDS:
        return "#/" + name[len("timer") :]
    return f"#/attributes/{name}"
