package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Letters stores and lists dead letters (TIMERS_DEAD) and rejected adds (TIMERS_REJECTED).
// A letter is stored whatever its size, and listed as it was published; see letter.go for
// the forms in between. Letters leave the streams by age and size; LetterCounts counts
// them. Safe for concurrent use.
type Letters struct {
	jet    *jet.Client
	log    zerolog.Logger
	events *Events
	counts *LetterCounts
	// moved is Config.Moved.
	moved func(time.Time) time.Time
}

func newLetters(c *jet.Client, log zerolog.Logger, events *Events, counts *LetterCounts) *Letters {
	return &Letters{jet: c, log: log, events: events, counts: counts}
}

// DeadQuery selects dead letters. An empty field matches all.
type DeadQuery struct {
	Service string
	// Tenant is as in ListQuery.
	Tenant *string
	// TimerID is a timer, a schedule (all its runs), or the record of a run.
	TimerID schemas.TimerID
	// Run selects one run of TimerID; 0 for all.
	Run uint32
	// Sequence selects one letter by its sequence.
	Sequence uint64
	// ErrorCode selects the letters with this reason (schemas.HeaderErrorCode).
	ErrorCode string
	// Since and Until select the letters that were stored at or after, and before, these times; the zero
	// time selects all. With both, only the letters of this period are read.
	Since, Until time.Time
	// Cursor is DeadPage.Cursor of the previous page; empty for the first page.
	Cursor string
	// Limit bounds the letters of the page: 1 to MaxListLimit, or 0 for DefaultListLimit.
	Limit int
}

// Selects reports whether the query selects a dead letter, whatever its service.
func (q *DeadQuery) Selects(m *Letter) bool {
	if q.Tenant != nil && *q.Tenant != schemas.TenantOf(schemas.ServiceOfSubject(m.Subject)) {
		return false
	}
	if q.Sequence != 0 && q.Sequence != m.Sequence || q.ErrorCode != "" && q.ErrorCode != m.Get(schemas.HeaderErrorCode) ||
		m.Stored.Before(q.Since) || !q.Until.IsZero() && !m.Stored.Before(q.Until) {
		return false
	}
	if q.TimerID.IsZero() {
		return true
	}
	id := jet.MsgID(m.Header)
	if q.Run != 0 {
		return strings.HasPrefix(id, q.TimerID.MsgID(q.Run)+".")
	}
	// The message id of a schedule's run names the schedule, the claim the run's record.
	return strings.HasPrefix(id, q.TimerID.String()+".") || strings.HasPrefix(m.Get(schemas.HeaderClaim), q.TimerID.String()+" ")
}

// DeadPage is one page; Cursor is empty at the end.
type DeadPage struct {
	Letters []*Letter
	Cursor  string
}

// DeadList returns a page of dead letters, oldest first. The work of one call is bounded
// like List's, so a page may be empty and not the last. Errors: bad_request,
// schemas.ErrUnavailable.
func (l *Letters) DeadList(ctx context.Context, q DeadQuery) (DeadPage, error) {
	after, limit, err := pageOf(q.Cursor, q.Limit, "dead.list")
	if err != nil {
		return DeadPage{}, err
	}
	filter := schemas.SubjectDeadPrefix + "*"
	if q.Service != "" {
		if err := checkService(q.Service); err != nil {
			return DeadPage{}, err
		}
		filter = schemas.SubjectDead(q.Service)
	}
	if q.Sequence != 0 {
		one, err := l.dead(ctx, &q)
		return DeadPage{Letters: one}, err
	}
	if !q.Since.IsZero() && q.Cursor == "" && l.moved == nil { // a moved time is not one of the stream
		first, err := l.jet.Direct(ctx, schemas.StreamDead, jet.Get{NextFor: filter, StartTime: &q.Since, Batch: 1})
		if err != nil || len(first.Msgs) == 0 {
			return DeadPage{}, err
		}
		after = first.Msgs[0].Sequence - 1
	}
	letters, cursor, err := l.page(ctx, &pageQuery{stream: schemas.StreamDead, filter: filter, after: after, limit: limit, until: q.Until, want: q.Selects})
	return DeadPage{letters, cursor}, err
}

