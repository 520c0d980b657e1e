package fake

import (
	"context"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// SetMaxMessage changes the size of the largest message that is stored, as an
// operator does who lowers max_payload. What is stored stays.
func (s *Server) SetMaxMessage(bytes int) { s.cfg.MaxMessage = bytes }

// refuses returns the error of a message that is too large; see store.Permanent.
func (s *Server) refuses(headers, data int) error {
	switch {
	case headers > schemas.MaxHeaderBytes:
		return schemas.Errorf(schemas.CodeTooLarge, "%d bytes of headers; the limit is %d", headers, schemas.MaxHeaderBytes)
	case headers+data > s.cfg.MaxMessage:
		return schemas.Errorf(schemas.CodeTooLarge, "%d bytes; the limit is %d", headers+data, s.cfg.MaxMessage)
	}
	return nil
}

func (s *Server) refusesMsg(m store.Msg) error {
	headers := schemas.HeaderBytes(m.Header)
	if m.MsgID != "" {
		headers = schemas.HeaderBytes(jet.Header{jet.HeaderMsgID: {m.MsgID}}) + max(headers, len("NATS/1.0\r\n\r\n")) - len("NATS/1.0\r\n\r\n")
	}
	return s.refuses(headers, len(m.Data))
}

// recordSpare is more than the size of a record without its event, in bytes.
const recordSpare = 12 << 10

func (s *Server) refusesRecord(r *schemas.Record) error {
	if r.Body.Size()+recordSpare <= s.cfg.MaxMessage {
		return nil // without encoding it
	}
	return s.refuses(0, len(r.Append(nil)))
}

// MaxMessage is the size of the largest message that is stored now.
func (c *Client) MaxMessage() int { return c.s.cfg.MaxMessage }

// PublishLetter publishes a letter in the first form that fits; see store.Store.
func (c *Client) PublishLetter(ctx context.Context, m store.Msg) (duplicate bool, err error) {
	return store.PublishLetter(ctx, c.Publish, c.MaxMessage(), m)
}

// open is store.OpenLetter at one moment of the stream.
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
