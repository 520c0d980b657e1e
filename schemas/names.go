package schemas

import (
	"strconv"
	"strings"
)

// Subjects of the public surface.
const (
	// SubjectAdd is the subject of adds; stream StreamAdd stores them.
	SubjectAdd = "timers.add"
	// SubjectRejected is the subject of rejected adds. A rejected add keeps its data and
	// headers, and has the reason in HeaderErrorCode and HeaderError.
	SubjectRejected = "timers.rejected"
	// SubjectFiredPrefix and a service make the subject of that service's due events.
	SubjectFiredPrefix = "timers.fired."
	// SubjectRetryPrefix and a service make the subject of retries that waited in the
	// wheel. Only functions subscribes to it.
	SubjectRetryPrefix = "timers.retry."
	// SubjectDeadPrefix and a service make the subject of that service's dead letters.
	SubjectDeadPrefix = "timers.dead."
	// SubjectOverduePrefix and a service make the subject of the overdue events of that
	// service's schedules.
	SubjectOverduePrefix = "timers.overdue."
	// SubjectAPIPrefix and a verb make a subject of the request/reply API, which is the
	// NATS micro service APIService.
	SubjectAPIPrefix = "timers.api."
	// APIService is the name of the API in the answers to $SRV.INFO.
	APIService = "timers"
)

// Streams and buckets. A KV bucket b is the stream "KV_"+b.
const (
	StreamAdd   = "TIMERS_ADD"
	StreamFired = "TIMERS_FIRED"
	StreamRetry = "TIMERS_RETRY"
	StreamDead  = "TIMERS_DEAD"
	// StreamOverdue stores overdue events: nominal times of schedules without a success in time.
	StreamOverdue = "TIMERS_OVERDUE"
	// StreamTenantFired stores the fired events of tenants that export them a second time, under
	// subjects that the tenants can import; see SubjectTenantFired.
	StreamTenantFired = "TIMERS_TENANT_FIRED"
	// StreamRejected stores rejected adds. It is a separate stream, so that a flood of
	// invalid adds does not evict dead letters.
	StreamRejected = "TIMERS_REJECTED"
	// BucketClock holds the keys clock.<shard> (a shard's clock), node.<node> (a node's
	// heartbeat) and meta (the geometry).
	BucketClock = "clock"
	// BucketServices holds one key per service that has callbacks.
	BucketServices = "services"
	// BucketCalendars holds one key per calendar of excluded dates.
	BucketCalendars = "calendars"
	// BucketFlows holds the limits of flow keys and the states of these keys.
	BucketFlows = "flows"
	// BucketTimersPrefix and a shard number make the name of that shard's bucket.
	BucketTimersPrefix = "timers_"
)

// Headers that Belfry sets in addition to the CloudEvents headers.
const (
	// HeaderPrefix is the prefix of the names of all these headers.
	HeaderPrefix = "Belfry-"
	// HeaderClaim is on fired and retry messages. It names the record and the revision at
	// which functions writes the result of the run; see Claim.
	HeaderClaim = "Belfry-Claim"
	// HeaderExtended, with the value 1, accompanies HeaderClaim if the record holds more
	// than the claim and the event. Functions then reads the record before it writes it.
	HeaderExtended = "Belfry-Extended"
	// HeaderCallback accompanies HeaderClaim, and is also on dead letters. It holds the
	// callback, which Belfry removes from the event, encrypted so that only Belfry can
	// read it.
	HeaderCallback = "Belfry-Callback"
	// HeaderRetry accompanies HeaderClaim, and is also on dead letters. It is the retry
	// policy of the timer; see RetryPolicy.RetryHeader. It is absent for the default policy.
	HeaderRetry = "Belfry-Retry"
	// HeaderErrorCode and HeaderError hold the reason of a rejection: a Code and a text.
	HeaderErrorCode = "Belfry-Error-Code"
	HeaderError     = "Belfry-Error"
	// HeaderConsumer is the name of the consumer of timers.fired.<service> (the Go
	// client's Handle) that wrote the dead letter. Such a dead letter has no callback to
	// replay.
	HeaderConsumer = "Belfry-Consumer"
	// HeaderOriginalSequence is the stream sequence that a rejected add had in StreamAdd.
	HeaderOriginalSequence = "Belfry-Add-Sequence"
	// HeaderEnclosed is on a dead letter or rejection that is too large for one message with
	// Belfry's headers added. Its data is the original message in NATS's wire format: the
	// header block, whose length in bytes is the value of HeaderEnclosed, and the data.
	HeaderEnclosed = "Belfry-Enclosed"
	// HeaderParts is on the first part of an enclosed message that is split into several.
	// It lists the stream sequences of the other parts, in order, separated by commas. The
	// data of the parts in that order is the enclosed message. HeaderPart numbers the
	// other parts: 1, 2, …
	HeaderParts = "Belfry-Parts"
	HeaderPart  = "Belfry-Part"
)

// ReasonUndeliverable is the timererrorcode, and the HeaderErrorCode, of a dead letter
// without any attempt: its event is too large for the stream of fired events or retries.
const ReasonUndeliverable = "undeliverable"

// MaxServiceLength bounds a service name, in bytes.
const MaxServiceLength = 64

// DefaultService is the service of a timer without timersvc.
const DefaultService = "default"

// ValidService reports whether svc is a valid service name: 1 to MaxServiceLength letters,
// digits, '-' or '_'. Such a name is also a valid subject token, consumer name and KV key.
func ValidService(svc string) bool {
	if svc == "" || len(svc) > MaxServiceLength {
		return false
	}
	for i := 0; i < len(svc); i++ {
		c := svc[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}

// SubjectFired returns the subject of the due events of svc.
func SubjectFired(svc string) string { return SubjectFiredPrefix + svc }

// SubjectRetry returns the subject of the retries of svc that waited in the wheel.
func SubjectRetry(svc string) string { return SubjectRetryPrefix + svc }

// SubjectDead returns the subject of the dead letters of svc.
func SubjectDead(svc string) string { return SubjectDeadPrefix + svc }

// SubjectOverdue returns the subject of the overdue events of svc.
func SubjectOverdue(svc string) string { return SubjectOverduePrefix + svc }

// BucketTimers returns the name of a shard's KV bucket.
func BucketTimers(shard int) string { return BucketTimersPrefix + strconv.Itoa(shard) }

// ServiceOfSubject returns the last token of a fired, retry or dead subject.
func ServiceOfSubject(subject string) string {
	return subject[strings.LastIndexByte(subject, '.')+1:]
}
