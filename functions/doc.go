// Package functions makes the callbacks: it takes fired events from JetStream,
// invokes what timercallback names, and concludes the timer's record.
//
// # What it guarantees
//
//   - At least once. An event leaves its consumer only after the record says what
//     became of it (success, retrying, fail) or says that somebody else concluded
//     it. A process that dies at any point leaves the event to be redelivered
//     after AckWait.
//   - One idempotency key. Every attempt of a run carries <timer id>.<run>.
//   - An attempt that was concluded is never made again: attempts are counted on
//     the record by compare-and-set. An attempt that a crash or a shutdown cut
//     short was not concluded: it is made again and is not counted as a failure.
//   - A cancel of a retrying timer that was acknowledged is obeyed: the record is
//     read before every attempt but the first of a delivery.
//   - No service takes another's room. Each has its own pulls, sized to its own
//     free places, its own HTTP connections, and a guaranteed share of Total.
//   - A dead letter is acknowledged by JetStream before the record says fail.
//
// # The life of one delivery
//
//	fired or retry message
//	    │ no claim, no callback ──────────────────────────────▶ ack
//	    ▼
//	wait for a place of the service (kept alive by InProgress)
//	    │
//	    │ redelivered, or otherwise doubtful: read the record
//	    │     final, gone, another run, queued, superseded ───▶ ack
//	    │     next attempt not due yet ───────────────────────▶ nak until it is
//	    ▼
//	invoke (kept alive by InProgress, bounded by timertimeout)
//	    ├─ success ──────────────▶ record: success ───────────▶ ack
//	    ├─ retryable, delay ≤ ShortDelay
//	    │         ───────────────▶ record: retrying ──────────▶ nak with delay
//	    ├─ retryable, longer ────▶ record: retrying, queued ──▶ ack (confirmed);
//	    │                          the scheduler brings it back on timers.retry
//	    └─ permanent, exhausted ─▶ timers.dead.<svc> ─▶ record: fail ─▶ term
//
// # Delays and attempts
//
// The delay after failure n is first·2^(n-1), at most the cap of timerbackoff,
// and never less than a Retry-After of the callee (which is bounded by
// callback.MaxRetryAfter); up to a fifth more is added at random, so that timers
// that failed together do not come back together.
//
// "Not now" — 429 or 503 with Retry-After, or a NATS reply with Retry-After — is
// the callee's way to be called later, not a failure: the delay is what it
// asked for (at least the first backoff, without doubling), and the attempt is
// given back: MaxAttempt grows with it, at most Options.MaxNotNow times per run,
// after which such answers count like any other failure.
//
// # Workers
//
// A request to timers.work.<service>, the subject of the Go client's Work, may be
// answered by several replies: signs of life, then an outcome. While nobody takes the
// event (no worker, or all busy) no attempt is made and none counted: the pause
// doubles up to workerPauseMax, for maxWorkerWait after the timer was due.
//
// # How it fails
//
//   - The store does not answer: the write is repeated with growing pauses while
//     the message is kept alive and its place taken. Nothing is acknowledged
//     before. A write whose answer was lost is recognised by reading the record.
//   - Another writer came first (ErrRevision): the record is read and decides.
//   - The stream of dead letters is full: as for silence; nothing is discarded.
//   - The connection is lost: pulls are started anew as soon as it is back.
//   - The process stops: see Stop.
package functions
