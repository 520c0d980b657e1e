package store

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

// A far entry is an index entry for several new timers of one shard that are due in the same period of
// farWidth, but in different ticks, at least farLead after they were added. An entry of a tick seldom has
// a second timer among such adds, so each of them would need a message and a key of its own.
//
//	far.<period>.<a>.<b>.<c>.<d>  a far entry: timer ids with their ticks; the rest of the key is random
//	far.<period>                  the mark: it is written after each far entry of the period
//
// A load of a tick reads the mark of the tick's period together with the tick's own entries, so a period
// without far entries costs no request. The far entries of the period are read once and kept in memory
// as long as the mark keeps its revision: some 20 bytes a timer, for up to farKept periods of a shard.
// They may be many and lie all over the stream's file, so they are read little by little in the last part of
// the period before. Otherwise the first load of a period could make its timers late.
//
//	Create:    far entry ──▶ mark ──▶ records        (one stream, in this order)
//	LoadTicks: entries of the tick and mark ──▶ mark as before? ids in memory : far entries ──▶ records
//
// Older builds do not find the timers in far entries. See LevelFarIndex for what keeps these builds away.
const (
	// farWidth is the length of a period. A longer one would take more memory in the owner of a shard.
	farWidth = time.Hour
	// farLead is the least time from the add to the due time. It only has to be long enough for most far
	// entries to exist before the first load of their period: each later one makes loads read all of them
	// again.
	farLead = 2 * time.Hour
	// farGroup bounds the timers of a far entry: 2.3 kB.
	farGroup = 128
	// farLeast is the least number of timers for which a far entry and its mark are worthwhile.
	farLeast = 4
	// farBytes is the size of a timer in a far entry: its id, and its tick within the period.
	farBytes = idBytes + 2
	// farKept bounds the periods in memory for each shard: that of the read-ahead, the one after it, and that
	// of the sweeper.
	farKept = 3
	// farAhead is the last part of a period, as a fraction, in which the next period's far entries are read.
	// farPause is the pause between two requests.
	farAhead = 6
	farPause = 20 * time.Millisecond
)

// farTicks returns the number of ticks in a period; at most 36,000, for which two bytes suffice.
func (h *Shards) farTicks() int64 { return max(1, int64(farWidth/h.geo.SlotWidth)) }

// farPeriod returns the period of a tick. Periods count from 1970 and never wrap.
func (h *Shards) farPeriod(tick int64) int64 { return tick / h.farTicks() }

// farMark returns the key of a period's mark.
func (h *Shards) farMark(shard int, period int64) string {
	return h.subjects[shard].far + strconv.FormatInt(period, 10)
}

// farMarks returns the keys of the marks of all periods of the ticks.
func (h *Shards) farMarks(shard int, ticks []int64) []string {
	var marks []string
	last := int64(-1)
	for _, t := range ticks {
		if p := h.farPeriod(t); p != last {
			marks, last = append(marks, h.farMark(shard, p)), p
		}
	}
	return marks
}

// isFar reports whether a new timer may be in a far entry; readMs is as in indexNow. Schedules and their runs
// never are.
func isFar(r *schemas.Record, readMs int64) bool {
	return r.Origin == nil && r.Schedule == nil && r.DueMs-indexNow(r, readMs) >= farLead.Milliseconds()
}

// sendFar writes a far entry and then the mark of its period. done is called once, with the error of
// either write. The mark does not roll up its earlier revisions, because the server refuses an atomic batch
// with two roll-ups of a key. The bucket's history limit drops them. An earlier revision that returned
// (work-around 1) would do no harm: it only makes loads read the far entries again.
func (ix *Index) sendFar(e *indexEntry, timers []Write, done func(error)) {
	data := make([]byte, 0, len(e.writes)*farBytes)
	first := e.at.tick * ix.shards.farTicks()
	for _, i := range e.writes {
		data = append(data, timers[i].ID[:]...)
		data = binary.BigEndian.AppendUint16(data, uint16(ix.shards.geo.Tick(timers[i].Record.DueMs)-first))
	}
	var mu sync.Mutex
	var errs [2]error
	left := len(errs)
	written := func(n int) func(jet.Ack, error) {
		return func(_ jet.Ack, err error) {
			mu.Lock()
			errs[n] = err
			left--
			last := left == 0
			mu.Unlock()
			if last {
				done(errors.Join(errs[:]...))
			}
		}
	}
	sh := &ix.shards.subjects[e.at.shard]
	ix.jet.WriteAsync(sh.stream, "index timers", spreadKey(sh.far, e.at.tick, sharedKey()), jet.TTLHeader(e.ttl), data, written(0))
	ix.jet.WriteAsync(sh.stream, "index timers", ix.shards.farMark(e.at.shard, e.at.tick), jet.TTLHeader(e.ttl), nil, written(1))
}

