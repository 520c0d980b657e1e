package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// clockVersion is the version of a clock's value.
const clockVersion = 1

// Clocks reads and writes the clocks of the shards, and keeps a copy of each. Safe for
// concurrent use.
//
// A clock changes by compare-and-set only, so at most one of the nodes that try succeeds.
// A clock that cannot be decoded is an error of its own shard and hides no other; its copy
// says where to resume the shard.
type Clocks struct {
	jet    *jet.Client
	shards *Shards
	nodes  *Nodes
	layout layoutRecord
	log    zerolog.Logger
	// report records newly found damaged records of a shard; see DamageReports.record.
	report func(ctx context.Context, shard int) error
	// needs returns the level that every written clock states at least; nil for none.
	needs func() FormatLevel

	mu     sync.Mutex
	copied map[int]lastCopy // by shard
}

func newClocks(c *jet.Client, shards *Shards, nodes *Nodes, layout layoutRecord, log zerolog.Logger, report func(ctx context.Context, shard int) error) *Clocks {
	return &Clocks{jet: c, shards: shards, nodes: nodes, layout: layout, log: log, report: report, copied: map[int]lastCopy{}}
}

func clockSubject(shard int) string { return clockPrefix + "clock." + strconv.Itoa(shard) }

// create writes a shard's clock, unless it has one. The first clock has no owner, a low
// watermark one tick before the leader's time, and Tail 0, so the first owner reads every
// record. If an existing shard has lost its clock, create writes its copy; see resume. create
// does not change a clock that cannot be decoded; the next owner replaces it.
func (k *Clocks) create(ctx context.Context, shard int) error {
	_, _, err := k.ReadClock(ctx, shard)
	switch {
	case errors.Is(err, schemas.ErrDamaged):
		k.log.Error().Int("shard", shard).Err(err).Msg("damaged clock found at the start: the node that takes the shard resumes from the clock's copy")
		return nil
	case errors.Is(err, schemas.ErrNewer):
		k.log.Error().Int("shard", shard).Err(err).Msg("this node leaves a shard to newer nodes: its clock has a newer format")
		return nil
	case !errors.Is(err, schemas.ErrNotFound):
		return err
	}
	stamp, err := k.nodes.Beat(ctx)
	if err != nil {
		return err
	}
	c, err := k.resume(ctx, shard, stamp.ServerNs/int64(time.Millisecond))
	if err != nil {
		return err
	}
	b, err := encodeClock(c)
	if err != nil {
		return err
	}
	return k.jet.CreateOnce(ctx, clockStream, clockSubject(shard), b)
}

// ReadClock reads a shard's clock and its revision from the leader. Errors:
// schemas.ErrNotFound, schemas.ErrUnavailable, and for a clock that cannot be decoded
// schemas.ErrDamaged or schemas.ErrNewer, with the revision.
func (k *Clocks) ReadClock(ctx context.Context, shard int) (Clock, uint64, error) {
	m, err := k.jet.Last(ctx, clockStream, clockSubject(shard))
	if err != nil {
		return Clock{}, 0, err
	}
	c, err := decodeClock(shard, m.Data)
	if err != nil {
		return Clock{}, m.Sequence, err
	}
	return c, m.Sequence, nil
}

func encodeClock(c Clock) ([]byte, error) {
	c.Version = clockVersion
	return marshalSummed(c)
}

// decodeClock reads a clock. It returns schemas.ErrNewer for a clock of a newer version,
// and schemas.ErrDamaged for anything else that is not a clock.
func decodeClock(shard int, b []byte) (Clock, error) {
	var c struct {
		Clock
		Sum uint32 `json:"sum"`
	}
	bad := func(format string, args ...any) (Clock, error) {
		return Clock{}, schemas.Errorf(schemas.CodeDamaged, "clock of shard %d is damaged: %w", shard, fmt.Errorf(format, args...))
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return bad("%w", err)
	}
	if c.Version > clockVersion {
		return Clock{}, schemas.Errorf(schemas.CodeUnknownFormat, "clock of shard %d has format version %d; this version of belfry reads %d: upgrade this node", shard, c.Version, clockVersion)
	}
	if c.Version != clockVersion {
		return bad("it has format version %d", c.Version)
	}
	// Clocks that older builds wrote have no checksum.
	if has, right := checkSum(b, c.Sum); has && !right {
		return bad("its checksum does not match")
	}
	if c.TimeMs < 0 || c.Seen < c.Tail && c.Seen != 0 {
		return bad("time %d, tail %d and seen %d contradict each other", c.TimeMs, c.Tail, c.Seen)
	}
	return c.Clock, nil
}