// dead reads the one letter that a query selects by its sequence, without the others.
func (l *Letters) dead(ctx context.Context, q *DeadQuery) ([]*Letter, error) {
	msg, err := l.jet.At(ctx, schemas.StreamDead, q.Sequence)
	if errors.Is(err, schemas.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m := l.letterOf(msg)
	if IsLetterPart(m) || !q.Selects(m) || q.Service != "" && q.Service != schemas.ServiceOfSubject(m.Subject) {
		return nil, nil
	}
	if m, err = l.open(ctx, schemas.StreamDead, m); err != nil {
		return nil, err
	}
	return []*Letter{m}, nil
}

// pageQuery selects a page of dead letters or rejected adds.
type pageQuery struct {
	stream, filter string
	after          uint64 // the page begins after this sequence
	limit          int
	// until ends the list at a letter that was stored more than untilSlack later; the zero time does not.
	until time.Time
	want  func(*Letter) bool
}

// untilSlack is how much earlier than the letter before it a letter may be stored by its time, because
// another server leads the stream.
const untilSlack = time.Minute

// page reads a page of dead letters or rejected adds. It returns the opened letters that q.want
// accepts, and the cursor of the next page.
func (l *Letters) page(ctx context.Context, q *pageQuery) (page []*Letter, cursor string, err error) {
	after := q.after
	for looked := 0; ; {
		msgs, more, err := l.jet.Next(ctx, q.stream, q.filter, after, listBatch)
		if err != nil {
			return nil, "", err
		}
		for _, m := range msgs {
			if len(page) == q.limit {
				return page, strconv.FormatUint(after, 10), nil
			}
			after = m.Sequence
			letter := l.letterOf(m)
			if !q.until.IsZero() && letter.Stored.After(q.until.Add(untilSlack)) {
				return page, "", nil
			}
			if IsLetterPart(letter) || !q.want(letter) {
				continue
			}
			if letter, err = l.open(ctx, q.stream, letter); err != nil {
				return nil, "", err
			}
			page = append(page, letter)
		}
		if looked += len(msgs); more == 0 || len(msgs) == 0 {
			return page, "", nil
		}
		if looked >= listScan {
			return page, strconv.FormatUint(after, 10), nil
		}
	}
}

// RejectedQuery selects rejected adds; see DeadQuery.
type RejectedQuery struct {
	// Tenant is as in ListQuery. An add of an account that was not configured belongs to none.
	Tenant *string
	Cursor string
	Limit  int
}

func (q *RejectedQuery) selects(m *Letter) bool {
	switch {
	case q.Tenant == nil:
		return true
	case *q.Tenant == "":
		return m.Get(schemas.HeaderTenant) == "" && m.Get(schemas.HeaderAccount) == ""
	}
	return m.Get(schemas.HeaderTenant) == *q.Tenant
}

// RejectedPage is one page; Cursor is empty at the end.
type RejectedPage struct {
	Adds   []*Letter
	Cursor string
}

// RejectedList returns a page of rejected adds, oldest first. Errors: bad_request,
// schemas.ErrUnavailable.
func (l *Letters) RejectedList(ctx context.Context, q RejectedQuery) (RejectedPage, error) {
	after, limit, err := pageOf(q.Cursor, q.Limit, "rejected.list")
	if err != nil {
		return RejectedPage{}, err
	}
	adds, cursor, err := l.page(ctx, &pageQuery{stream: schemas.StreamRejected, filter: schemas.SubjectRejected, after: after, limit: limit, want: q.selects})
	return RejectedPage{adds, cursor}, err
}

// pageOf decodes the cursor and the limit of a request for a page of a stream.
func pageOf(cursor string, limit int, verb string) (after uint64, rows int, err error) {
	if rows = limit; rows == 0 {
		rows = DefaultListLimit
	}
	if rows < 1 || rows > MaxListLimit {
		return 0, 0, schemas.Errorf(schemas.CodeBadRequest, "limit is %d; it must be 1 to %d", limit, MaxListLimit)
	}
	if cursor != "" {
		if after, err = strconv.ParseUint(cursor, 10, 64); err != nil {
			return 0, 0, schemas.Errorf(schemas.CodeBadRequest, "cursor %.40q was not returned by %s", cursor, verb)
		}
	}
	return after, rows, nil
}

// DeadDelete removes a dead letter that was replayed or discarded, with all its parts, and counts the
// messages. It returns nil, without counting, if the letter is gone. It removes the first
// part last, so that an interrupted call can be repeated. Errors: schemas.ErrUnavailable,
// schemas.CodeUnknownFormat.
func (l *Letters) DeadDelete(ctx context.Context, seq uint64) error {
	m, err := l.jet.At(ctx, schemas.StreamDead, seq)
	if errors.Is(err, schemas.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	parts, err := LetterParts(letterOf(m))
	if err != nil {
		return err
	}
	for _, part := range parts {
		if err := l.deadDelete(ctx, part); err != nil {
			return err
		}
	}
	return l.deadDelete(ctx, seq)
}

// deadDelete removes one message of TIMERS_DEAD and counts it.
func (l *Letters) deadDelete(ctx context.Context, seq uint64) error {
	err := l.jet.DeleteMsg(ctx, fmt.Sprintf("delete dead letter %d", seq), schemas.StreamDead, seq)
	if errors.Is(err, schemas.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := l.counts.countRemoved(ctx); err != nil {
		// The letter is removed; DeadExpired is one too high.
		l.log.Warn().Err(err).Uint64("sequence", seq).Msg("the removal of a dead letter that was replayed or discarded could not be counted; it counts as expired")
	}
	return nil
}
