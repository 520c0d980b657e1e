package sim

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/schemas"
)

// This file is for Config.Damage: the newest revision of some records is damaged in the
// store. Everything else must fire as usual, and the owners must report the damage.

// inspectEvery is the time between two inspections of a shard by its owner.
const inspectEvery = 3 * time.Second

// damageWhen is the moment at which a record is damaged.
type damageWhen int

const (
	damageAnyTime  damageWhen = iota // at a random time before the timer is due
	damageNoOwner                    // after the shard's owner has died
	damageTakeOver                   // when a node takes the shard
	damageClaimed                    // after the timer was claimed
	damageWhens
)

// planDamage plans to damage a timer's record, for one timer in six. It reports whether it
// does: clients then leave the timer alone.
func (w *world) planDamage(l *life) bool {
	if !w.cfg.Damage || l.n%6 != 1 {
		return false
	}
	now := func() { w.damageRecord(l) }
	when := damageWhen(w.rng.IntN(int(damageWhens)))
	if when == damageNoOwner && !w.p.faults {
		when = damageAnyTime // the checker bounds lateness in this seed
	}
	switch when {
	case damageTakeOver:
		shard := w.p.geo.Shard(l.id)
		w.atTakeOver[shard] = append(w.atTakeOver[shard], now)
	case damageNoOwner:
		w.at(w.beforeDue(l), func() {
			if w.now > w.healed {
				return // the add was acknowledged after the last fault
			}
			w.crashOwner(w.p.geo.Shard(l.id))
			w.after(w.between(0, w.p.lease), now)
		})
	case damageClaimed:
		w.at(l.due()*int64(time.Millisecond)+int64(w.between(0, 3*time.Second)), now)
	default:
		w.at(w.beforeDue(l), now)
	}
	return true
}

// beforeDue returns a random true time before a timer is due, and before the last fault.
func (w *world) beforeDue(l *life) int64 {
	last := min(max(l.due()*int64(time.Millisecond), w.now), w.healed)
	return w.now + int64(w.between(0, time.Duration(last-w.now)))
}

// crashOwner kills the process that owns a shard for longer than its lease.
func (w *world) crashOwner(shard int) {
	owner := w.server.LastClock(shard).Owner
	for _, n := range w.nodes {
		if n.name == owner {
			n.crash(w.p.lease + w.between(0, 2*w.p.lease))
		}
	}
}

// tookOver damages the records that wait for a take-over of a shard.
func (w *world) tookOver(shard int) {
	waiting := w.atTakeOver[shard]
	w.atTakeOver[shard] = nil
	for _, f := range waiting {
		w.after(w.between(0, 100*time.Millisecond), f)
	}
}

// damageRecord damages the newest revision of a timer's record: bits change, the end is
// cut off, or a client that is not Belfry writes over it.
func (w *world) damageRecord(l *life) {
	t, err := w.server.Record(l.id)
	// The add may not be stored yet. A final record is not read any more.
	if err != nil || t.Record.State.Final() || l.half || w.now > w.healed {
		return
	}
	kind := w.rng.IntN(3)
	switch kind {
	case 0:
		err = w.server.DamageRecord(l.id, w.flipBits)
	case 1:
		err = w.server.DamageRecord(l.id, func(b []byte) []byte { return b[:w.rng.IntN(len(b))] })
	default:
		data := []string{`{"stream":"TIMERS_ADD","seq":1}`, "", "x", strings.Repeat("y", 300)}[w.rng.IntN(4)]
		err = w.server.Overwrite(fake.StreamShard(w.p.geo.Shard(l.id)), "timer."+l.id.String(), []byte(data))
		w.tailsOf(w.p.geo.Shard(l.id))
	}
	if err != nil {
		w.check.fail(PropState, "timer %d: %v", l.n, err)
		return
	}
	l.damaged, l.overwritten = true, kind == 2
	w.stats.DamagedRecords++
	w.trace("timer %d: its record is damaged (kind %d), in state %s", l.n, kind, t.Record.State)
	if kind == 2 && w.oneIn(2) {
		// An operator runs "belfry repair --apply" later.
		w.at(w.healed+int64(w.between(0, 5*time.Second)), func() { w.repair(l) })
	}
}

// flipBits changes up to three bits, which a CRC-32C always notices. It leaves the first byte,
// the format version: only format 2 has a checksum.
func (w *world) flipBits(b []byte) []byte {
	flipped := map[int]bool{}
	for range 1 + w.rng.IntN(3) {
		if bit := 8 + w.rng.IntN(8*len(b)-8); !flipped[bit] {
			flipped[bit] = true
			b[bit/8] ^= 1 << (bit % 8)
		}
	}
	return b
}

// repair simulates an operator who repairs a damaged record, if it has been reported.
func (w *world) repair(l *life) {
	if !w.server.Damaged(l.id) || !w.reported(l) {
		return
	}
	switch err := w.server.RepairRecord(l.id); {
	case err == nil:
		w.stats.Repaired++
		w.trace("timer %d: its record is repaired", l.n)
	case !errors.Is(err, schemas.ErrNotFound):
		w.check.fail(PropDamaged, "timer %d: repair: %v", l.n, err)
	}
}

// reported reports whether the damage of a timer's record is known by its key.
func (w *world) reported(l *life) bool {
	for _, r := range w.server.Reported(w.p.geo.Shard(l.id)) {
		if r.Timer == l.id.String() {
			return true
		}
	}
	return false
}

// inspect reports damaged records of a shard until its term ends, as the scheduler's
// inspector does.
func (t *term) inspect(ctx context.Context) {
	for wait := time.Duration(0); t.Pause(ctx, wait); wait = inspectEvery {
		if _, err := t.n.client.Inspect(ctx, t.shard, 0, 0, nil); err != nil {
			t.w.trace("%s: shard %d is not inspected: %v", t.n.name, t.shard, err)
		}
	}
}

// fires sees an event, which must be that of its timer.
func (c *checker) fires(l *life, e fake.Event) {
	if want := l.body(); string(e.Data) != string(want.Data) {
		c.fail(PropDamaged, "timer %d: its event has other data: %.40q", l.n, e.Data)
	}
}

// damaged describes the missing step of a timer whose record is damaged; "" for none.
func (c *checker) damaged(l *life) string {
	// Damage in place is found when the record is read: when the timer is due.
	if !c.w.reported(l) && (l.overwritten || l.due()*int64(time.Millisecond) < c.w.now) {
		return "has a damaged record, and no owner has reported it"
	}
	return ""
}

// unreadRecords counts the damaged records of a shard.
func (w *world) unreadRecords(shard int) (n int64) {
	for _, l := range w.lives {
		if l.damaged && w.p.geo.Shard(l.id) == shard && w.server.Damaged(l.id) {
			n++
		}
	}
	return n
}
