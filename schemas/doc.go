// Package schemas is Belfry's contract: the words that every other package, and
// every user, shares. It imports none of the other packages and does no I/O.
//
// It holds
//   - the names: CloudEvents attributes (attributes.go), subjects, streams,
//     buckets and keys (names.go);
//   - the identity of a timer (id.go) and its place on the wheel (geometry.go);
//   - the life of a timer: states and the transitions between them (state.go);
//   - the record that JetStream keeps of a timer, byte for byte (record.go);
//   - CloudEvents on NATS, in: what a message holds (event.go, json.go, header.go),
//     whether it obeys the spec (conform.go), what it asks for (spec.go), what makes
//     it the same timer (hash.go); out (encode.go); and as sdk-go's type (sdk.go);
//   - the errors that callers tell apart, with stable codes (errors.go);
//   - JSON Schemas and an AsyncAPI document, embedded (jsonschema.go).
//
// # What it guarantees
//
// What is accepted is kept as it came: an event published in structured mode is
// stored and fired as the very bytes of its JSON document, with Belfry's
// attributes added before the closing brace; one published in binary mode is
// fired in binary mode with the same data bytes. Decoding never panics,
// whatever the bytes; everything refused is refused with an *Error whose Code is
// stable and whose text says what to change.
//
// # The life of a timer
//
//	            add
//	             │
//	             ▼        cancel
//	  ┌────── pending ───────────▶ cancelled
//	  │          │
//	  │ claim    │ pause (later)
//	  ▼          ▼
//	delivered  paused
//	  │   ▲
//	  │   └───────── claim ────────┐
//	  │                            │
//	  ├── callback failed ──▶ retrying ── cancel ──▶ cancelled
//	  │                            │
//	  ├── 2xx, or no callback ─────┼──▶ success
//	  └── permanent, or exhausted ─┴──▶ fail ── replay ──▶ retrying
//
// A record in success, fail or cancelled is final: it has lost its event, it
// carries a TTL, and until it expires it is what makes a repeated add a
// duplicate rather than a second timer.
package schemas
