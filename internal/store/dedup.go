package store

import (
	"context"
	"slices"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// FiredReader reads the message ids and the times of published events; *Events implements it.
type FiredReader interface {
	FiredAfter(ctx context.Context, subjects []string, after uint64, since time.Time, fn func(msgID string, atMs int64) bool) (uint64, error)
}

// AddKey identifies an add of TIMERS_ADD to a DedupCheck.
type AddKey struct {
	Timer   schemas.TimerID
	Service string
	Seq     uint64 // in TIMERS_ADD
	// FireMs is the earliest time at which the timer can have fired: the later of its due
	// time and its add, in Unix milliseconds.
	FireMs int64
}

// DedupCheck finds adds that an earlier delivery has stored and whose record has expired.
//
// A redelivered add is normally a duplicate because its record exists. If the redelivery
// comes so late that the timer has fired, become final and expired in between, only its event
// in TIMERS_FIRED is left, with the message id <timer id>.1. DedupCheck searches for it, but
// only for adds that are old enough, and not recent according to the recency filter.
//
// One DedupCheck serves one router; its methods may be called concurrently.
type DedupCheck struct {
	reader      FiredReader
	retentionMs int64
	recency     recencyFilter
	lookup      *firedLookup
}

// NewDedupCheck makes the check for records that are kept for retention.
func NewDedupCheck(r FiredReader, retention time.Duration) *DedupCheck {
	ms := retention.Milliseconds()
	return &DedupCheck{reader: r, retentionMs: ms, recency: recencyFilter{keepMs: ms}, lookup: newFiredLookup(r)}
}

// Stored records that an add was stored for the first time. startMs is a time before the
// write.
func (d *DedupCheck) Stored(startMs int64, seq uint64) { d.recency.stored(startMs, seq) }

// Needed reports whether TIMERS_FIRED must be searched for an add before it is stored. The
// record of an earlier delivery exists for the retention after the timer fired. Half of that
// is a reserve for the time between this call and the write, which may wait behind a backlog.
func (d *DedupCheck) Needed(k AddKey, nowMs int64) bool {
	if k.FireMs+d.retentionMs/2 > nowMs {
		return false
	}
	limit, known := d.recency.limit(nowMs)
	return !known || k.Seq <= limit
}

// maxClockSkewMs bounds the difference between the clocks of the servers that lead streams.
const maxClockSkewMs = 1000

// Fired returns the sequences of those adds whose timer has an event in TIMERS_FIRED since the earliest time at
// which the add can have fired. An older event is that of an earlier timer with the same id, whose record has
// expired. Errors: schemas.ErrUnavailable.
func (d *DedupCheck) Fired(ctx context.Context, nowMs int64, keys []AddKey) (map[uint64]struct{}, error) {
	timers := make([]schemas.TimerID, len(keys))
	sinceMs := nowMs
	for i, k := range keys {
		timers[i] = k.Timer
		sinceMs = min(sinceMs, k.FireMs-maxClockSkewMs)
	}
	lastMs, ok, err := d.lookup.find(ctx, sinceMs, timers)
	if !ok && err == nil {
		lastMs, err = d.search(ctx, sinceMs, keys)
	}
	found := map[uint64]struct{}{}
	for _, k := range keys {
		if ms, known := lastMs[k.Timer]; known && ms >= k.FireMs-maxClockSkewMs {
			found[k.Seq] = struct{}{}
		}
	}
	return found, err
}

// search is firedLookup.find for more events than that can hold: it reads all events of the adds' services again
// for each call.
func (d *DedupCheck) search(ctx context.Context, sinceMs int64, keys []AddKey) (map[schemas.TimerID]int64, error) {
	asked, services := map[schemas.TimerID]struct{}{}, map[string]struct{}{}
	var subjects []string
	for _, k := range keys {
		asked[k.Timer] = struct{}{}
		if _, known := services[k.Service]; !known {
			services[k.Service] = struct{}{}
			subjects = append(subjects, schemas.SubjectFired(k.Service))
		}
	}
	slices.Sort(subjects)
	lastMs := map[schemas.TimerID]int64{}
	_, err := d.reader.FiredAfter(ctx, subjects, 0, time.UnixMilli(sinceMs), func(msgID string, atMs int64) bool {
		if id, first := firstFired(msgID); first {
			if _, known := asked[id]; known {
				lastMs[id] = max(lastMs[id], atMs)
			}
		}
		return true
	})
	return lastMs, err
}
