package router

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// refusalLogEvery is the minimum time between two log lines about refusals of one kind.
const refusalLogEvery = 10 * time.Second

// refusalLog throttles log lines about refusals without an answer: adds to timers.add, and
// requests whose reply subject is not an inbox. It writes one line per refusalLogEvery,
// with the number of other refusals.
type refusalLog struct {
	mu     sync.Mutex
	last   time.Time
	silent int // refused since the last line
}

// note counts a refusal, and reports whether to log now and how many others
// were refused since the last line.
func (l *refusalLog) note(now time.Time) (others int, log bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.last.IsZero() && now.Sub(l.last) < refusalLogEvery {
		l.silent++
		return 0, false
	}
	others, l.silent, l.last = l.silent, 0, now
	return others, true
}

// logRefusal logs an add that was put on timers.rejected.
func (r *Router) logRefusal(f refusal) {
	others, ok := r.refusals.note(time.Now())
	if !ok {
		return
	}
	source, id := eventName(f.a.hdr.Get, f.a.data)
	event(r.o.Log.Warn(), source, id).Str("code", string(schemas.CodeOf(f.reason))).Err(f.reason).Uint64("sequence", f.a.seq).
		Int("others_since_last_line", others).Msg("add rejected: see belfry rejected ls")
}

func event(e *zerolog.Event, source, id string) *zerolog.Event {
	if source == "" && id == "" {
		return e
	}
	return e.Str("source", headerText(source)).Str("id", headerText(id))
}

// rejectedList answers timers.api.rejected.list.
func (r *Router) rejectedList(ctx context.Context, q schemas.RejectedListRequest) (any, error) {
	return r.fit(q.Limit, func(limit int) (any, int, error) {
		page, err := r.o.Store.RejectedList(ctx, store.RejectedQuery{Cursor: q.Cursor, Limit: limit})
		if err != nil {
			return nil, 0, err
		}
		reply := schemas.RejectedListReply{Rejected: make([]schemas.RejectedInfo, 0, len(page.Adds)), Cursor: page.Cursor}
		for _, m := range page.Adds {
			reply.Rejected = append(reply.Rejected, rejectedInfo(m))
		}
		return reply, len(reply.Rejected), nil
	})
}

func rejectedInfo(m *jetstream.RawStreamMsg) schemas.RejectedInfo {
	seq, err := strconv.ParseUint(m.Header.Get(schemas.HeaderOriginalSequence), 10, 64)
	if err != nil {
		seq = 0 // published by hand
	}
	info := schemas.RejectedInfo{
		Sequence: m.Sequence, AddSequence: seq, Rejected: m.Time.UTC(),
		Code: schemas.Code(m.Header.Get(schemas.HeaderErrorCode)), Error: m.Header.Get(schemas.HeaderError),
		DataBytes: len(m.Data), Data: strings.ToValidUTF8(string(m.Data[:min(len(m.Data), schemas.MaxRejectedData)]), "?"),
	}
	info.Source, info.ID = eventName(m.Header.Get, m.Data)
	return info
}

// eventName returns the source and id of a rejected event, as far as they can be decoded
// from the headers of binary mode or the document of structured mode.
func eventName(header func(string) string, data []byte) (source, id string) {
	if source, id = header("ce-source"), header("ce-id"); source != "" || id != "" {
		return source, id
	}
	var doc struct{ Source, ID any }
	if json.Unmarshal(data, &doc) != nil {
		return "", ""
	}
	source, _ = doc.Source.(string)
	id, _ = doc.ID.(string)
	return source, id
}
