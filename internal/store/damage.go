package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// A shard is damaged by a faulty disk, or by another client that writes to its bucket. The
// server drops damaged messages without a report (work-around 3,
// docs/internals/nats-server.md). The shard's owner records the damage that it finds under
// the key damage.<shard> of bucket clock, so the report outlives the owner, and status and
// doctor read it there.

// DamagedRecord is a record that cannot be decoded.
type DamagedRecord struct {
	// Timer is the last token of the record's key: the timer id, unless the key is damaged too.
	Timer string `json:"timer"`
	// Revision is the revision of the damaged value; 0 if the server cannot read it.
	Revision uint64 `json:"revision"`
	// Reason is the error of the decoder.
	Reason string `json:"reason"`
	// Newer is true for an intact record of a newer format.
	Newer bool `json:"newer,omitempty"`
}

// ShardLoss describes the messages of a shard's stream that the server has lost.
type ShardLoss struct {
	// FoundMs is the leader's time of the audit, in Unix milliseconds.
	FoundMs int64 `json:"found_ms"`
	// Key identifies the loss, so that it is audited once. Evidence describes for an operator
	// how it was noticed.
	Key      string `json:"key"`
	Evidence string `json:"evidence"`
	// Messages is a lower bound of the lost messages; 0 if it is unknown.
	Messages uint64 `json:"messages"`
	// Missing is a lower bound of the waiting timers that are gone, by the count of an earlier
	// owner; 0 also if there is no such count.
	Missing int64 `json:"missing,omitempty"`
	// Timers lists timers that the index names and that have no record, at most maxNamed;
	// TimersMore counts the others.
	Timers     []string `json:"timers,omitempty"`
	TimersMore int      `json:"timers_more,omitempty"`
	// Waiting is the number of waiting timers that the audit found, Expected the number that
	// an earlier owner had counted; 0 if it is unknown.
	Waiting  int64 `json:"waiting"`
	Expected int64 `json:"expected"`
	// Gap is the longest run of sequences without a message; nil if nothing points to a
	// gap. Deleted and expired messages leave gaps too, so it is only a hint.
	Gap *Gap `json:"gap,omitempty"`
	// Reindexed is the number of lost index entries that the audit has restored.
	Reindexed int `json:"reindexed"`
	// Noted is true once an operator has marked the loss as known (belfry repair).
	Noted bool `json:"noted,omitempty"`
}

// Gap is a run of sequences without a message.
type Gap struct {
	// First and Last are the sequences that are missing.
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
	// AfterMs and BeforeMs are the times at which the neighbouring messages were stored,
	// in Unix milliseconds.
	AfterMs  int64 `json:"after_ms"`
	BeforeMs int64 `json:"before_ms"`
}

// String describes the gap for an operator.
func (g *Gap) String() string {
	return fmt.Sprintf("the longest gap is sequences %d to %d, stored between %s and %s", g.First, g.Last, schemas.FormatTime(g.AfterMs), schemas.FormatTime(g.BeforeMs))
}

// ShardDamage is the damage that the owner of a shard has found.
type ShardDamage struct {
	Shard int `json:"shard"`
	// Records lists at most maxNamed damaged records and records of newer formats. More
	// counts the other damaged records, MoreNewer the others of newer formats.
	Records   []DamagedRecord `json:"records,omitempty"`
	More      int             `json:"more,omitempty"`
	MoreNewer int             `json:"more_newer,omitempty"`
	Loss      *ShardLoss      `json:"loss,omitempty"`
	// Known lists the keys (ShardLoss.Key) of the last maxKnown audited losses. A loss may
	// leave a permanent sign; without Known, every inspection would report it again.
	Known []string `json:"known,omitempty"`
}

// Problems describes the damage for an operator, one sentence for each kind. It leaves out a
// loss that an operator has marked as known.
func (d *ShardDamage) Problems() []string {
	var out []string
	newer := d.Newer()
	if n := d.Count(); n > 0 {
		out = append(out, fmt.Sprintf("shard %d has %d damaged records, which cannot fire: run belfry repair", d.Shard, n))
	}
	if newer > 0 {
		out = append(out, fmt.Sprintf("shard %d has %d records of a newer version of Belfry: they wait for a node of that version, and the low watermark stays before them", d.Shard, newer))
	}
	if l := d.Loss; l != nil && !l.Noted {
		out = append(out, fmt.Sprintf("shard %d has lost messages: %s; run belfry repair", d.Shard, l.Summary()))
	}
	return out
}

// Summary describes the loss for an operator in one sentence, without timer ids.
func (l *ShardLoss) Summary() string {
	text := l.Evidence
	if l.Missing > 0 {
		text += fmt.Sprintf("; at least %d waiting timers are gone", l.Missing)
	}
	text += fmt.Sprintf("; %d timers wait", l.Waiting)
	if l.Expected > 0 {
		text += fmt.Sprintf(", and its owner had counted %d", l.Expected)
	}
	if n := len(l.Timers) + l.TimersMore; n > 0 {
		text += fmt.Sprintf("; the index names %d timers without a record", n)
	}
	if l.Reindexed > 0 {
		text += fmt.Sprintf("; %d index entries were restored", l.Reindexed)
	}
	if l.Gap != nil {
		text += "; " + l.Gap.String()
	}
	return text
}

// Count returns the number of damaged records, without those of newer formats.
func (d *ShardDamage) Count() int { return len(d.Records) + d.More + d.MoreNewer - d.Newer() }

