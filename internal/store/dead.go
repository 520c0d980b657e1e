package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// DeadQuery says which dead letters to list. An empty field matches all.
type DeadQuery struct {
	Service string
	TimerID schemas.TimerID
	Cursor  string
	Limit   int
}

// DeadPage is one page; Cursor is empty at the end.
type DeadPage struct {
	Letters []*jetstream.RawStreamMsg
	Cursor  string
}

// DeadList pages through dead letters in the order in which they died. The work
// of one call is bounded like List's.
func (s *Store) DeadList(ctx context.Context, q DeadQuery) (DeadPage, error) {
	limit := q.Limit
	if limit == 0 {
		limit = DefaultListLimit
	}
	if limit < 1 || limit > MaxListLimit {
		return DeadPage{}, schemas.Errorf(schemas.CodeBadRequest, "limit is %d; it must be 1 to %d", q.Limit, MaxListLimit)
	}
	var after uint64
	if q.Cursor != "" {
		var err error
		if after, err = strconv.ParseUint(q.Cursor, 10, 64); err != nil {
			return DeadPage{}, schemas.Errorf(schemas.CodeBadRequest, "cursor %.40q is not one that dead.list gave", q.Cursor)
		}
	}
	filter := schemas.SubjectDeadPrefix + "*"
	if q.Service != "" {
		if !schemas.ValidService(q.Service) {
			return DeadPage{}, schemas.Errorf(schemas.CodeBadRequest, "service %.80q must be 1 to %d letters, digits, '-' or '_'", q.Service, schemas.MaxServiceLength)
		}
		filter = schemas.SubjectDead(q.Service)
	}
	var page DeadPage
	for looked := 0; ; {
		msgs, more, err := s.next(ctx, schemas.StreamDead, filter, after, listBatch)
		if err != nil {
			return DeadPage{}, err
		}
		for _, m := range msgs {
			if len(page.Letters) == limit {
				page.Cursor = strconv.FormatUint(after, 10)
				return page, nil
			}
			after = m.Sequence
			if q.TimerID.IsZero() || strings.HasPrefix(m.Header.Get(jetstream.MsgIDHeader), q.TimerID.String()+".") {
				page.Letters = append(page.Letters, m)
			}
		}
		if looked += len(msgs); more == 0 || len(msgs) == 0 {
			return page, nil
		}
		if looked >= listScan {
			page.Cursor = strconv.FormatUint(after, 10)
			return page, nil
		}
	}
}

// DeadGet reads one dead letter from the stream's leader by its sequence.
func (s *Store) DeadGet(ctx context.Context, seq uint64) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	st, err := s.findStream(ctx, schemas.StreamDead)
	if err != nil {
		return nil, mapError("look up "+schemas.StreamDead, err)
	}
	m, err := st.GetMsg(ctx, seq)
	if err != nil {
		return nil, mapError(fmt.Sprintf("read dead letter %d", seq), err)
	}
	return m, nil
}

// DeadDelete removes a dead letter that was replayed. One that is gone already
// is no error.
func (s *Store) DeadDelete(ctx context.Context, seq uint64) error {
	var r struct {
		Error *jetstream.APIError `json:"error"`
	}
	op := fmt.Sprintf("delete dead letter %d", seq)
	if err := s.change(ctx, op, deleteSubject(schemas.StreamDead), deleteRequest(seq), &r); err != nil {
		return err
	}
	if r.Error != nil {
		if err := apiError(op, r.Error); !errors.Is(err, schemas.ErrNotFound) {
			return err
		}
	}
	return nil
}
