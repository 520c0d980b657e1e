package store

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

// Work-around 23 (docs/internals/nats-server.md). A server that was killed may bring an earlier revision of a record back.
// If the final record of the timer has expired, the earlier revision is the record again, and a cancelled timer would fire at
// its old due time. Therefore each shard keeps a list of the timers that ended long before their last due time: an earlier
// revision of such a timer could still fire after the final record has expired. After a kill,
// Reader.RemoveVoid deletes the revisions that the list shows to be void.
//
//	final record ─▶ tail of the shard's owner ─▶ noted in memory ─▶ AddEnded ─▶ chunk
//	death of an owner ─▶ the next owner lists what was noted and not written (EachFinal, Clock.Ended)
//	death of an owner, lost connection ─▶ RemoveVoid ─▶ chunks ─▶ records ─▶ deletes
//
// The list is in the shard's own stream, so that a backup has both as of one moment:
//
//	ended.<class>.<n>  a chunk: up to maxEndedTimers timers whose last due times are about as far ahead
//
// A chunk, and not a timer, has a key, because nats-server needs some 0.6 kB of memory for each key. Each class has one open
// chunk. AddEnded rewrites it by compare-and-set until it is full, then begins the chunk with the next number. A rewrite drops
// the timers whose time has passed. A chunk expires some time after its last timer.
//
// Guarantees: a timer that AddEnded has returned nil for is in the list until endedKeep after its UntilMs. The list voids only
// earlier revisions of the add that has ended, never a timer that was added again, or that a backup has restored.
//
// Failures: if AddEnded fails, the caller must repeat it, and a repeated timer is listed once. A damaged chunk, and one of a newer
// format, is logged and left as it is; the timers in it are not protected, and a new chunk is begun. Builds without the list
// ignore its keys.
const (
	// endedVersion is the format version of a chunk, its first byte. Newer formats must keep the checksum at the end.
	endedVersion = 1
	// endedBytes is the size of a timer in a chunk.
	endedBytes = idBytes + 4*8
	// maxEndedTimers bounds the timers of a chunk: 384 kB.
	maxEndedTimers = 8000
	// endedKeep is the time for which a chunk outlives its last timer. An owner that resumes from an old low watermark
	// fires what was due during an outage, so it must be longer than an outage.
	endedKeep = 24 * time.Hour
	// endedTries bounds the attempts to write a chunk that other owners write, too.
	endedTries = 10
	// endedBatch is the number of chunks that are read at a time.
	endedBatch = 8
)

// endedClasses are the bounds of the classes: a timer is in the first class whose bound is not less than the time until its
// UntilMs, or in a last one. Timers of one class pass at about the same time, and with them their chunks.
var endedClasses = [...]time.Duration{24 * time.Hour, 8 * 24 * time.Hour, 64 * 24 * time.Hour}

// EndedTimer says that a timer has ended. It voids all open revisions before Rev that belong to the same add.
type EndedTimer struct {
	ID schemas.TimerID
	// Rev is the revision of the final record. StoredMs is not before the time at which that was stored, Unix milliseconds by
	// the server's clock.
	Rev      uint64
	StoredMs int64
	// AddedMs is that of the record: a timer that is added again has another one.
	AddedMs int64
	// UntilMs is the time, in Unix milliseconds, after which an earlier revision does not fire any more.
	UntilMs int64
}

// Voids reports whether the end of the timer has replaced a revision. A backup may be restored with
// new sequences; then its records have later times, and are not void.
func (e *EndedTimer) Voids(t *Timer) bool {
	return !t.Record.State.Final() && t.Rev < e.Rev && t.StoredMs <= e.StoredMs && t.Record.AddedMs == e.AddedMs
}

// class returns the class of a timer.
func (e *EndedTimer) class(nowMs int64) int {
	for class, bound := range endedClasses {
		if e.UntilMs-nowMs <= bound.Milliseconds() {
			return class
		}
	}
	return len(endedClasses)
}

func compareEnded(a, b EndedTimer) int {
	return cmp.Or(slices.Compare(a.ID[:], b.ID[:]), cmp.Compare(a.Rev, b.Rev))
}

