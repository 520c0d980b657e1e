"""Receives callbacks: checks their signature, reads the event, and answers."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import logging
import math
import re
import time
import urllib.parse
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from .types import Trigger

_log = logging.getLogger("belfry")

DEFAULT_TOLERANCE = 300.0  # seconds
DEFAULT_MAX_BODY = 2 << 20  # an event of 1 MiB as JSON with its data in base64
_MAX_SIGNATURES = 16  # Belfry sends one for each secret of the service

Headers = Union[Mapping[str, str], Iterable[Tuple[str, str]]]
"""Headers: a mapping such as those of Flask, Django, FastAPI and http.server, or pairs."""


class SignatureError(Exception):
    """A callback with a wrong, old or missing signature."""


class NotNow(Exception):
    """Raised by a handler: the callback is made again after seconds, and no attempt is used."""

    def __init__(self, seconds: float, reason: str = "not now") -> None:
        super().__init__(reason)
        self.seconds = seconds


class DeadLetterNow(Exception):
    """Raised by a handler: no attempt can succeed, so the event becomes a dead letter at once."""


@dataclass(frozen=True)
class Run:
    """One call of a callback."""

    key: str
    """<timer id>.<run>: the same for each attempt. A handler that must not act twice stores it and compares."""
    timer: str
    """The timer id."""
    run: int
    attempt: int
    """From 1."""
    scheduled: datetime
    """The due time; for a run of a schedule the nominal time."""
    fired: datetime
    missed: int
    """Missed nominal times for which the run fired, in addition to its own."""
    trigger: Optional[Trigger]
    """Why the run fired at no due time: manual or backfill; otherwise None."""
    event: Dict[str, Any]
    """The attributes of the CloudEvent."""
    data: Any
    """Parsed JSON; a str for text; bytes for other data; None without data."""


class Answer(NamedTuple):
    """The answer to a callback, in the order in which Flask takes it."""

    body: bytes
    status: int
    headers: Dict[str, str]


Handler = Callable[[Run], Any]
"""Handles a run.

