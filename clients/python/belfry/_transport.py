"""Sends requests, and repeats those that may succeed later."""

from __future__ import annotations

import json
import random
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from datetime import datetime, timezone
from http.client import HTTPException, HTTPResponse
from typing import Any, Callable, Mapping, Optional, TypeVar, Union

from ._errors import BelfryError, LimitedError, UnavailableError, error_of_response

T = TypeVar("T")

FIRST_DELAY = 0.2  # seconds before the first repetition, if the answer names no time; doubled each time
LONGEST_DELAY = 10.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """No node redirects, and a token must not go elsewhere."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class Transport:
    """The way to a node. The parameters are those of Client."""

    def __init__(
        self,
        url: str,
        token: Union[str, Callable[[], str], None],
        headers: Mapping[str, str],
        timeout: float,
        retries: int,
        max_retry_delay: float,
        context: Optional[ssl.SSLContext],
    ) -> None:
        self._base = url.rstrip("/")
        self._token = token
        self._headers = dict(headers)
        self.timeout = timeout
        self.retries = retries
        self._max_retry_delay = max_retry_delay
        self._opener = urllib.request.build_opener(_NoRedirect(), urllib.request.HTTPSHandler(context=context))

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Optional[Mapping[str, Any]] = None,
        body: Optional[bytes] = None,
        headers: Optional[Mapping[str, str]] = None,
        retries: Optional[int] = None,
    ) -> Any:
        """Sends a request until it has an answer that a repetition would not change, and returns the JSON of the answer."""
        attempt: Callable[[], Any] = lambda: self.once(method, path, query=query, body=body, headers=headers)
        return self.repeat(attempt, retries)

    def repeat(self, attempt: Callable[[], T], retries: Optional[int] = None) -> T:
        """Calls attempt until it returns, or raises an error that a repetition would not change."""
        limit = self.retries if retries is None else retries
        for n in range(limit + 1):
            try:
                return attempt()
            except BelfryError as error:
                wait = retry_delay(error, n)
                if wait is None or n == limit or wait > self._max_retry_delay:
                    raise
            time.sleep(min(spread(wait), self._max_retry_delay))
        raise ValueError("retries must be 0 or more")

    def once(
        self,
        method: str,
        path: str,
        *,
        query: Optional[Mapping[str, Any]] = None,
        body: Optional[bytes] = None,
        headers: Optional[Mapping[str, str]] = None,
    ) -> Any:
        """Sends one request and returns the JSON of its answer."""
        try:
            with self.open(method, path, query=query, body=body, headers=headers, timeout=self.timeout) as response:
                text = response.read()
        except (OSError, HTTPException) as error:
            raise self.lost(error) from error
        try:
            return json.loads(text)
        except ValueError as error:
            raise BelfryError({"detail": f"the answer of {self._base} is not JSON: is it a node of Belfry?"}) from error

    def open(
        self,
        method: str,
        path: str,
        *,
        query: Optional[Mapping[str, Any]] = None,
        body: Optional[bytes] = None,
        headers: Optional[Mapping[str, str]] = None,
        timeout: float,
    ) -> HTTPResponse:
        """Sends one request and returns its answer, whose body is not read.

        It raises an OSError or HTTPException without an answer, and a BelfryError for an answer that is no success.
        """
        request = urllib.request.Request(self._base + path + _query(query), data=body, method=method)
        token = self._token() if callable(self._token) else self._token
        if token:
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        for name, value in {**self._headers, **(headers or {})}.items():
            request.add_header(name, value)
        try:
            response: HTTPResponse = self._opener.open(request, timeout=timeout)
            return response
        except urllib.error.HTTPError as error:
            with error:
                raise error_of_response(error.code, error.headers, error.read()) from None

    def lost(self, error: Exception) -> UnavailableError:
        """Returns the error of a request that got no answer."""
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        why = "timed out" if isinstance(cause, TimeoutError) else str(cause) or type(cause).__name__
        host = urllib.parse.urlsplit(self._base).hostname
        return UnavailableError({"code": "unavailable", "status": 0, "detail": f"{host}: no answer: {why}"})


def retry_delay(error: BelfryError, n: int) -> Optional[float]:
    """Returns the seconds before repetition n, from 0; None if a repetition does not help."""
    if not isinstance(error, (UnavailableError, LimitedError)):
        return None
    return min(FIRST_DELAY * 2.0**n, LONGEST_DELAY) if error.retry_after is None else float(error.retry_after)


def spread(seconds: float) -> float:
    """Returns a time that is longer by up to a fifth, so that many clients do not come at once."""
    return seconds * (1 + random.random() / 5)


def format_time(at: datetime) -> str:
    """Returns a time as RFC 3339. It refuses a time without a zone, which could mean any zone."""
    if at.tzinfo is None:
        raise ValueError("the datetime has no time zone: use datetime.now(timezone.utc) or zoneinfo")
    return at.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def _query(query: Optional[Mapping[str, Any]]) -> str:
    pairs = []
    for name, value in (query or {}).items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is None:
                continue
            if isinstance(one, bool):
                one = "true" if one else "false"
            pairs.append((name, format_time(one) if isinstance(one, datetime) else str(one)))
    return "?" + urllib.parse.urlencode(pairs) if pairs else ""
