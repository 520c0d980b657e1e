"""Errors of the API by their codes."""

from __future__ import annotations

import json
from email.message import Message
from typing import Any, Mapping, Optional


class BelfryError(Exception):
    """An error of the API, or of the connection to it. str() returns the detail of the problem."""

    code: str
    """The stable name of the error: the table in docs/http.md."""
    status: int
    """The HTTP status; 0 without an answer."""
    detail: str
    """A description of the error and its remedy."""
    pointer: Optional[str]
    """The invalid field, parameter or attribute, such as #/attributes/orderid."""
    retry_after: Optional[int]
    """The seconds after which to try again; set for 429 and 503."""
    problem: Mapping[str, Any]
    """The whole problem, as RFC 9457 defines it."""

    def __init__(self, problem: Mapping[str, Any], retry_after: Optional[int] = None) -> None:
        self.problem = problem
        self.status = problem.get("status", 0)
        self.detail = problem.get("detail") or problem.get("title") or f"HTTP status {self.status}"
        self.code = problem.get("code", "unexpected")
        self.pointer = problem.get("pointer")
        self.retry_after = retry_after
        super().__init__(self.detail)


class InvalidError(BelfryError):
    """The request, or an event, field or attribute in it, is invalid. Repeating it does not help."""


class NotFoundError(BelfryError):
    """No such timer, or its record has expired."""


class ConflictError(BelfryError):
    """A different timer has this name (code conflict), or the timer has another revision (precondition_failed)."""


class TooLateError(BelfryError):
    """The timer has fired (already_fired) or ended (already_done)."""


class AccessError(BelfryError):
    """The token is missing or unknown (unauthenticated), or has no right for the request (forbidden)."""


class LimitedError(BelfryError):
    """A limit of adds is used up; nothing was stored."""


class UnavailableError(BelfryError):
    """Belfry did not answer in time, or was unavailable. The request may have taken effect."""


ERROR_CLASSES: Mapping[str, type[BelfryError]] = {
    "invalid_event": InvalidError,
    "invalid_attribute": InvalidError,
    "too_many_services": InvalidError,
    "too_large": InvalidError,
    "invalid_timer_id": InvalidError,
    "bad_request": InvalidError,
    "no_route": InvalidError,
    "method_not_allowed": InvalidError,
    "unsupported_media_type": InvalidError,
    "not_found": NotFoundError,
    "conflict": ConflictError,
    "precondition_failed": ConflictError,
    "already_fired": TooLateError,
    "already_done": TooLateError,
    "unauthenticated": AccessError,
    "forbidden": AccessError,
    "limited": LimitedError,
    "store_full": UnavailableError,
    "unavailable": UnavailableError,
    "config": BelfryError,
    "unknown_format": BelfryError,
    "damaged": BelfryError,
}
"""The classes of errors by code. Other codes are a BelfryError."""


def error_of(problem: Mapping[str, Any], retry_after: Optional[int] = None) -> BelfryError:
    """Returns the error of a problem."""
    return ERROR_CLASSES.get(problem.get("code", ""), BelfryError)(problem, retry_after)


def error_of_response(status: int, headers: Message, body: bytes) -> BelfryError:
    """Returns the error of an answer that is no success.

    An answer without a problem is not Belfry's, but that of a proxy on the way: 429, 502, 503 and 504 then mean what they
    mean from Belfry.
    """
    after = headers.get("Retry-After") or ""
    retry_after = int(after) if after.isdecimal() else None
    if (headers.get("Content-Type") or "").startswith("application/problem+json"):
        try:
            problem = json.loads(body)
            if isinstance(problem, dict):
                return error_of({"status": status, **problem}, retry_after)
        except ValueError:
            pass  # cut off on the way
    code = {429: "limited", 502: "unavailable", 503: "unavailable", 504: "unavailable"}.get(status, "unexpected")
    text = body[:200].decode("utf-8", "replace")
    return error_of({"code": code, "status": status, "detail": f"HTTP status {status} without a problem of Belfry: {text}"}, retry_after)