// FarMark is the mark of a period as it was read: its revision, and when it was stored in Unix nanoseconds.
// After a power loss the server may use a revision that was not synced again, at another time.
type FarMark struct {
	Period int64
	Rev    uint64
	AtNs   int64
}

// FarIndex has the timers that far entries name, as long as the marks of their periods keep their
// revisions. Safe for concurrent use.
type FarIndex struct {
	mu    sync.Mutex
	kept  [][]*farEntries // by shard, the last used ones last
	begun []int64         // by shard: the last period whose far entries are read ahead, or were
}

// farEntries are the timers that the far entries of a period name, by tick, as of a mark.
type farEntries struct {
	as     FarMark
	byTick map[int64][]schemas.TimerID
}

// NewFarIndex returns an empty index for the shards of a store.
func NewFarIndex(shards int) *FarIndex {
	return &FarIndex{kept: make([][]*farEntries, shards), begun: make([]int64, shards)}
}

// Named returns the timers that far entries name for the ticks. marks are the marks of the periods of these
// ticks; a period without a mark has no far entries. read reads the far entries of a period, as of its mark
// or later; Named calls it only if the mark differs from that of the last call.
func (f *FarIndex) Named(shard int, ticks []int64, marks []FarMark, read func(FarMark) (map[int64][]schemas.TimerID, error)) ([]schemas.TimerID, error) {
	var ids []schemas.TimerID
	for _, mark := range marks {
		e := f.get(shard, mark)
		if e == nil {
			byTick, err := read(mark)
			if err != nil {
				return nil, err
			}
			e = &farEntries{as: mark, byTick: byTick}
			f.put(shard, e)
		}
		for _, t := range ticks {
			ids = append(ids, e.byTick[t]...)
		}
	}
	return ids, nil
}

// get returns the entries of a period if they were read as of this mark.
func (f *FarIndex) get(shard int, mark FarMark) *farEntries {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept := f.kept[shard]
	i := slices.IndexFunc(kept, func(e *farEntries) bool { return e.as == mark })
	if i < 0 {
		return nil
	}
	e := kept[i]
	f.kept[shard] = append(slices.Delete(kept, i, i+1), e)
	return e
}

// put keeps the entries of a period in memory.
func (f *FarIndex) put(shard int, e *farEntries) {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept := slices.DeleteFunc(f.kept[shard], func(o *farEntries) bool { return o.as.Period == e.as.Period })
	kept = append(kept, e)
	f.kept[shard] = slices.Delete(kept, 0, max(0, len(kept)-farKept))
}

// begin reports whether the caller is to read a period ahead. It returns true once for a period, and again
// after failed.
func (f *FarIndex) begin(shard int, period int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.begun[shard] >= period {
		return false
	}
	f.begun[shard] = period
	return true
}

// failed notes that a period was not read ahead.
func (f *FarIndex) failed(shard int, period int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun[shard] = min(f.begun[shard], period-1)
}

// farReader reads far entries for a FarIndex.
type farReader struct {
	shards *Shards
	dec    *decoder
	index  *FarIndex
}

// split divides the answer to a read of index entries and marks.
func (f *farReader) split(shard int, msgs []*jet.Msg) (index []*jet.Msg, marks []FarMark) {
	index = slices.DeleteFunc(msgs, func(m *jet.Msg) bool {
		period, mark, ok := f.shards.farPeriodOf(shard, m.Subject)
		if ok && mark {
			marks = append(marks, FarMark{Period: period, Rev: m.Sequence, AtNs: m.Time.UnixNano()})
		}
		return ok
	})
	return index, marks
}

