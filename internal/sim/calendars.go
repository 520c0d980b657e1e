package sim

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// This file has the calendars of excluded dates: their clients, and all versions of all
// calendars that were stored. Nodes have copies as in production (store.Calendars).

// calendarNames are the names of the calendars of a simulation.
var calendarNames = [...]string{"a", "b"}

// calendars are the calendars of a simulation; nil for a simulation without.
type calendars struct {
	w *world
	d dice
	// days are the dates near the simulation in the era's midnight zone, dayMs their first
	// instants. The third one begins at the era's change.
	days  [5]string
	dayMs [5]int64
	// versions are all states of the bucket, oldest first; the first one is empty.
	versions []*calendarVersion
	// acked is the highest sequence of a change that was acknowledged.
	acked uint64
	// settled is the true time after which no client changes a calendar; 0 before.
	settled int64
}

// calendarVersion is one state of all calendars.
type calendarVersion struct {
	seq   uint64 // in the bucket's stream
	at    int64  // true time at which it was stored
	atMs  int64  // the same by the cluster's clock, in Unix milliseconds
	name  string // of the calendar that it changed
	dates map[string][]string
}

// hasCalendars reports whether a seed has calendars: two seeds of three. The others have nodes
// with different zone data; see zones.go.
func hasCalendars(cfg Config) bool { return cfg.Schedules && cfg.Seed%3 != 0 }

func newCalendars(w *world) *calendars {
	k := &calendars{w: w, d: dice{rand.New(rand.NewPCG(w.cfg.Seed, 0x63616c656e646172))}, versions: []*calendarVersion{{dates: map[string][]string{}}}}
	zone, err := time.LoadLocation(w.era.midnightZone)
	if err != nil {
		panic(err) // eras is checked by TestEras
	}
	for i := range k.days {
		day := w.era.midnight.In(zone).AddDate(0, 0, i-2)
		k.days[i], k.dayMs[i] = day.Format(time.DateOnly), day.UnixMilli()
	}
	return k
}

// newest is the version that is in the store.
func (k *calendars) newest() *calendarVersion { return k.versions[len(k.versions)-1] }

// stored sees a change of a calendar.
func (k *calendars) stored(name string, seq uint64, value []byte) {
	var v struct {
		Deleted bool     `json:"deleted"`
		Dates   []string `json:"dates"`
	}
	if err := json.Unmarshal(value, &v); err != nil {
		k.w.check.fail(PropState, "calendar %s was stored as %q: %v", name, value, err)
		return
	}
	next := &calendarVersion{seq: seq, at: k.w.now, atMs: (k.w.now + k.w.check.skew()) / int64(time.Millisecond), name: name, dates: map[string][]string{}}
	for n, dates := range k.newest().dates {
		next.dates[n] = dates
	}
	if next.dates[name] = v.Dates; v.Deleted {
		delete(next.dates, name)
	}
	k.versions = append(k.versions, next)
	k.w.stats.CalendarChanges++
	k.w.trace("calendar %s is stored as %v, deleted %v, sequence %d", name, v.Dates, v.Deleted, seq)
}