When it returns, the run is a success; a value becomes the body of the answer, which the record keeps (1 KiB): text, or JSON. Raise
NotNow or DeadLetterNow to answer otherwise. After any other error Belfry tries again.
"""


class Receiver:
    """Answers callbacks in any web framework. It is a WSGI application; elsewhere call answer.

    handler: is called for each attempt of each run.
    secrets: the secrets of the service (whsec_…). One of them must have signed; give several while you replace one.
    unsigned: accept callbacks without a signature. Required if there are no secrets.
    binary: with secrets, accept binary mode, too, in which the signature covers the data but not the attributes. Needed only for a
        service with the settings secret and mode: binary.
    tolerance: how much older or newer than now a signature may be, in seconds.
    max_body: the largest body in bytes.
    on_error: gets each error but NotNow and DeadLetterNow; default: the logger "belfry".
    origins: who may call, such as belfry.example.com or *: the answer to the question of webhook-origin.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        secrets: Union[str, Sequence[str], None] = None,
        unsigned: bool = False,
        binary: bool = False,
        tolerance: float = DEFAULT_TOLERANCE,
        max_body: int = DEFAULT_MAX_BODY,
        on_error: Optional[Callable[[Exception, Optional[Run]], None]] = None,
        origins: Sequence[str] = (),
    ) -> None:
        self._handler = handler
        self._secrets = [secrets] if isinstance(secrets, str) else list(secrets or [])
        if self._secrets:
            _keys(self._secrets)
        elif not unsigned:
            raise ValueError("give the secrets of the service, or unsigned=True to accept callbacks of anybody")
        self._binary = binary
        self._tolerance = tolerance
        self._max_body = max_body
        self._on_error = on_error or _log_error
        self._origins = [origin.lower() for origin in origins]

    def answer(self, headers: Headers, body: bytes, method: str = "POST") -> Answer:
        """Answers a callback. body must have the received bytes unchanged, because the signature covers them."""
        h = _lower(headers)
        if method == "OPTIONS":
            return self._handshake(h.get("webhook-request-origin", ""))
        if method != "POST":
            return _text(405, "callbacks are POST", {"Allow": "POST, OPTIONS"})
        if len(body) > self._max_body:
            return _text(413, f"the body has more than {self._max_body} bytes")
        try:
            self._verify(h, body)
            run = parse(h, body)
        except (SignatureError, ValueError) as error:
            self._on_error(error, None)
            return _text(401 if isinstance(error, SignatureError) else 400, str(error))
        try:
            return _success(self._handler(run))
        except NotNow as error:
            return _text(503, str(error), {"Retry-After": str(max(0, math.ceil(error.seconds)))})
        except DeadLetterNow as error:
            return _text(410, str(error))
        except Exception as error:
            self._on_error(error, run)
            return _text(500, f"{type(error).__name__}: {error}")

    def __call__(self, environ: Dict[str, Any], start_response: Callable[..., Any]) -> List[bytes]:
        """The WSGI application."""
        headers = {name[len("HTTP_") :].replace("_", "-"): value for name, value in environ.items() if name.startswith("HTTP_")}
        headers["content-type"] = environ.get("CONTENT_TYPE", "")
        length = environ.get("CONTENT_LENGTH") or "0"
        size = min(int(length), self._max_body + 1) if length.isdecimal() else 0
        answer = self.answer(headers, environ["wsgi.input"].read(size), environ["REQUEST_METHOD"])
        start_response(f"{answer.status} {_REASONS.get(answer.status, 'Error')}", list(answer.headers.items()))
        return [answer.body]

    def _verify(self, headers: Mapping[str, str], body: bytes) -> None:
        if not self._secrets:
            return
        verify(self._secrets, headers, body, tolerance=self._tolerance)
        if not self._binary and not _is_structured(headers):
            raise SignatureError(
                "the callback is in binary mode, whose attributes are not signed: remove mode: binary from the service, or set binary=True"
            )

    def _handshake(self, origin: str) -> Answer:
        """Answers the question whether an origin may call (docs/flow.md, "Ask the target first").

        Belfry takes 400 and 405 for a refusal.
        """
        if not self._origins:
            return _text(405, "this target answers no OPTIONS", {"Allow": "POST"})
        if "*" not in self._origins and origin.lower() not in self._origins:
            return _text(400, "this origin may not call")
        allowed = "*" if "*" in self._origins else origin
        return _text(200, "", {"Allow": "POST, OPTIONS", "WebHook-Allowed-Origin": allowed, "WebHook-Allowed-Rate": "*"})


_REASONS = {
    200: "OK", 204: "No Content", 400: "Bad Request", 401: "Unauthorized", 405: "Method Not Allowed", 410: "Gone",
    413: "Content Too Large", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


def verify(secrets: Union[str, Sequence[str]], headers: Headers, body: bytes, *, tolerance: float = DEFAULT_TOLERANCE, now: Optional[float] = None) -> None:
    """Checks the signature of a callback in constant time, as Standard Webhooks defines it.

    It raises a SignatureError if no secret has signed the body, or if the signature is too old. now is Unix time in seconds.
    """
    h = _lower(headers)
    keys = _keys([secrets] if isinstance(secrets, str) else secrets)
    id_, timestamp, signature = h.get("webhook-id"), h.get("webhook-timestamp"), h.get("webhook-signature")
    if not id_ or not timestamp or not signature:
        raise SignatureError("the callback has no signature: set a secret for the service of the timer")
    if not re.fullmatch(r"[0-9]{1,12}", timestamp) or abs((time.time() if now is None else now) - int(timestamp)) > tolerance:
        raise SignatureError(f"the signature is of {timestamp} (Unix time), which is too far from now")
    content = f"{id_}.{timestamp}.".encode("utf-8", "surrogateescape") + body
    given = [part[len("v1,") :].encode("utf-8", "replace") for part in signature.split(" ")[:_MAX_SIGNATURES] if part.startswith("v1,")]
    valid = False
    for key in keys:
        wanted = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest())
        for one in given:
            valid = hmac.compare_digest(wanted, one) or valid  # all are compared
    if not valid:
        raise SignatureError("no secret has signed this callback")


