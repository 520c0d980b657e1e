package worker

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// deadLetter returns the dead letter of a message that Consume gives up: the event with
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
			fired := run.Fired
			fired.NoCallback = false
			hdr, data = body.DeadMessage(fired, code, text)
			if c, err := schemas.ParseClaim(claim); err == nil {
				c.Attempt = run.Fired.Attempt
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

// deadMsgID returns the message id of a dead letter, by which JetStream drops repeated ones.
func deadMsgID(run *Run, m jetstream.Msg, durable string) string {
	id := ""
	switch meta, err := m.Metadata(); {
	case run != nil:
		id = run.key()
	case err == nil:
		id = strconv.FormatUint(meta.Sequence.Stream, 10)
	}
	return fmt.Sprintf("%s.%s.dead", id, durable)
}

// oneLine replaces the control characters of a text, which a header must not have.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}