// Exclusions implements recurrence.Calendars for the checker, without package store.
func (v *calendarVersion) Exclusions(names []string) (*calendar.Exclusions, error) {
	var all []calendar.Dates
	for _, name := range names {
		dates, ok := v.dates[name]
		if !ok {
			return nil, errNoCalendar
		}
		d, err := calendar.NewDates(name, dates...)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return calendar.Join(all...), nil
}

var errNoCalendar = errors.New("no such calendar")

// since returns the versions that were in the store at a true time or later.
func (k *calendars) since(at int64) []*calendarVersion {
	first := len(k.versions) - 1
	for first > 0 && k.versions[first].at > at {
		first--
	}
	return k.versions[first:]
}

// heldUntil returns the true time before which a schedule, by the rule in force, may not have
// fired because one of its calendars did not exist, for a run that is claimed now; 0 if none was
// missing. A scheduler that holds a schedule looks again after up to lookAgain.
func (k *calendars) heldUntil(s *schedule, now int64) (until int64) {
	exclude := s.rules[s.ruleInForce].Exclude
	if k == nil || len(exclude) == 0 {
		return 0
	}
	for i, v := range k.versions[:len(k.versions)-1] {
		if _, err := v.Exclusions(exclude); err != nil && v.at < now {
			until = k.versions[i+1].at + int64(lookAgain)
		}
	}
	return until
}

// lookAgain is the longest pause of a scheduler before it looks again for a calendar that does
// not exist, and the age of the copy in which it looks.
const lookAgain = 2*time.Second + store.CalendarFresh

// inForce returns the versions that a decision made now may follow: the last acknowledged
// version, and all later ones.
func (k *calendars) inForce() []*calendarVersion {
	i := slices.IndexFunc(k.versions, func(v *calendarVersion) bool { return v.seq >= k.acked })
	return k.versions[i:]
}

// --- nodes ---

// readCalendars keeps the copy of a process.
func (n *node) readCalendars() {
	n.calendars = store.NewCalendars(n.client, store.CopyClock{Now: n.monoTime, Pause: func(_ context.Context, d time.Duration) bool {
		n.w.current.sleep(d)
		return true
	}}, zerolog.Nop())
	n.w.spawn(n, func(*proc) { n.calendars.Run(within(callTimeout)) })
}

// basis is what the node's router plans schedules on.
func (n *node) basis() recurrence.Basis {
	return recurrence.Basis{Zones: n.zones, Calendars: n.currentCalendars(within(apiTimeout))}
}

// currentCalendars implements router.Operations.Calendars.
func (n *node) currentCalendars(ctx context.Context) recurrence.Calendars {
	if n.calendars == nil {
		return nil
	}
	return router.CurrentCalendars(ctx, n.calendars)
}

// --- clients ---

// change changes calendars until a little after the last fault. The calendars exist at the end.
func (k *calendars) change(p *proc) {
	w := k.w
	for _, name := range calendarNames {
		k.put(p, name, k.draw())
	}
	for w.now < w.healed+int64(6*time.Second) {
		p.sleep(k.d.between(500*time.Millisecond, 6*time.Second))
		name := calendarNames[k.d.IntN(len(calendarNames))]
		if k.d.oneIn(5) {
			k.once(p, name, nil)
			p.sleep(k.d.between(100*time.Millisecond, 5*time.Second))
		}
		k.once(p, name, k.draw())
	}
	for _, name := range calendarNames {
		k.put(p, name, k.draw())
	}
	k.settled = w.now
	w.trace("no calendar changes any more")
}

// draw draws the dates of a calendar: often today's or tomorrow's, and always a date without
// effect, so that the calendar exists.
func (k *calendars) draw() []string {
	dates := []string{"2031-01-01"}
	for _, day := range k.days {
		if k.d.oneIn(3) {
			dates = append(dates, day)
		}
	}
	return dates
}

// put puts a calendar until it is acknowledged.
func (k *calendars) put(p *proc, name string, dates []string) {
	for range 1000 {
		if k.once(p, name, dates) {
			return
		}
		p.sleep(k.d.between(50*time.Millisecond, time.Second))
	}
}

// once puts a calendar by compare-and-set, or deletes it if dates is nil. It reports whether
// that was acknowledged.
func (k *calendars) once(p *proc, name string, dates []string) bool {
	w := k.w
	var rev uint64
	for _, v := range k.versions {
		if v.name == name {
			rev = v.seq
		}
	}
	if k.d.oneIn(8) {
		rev += 1 + uint64(k.d.IntN(2)) // of nothing, or of the other calendar
	}
	c := store.Calendar{Name: name, Dates: dates, AtMs: w.now / int64(time.Millisecond), By: "sim"}
	var next uint64
	err := w.ask(p, func(n *node) (err error) {
		if dates == nil {
			next, err = n.calendars.DeleteCalendar(within(apiTimeout), c, rev)
		} else {
			next, err = n.calendars.PutCalendar(within(apiTimeout), c, rev)
		}
		return err
	})
	if err != nil {
		w.trace("calendar %s: %v", name, err)
		return false
	}
	i := slices.IndexFunc(k.versions, func(v *calendarVersion) bool { return v.seq == next && v.name == name })
	if i < 0 {
		w.check.fail(PropCalendars, "calendar %s: revision %d was acknowledged and is not stored", name, next)
		return true
	}
	k.acked = max(k.acked, next)
	w.trace("calendar %s: revision %d is acknowledged", name, next)
	return true
}

// excludingRule draws a recurrence that excludes calendars.
func (k *calendars) excludingRule(d dice) schemas.Recurrence {
	var r schemas.Recurrence
	r.Zone = k.w.era.midnightZone
	step := 1 + d.IntN(6)
	day := func() string { return strconv.Itoa(time.UnixMilli(k.dayMs[d.IntN(len(k.days))]).In(k.zone()).Day()) }
	switch d.IntN(5) {
	case 0: // follows real time
		r.Cron = "*/" + strconv.Itoa(step) + " * * * * *"
	case 1: // fixed times
		r.Cron = "*/" + strconv.Itoa(step) + " 0-59 0-23 * * *"
	case 2: // on one day
		r.Cron = "*/" + strconv.Itoa(step) + " 0-59 0-23 " + day() + " * *"
	default: // on two days
		r.Cron = "*/" + strconv.Itoa(step) + " 0-59 0-23 " + day() + "," + day() + " * *"
	}
	r.Exclude = [][]string{{"a"}, {"b"}, {"a", "b"}, {"b", "a"}}[d.IntN(4)]
	r.ExcludeMode = []string{"", "skip", "next", "next", "previous"}[d.IntN(5)]
	if d.oneIn(8) {
		r.Limit = 3 + uint32(d.IntN(12))
	}
	if d.oneIn(5) {
		r.GraceMs = 500 + d.Int64N(8000)
	}
	r.Misfire = schemas.Misfire(d.IntN(3))
	r.Overlap = schemas.Overlap(d.IntN(4))
	return r
}

func (k *calendars) zone() *time.Location {
	zone, err := time.LoadLocation(k.w.era.midnightZone)
	if err != nil {
		panic(err) // eras is checked by TestEras
	}
	return zone
}