def parse(headers: Headers, body: bytes) -> Run:
    """Reads a callback in structured or binary mode. It does not check the signature.

    It raises a ValueError for what is not a callback of Belfry.
    """
    h = _lower(headers)
    event, data = _structured(body) if _is_structured(h) else _binary(h, body)
    # webhook-id, which the signature covers, if there is one.
    key = h.get("webhook-id") or h.get("idempotency-key") or ""
    timer, _, run = key.rpartition(".")
    if not timer or not run.isdecimal():
        raise ValueError("not a callback of Belfry: the header Idempotency-Key is not <timer id>.<run>")
    trigger = event.get("timertrigger")
    return Run(
        key=key,
        timer=timer,
        run=int(run),
        attempt=int(event.get("timerattempt", 1)),
        scheduled=_time(event, "timerscheduled"),
        fired=_time(event, "timerfired"),
        missed=int(event.get("timermissed", 0)),
        trigger=trigger if trigger in ("manual", "backfill") else None,
        event=event,
        data=data,
    )


def _keys(secrets: Sequence[str]) -> List[bytes]:
    """Returns the keys of secrets. It raises a ValueError that does not have the secret."""
    if not secrets:
        raise ValueError("there is no secret to verify with")
    keys = []
    for n, secret in enumerate(secrets, 1):
        try:
            key = base64.b64decode(secret[len("whsec_") :], validate=True) if secret.startswith("whsec_") else b""
        except binascii.Error:
            key = b""
        if len(key) < 24:
            raise ValueError(f"secret {n} must be whsec_ followed by 24 to 64 bytes in base64")
        keys.append(key)
    return keys


def _lower(headers: Headers) -> Dict[str, str]:
    """Returns the headers by their names in lower case."""
    pairs = headers.items() if isinstance(headers, Mapping) or hasattr(headers, "items") else headers
    return {name.lower(): value for name, value in pairs}


def _is_structured(headers: Mapping[str, str]) -> bool:
    """Reports whether a callback has the whole event in its body."""
    return headers.get("content-type", "").split(";")[0].strip().lower() == "application/cloudevents+json"


def _structured(body: bytes) -> Tuple[Dict[str, Any], Any]:
    event = json.loads(body)
    if not isinstance(event, dict) or event.get("specversion") != "1.0":
        raise ValueError("the body is not a CloudEvent 1.0")
    data = event.pop("data", None)
    encoded = event.pop("data_base64", None)
    if encoded is not None:
        data = _decoded(event.get("datacontenttype", ""), base64.b64decode(encoded))
    return event, data


def _binary(headers: Mapping[str, str], body: bytes) -> Tuple[Dict[str, Any], Any]:
    event: Dict[str, Any] = {name[len("ce-") :]: urllib.parse.unquote(value) for name, value in headers.items() if name.startswith("ce-")}
    if event.get("specversion") != "1.0" or not {"id", "source", "type"} <= event.keys():
        raise ValueError("not a CloudEvent 1.0: neither the content type application/cloudevents+json nor the headers ce-…")
    kind = headers.get("content-type", "")
    if kind:
        event["datacontenttype"] = kind
    return event, _decoded(kind, body)


def _decoded(kind: str, body: bytes) -> Any:
    """Returns data by its content type."""
    if not body:
        return None
    media = kind.split(";")[0].strip().lower()
    if media in ("", "application/json") or media.endswith("+json"):
        try:
            return json.loads(body)
        except ValueError:
            if media:
                raise ValueError(f"the data is not JSON, but its type is {media}") from None
            return body
    return body.decode("utf-8", "replace") if media.startswith("text/") else body


def _time(event: Mapping[str, Any], name: str) -> datetime:
    # Python 3.9 does not read the Z.
    return datetime.fromisoformat(str(event.get(name, "")).replace("Z", "+00:00"))


def _success(result: Any) -> Answer:
    if result is None:
        return Answer(b"", 204, {})
    if isinstance(result, str):
        return _text(200, result)
    return Answer(json.dumps(result).encode(), 200, {"Content-Type": "application/json"})


def _text(status: int, body: str, headers: Optional[Mapping[str, str]] = None) -> Answer:
    return Answer(body.encode("utf-8", "replace"), status, {"Content-Type": "text/plain; charset=utf-8", **(headers or {})})


def _log_error(error: Exception, run: Optional[Run]) -> None:
    if run is None:
        _log.warning("callback refused: %s", error)
    else:
        _log.error("callback %s failed", run.key, exc_info=error)
