"""The types of requests and answers. Times in answers are RFC 3339 in UTC with milliseconds."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Dict, List, Literal, Mapping, TypedDict, Union

State = Literal["pending", "delivered", "retrying", "success", "fail", "cancelled", "paused", "completed"]
"""The state of a timer or schedule."""

Trigger = Literal["manual", "backfill"]
"""Why a run fired, if somebody asked for it."""

Instant = Union[datetime, str]
"""A time: a datetime with a time zone, or a text in RFC 3339."""

Duration = Union[timedelta, str]
"""A duration: a timedelta, or a text such as 15m, PT10S or P1D."""


class _NamedRef(TypedDict):
    source: str
    id: str


TimerRef = Union[str, _NamedRef]
"""A timer: its timer id, or the source and id of its event."""

_In = TypedDict("_In", {"in": Duration}, total=False)  # "in" and "from" are keywords
_FromHistory = TypedDict("_FromHistory", {"from": Literal["history"]}, total=False)
_FromRecords = TypedDict("_FromRecords", {"from": Literal["record"]})
_OfHistory = TypedDict("_OfHistory", {"from": Literal["history"]})
_Period = TypedDict("_Period", {"from": str})


class NewTimer(_In, total=False):
    """A timer or schedule to add. One of in, at, cron and every is required."""

    at: Instant
    cron: str
    every: Duration
    tz: str
    svc: str
    callback: str
    group: str
    flow: str
    key: str
    maxattempts: Union[int, str]
    backoff: str
    timeout: Duration
    start: Instant
    end: Instant
    limit: Union[int, str]
    jitter: Duration
    dst: str
    days: Literal["and", "or"]
    misfire: Literal["one", "all", "skip"]
    grace: Duration
    overlap: Literal["skip", "queue", "allow", "replace"]
    expect: Duration
    exclude: str
    excludeshift: Literal["skip", "next", "previous"]
    id: str
    source: str
    type: str
    subject: str
    time: Instant
    dataschema: str
    datacontenttype: str
    data: Any
    data_base64: str
    attributes: Mapping[str, Union[str, int, bool]]


class _AddedRequired(TypedDict):
    timer: str
    due: str
    state: State
    duplicate: bool


class Added(_AddedRequired, total=False):
    """The answer to an add. duplicate: the timer existed already; due and state are its."""

    status: Literal[200, 201]
    id: str
    source: str
    remark: str


class _AttemptRequired(TypedDict):
    attempt: int
    at: str
    took_ms: int


class Attempt(_AttemptRequired, total=False):
    """One call of a callback."""

    status: int
    error: str
    response: str


class Outcome(TypedDict, total=False):
    """The result of the last attempt."""

    code: int
    error: str
    response: str


class _OperationRequired(TypedDict):
    op: str
    at: str


class Operation(_OperationRequired, total=False):
    """An operation in the history of a timer. by is who the caller claims to be."""

    by: str
    account: str
    user: str


class _FlowWaitRequired(TypedDict):
    key: str
    slot: str


class FlowWait(_FlowWaitRequired, total=False):
    """What a timer waits for that has reached the limit of its flow key."""

    deferrals: int


class _OrderWaitRequired(TypedDict):
    key: str


class OrderWait(_OrderWaitRequired, total=False):
    """The place of a timer with an ordering key."""

    waits: bool
    head: str
    deferrals: int


class _OverdueRequired(_Period):
    to: str
    count: int
    deadline: str
    at: str


class Overdue(_OverdueRequired, total=False):
    """Nominal times without a success by their deadline."""

    run: int


class _LastRunRequired(TypedDict):
    run: int
    scheduled: str
    fired: str


class LastRun(_LastRunRequired, total=False):
    """The last run of a schedule."""

    missed: int
    trigger: Trigger


class Backfill(TypedDict):
    """A backfill under way."""

    next: str
    to: str
    fired: int


class _ScheduleRequired(TypedDict):
    tz: str
    misfire: Literal["one", "all", "skip"]
    overlap: Literal["skip", "queue", "allow", "replace"]
    fired: int


class Schedule(_ScheduleRequired, total=False):
    """The part of a Timer that only schedules have."""

    cron: str
    every: str
    start: str
    end: str
    limit: int
    jitter_ms: int
    dst: str
    days: Literal["and", "or"]
    exclude: List[str]
    excludeshift: str
    grace_ms: int
    expect_ms: int
    deadline: str
    problem: str
    overdue: List[Overdue]
    next: str
    last: LastRun
    waiting: str
    triggered: int
    backfill: Backfill


class _OriginRequired(TypedDict):
    schedule: str


class Origin(_OriginRequired, total=False):
    """Where a run of a schedule comes from."""

    missed: int
    trigger: Trigger


class _TimerRequired(TypedDict):
    timer: str
    id: str
    source: str
    type: str
    service: str
    state: State
    scheduled: str
    due: str
    run: int
    attempts: int
    maxattempts: int
    revision: int


class _ClaimRequired(TypedDict):
    epoch: int
    message: str


class Claim(_ClaimRequired, total=False):
    """Who claimed a timer, and where its event is; only get with claim asks for it.

    node is the owner of the shard while its term lasts. sequence is that of the event in TIMERS_FIRED while the stream has it.
    """

    node: str
    sequence: int


class Timer(_TimerRequired, _FromHistory, total=False):
    """A timer or schedule. With "from" the record has expired, and the answer is of the search index."""

    tenant: str
    group: str
    callback: str
    added: str
    fired: str
    done: str
    until: str
    next: str
    as_of: str
    claim: Claim
    last_attempts: List[Attempt]
    outcome: Outcome
    history: List[Operation]
    flow: FlowWait
    order: OrderWait
    pause_note: str
    schedule: Schedule
    origin: Origin


class _TimerPageRequired(_FromRecords):
    timers: List[Timer]


class TimerPage(_TimerPageRequired, total=False):
    """A page of a list. cursor is absent on the last page."""

    cursor: str


class _SearchPageRequired(_OfHistory):
    behind: int
    counts_only: bool
    timers: List[Timer]


class SearchPage(_SearchPageRequired, total=False):
    """A page of a search. Each timer that has not changed since as_of is in it in its current state."""

    as_of: str
    cursor: str


class _ScheduleRunRequired(TypedDict):
    run: int
    id: str


class ScheduleRun(_ScheduleRunRequired, total=False):
    """One run of a schedule. id is <timer id>.<run>, its idempotency key; timer is the id of its record."""

    timer: str
    scheduled: str
    missed: int
    trigger: Trigger
    state: State
    fired: str
    done: str
    attempts: int
    outcome: Outcome
    overdue: bool


class _WhyAnswerRequired(TypedDict):
    at: str
    local: str
    fate: Literal["fired", "skipped", "waiting", "planned", "none", "unknown"]
    text: str


class WhyAnswer(_WhyAnswerRequired, total=False):
    """What became, or will become, of a timer or of a time of a schedule."""

    reason: str
    run: int
    due: str
    decided: str
    overdue: str
    before: str
    after: str
    notes: List[str]


class _WhyRequired(TypedDict):
    answers: List[WhyAnswer]


class Why(_WhyRequired, total=False):
    """The answers to a question, by time. more: there are others."""

    more: bool


class _DeadLetterRequired(TypedDict):
    sequence: int
    timer: str
    id: str
    source: str
    type: str
    service: str
    died: str
    attempts: int
    error_code: str


class DeadLetter(_DeadLetterRequired, total=False):
    """An event whose callback has failed for good."""

    schedule: str
    run: int
    tenant: str
    scheduled: str
    error_data: str
    host: str
    consumer: str


class Replayed(TypedDict):
    """The answer to a replay. more: there are others; repeat the request."""

    replayed: int
    timers: List[str]
    more: bool


class _UpdatedRequired(TypedDict):
    timer: Timer


class Updated(_UpdatedRequired, total=False):
    """The answer to an update: the schedule, and its next nominal times before and after."""

    before: List[str]
    after: List[str]


class _FiredEventRequired(TypedDict):
    timer: str
    run: int
    id: str
    source: str
    type: str
    service: str
    scheduled: str
    fired: str
    stored: str
    lateness_ms: int


class FiredEvent(_FiredEventRequired, total=False):
    """A fired event of Client.stream. event is the CloudEvent, only with a token that has scope payload."""

    tenant: str
    missed: int
    trigger: Trigger
    event: Dict[str, Any]