// Copies of clocks. A copy is an older state of its clock. Resuming from it is safe: every
// record that it does not cover is in a later tick or comes with the tail, and claims made
// since then have an older epoch, so the new owner runs the dedup check before it publishes
// them. Later owners may have used the epoch of a copy; see resume.

// copyEvery is the interval at which an owner's clock is copied. It bounds the ticks and the
// messages that a node reads again when it resumes from the copy.
const copyEvery = 10 * time.Second

func copySubject(shard int) string { return copyPrefix + strconv.Itoa(shard) }

// lastCopy describes the last copy of a clock that this process has written.
type lastCopy struct {
	epoch uint64
	at    time.Time
}

// copy copies a clock that was just written, after a take-over and then every copyEvery. It
// does not wait for the acknowledgement. If the copy fails, the next write of the clock makes
// one.
func (k *Clocks) copy(shard int, c Clock, b []byte) {
	k.mu.Lock()
	last := k.copied[shard]
	begins := last.epoch != c.Epoch
	due := begins || time.Since(last.at) >= copyEvery
	if due {
		k.copied[shard] = lastCopy{c.Epoch, time.Now()}
	}
	k.mu.Unlock()
	if !due {
		return
	}
	retry := func(_ jet.Ack, err error) {
		if err == nil {
			return
		}
		k.mu.Lock()
		delete(k.copied, shard)
		k.mu.Unlock()
	}
	k.jet.PublishAsync("copy clock", copySubject(shard), nil, b, retry)
	if begins && c.Owner != "" {
		if b, err := marshalSummed(term{c.Epoch, c.Owner}); err == nil {
			k.jet.PublishAsync("write the owner of a term", termSubject(shard, c.Epoch), nil, b, retry)
		}
	}
}

// Terms. A record has the epoch of its claim and no owner, so that firing writes no more. The owners of the last
// keptTerms terms of a shard are under keys of their own, which are written with the first copy of the clock of a term,
// and used in turn.

// keptTerms is the number of terms of a shard whose owners are known.
const keptTerms = 64

// term is the owner of a shard in one epoch.
type term struct {
	Epoch uint64 `json:"epoch"`
	Owner string `json:"owner"`
}

func termSubject(shard int, epoch uint64) string {
	return fmt.Sprintf("%sterm.%d.%d", clockPrefix, shard, epoch%keptTerms)
}

// TermOwner returns the node that owned a shard in an epoch; "" if that is not known any more: later terms have
// taken its place, or the node stopped before it was written. Errors: schemas.ErrUnavailable.
func (k *Clocks) TermOwner(ctx context.Context, shard int, epoch uint64) (string, error) {
	m, err := k.jet.Last(ctx, clockStream, termSubject(shard, epoch))
	switch {
	case errors.Is(err, schemas.ErrNotFound):
		return "", nil
	case err != nil:
		return "", err
	}
	var t struct {
		term
		Sum uint32 `json:"sum"`
	}
	if json.Unmarshal(m.Data, &t) != nil || t.Epoch != epoch {
		return "", nil //nolint:nilerr // the owner in a damaged value is not known
	}
	if has, right := checkSum(m.Data, t.Sum); !has || !right {
		return "", nil
	}
	return t.Owner, nil
}

// resume returns the clock from which to resume a shard whose clock is damaged or gone: its
// copy, or without a copy a clock from which the tail reads the whole shard. Its epoch is
// the time in milliseconds, which is greater than every epoch in use, because epochs grow
// by one with each owner.
func (k *Clocks) resume(ctx context.Context, shard int, nowMs int64) (Clock, error) {
	fresh := Clock{Version: clockVersion, TimeMs: max(nowMs-k.shards.geo.SlotWidth.Milliseconds(), 0), PendingUnknown: true}
	if k.shards.geo.SlotWidth > 0 {
		fresh.TimeMs = k.shards.geo.TickStart(k.shards.geo.Tick(nowMs) - 1)
	}
	m, err := k.jet.Last(ctx, clockStream, copySubject(shard))
	switch {
	case errors.Is(err, schemas.ErrNotFound):
		if k.shards.geo.Shards == 0 {
			return fresh, nil // a View does not know the shards
		}
		// A shard that nobody has written to is new: its first epoch is 1.
		if last, err := k.shards.LastSeq(ctx, shard); err != nil || last <= 1 {
			fresh.PendingUnknown, fresh.Counted = false, true
			return fresh, err
		}
		fresh.Epoch = uint64(max(nowMs, 0))
		return fresh, nil
	case err != nil:
		return Clock{}, err
	}
	c, err := decodeClock(shard, m.Data)
	if err != nil {
		k.log.Error().Int("shard", shard).Err(err).Msg("the copy of a clock is damaged, too: its shard is read from its beginning")
		c = fresh
	}
	c.Owner, c.Epoch, c.PendingUnknown = "", max(c.Epoch, uint64(max(nowMs, 0))), true
	return c, nil
}

