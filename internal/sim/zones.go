package sim

import (
	"encoding/binary"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file has nodes with different zone data. A build with newer data knows another offset of
// zoneThatMoves. Nodes are upgraded to that build and back again while schedules in the zone
// fire at fixed local times. The checker follows the local time of the next run
// (Progress.NextKey), because an instant depends on the zone data.

const (
	// PropZones means that a local time of a schedule is decided once, whatever the zone data of the
	// nodes is. Only newer data moves a planned run. Local times that lie in a gap between the
	// data of two builds run once, like those in a gap of daylight saving.
	PropZones = "zone data of two releases decides each local time once"

	zoneThatMoves = "Indian/Maldives"
	zoneOffset    = 5 * time.Hour
	newerRelease  = "2999a"
)

// zones are the two releases of the zone data of a simulation; nil for a simulation in which
// all nodes have the same.
type zones struct {
	d            dice
	older, newer *calendar.ZoneData
	moved        time.Duration // how far the newer data moves the zone's clock forward
	// grid are the local times of each cron expression, as if they were UTC.
	grids map[string]*calendar.Schedule
}

// hasZones reports whether a seed has nodes with different zone data.
func hasZones(cfg Config) bool { return cfg.Schedules && cfg.Seed%3 == 0 }

func newZones(seed uint64) *zones {
	z := &zones{d: dice{rand.New(rand.NewPCG(seed, 0x7a6f6e6573))}, older: calendar.ProcessZones(), grids: map[string]*calendar.Schedule{}}
	z.moved = time.Duration(1+z.d.IntN(12)) * time.Second
	if z.d.oneIn(2) {
		z.moved = -z.moved
	}
	z.newer = z.older.With(newerRelease, map[string][]byte{zoneThatMoves: fixedZone(zoneOffset + z.moved)})
	return z
}

// fixedZone is the TZif file (RFC 8536) of a zone with one offset.
func fixedZone(offset time.Duration) []byte {
	b := make([]byte, 44, 54)
	copy(b, "TZif")
	binary.BigEndian.PutUint32(b[36:], 1) // local time types
	binary.BigEndian.PutUint32(b[40:], 4) // characters of abbreviations
	b = binary.BigEndian.AppendUint32(b, uint32(offset/time.Second))
	return append(b, 0, 0, 's', 'i', 'm', 0)
}

// draw draws the build of a process.
func (z *zones) draw() *calendar.ZoneData {
	if z.d.oneIn(2) {
		return z.newer
	}
	return z.older
}

// offset is the offset of the zone that moves with a release.
func (z *zones) offset(release string) int64 {
	if release == newerRelease {
		return (zoneOffset + z.moved).Milliseconds()
	}
	return zoneOffset.Milliseconds()
}

// grid returns the local times of a cron expression, as if they were UTC.
func (z *zones) grid(cron string) *calendar.Schedule {
	g := z.grids[cron]
	if g == nil {
		var err error
		if g, err = calendar.New(calendar.Spec{Cron: cron}); err != nil {
			panic(err) // newRule draws valid ones
		}
		z.grids[cron] = g
	}
	return g
}

// upgrades plans restarts of nodes. Each process draws its build.
func (w *world) upgrades() {
	if !w.p.faults {
		return // the builds of the start stay
	}
	for range 2 + w.zones.d.IntN(5) {
		w.at(w.epoch+int64(w.zones.d.between(4*time.Second, time.Duration(w.healed-w.epoch)-time.Second)), func() {
			n := w.nodes[w.zones.d.IntN(len(w.nodes))]
			if down := w.zones.d.between(50*time.Millisecond, 2*time.Second); w.zones.d.oneIn(2) {
				n.crash(down)
			} else {
				n.leave(down)
			}
		})
	}
}

// zonedRule draws a recurrence with fixed times in the zone that moves.
func (z *zones) zonedRule(d dice) schemas.Recurrence {
	r := schemas.Recurrence{Zone: zoneThatMoves, Cron: "*/" + strconv.Itoa(1+d.IntN(9)) + " 0-59 0-23 * * *"}
	r.Misfire = schemas.Misfire(d.IntN(3))
	r.Overlap = schemas.Overlap(d.IntN(4))
	return r
}

// --- checks ---

// zonedRevision sees a revision of a schedule in the zone that moves.
func (c *checker) zonedRevision(s *schedule, was, now store.Timer, op *schemas.Operation, added []schemas.Decision) {
	old, r := &was.Record, &now.Record
	ran := c.claimedRun(s, was, now)
	c.asked(s, old, r, added, op)
	if r.Run != s.numbers+1 {
		c.fail(PropRuns, "%s: its next run is %d after run %d", s, r.Run, s.numbers)
	}
	if r.State.Final() {
		return // a cancel decides no time
	}
	a, b := &old.Schedule.Progress, &r.Schedule.Progress
	decided := 0
	for _, d := range added {
		c.w.trace("%s: %s %s to %s, %d, run %d", s, d.Kind, c.w.ms(d.FromMs), c.w.ms(d.ToMs), d.Count, d.Run)
		c.w.stats.decide(d.Kind)
		if !d.Kind.Requested() {
			decided += int(d.Count)
		}
	}
	if x, y := a.Waiting, b.Waiting; x == nil || y == nil || x.NominalMs != y.NominalMs {
		if x != nil {
			decided-- // its local time was passed before
		}
		if y != nil {
			decided++
		}
	}
	c.zonedPlan(s, a, b)
	c.zonedTimes(s, a, b, decided)
	if ran == nil || ran.trigger != schemas.TriggerSchedule || ran.waited {
		return
	}
	for _, release := range [...]string{a.Zones, b.Zones} {
		if local := ran.nominalMs + c.w.zones.offset(release); a.NextKey <= local && local < b.NextKey && isNominal(c.w.zones.grid(s.rules[0].Cron), local) {
			return
		}
	}
	c.fail(PropZones, "%s: run %d has the nominal time %s, which is no instant of a local time from %s to %s", s, ran.number, c.w.ms(ran.nominalMs), c.local(a.NextKey), c.local(b.NextKey))
}

// local shows a local time of the zone that moves.
func (c *checker) local(key int64) string {
	return time.UnixMilli(key).UTC().Format("15:04:05")
}

// zonedPlan checks the instant of the next run, and which zone data may move it.
func (c *checker) zonedPlan(s *schedule, a, b *schemas.Progress) {
	switch {
	case b.NextKey == a.NextKey && b.NextMs == a.NextMs && b.Zones == a.Zones:
	case b.NextKey == a.NextKey && b.Zones <= a.Zones:
		c.fail(PropZones, "%s: zone data %s planned %s for %s, and %s moves it to %s", s, a.Zones, c.local(a.NextKey), c.w.ms(a.NextMs), b.Zones, c.w.ms(b.NextMs))
	case b.NextMs != b.NextKey-c.w.zones.offset(b.Zones):
		c.fail(PropZones, "%s: zone data %s plans %s for %s", s, b.Zones, c.local(b.NextKey), c.w.ms(b.NextMs))
	case b.NextKey == a.NextKey:
		c.w.stats.Rezoned++
	}
}

// zonedTimes checks that the local times from the old next run to the new one are decided.
func (c *checker) zonedTimes(s *schedule, a, b *schemas.Progress, decided int) {
	if b.NextKey < a.NextKey {
		c.fail(PropZones, "%s: its next run was at %s, and is at %s again", s, c.local(a.NextKey), c.local(b.NextKey))
		return
	}
	// Local times whose instants have passed already when the data changes lie in a gap.
	reached, gap, passed := s.reachedMs, 0, 0
	if a.Zones > b.Zones {
		reached = max(reached, a.NextMs)
	}
	for at := range c.w.zones.grid(s.rules[0].Cron).Between(a.NextKey, b.NextKey-1) {
		passed++
		if a.Zones != b.Zones && at-c.w.zones.offset(b.Zones) <= reached {
			gap++
		}
	}
	s.reachedMs = max(s.reachedMs, b.DecidedMs())
	if w := b.Waiting; w != nil {
		s.reachedMs = max(s.reachedMs, w.NominalMs)
	}
	if decided > passed || decided < passed-gap {
		c.fail(PropZones, "%s: its next run was at %s and is at %s: %d local times, %d of them in a gap between zone data %s and %s; %d are decided",
			s, c.local(a.NextKey), c.local(b.NextKey), passed, gap, a.Zones, b.Zones, decided)
	}
}

// zonedAtEnd checks that the schedule has not stopped.
func (c *checker) zonedAtEnd(s *schedule) {
	t, err := c.w.server.Record(s.id)
	now := c.w.net.serverTime(c.w.net.leaderOf(fake.StreamClock)) / int64(time.Millisecond)
	if err == nil && t.Record.State == schemas.StatePending && t.Record.Schedule.NextMs > now+time.Minute.Milliseconds() {
		c.fail(PropZones, "%s: its next run is at %s", s, c.w.ms(t.Record.Schedule.NextMs))
	}
}
