// Package schemas is Belfry's contract: the names, formats and rules that users and all
// other packages share. It imports none of the other packages and does no I/O.
//
// It holds
//   - the names: CloudEvents attributes (attributes.go), subjects, streams,
//     buckets and keys (names.go);
//   - the identity of a timer (id.go) and its place on the wheel (geometry.go);
//   - the states of a timer, the transitions between them (state.go) and the changes that
//     a caller can request (transition.go);
//   - the binary format of a timer's record in JetStream (record.go) and of its history of
//     control operations (history.go);
//   - CloudEvents on NATS: parsing a message (event.go, json.go, header.go), checking it
//     against the CloudEvents spec (conform.go), reading its timer attributes (spec.go),
//     hashing it to detect conflicting adds (hash.go), encoding it (encode.go), and
//     converting it to and from sdk-go's Event (sdk.go);
//   - flow keys, and the deferral of a callback whose key is at its limit (flow.go);
//   - the rules for callbacks (callback.go) and reply subjects (inbox.go);
//   - the requests and answers of the API (info.go, flowapi.go and others) and the protocol of workers (work.go);
//   - errors with stable codes (errors.go);
//   - JSON Schemas and an AsyncAPI document, embedded (jsonschema.go).
//
// # Guarantees
//
// Belfry keeps events unchanged. It stores an event in structured mode as the bytes of
// its JSON document, and fires the same bytes with Belfry's attributes added before the
// closing brace. It fires an event in binary mode in binary mode, with the same data
// bytes. Decoding never panics. An invalid input is rejected with an *Error: its Code is
// stable, and its text tells the user how to correct the input.
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
// A record in success, fail or cancelled is final. It no longer holds the event, and it
// has a TTL. Until it expires, a repeated add is a duplicate; afterwards the same add
// creates a second timer.
package schemas