// named returns the timers that far entries name for the ticks, as of the sequence seen or later.
func (f *farReader) named(ctx context.Context, shard int, ticks []int64, marks []FarMark, seen uint64) ([]schemas.TimerID, error) {
	return f.namedAtPace(ctx, shard, ticks, marks, seen, 0)
}

// readAhead reads the far entries of the next period in the background, if the tick is in the last part of its
// period and nobody has done so. It ends with ctx.
func (f *farReader) readAhead(ctx context.Context, shard int, tick int64, seen uint64) {
	ticks, next := f.shards.farTicks(), f.shards.farPeriod(tick)+1
	if tick%ticks < ticks-ticks/farAhead || !f.index.begin(shard, next) {
		return
	}
	go func() {
		msgs, err := f.shards.lastFor(ctx, shard, []string{f.shards.farMark(shard, next)}, seen)
		if err == nil {
			_, marks := f.split(shard, msgs)
			_, err = f.namedAtPace(ctx, shard, nil, marks, seen, farPause)
		}
		if err != nil {
			f.index.failed(shard, next) // the next load tries again
		}
	}()
}

// namedAtPace is named with a pause after each request.
func (f *farReader) namedAtPace(ctx context.Context, shard int, ticks []int64, marks []FarMark, seen uint64, pace time.Duration) ([]schemas.TimerID, error) {
	return f.index.Named(shard, ticks, marks, func(mark FarMark) (map[int64][]schemas.TimerID, error) {
		byTick := map[int64][]schemas.TimerID{}
		first := mark.Period * f.shards.farTicks()
		// A writer stores each far entry before the mark, so what was stored up to the mark is complete.
		err := f.read(ctx, shard, f.shards.farMark(shard, mark.Period)+".", 0, max(mark.Rev, seen), pace, func(m *jet.Msg) {
			f.dec.farTimers(m, func(id schemas.TimerID, tick int64) {
				byTick[first+tick] = append(byTick[first+tick], id)
			})
		})
		return byTick, err
	})
}

// read reads the far entries whose keys begin with a prefix; if these are too many for one answer, it reads
// them in 32 parts by the next character. It pauses for pace after each request.
func (f *farReader) read(ctx context.Context, shard int, prefix string, tokens int, seen uint64, pace time.Duration, fn func(*jet.Msg)) error {
	msgs, err := f.shards.lastFor(ctx, shard, []string{prefix + ">"}, seen)
	if pace > 0 && !pause.For(ctx, pace) {
		return f.shards.jet.Error("read far entries", context.Cause(ctx))
	}
	if errors.Is(err, jet.ErrTooMany) && tokens < slotTokens {
		for i := range len(idAlphabet) {
			if err := f.read(ctx, shard, prefix+idAlphabet[i:i+1]+".", tokens+1, seen, pace, fn); err != nil {
				return err
			}
		}
		return nil
	}
	for _, m := range msgs {
		fn(m)
	}
	return err
}

// farTimers calls fn for each timer that a far entry names, with its tick within the period.
func (d *decoder) farTimers(m *jet.Msg, fn func(id schemas.TimerID, tick int64)) {
	if len(m.Data)%farBytes != 0 {
		d.undecodable.Add(1)
		d.log.Error().Str("key", m.Subject).Uint64("revision", m.Sequence).Int("bytes", len(m.Data)).Msg("index entry skipped: it is no list of timer ids and ticks")
		return
	}
	for b := m.Data; len(b) > 0; b = b[farBytes:] {
		fn(schemas.TimerID(b[:idBytes]), int64(binary.BigEndian.Uint16(b[idBytes:])))
	}
}

// farPeriodOf returns the period in the key of a far entry or of a mark; false for any other key.
func (h *Shards) farPeriodOf(shard int, subject string) (period int64, mark, ok bool) {
	key, ok := strings.CutPrefix(subject, h.subjects[shard].far)
	if !ok {
		return 0, false, false
	}
	number, _, entry := strings.Cut(key, ".")
	period, err := strconv.ParseInt(number, 10, 64)
	return period, !entry, err == nil
}