// Newer returns the number of records of newer formats.
func (d *ShardDamage) Newer() int {
	n := d.MoreNewer
	for _, r := range d.Records {
		if r.Newer {
			n++
		}
	}
	return n
}

const (
	// maxNamed bounds the entries of each list in a report.
	maxNamed = 100
	// maxKnown bounds ShardDamage.Known.
	maxKnown = 16
	// maxEvidence bounds the bytes of ShardLoss.Evidence when several losses are merged.
	maxEvidence = 1000
	// reportTries bounds the tries to change a report that other writers change at the same time.
	reportTries = 5
	// reportPause bounds the random pause between two tries.
	reportPause = 5 * time.Millisecond
	// rechecks bounds the damaged records that one inspection reads again.
	rechecks = 64
)

const damagePrefix = clockPrefix + "damage."

func damageSubject(shard int) string { return fmt.Sprintf("%s%d", damagePrefix, shard) }

// DamageReports reads and writes the recorded damage of the shards. Safe for concurrent use.
// A report that cannot be decoded counts as empty, and the shard's owner replaces it.
type DamageReports struct{ jet *jet.Client }

// storedDamage is a shard's report, and the revision at which it was read; 0 if there is none.
type storedDamage struct {
	ShardDamage
	rev uint64
}

// read reads the report of a shard from the leader.
func (r DamageReports) read(ctx context.Context, shard int) (storedDamage, error) {
	d := storedDamage{ShardDamage: ShardDamage{Shard: shard}}
	m, err := r.jet.Last(ctx, clockStream, damageSubject(shard))
	if errors.Is(err, schemas.ErrNotFound) {
		return d, nil
	}
	if err != nil {
		return d, err
	}
	d.rev = m.Sequence
	if !jet.IsMarker(m) && json.Unmarshal(m.Data, &d.ShardDamage) != nil {
		d.ShardDamage = ShardDamage{} // the next write replaces it
	}
	d.Shard = shard
	return d, nil
}

// of returns a function that records the damaged records of a shard; see record.
func (r DamageReports) of(dec *decoder) func(context.Context, int) error {
	return func(ctx context.Context, shard int) error { return r.record(ctx, shard, &dec.damaged[shard]) }
}

// record adds the damaged records that this process has read in a shard since the last call
// to the shard's report. Call it before writing a clock that passes a damaged record: if the
// writer dies after that, no later owner reads the record again. Without new damage it sends
// no request. Errors: schemas.ErrUnavailable.
func (r DamageReports) record(ctx context.Context, shard int, set *damagedSet) error {
	found := set.found.Load()
	if found == set.reported.Load() {
		return nil
	}
	_, err := r.change(ctx, shard, func(d *ShardDamage) {
		for _, rec := range d.Records {
			set.note(rec)
		}
		d.Records, d.More, d.MoreNewer = set.list(), 0, 0
	})
	switch {
	case errors.Is(err, ErrRevision):
		// A caller that writes a clock would mistake ErrRevision for a conflict of the clock.
		return schemas.Errorf(schemas.CodeUnavailable, "the damage report of shard %d: other writers changed it between its reads and writes", shard)
	case err != nil:
		return err
	}
	set.reported.Store(found)
	return nil
}

// change changes the report of a shard, and returns it. It calls f again if another writer has
// changed the report in the meantime. Errors: ErrRevision if that happens reportTries times, or if
// ctx ends between two tries; schemas.ErrUnavailable.
func (r DamageReports) change(ctx context.Context, shard int, f func(*ShardDamage)) (d ShardDamage, err error) {
	err = onConflict(ctx, reportTries, reportPause, func() error {
		was, err := r.read(ctx, shard)
		if err != nil {
			return err
		}
		d = was.ShardDamage
		f(&d)
		return r.replace(ctx, was, d)
	})
	return d, err
}

// replace writes the report d in place of was, if it differs. It fails with ErrRevision if the report is
// no longer was, so a paused process cannot overwrite the report of the shard's present owner. Other
// errors: schemas.ErrUnavailable.
func (r DamageReports) replace(ctx context.Context, was storedDamage, d ShardDamage) error {
	if len(d.Records) > maxNamed {
		for _, rec := range d.Records[maxNamed:] {
			if rec.Newer {
				d.MoreNewer++
			} else {
				d.More++
			}
		}
		d.Records = d.Records[:maxNamed]
	}
	b, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	if old, err := json.Marshal(was.ShardDamage); err != nil || string(old) == string(b) {
		return err
	}
	subject := damageSubject(d.Shard)
	w := jet.WriteHeader{Header: jet.Header{}}
	w.CAS(was.rev, 0)
	_, err = r.jet.Publish(ctx, "write "+subject, subject, w.Header, b)
	return err
}

// ReadDamage lists the shards with recorded problems, by shard. Errors:
// schemas.ErrUnavailable.
func (r DamageReports) ReadDamage(ctx context.Context) ([]ShardDamage, error) {
	a, err := r.jet.Direct(ctx, clockStream, jet.Get{MultiLast: []string{damagePrefix + "*"}, MaxBytes: jet.MaxAnswerBytes})
	if err != nil {
		return nil, err
	}
	var out []ShardDamage
	for _, m := range a.Msgs {
		var d ShardDamage
		if jet.IsMarker(m) || json.Unmarshal(m.Data, &d) != nil || len(d.Problems()) == 0 {
			continue
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b ShardDamage) int { return a.Shard - b.Shard })
	return out, nil
}
