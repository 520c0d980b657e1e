// Package natsapi serves a router over NATS, by two adapters:
//
//	stream TIMERS_ADD ─▶ intake ─▶ Service.AddAll ─▶ done, or delivered again
//	timers.api.<verb> ─▶ api ────▶ Service.<Operation> ─▶ answer
//
// The intake reads timers.add in groups, 2 ms apart or less where many adds wait: their
// publishers have the acknowledgement of the stream already. The API is the NATS micro
// service "timers". It answers errors in micro's headers, with schemas.Code as the error
// code, and only to inboxes (see package endpoint).
//
// If the connection breaks, the intake reads again when it is back, and adds that are not
// acknowledged are delivered again, to any router.
package natsapi
