// Package functions makes the callbacks: it reads fired events, invokes the callee that
// timercallback names, and writes the result to the timer's record.
//
// # Guarantees
//
//   - At least once. An event is acknowledged only after its record has the result
//     (success, retrying, fail), or shows that another process has recorded one. If a
//     process dies, the event is redelivered after AckWait.
//   - One idempotency key. Every attempt of a run carries <timer id>.<run>.
//   - An attempt whose result is recorded is never repeated: attempts are counted on the
//     record by compare-and-set. An attempt that a crash or a shutdown interrupts has no
//     result: it is repeated and not counted.
//   - After the cancel of a retrying timer was confirmed, no attempt starts: the record is
//     read before every attempt except the first one. A process that is paused before a call may
//     still make it when it continues.
//   - No service takes the capacity of another. Each service has its own pulls, never for
//     more events than it has free permits, its own HTTP connections, and a guaranteed
//     share of the permits (semaphore.go).
//   - A dead letter is acknowledged by the store before the record says fail.
//
// # The life of one delivery
//
//	event of TIMERS_FIRED or TIMERS_RETRY (puller.go)
//	    │ no claim, no callback ──────────────────────────────▶ term, ack
//	    ▼
//	wait for a permit of the service (kept alive by InProgress)
//	    │
//	    │ the claim may be outdated (MustRead): read the record
//	    │     final, gone, another run, queued, claimed again ▶ ack
//	    │     next attempt not due yet ───────────────────────▶ nak until it is
//	    ▼
//	invoke (kept alive by InProgress, bounded by timertimeout)
//	    ├─ success ──────────────▶ record: success ───────────▶ ack
//	    ├─ retryable, delay ≤ ShortDelay
//	    │         ───────────────▶ record: retrying ──────────▶ nak with delay
//	    ├─ retryable, longer ────▶ record: retrying, queued ──▶ ack (confirmed);
//	    │                          the scheduler publishes it again, on timers.retry
//	    └─ permanent, exhausted ─▶ timers.dead.<svc> ─▶ record: fail ─▶ term
//
// # Delays and attempts
//
// The delay after failure n is first·2^(n-1), at most the cap of timerbackoff, and never
// less than a Retry-After of the callee (which callback.MaxRetryAfter bounds). Up to a fifth
// is added at random, so that timers that failed together are not retried together.
//
// "Not now" — 429 or 503 with Retry-After, or a NATS reply with Retry-After — is a request
// of the callee to be called later, not a failure. The delay is the requested delay (at
// least the first backoff, not doubled), and the attempt does not count: MaxAttempt grows by
// one, at most Options.MaxNotNow times per run, and as often after a replay; requests that no worker took are not among
// them. After that such answers count like any other failure. Such an answer also holds the other events of the flow key until then: see
// flowholds.go.
//
// # Workers
//
// A request to timers.work.<service>, the subject of the Go client's Work, may get several
// replies: progress, then an outcome. While no worker takes the event (none is connected, or
// all are busy) no attempt is counted: the pause doubles up to maxWorkerPause, until
// maxWorkerWait after the timer was due.
//
// # Failures
//
//   - The store does not answer: the write is repeated with growing pauses while the event
//     is kept alive. Nothing is acknowledged before. A write whose answer was lost is
//     recognised by reading the record.
//   - Another writer came first (store.ErrRevision): ResolveConflict decides by the record.
//   - The stream of dead letters is full: the publish is repeated; nothing is discarded.
//   - The connection breaks: pullers read again as soon as it is back.
//   - The process stops: see Functions.Stop.
package functions
