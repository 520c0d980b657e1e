package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// DeadQuery says which dead letters to list. An empty field matches all.
type DeadQuery struct {
	Service string
	TimerID schemas.TimerID
	Cursor  string
	Limit   int
}

// Letter is a dead letter or a rejected add as it is stored.
type Letter = jet.Msg

// DeadPage is one page; Cursor is empty at the end.
type DeadPage struct {
	Letters []*Letter
	Cursor  string
}

// DeadList pages through dead letters in the order in which they died, each as
// it was before it was enclosed or cut; see OpenLetter. The work
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
	letters, cursor, err := s.letters(ctx, schemas.StreamDead, filter, after, limit, func(m *jet.Msg) bool {
		return q.TimerID.IsZero() || strings.HasPrefix(jet.MsgID(m.Header), q.TimerID.String()+".")
	})
	return DeadPage{letters, cursor}, err
}

// letters reads a page of dead letters or rejections after a sequence. It returns the
// opened letters that want accepts, and the cursor of the next page.
func (s *Store) letters(ctx context.Context, stream, filter string, after uint64, limit int, want func(*jet.Msg) bool) (page []*jet.Msg, cursor string, err error) {
	for looked := 0; ; {
		msgs, more, err := s.jet.Next(ctx, stream, filter, after, listBatch)
		if err != nil {
			return nil, "", err
		}
		for _, m := range msgs {
			if len(page) == limit {
				return page, strconv.FormatUint(after, 10), nil
			}
			after = m.Sequence
			if IsLetterPart(m) || !want(m) {
				continue
			}
			if m, err = s.open(ctx, stream, m); err != nil {
				return nil, "", err
			}
			page = append(page, m)
		}
		if looked += len(msgs); more == 0 || len(msgs) == 0 {
			return page, "", nil
		}
		if looked >= listScan {
			return page, strconv.FormatUint(after, 10), nil
		}
	}
}

// RejectedQuery selects rejected adds. Cursor is empty for the first
// page.
type RejectedQuery struct {
	Cursor string
	Limit  int
}

// RejectedPage is one page of rejected adds, oldest first; Cursor is empty at the
// end.
type RejectedPage struct {
	Adds   []*Letter
	Cursor string
}

// RejectedList pages through the rejected adds in TIMERS_REJECTED, each as it was
// before it was enclosed or cut; see OpenLetter.
func (s *Store) RejectedList(ctx context.Context, q RejectedQuery) (RejectedPage, error) {
	after, limit, err := pageOf(q.Cursor, q.Limit, "rejected.list")
	if err != nil {
		return RejectedPage{}, err
	}
	adds, cursor, err := s.letters(ctx, schemas.StreamRejected, schemas.SubjectRejected, after, limit, func(*jet.Msg) bool { return true })
	return RejectedPage{adds, cursor}, err
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

// DeadGet reads one dead letter from the stream's leader by its sequence, as it was
// before it was enclosed or cut.
func (s *Store) DeadGet(ctx context.Context, seq uint64) (*jet.Msg, error) {
	m, err := s.jet.At(ctx, schemas.StreamDead, seq)
	if err != nil {
		return nil, err
	}
	return s.open(ctx, schemas.StreamDead, m)
}

// DeadDelete removes a dead letter that was replayed, with all its parts, and counts
// the messages. A letter that is gone already is no error and is not counted. The
// first part goes last: a delete that is cut off can be repeated.
func (s *Store) DeadDelete(ctx context.Context, seq uint64) error {
	m, err := s.jet.At(ctx, schemas.StreamDead, seq)
	if errors.Is(err, schemas.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	parts, err := LetterParts(m)
	if err != nil {
		return err
	}
	for _, part := range parts {
		if err := s.deadDelete(ctx, part); err != nil {
			return err
		}
	}
	return s.deadDelete(ctx, seq)
}

func (s *Store) deadDelete(ctx context.Context, seq uint64) error {
	err := s.jet.DeleteMsg(ctx, fmt.Sprintf("delete dead letter %d", seq), schemas.StreamDead, seq)
	if errors.Is(err, schemas.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := s.countDeadDeleted(ctx); err != nil {
		// The letter is gone and its replay stands: only the count is one too high.
		s.log.Warn().Err(err).Uint64("sequence", seq).Msg("replayed dead letter counts as expired: its removal could not be counted")
	}
	return nil
}