// ReadCluster reads all clocks and presences, normally with one request, which any replica may
// answer. It asks the leader about damaged and missing clocks. A clock that cannot be decoded comes with its error and with the state from which
// to resume the shard; it does not hide the others. Errors: schemas.ErrUnavailable;
// schemas.CodeConfig if there are more shards and nodes than one request reads.
func (k *Clocks) ReadCluster(ctx context.Context) (Cluster, error) {
	var c Cluster
	filters := []string{nodePrefix + "*"}
	if k.shards.geo.Shards == 0 {
		filters = append(filters, clockPrefix+"clock.*") // the layout may be damaged
	}
	for n := range k.shards.geo.Shards {
		filters = append(filters, clockSubject(n))
	}
	msgs, err := clockKeys(ctx, k.jet, filters)
	if err != nil {
		return c, err
	}
	for _, m := range msgs {
		c.add(m)
	}
	if k.shards.geo.Shards == 0 {
		c.limit(k.layout.shards(ctx))
	}
	if err := k.resumeDamaged(ctx, &c); err != nil {
		return c, err
	}
	c.sort()
	return c, nil
}

// resumeDamaged sets the clock from which to resume each shard whose clock is damaged or
// gone.
func (k *Clocks) resumeDamaged(ctx context.Context, c *Cluster) error {
	there := make([]bool, k.shards.geo.Shards)
	for i := range c.Clocks {
		at := &c.Clocks[i]
		if at.Shard < len(there) {
			there[at.Shard] = true
		}
		if at.Err == nil || !errors.Is(at.Err, schemas.ErrDamaged) {
			continue
		}
		var err error
		if at.Clock, err = k.resume(ctx, at.Shard, at.StoredMs); err != nil {
			return err
		}
	}
	for n, ok := range there {
		if ok {
			continue
		}
		// The replica may be behind: the leader decides whether the clock is gone.
		_, rev, err := k.ReadClock(ctx, n)
		if err != nil && !errors.Is(err, schemas.ErrNotFound) && rev == 0 {
			return err
		}
		if err == nil || rev != 0 && !errors.Is(err, schemas.ErrDamaged) {
			continue
		}
		nowMs, err := k.nodes.nowMs(ctx)
		if err != nil {
			return err
		}
		at := ClockAt{Shard: n, Rev: rev, StoredMs: nowMs, Err: schemas.Errorf(schemas.CodeDamaged, "shard %d has no clock", n)}
		if at.Clock, err = k.resume(ctx, n, nowMs); err != nil {
			return err
		}
		c.Clocks = append(c.Clocks, at)
	}
	return nil
}

// add adds a message of bucket clock: a clock, a presence, or a foreign key.
func (c *Cluster) add(m *jet.Msg) {
	if jet.HasOperation(m) {
		return // deleted, or expired
	}
	if node, ok := strings.CutPrefix(m.Subject, nodePrefix); ok {
		c.addNode(node, m)
		return
	}
	shard, err := strconv.Atoi(strings.TrimPrefix(m.Subject, clockPrefix+"clock."))
	if err != nil || shard < 0 || m.Subject != clockSubject(shard) {
		c.Alien = append(c.Alien, m.Subject)
		return
	}
	clock, err := decodeClock(shard, m.Data)
	c.Clocks = append(c.Clocks, ClockAt{Shard: shard, Rev: m.Sequence, StoredMs: m.Time.UnixMilli(), Clock: clock, Err: err})
}

// limit moves the clocks of shards that the store does not have to Alien. With 0, the
// number of shards is unknown.
func (c *Cluster) limit(shards int) {
	if shards == 0 {
		return
	}
	c.Clocks = slices.DeleteFunc(c.Clocks, func(at ClockAt) bool {
		if at.Shard < shards {
			return false
		}
		c.Alien = append(c.Alien, clockSubject(at.Shard))
		return true
	})
}

// WriteClock replaces a shard's clock by compare-and-set, and returns its new revision. It
// first records the damaged records that this process has read.
// Errors: ErrRevision if another node changed it first, schemas.ErrUnavailable.
func (k *Clocks) WriteClock(ctx context.Context, shard int, c Clock, rev uint64) (uint64, error) {
	if k.needs != nil {
		c.Needs = max(c.Needs, k.needs())
	}
	b, err := encodeClock(c)
	if err != nil {
		return 0, err
	}
	if err := k.report(ctx, shard); err != nil {
		return 0, err
	}
	next, err := k.jet.Put(ctx, clockSubject(shard), b, rev, 0)
	if err == nil {
		k.copy(shard, c, b)
	}
	return next, err
}
