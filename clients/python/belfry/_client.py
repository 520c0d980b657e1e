"""The client."""

from __future__ import annotations

import json
import ssl
import threading
import urllib.parse
import uuid
from http.client import HTTPException
from typing import Any, Callable, Dict, Iterable, Iterator, List, Literal, Mapping, NamedTuple, Optional, Sequence, Union, cast

from . import types as t
from ._errors import BelfryError, UnavailableError, error_of
from ._events import event_of, field_pointer, sendable
from ._sse import messages
from ._transport import Transport, retry_delay, spread

# Bounds of one request of add_batch: those of the API, with room for the brackets.
_BATCH_EVENTS = 500
_BATCH_BYTES = 7 << 20

CatchUp = Literal["skip", "one", "all"]


class StreamItem(NamedTuple):
    """An event of Client.stream."""

    last_event_id: str
    """Keep it to continue after this event: the parameter last_event_id."""
    event: t.FiredEvent


class Client:
    """A client of one Belfry. It keeps no connection open, and may be used by any number of threads.

    Every call raises a BelfryError if the node refuses it or does not answer.

    url: the address of a node.
    token: a token, or a function that returns the current one.
    headers: headers of every request.
    timeout: seconds in which the node must connect, and then send each part of its answer.
    retries: how often a request is repeated that got 429, 503 or no answer; 0 for never.
    max_retry_delay: the longest wait before a repetition, in seconds. If Retry-After asks for more, the call fails at once.
    ssl_context: whom to trust for https; default: the system's certificates.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8420",
        *,
        token: Union[str, Callable[[], str], None] = None,
        headers: Optional[Mapping[str, str]] = None,
        timeout: float = 10.0,
        retries: int = 4,
        max_retry_delay: float = 30.0,
        ssl_context: Optional[ssl.SSLContext] = None,
    ) -> None:
        self._transport = Transport(url, token, headers or {}, timeout, retries, max_retry_delay, ssl_context)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Optional[Mapping[str, Any]] = None,
        body: Any = None,
        headers: Optional[Mapping[str, str]] = None,
        retries: Optional[int] = None,
    ) -> Any:
        """Makes any request of the API, such as ("GET", "/v1/services"), and returns the JSON of its answer.

        Parameters of the query that are None are left out, and a list occurs several times. body is sent as JSON.
        """
        if body is None:
            return self._transport.send(method, path, query=query, headers=headers, retries=retries)
        text = json.dumps(body).encode()
        return self._transport.send(method, path, query=query, body=text, headers={"Content-Type": "application/json", **(headers or {})}, retries=retries)

    def add(
        self,
        *,
        in_: Optional[t.Duration] = None,
        at: Optional[t.Instant] = None,
        cron: Optional[str] = None,
        every: Optional[t.Duration] = None,
        tz: Optional[str] = None,
        svc: Optional[str] = None,
        callback: Optional[str] = None,
        group: Optional[str] = None,
        flow: Optional[str] = None,
        key: Optional[str] = None,
        maxattempts: Union[int, str, None] = None,
        backoff: Optional[str] = None,
        timeout: Optional[t.Duration] = None,
        start: Optional[t.Instant] = None,
        end: Optional[t.Instant] = None,
        limit: Union[int, str, None] = None,
        jitter: Optional[t.Duration] = None,
        dst: Optional[str] = None,
        days: Optional[Literal["and", "or"]] = None,
        misfire: Optional[Literal["one", "all", "skip"]] = None,
        grace: Optional[t.Duration] = None,
        overlap: Optional[Literal["skip", "queue", "allow", "replace"]] = None,
        expect: Optional[t.Duration] = None,
        exclude: Optional[str] = None,
        excludeshift: Optional[Literal["skip", "next", "previous"]] = None,
        id: Optional[str] = None,
        source: Optional[str] = None,
        type: Optional[str] = None,
        subject: Optional[str] = None,
        time: Optional[t.Instant] = None,
        dataschema: Optional[str] = None,
        datacontenttype: Optional[str] = None,
        data: Any = None,
        data_base64: Optional[str] = None,
        attributes: Optional[Mapping[str, Union[str, int, bool]]] = None,
        idempotency_key: Optional[str] = None,
    ) -> t.Added:
        """Adds a timer or schedule; it is stored when the call returns. One of in_, at, cron and every is required.

        An event without an id and without an idempotency_key gets a random id before the first request, so that the repetition of
        a request adds no second timer. The idempotency_key becomes the id of an event that has none; the same key for another timer
        is a ConflictError. Data is any JSON value, or bytes.
        """
        fields = {name: value for name, value in locals().items() if name not in ("self", "in_", "idempotency_key")}
        fields["in"] = in_
        headers = {}
        if idempotency_key is not None:
            headers["Idempotency-Key"] = _header_text(idempotency_key)
        elif id is None:
            fields["id"] = str(uuid.uuid4())
        return cast(t.Added, self.request("POST", "/v1/timers", headers=headers, body=sendable(fields)))

    def add_batch(self, timers: Iterable[t.NewTimer]) -> List[Union[t.Added, BelfryError]]:
        """Adds many timers, up to 500 with one request.

        The result has for each timer, in their order, what became of it: a dictionary, or the error. It raises only if a whole request
        was refused or got no answer. Give ids to timers to repeat such a call.
        """
        events = [json.dumps(event_of(timer)) for timer in timers]
        results: List[Union[t.Added, BelfryError]] = []
        for batch in _batches(events):
            results += self._add_events(batch)
        return results

    def _add_events(self, events: Sequence[str]) -> List[Union[t.Added, BelfryError]]:
        """Adds one batch, and repeats those of its events that may succeed later."""
        results: Dict[int, Union[t.Added, BelfryError]] = {}
        waiting = list(range(len(events)))

        def attempt() -> None:
            failure: Optional[BelfryError] = None
            try:
                verdicts = self._post_events([events[i] for i in waiting])
            except BelfryError as error:
                if "results" not in error.problem:
                    raise
                failure, verdicts = error, error.problem["results"]
            later = []
            for index, verdict in zip(list(waiting), verdicts):
                if "timer" in verdict:
                    results[index] = cast(t.Added, verdict)
                    continue
                pointer = field_pointer(verdict.get("pointer"))
                results[index] = error_of({**verdict, **({"pointer": pointer} if pointer else {})}, failure.retry_after if failure else None)
                if verdict["status"] in (429, 503):
                    later.append(index)
            waiting[:] = later
            if later and failure:
                raise failure

        try:
            self._transport.repeat(attempt)
        except BelfryError as error:
            if "results" not in error.problem:
                raise
        return [results[i] for i in range(len(events))]

    def _post_events(self, events: Sequence[str]) -> List[Dict[str, Any]]:
        body = f"[{','.join(events)}]".encode()
        answer = self._transport.once("POST", "/v1/events", body=body, headers={"Content-Type": "application/cloudevents-batch+json"})
        return cast(List[Dict[str, Any]], answer["results"])

    def get(self, timer: t.TimerRef, *, claim: bool = False) -> t.Timer:
        """Returns a timer; with claim also the node that claimed it. It raises a NotFoundError if there is none, or if its record has expired."""
        path, query = _place(timer)
        return cast(t.Timer, self.request("GET", path, query={**query, "claim": True} if claim else query))

    def list(
        self,
        *,
        service: Optional[str] = None,
        group: Optional[str] = None,
        state: Union[t.State, Sequence[t.State], None] = None,
        schedule: Optional[bool] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> Iterator[t.Timer]:
        """Lists timers by their records, page after page. All filters must match. limit is the size of a page."""
        query = {"service": service, "group": group, "state": state, "schedule": schedule, "limit": limit}
        return cast(Iterator[t.Timer], self._pages("/v1/timers", query, "timers", cursor))

    def list_page(self, query: Optional[Mapping[str, Any]] = None) -> t.TimerPage:
        """Returns one page of a list. The query has the parameters of list."""
        return cast(t.TimerPage, self.request("GET", "/v1/timers", query=query))

    def search(
        self,
        *,
        q: Optional[str] = None,
        id: Optional[str] = None,
        source: Optional[str] = None,
        type: Optional[str] = None,
        service: Optional[str] = None,
        group: Optional[str] = None,
        state: Union[t.State, Sequence[t.State], None] = None,
        schedule: Optional[bool] = None,
        runs_of: Optional[str] = None,
        due_from: Optional[t.Instant] = None,
        due_to: Optional[t.Instant] = None,
        done_from: Optional[t.Instant] = None,
        done_to: Optional[t.Instant] = None,
        host: Optional[str] = None,
        error: Optional[str] = None,
        attribute: Optional[str] = None,
        sort: Optional[Literal["due", "done"]] = None,
        order: Optional[Literal["asc", "desc"]] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> Iterator[t.Timer]:
        """Searches the index of the node, which also has timers whose records have expired, page after page.

        All filters must match; a search needs at least one that list does not have. docs/search.md describes them.
        """
        query = {name: value for name, value in locals().items() if name not in ("self", "cursor")}
        return cast(Iterator[t.Timer], self._pages("/v1/timers", query, "timers", cursor))

    def search_page(self, query: Mapping[str, Any]) -> t.SearchPage:
        """Returns one page of a search. The query has the parameters of search."""
        return cast(t.SearchPage, self.request("GET", "/v1/timers", query=query))

    def cancel(self, timer: t.TimerRef, *, by: Optional[str] = None, if_match: Optional[int] = None) -> t.Timer:
        """Cancels a timer, or ends a schedule. Once it has returned, the timer does not fire. It raises a TooLateError if the timer has fired."""
        path, query = _place(timer)
        return cast(t.Timer, self._change("DELETE", path, if_match, query={**query, "by": by}))

    def reschedule(
        self,
        timer: t.TimerRef,
        *,
        in_: Optional[t.Duration] = None,
        at: Optional[t.Instant] = None,
        by: Optional[str] = None,
        if_match: Optional[int] = None,
    ) -> t.Timer:
        """Gives a timer another due time: either in_ or at."""
        path, query = _place(timer)
        return cast(t.Timer, self._change("PATCH", path, if_match, query=query, body=sendable({"in": in_, "at": at, "by": by})))

    def pause(self, timer: t.TimerRef, *, note: Optional[str] = None, by: Optional[str] = None, if_match: Optional[int] = None) -> t.Timer:
        """Makes a timer or schedule wait until it is resumed."""
        return self._operate(timer, "pause", if_match, {"note": note, "by": by})

    def resume(self, timer: t.TimerRef, *, catchup: Optional[CatchUp] = None, by: Optional[str] = None, if_match: Optional[int] = None) -> t.Timer:
        """Lets a paused timer or schedule fire again. catchup decides which missed nominal times of a schedule fire; default none."""
        return self._operate(timer, "resume", if_match, {"catchup": catchup, "by": by})

    def trigger(
        self,
        schedule: t.TimerRef,
        *,
        allow: Optional[bool] = None,
        by: Optional[str] = None,
        if_match: Optional[int] = None,
        idempotency_key: Optional[str] = None,
    ) -> t.Timer:
        """Requests an extra run of a schedule at once; with allow even while the previous run has no result.

        The idempotency_key, by default a random one, names the request, so that a repeated one asks for no second run.
        """
        headers = {"Idempotency-Key": _header_text(idempotency_key or str(uuid.uuid4()))}
        return self._operate(schedule, "trigger", if_match, {"allow": allow, "by": by}, headers)

    def update(self, schedule: t.TimerRef, timer: t.NewTimer, *, by: Optional[str] = None, if_match: Optional[int] = None) -> t.Updated:
        """Replaces a schedule by another one of the same id and source."""
        return cast(t.Updated, self._change("PUT", self._path(schedule), if_match, query={"by": by}, body=sendable(timer)))

    def runs(self, schedule: t.TimerRef, *, limit: Optional[int] = None) -> Iterator[t.ScheduleRun]:
        """Lists the runs of a schedule, newest first. limit is the size of a page."""
        return cast(Iterator[t.ScheduleRun], self._pages(self._path(schedule) + "/runs", {"limit": limit}, "runs", None))

    def why(self, timer: t.TimerRef, at: Optional[t.Instant] = None) -> t.Why:
        """Explains a timer, or a time of a schedule: whether it fired, will fire or not, and why."""
        return cast(t.Why, self.request("GET", self._path(timer) + "/why", query={"at": at}))

    def dead_letters(
        self,
        *,
        service: Optional[str] = None,
        timer: Optional[str] = None,
        id: Optional[str] = None,
        source: Optional[str] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> Iterator[t.DeadLetter]:
        """Lists dead letters, oldest first, page after page."""
        query = {"service": service, "timer": timer, "id": id, "source": source, "limit": limit}
        return cast(Iterator[t.DeadLetter], self._pages("/v1/dead-letters", query, "dead", cursor))

    def replay(
        self,
        *,
        timer: Optional[str] = None,
        id: Optional[str] = None,
        source: Optional[str] = None,
        service: Optional[str] = None,
        limit: Optional[int] = None,
        by: Optional[str] = None,
    ) -> t.Replayed:
        """Calls back again, with all attempts, the dead letters of a timer or up to 500 of a service."""
        body = sendable({"timer": timer, "id": id, "source": source, "service": service, "limit": limit, "by": by})
        return cast(t.Replayed, self.request("POST", "/v1/dead-letters/replay", body=body))

    def discard(self, sequence: int, *, by: Optional[str] = None) -> t.DeadLetter:
        """Discards a dead letter for good, and returns it."""
        return cast(t.DeadLetter, self.request("DELETE", f"/v1/dead-letters/{sequence}", query={"by": by}))

    def stream(
        self,
        service: str,
        *,
        last_event_id: Optional[str] = None,
        on_open: Optional[Callable[[str], None]] = None,
        idle_timeout: float = 45.0,
        stop: Optional[threading.Event] = None,
    ) -> Iterator[StreamItem]:
        """Follows the events of a service as they fire.

        It begins after last_event_id, without it with the events that fire from now on. It reconnects by itself, also if it gets no
        byte for idle_timeout seconds, and misses nothing that TIMERS_FIRED still has. on_open is called when the stream has begun, and
        again after each reconnection. The iteration ends when stop is set, at the next byte: the node sends a comment each 15 s.
        """
        last = last_event_id
        failures = 0
        stop = stop or threading.Event()
        while not stop.is_set():
            headers = {"Accept": "text/event-stream", **({} if last is None else {"Last-Event-ID": last})}
            failure: BelfryError = UnavailableError({"code": "unavailable", "detail": "the node has ended the stream"})
            try:
                with self._transport.open("GET", "/v1/stream", query={"service": service}, headers=headers, timeout=idle_timeout) as body:
                    opened = False
                    for message in messages(body):
                        if stop.is_set():
                            return
                        failures = 0
                        last = last if message.id is None else message.id
                        if not opened and last is not None:
                            opened = True
                            if on_open:
                                on_open(last)
                        if message.event == "fired" and last is not None:
                            yield StreamItem(last, json.loads(message.data))
            except (OSError, HTTPException) as error:
                failure = self._transport.lost(error)
            except BelfryError as error:
                failure = error
            wait = retry_delay(failure, failures)
            if wait is None:
                raise failure
            failures += 1
            stop.wait(spread(wait))

    def _pages(self, path: str, query: Mapping[str, Any], member: str, cursor: Optional[str]) -> Iterator[Any]:
        """Yields the items of all pages."""
        while True:
            page = self.request("GET", path, query={**query, "cursor": cursor})
            yield from page[member]
            cursor = page.get("cursor")
            if not cursor:
                return

    def _operate(
        self, timer: t.TimerRef, operation: str, if_match: Optional[int], body: Mapping[str, Any], headers: Optional[Mapping[str, str]] = None
    ) -> t.Timer:
        """Makes an operation whose path is below the path of the timer."""
        return cast(t.Timer, self._change("POST", f"{self._path(timer)}/{operation}", if_match, body=sendable(body), headers=headers))

    def _change(
        self,
        method: str,
        path: str,
        if_match: Optional[int],
        *,
        query: Optional[Mapping[str, Any]] = None,
        body: Any = None,
        headers: Optional[Mapping[str, str]] = None,
    ) -> Any:
        """A change of a timer, with If-Match.

        Such a change is not repeated after 503: if it has taken effect, the revision is another one, and the answer to the
        repetition would be precondition_failed.
        """
        if if_match is None:
            return self.request(method, path, query=query, body=body, headers=headers)
        return self.request(method, path, query=query, body=body, headers={**(headers or {}), "If-Match": f'"{if_match}"'}, retries=0)

    def _path(self, timer: t.TimerRef) -> str:
        """Returns the path of a timer. If only its source and id are known, it asks the node for the timer id."""
        return _place(timer if isinstance(timer, str) else self.get(timer)["timer"])[0]


def _place(timer: t.TimerRef) -> "tuple[str, Dict[str, Any]]":
    """Returns the path and the query that name a timer: by its timer id, or by source and id."""
    if not isinstance(timer, str):
        return "/v1/timers", {"source": timer["source"], "id": timer["id"]}
    if timer == "":
        raise ValueError("the timer id is empty")  # the path would be that of all timers
    return "/v1/timers/" + urllib.parse.quote(timer, safe=""), {}


def _header_text(text: str) -> str:
    """Encodes a text as UTF-8 for a header value, which http.client would otherwise encode in Latin-1."""
    return text.encode("utf-8").decode("latin-1")


def _batches(events: Sequence[str]) -> Iterator[List[str]]:
    """Yields the events in batches within the bounds of a request. The events are ASCII."""
    batch: List[str] = []
    size = 0
    for event in events:
        if len(batch) == _BATCH_EVENTS or (batch and size + len(event) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(event)
        size += len(event) + 1
    if batch:
        yield batch
