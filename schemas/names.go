package schemas

import (
	"strconv"
	"strings"
)

// Subjects of the public surface.
const (
	// SubjectAdd takes durable adds; stream StreamAdd captures it.
	SubjectAdd = "timers.add"
	// SubjectRejected receives adds that were refused, original bytes and
	// headers kept, with the reason in HeaderErrorCode and HeaderError.
	SubjectRejected = "timers.rejected"
	// SubjectFiredPrefix, followed by the service, is where due events go.
	SubjectFiredPrefix = "timers.fired."
	// SubjectRetryPrefix, followed by the service, is where retries go that
	// waited in the wheel. It belongs to functions alone.
	SubjectRetryPrefix = "timers.retry."
	// SubjectDeadPrefix, followed by the service, is where dead letters go.
	SubjectDeadPrefix = "timers.dead."
	// SubjectAPIPrefix, followed by the verb, is the request/reply API, served
	// as the NATS micro service APIService.
	SubjectAPIPrefix = "timers.api."
	// APIService is the name under which the API shows up in $SRV.INFO.
	APIService = "timers"
)

// Streams and buckets. A KV bucket b is the stream "KV_"+b.
const (
	StreamAdd   = "TIMERS_ADD"
	StreamFired = "TIMERS_FIRED"
	StreamRetry = "TIMERS_RETRY"
	StreamDead  = "TIMERS_DEAD"
	// StreamRejected keeps rejected adds. It is separate so that a flood of invalid adds
	// evicts no dead letter.
	StreamRejected = "TIMERS_REJECTED"
	// BucketClock holds clock.<shard>, node.<node> and meta.
	BucketClock = "clock"
	// BucketServices holds one key per service that has callbacks.
	BucketServices = "services"
	// BucketTimersPrefix, followed by the shard number, is a shard's bucket.
	BucketTimersPrefix = "timers_"
)

// Headers that Belfry sets beside CloudEvents' own.
const (
	// HeaderPrefix begins the names of all of them.
	HeaderPrefix = "Belfry-"
	// HeaderClaim rides on fired and retry messages and tells functions which
	// revision of which record it concludes; see Claim.
	HeaderClaim = "Belfry-Claim"
	// HeaderExtended, with the value 1, accompanies HeaderClaim if the record holds more
	// than the claim and the event. Functions then reads the record before it writes it.
	HeaderExtended = "Belfry-Extended"
	// HeaderCallback accompanies HeaderClaim, and is on dead letters. It holds the
	// callback, which the event does not have, encrypted so that only Belfry can read it.
	HeaderCallback = "Belfry-Callback"
	// HeaderErrorCode and HeaderError say why an add was rejected.
	HeaderErrorCode = "Belfry-Error-Code"
	HeaderError     = "Belfry-Error"
	// HeaderConsumer is the name of the consumer of timers.fired.<service> (the Go
	// client's Handle) that wrote the dead letter. Such a dead letter has no callback to
	// replay.
	HeaderConsumer = "Belfry-Consumer"
	// HeaderOriginalSequence is the sequence that a rejected add had in StreamAdd.
	HeaderOriginalSequence = "Belfry-Add-Sequence"
	// HeaderEnclosed is on a dead letter or a rejection that does not fit a message
	// unchanged. Its data is then the message in NATS's wire form: the header block, whose
	// length in bytes is the value of HeaderEnclosed, and then the data.
	HeaderEnclosed = "Belfry-Enclosed"
	// HeaderParts is on the first part of an enclosed letter that was split: the stream
	// sequences of the other parts, in order, separated by commas. Their data follow its
	// own. HeaderPart is on the other parts: 1, 2, …
	HeaderParts = "Belfry-Parts"
	HeaderPart  = "Belfry-Part"
)

// ReasonUndeliverable is timererrorcode, and HeaderErrorCode, of a dead letter whose
// event JetStream would never store where it belongs, because it is too large. No
// attempt was made.
const ReasonUndeliverable = "undeliverable"

// MaxServiceLength bounds a service name, in bytes.
const MaxServiceLength = 64

// DefaultService is the service of a timer that names none.
const DefaultService = "default"

// ValidService reports whether svc can be a service: one subject token of 1 to
// MaxServiceLength letters, digits, '-' or '_'. The alphabet is that of durable
// consumer names and KV keys, so a service can be both without escaping.
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

// SubjectFired is where due events of svc are published.
func SubjectFired(svc string) string { return SubjectFiredPrefix + svc }

// SubjectRetry is where retries of svc that waited in the wheel are published.
func SubjectRetry(svc string) string { return SubjectRetryPrefix + svc }

// SubjectDead is where dead letters of svc are published.
func SubjectDead(svc string) string { return SubjectDeadPrefix + svc }

// BucketTimers is the KV bucket of a shard.
func BucketTimers(shard int) string { return BucketTimersPrefix + strconv.Itoa(shard) }

// ServiceOfSubject returns the last token of a fired, retry or dead subject.
func ServiceOfSubject(subject string) string {
	return subject[strings.LastIndexByte(subject, '.')+1:]
}
