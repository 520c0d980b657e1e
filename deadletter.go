package belfry

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// deadLetter returns the dead letter of a message that Handle gives up: the event with
// timererrorcode and timererrordata, under a message id that is the same for each
// delivery. run is nil for a message that is not a fired event; the dead letter then has
// the message unchanged.
func deadLetter(run *Run, m jetstream.Msg, durable, code string, reason error) *nats.Msg {
	text := reason.Error()
	text = strings.ToValidUTF8(text[:min(len(text), schemas.MaxOutcomeError)], "")
	hdr, data := plainDeadLetter(m)
	if run != nil {
		if body, err := schemas.StripFired(m.Headers(), m.Data()); err == nil {
			claim := m.Headers().Get(schemas.HeaderClaim)
			hdr, data = body.DeadMessage(schemas.Fired{
				ScheduledMs: run.Scheduled.UnixMilli(), FiredMs: run.Fired.UnixMilli(), Run: run.Run, Attempt: run.Attempt,
			}, code, text)
			if c, err := schemas.ParseClaim(claim); err == nil {
				c.Attempt = run.Attempt
				hdr[schemas.HeaderClaim] = []string{c.String()}
			}
		}
	}
	hdr[schemas.HeaderErrorCode] = []string{code}
	hdr[schemas.HeaderError] = []string{oneLine(text)}
	hdr[schemas.HeaderConsumer] = []string{durable}
	hdr[nats.MsgIdHdr] = []string{deadMsgID(run, m, durable)}
	return &nats.Msg{Subject: schemas.SubjectDead(schemas.ServiceOfSubject(m.Subject())), Header: hdr, Data: data}
}

// plainDeadLetter returns the message without NATS's own headers.
func plainDeadLetter(m jetstream.Msg) (nats.Header, []byte) {
	hdr := nats.Header{}
	for name, values := range m.Headers() {
		if !strings.HasPrefix(strings.ToLower(name), "nats-") {
			hdr[name] = values
		}
	}
	return hdr, m.Data()
}

func deadMsgID(run *Run, m jetstream.Msg, durable string) string {
	what := ""
	switch meta, err := m.Metadata(); {
	case run != nil:
		what = run.Key()
	case err == nil:
		what = strconv.FormatUint(meta.Sequence.Stream, 10)
	}
	return fmt.Sprintf("%s.%s.dead", what, durable)
}

// oneLine makes a text fit for a header.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}
