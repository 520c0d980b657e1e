package fake

import (
	"context"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// SetMaxMessage changes the limit of a message's size, in bytes, as an operator does who
// lowers max_payload. Stored messages stay.
func (s *Server) SetMaxMessage(bytes int) { s.cfg.MaxMessage = bytes }

// refuses returns an error if a message is too large; see store.Permanent.
func (s *Server) refuses(headers, data int) error {
	switch {
	case headers > schemas.MaxHeaderBytes:
		return schemas.Errorf(schemas.CodeTooLarge, "%d bytes of headers; the limit is %d", headers, schemas.MaxHeaderBytes)
	case headers+data > s.cfg.MaxMessage:
		return schemas.Errorf(schemas.CodeTooLarge, "%d bytes; the limit is %d", headers+data, s.cfg.MaxMessage)
	}
	return nil
}

// refusesMsg returns an error if a message is too large. Its header Nats-Msg-Id counts, too.
func (s *Server) refusesMsg(m store.Msg) error {
	headers := schemas.HeaderBytes(m.Header)
	if m.MsgID != "" {
		headers = schemas.HeaderBytes(jet.Header{jet.HeaderMsgID: {m.MsgID}}) + max(headers, len("NATS/1.0\r\n\r\n")) - len("NATS/1.0\r\n\r\n")
	}
	return s.refuses(headers, len(m.Data))
}

// refusesRecord returns an error if a record is too large.
func (s *Server) refusesRecord(r *schemas.Record) error {
	if r.Body.Size()+schemas.PayloadReserve <= s.cfg.MaxMessage {
		return nil // small enough in any case: skip the encoding
	}
	return s.refuses(0, len(r.Append(nil)))
}

// MaxMessage returns the limit of a message's size, in bytes.
func (c *Client) MaxMessage() int { return c.s.cfg.MaxMessage }

// PublishLetter publishes a dead letter or a rejection in the first form that fits; see
// store.Store.
func (c *Client) PublishLetter(ctx context.Context, m store.Msg) (duplicate bool, err error) {
	return store.PublishLetter(ctx, c.Publish, c.MaxMessage(), m)
}

// open returns a letter as it was published, as store.OpenLetter does, or m if a part of it
// is missing.
func (s *stream) open(m *store.Letter) *store.Letter {
	opened, err := store.OpenLetter(m, func(seq uint64) (*store.Letter, error) {
		if part := s.bySeq(seq); part != nil {
			return raw(part), nil
		}
		return nil, schemas.ErrNotFound
	})
	if err != nil {
		return m
	}
	return opened
}
