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
	after, limit, err := pageOf(q.Cursor, q.Limit, "dead.list")
	if err != nil {
		return DeadPage{}, err
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

// RejectedQuery says which refused adds to list. Cursor is empty for the first
// page.
type RejectedQuery struct {
	Cursor string
	Limit  int
}

// RejectedPage is one page of refused adds, oldest first; Cursor is empty at the
// end.
type RejectedPage struct {
	Adds   []*jetstream.RawStreamMsg
	Cursor string
}

// RejectedList pages through the refused adds that are still kept.
func (s *Store) RejectedList(ctx context.Context, q RejectedQuery) (RejectedPage, error) {
	after, limit, err := pageOf(q.Cursor, q.Limit, "rejected.list")
	if err != nil {
		return RejectedPage{}, err
	}
	var page RejectedPage
	for {
		msgs, more, err := s.next(ctx, schemas.StreamRejected, schemas.SubjectRejected, after, listBatch)
		if err != nil {
			return RejectedPage{}, err
		}
		for _, m := range msgs {
			if len(page.Adds) == limit {
				page.Cursor = strconv.FormatUint(after, 10)
				return page, nil
			}
			after = m.Sequence
			page.Adds = append(page.Adds, m)
		}
		if more == 0 || len(msgs) == 0 {
			return page, nil
		}
	}
}

// pageOf reads the cursor and the limit of a request for a page of a stream.
func pageOf(cursor string, limit int, verb string) (after uint64, rows int, err error) {
	if rows = limit; rows == 0 {
		rows = DefaultListLimit
	}
	if rows < 1 || rows > MaxListLimit {
		return 0, 0, schemas.Errorf(schemas.CodeBadRequest, "limit is %d; it must be 1 to %d", limit, MaxListLimit)
	}
	if cursor != "" {
		if after, err = strconv.ParseUint(cursor, 10, 64); err != nil {
			return 0, 0, schemas.Errorf(schemas.CodeBadRequest, "cursor %.40q is not one that %s gave", cursor, verb)
		}
	}
	return after, rows, nil
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

// DeadDelete removes a dead letter that was replayed, and counts it. A letter
// that is gone already is no error and is not counted.
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
		return nil
	}
	if err := s.countDeadDeleted(ctx); err != nil {
		// The letter is gone and its replay stands: only the count is one too high.
		s.log.Warn().Err(err).Uint64("sequence", seq).Msg("replayed dead letter counts as expired: its removal could not be counted")
	}
	return nil
}