// appendEnded encodes a chunk: the version, the timers, and the CRC-32C of all bytes before it. Numbers are big-endian, the
// checksum is little-endian as in a record.
func appendEnded(b []byte, timers []EndedTimer) []byte {
	start := len(b)
	b = append(b, endedVersion)
	for i := range timers {
		e := &timers[i]
		b = append(b, e.ID[:]...)
		for _, n := range [...]uint64{e.Rev, uint64(e.StoredMs), uint64(e.AddedMs), uint64(e.UntilMs)} {
			b = binary.BigEndian.AppendUint64(b, n)
		}
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// decodeEnded decodes a chunk. Errors: schemas.ErrDamaged, schemas.ErrNewer.
func decodeEnded(b []byte) ([]EndedTimer, error) {
	n := len(b) - crc32.Size
	if n < 1 || crc32.Checksum(b[:n], castagnoli) != binary.LittleEndian.Uint32(b[n:]) || b[0] == 0 {
		return nil, schemas.Errorf(schemas.CodeDamaged, "a part of %d bytes of the list of ended timers is damaged", len(b))
	}
	if b[0] > endedVersion {
		return nil, schemas.Errorf(schemas.CodeUnknownFormat, "a part of the list of ended timers has format version %d; this version of belfry reads %d: upgrade this node", b[0], endedVersion)
	}
	if b = b[1:n]; len(b)%endedBytes != 0 {
		return nil, schemas.Errorf(schemas.CodeDamaged, "a part of the list of ended timers has %d bytes, which is no number of timers", len(b))
	}
	timers := make([]EndedTimer, 0, len(b)/endedBytes)
	for ; len(b) > 0; b = b[endedBytes:] {
		number := func(i int) uint64 { return binary.BigEndian.Uint64(b[idBytes+8*i:]) }
		timers = append(timers, EndedTimer{ID: schemas.TimerID(b[:idBytes]), Rev: number(0), StoredMs: int64(number(1)), AddedMs: int64(number(2)), UntilMs: int64(number(3))})
	}
	return timers, nil
}

// EndedLists reads and writes the lists of ended timers of all shards. Safe for concurrent use.
type EndedLists struct {
	jet       *jet.Client
	shards    *Shards
	gc        *revisionGC
	retention time.Duration
	// most bounds the timers of a chunk; see maxEndedTimers.
	most int
	log  zerolog.Logger
}

// newEndedLists returns lists whose chunks have maxPayload bytes or less.
func newEndedLists(c *jet.Client, shards *Shards, gc *revisionGC, retention time.Duration, maxPayload int64, log zerolog.Logger) *EndedLists {
	most := min(maxEndedTimers, (maxPayload-journalReserve)/int64(endedBytes))
	return &EndedLists{jet: c, shards: shards, gc: gc, retention: retention, most: int(max(most, 1)), log: log}
}

// endedChunk is a chunk as it is stored. rev is 0 for a chunk that does not exist yet.
type endedChunk struct {
	class  int
	n      uint64
	rev    uint64
	timers []EndedTimer
}

func (l *EndedLists) subject(shard int, c *endedChunk) string {
	return l.shards.subjects[shard].ended + strconv.Itoa(c.class) + "." + strconv.FormatUint(c.n, 10)
}

// AddEnded adds timers to the list of a shard. Times are Unix milliseconds of the cluster's clock. It may drop listed timers
// whose UntilMs is up to passedMs: pass a time up to which the owner has fired everything. Errors: schemas.ErrUnavailable,
// schemas.ErrStoreFull, and ErrRevision if others write the list at the same time again and again. A part of the timers may
// be listed then.
func (l *EndedLists) AddEnded(ctx context.Context, shard int, nowMs, passedMs int64, timers []EndedTimer) error {
	var classes [len(endedClasses) + 1][]EndedTimer
	for _, e := range timers {
		class := e.class(nowMs)
		classes[class] = append(classes[class], e)
	}
	for class, timers := range classes {
		if err := l.add(ctx, shard, class, nowMs, passedMs, timers); err != nil {
			return err
		}
	}
	return nil
}

// add is AddEnded for the timers of one class.
func (l *EndedLists) add(ctx context.Context, shard, class int, nowMs, passedMs int64, timers []EndedTimer) error {
	taken := uint64(0) // the numbers of new chunks that exist already
	for tries := 0; len(timers) > 0; {
		c, err := l.open(ctx, shard, class, taken)
		if err != nil {
			return err
		}
		c.timers = slices.DeleteFunc(c.timers, func(e EndedTimer) bool { return e.UntilMs <= passedMs })
		n := min(len(timers), l.most-len(c.timers))
		if n <= 0 {
			c, n = endedChunk{class: class, n: c.n + 1 + taken}, min(len(timers), l.most)
		}
		c.timers = append(c.timers, timers[:n]...)
		slices.SortFunc(c.timers, compareEnded)
		c.timers = slices.CompactFunc(c.timers, func(a, b EndedTimer) bool { return compareEnded(a, b) == 0 })
		switch err := l.write(ctx, shard, &c, nowMs); {
		case err == nil:
			timers, taken, tries = timers[n:], 0, 0
		case errors.Is(err, ErrRevision) && tries < endedTries:
			tries++
			if c.rev == 0 {
				taken++
			}
		default:
			return err
		}
	}
	return nil
}

// open returns the open chunk of a class. It returns a new one if the newest one cannot be decoded; its number is then the
// next one after taken further numbers.
func (l *EndedLists) open(ctx context.Context, shard, class int, taken uint64) (endedChunk, error) {
	sh := &l.shards.subjects[shard]
	m, err := l.jet.Last(ctx, sh.stream, sh.ended+strconv.Itoa(class)+".*")
	if errors.Is(err, schemas.ErrNotFound) {
		return endedChunk{class: class, n: taken}, nil
	}
	if err != nil {
		return endedChunk{}, err
	}
	n, err := strconv.ParseUint(lastToken(m.Subject), 10, 63)
	if err != nil {
		return endedChunk{class: class, n: taken}, nil //nolint:nilerr // another client has written the key
	}
	if jet.IsMarker(m) {
		return endedChunk{class: class, n: n, rev: m.Sequence}, nil
	}
	timers, err := decodeEnded(m.Data)
	if err != nil {
		l.logSkipped(m, err)
		return endedChunk{class: class, n: n + 1 + taken}, nil
	}
	return endedChunk{class: class, n: n, rev: m.Sequence, timers: timers}, nil
}

func (l *EndedLists) logSkipped(m *jet.Msg, err error) {
	l.log.Error().Str("key", m.Subject).Uint64("revision", m.Sequence).Err(err).Msg("skipped a part of the list of ended timers: if the server is killed, cancelled timers in it may fire")
}

// write replaces a chunk by compare-and-set.
func (l *EndedLists) write(ctx context.Context, shard int, c *endedChunk, nowMs int64) error {
	until := nowMs
	for i := range c.timers {
		until = max(until, c.timers[i].UntilMs)
	}
	// An inspection expects the newest message of a stream to live for the retention; see Inspector.lostEnd.
	ttl := max(time.Duration(until-nowMs)*time.Millisecond, l.retention) + endedKeep
	subject := l.subject(shard, c)
	seq, err := l.jet.Put(ctx, subject, appendEnded(make([]byte, 0, 1+len(c.timers)*endedBytes+crc32.Size), c.timers), c.rev, ttl)
	if err != nil || c.rev == 0 {
		return err
	}
	// A roll-up would visit the blocks of the file between the two revisions; see revisionGC.
	if err := l.gc.discard(ctx, revision{l.shards.subjects[shard].stream, c.rev}, &jet.Msg{Subject: subject, Sequence: seq}, checkFirst); err != nil {
		l.log.Debug().Err(err).Str("key", subject).Msg("the replaced revision of a chunk stays until it expires")
	}
	return nil
}

// each passes the timers of each chunk of a shard, with its sequence, to fn. A chunk that cannot be decoded is logged and left out.
// Errors: those of fn, schemas.ErrUnavailable.
func (l *EndedLists) each(ctx context.Context, shard int, fn func([]EndedTimer, uint64) error) error {
	sh := &l.shards.subjects[shard]
	last, err := l.jet.LastOf(ctx, sh.stream, jet.Range{Filters: []string{sh.ended + ">"}})
	if err != nil {
		return err
	}
	for after := uint64(0); after < last; {
		msgs, _, err := l.jet.Next(ctx, sh.stream, sh.ended+">", after, endedBatch)
		if err != nil {
			return err
		}
		if len(msgs) == 0 {
			return l.checkEnd(ctx, sh, last)
		}
		for _, m := range msgs {
			if after = m.Sequence; jet.IsMarker(m) {
				continue
			}
			timers, err := decodeEnded(m.Data)
			if err != nil {
				l.logSkipped(m, err)
				continue
			}
			if err := fn(timers, m.Sequence); err != nil {
				return err
			}
		}
		if !pause.For(ctx, pacedPause) {
			return l.jet.Error("read ended timers", context.Cause(ctx))
		}
	}
	return nil
}

// checkEnd returns an error if a replica ended a list before the leader's last message of it, unless that is gone.
func (l *EndedLists) checkEnd(ctx context.Context, sh *shardSubjects, last uint64) error {
	if there, err := l.jet.Has(ctx, sh.stream, last); err != nil || !there {
		return err
	}
	return schemas.Errorf(schemas.CodeUnavailable, "read ended timers: %w", ErrBehind)
}

// EachFinal passes the final records of a shard after a sequence and up to another to fn, in stream order, with the pauses of
// scanPaced. It leaves out records that it cannot decode. Errors: schemas.ErrUnavailable.
func (rd *Reader) EachFinal(ctx context.Context, shard int, after, through uint64, fn func(*Timer)) error {
	return rd.scanPaced(ctx, "read ended timers", shard, jet.Range{AfterSeq: after}, func(m jet.Msg) (bool, error) {
		if m.Sequence > through {
			return false, nil
		}
		if t, ok := rd.dec.decode(&m); ok && t.Record.State.Final() {
			fn(&t)
		}
		return true, nil
	})
}
