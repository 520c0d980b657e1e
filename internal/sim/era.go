package sim

import "time"

// era is a time at which a simulation begins. Most are a little before a time zone changes its
// offset, so that schedules in that zone pass the change.
type era struct {
	// beginNs is the start of the simulation without change, in Unix nanoseconds. With a
	// change, the simulation begins before it by a part of params.active.
	beginNs int64
	zone    string
	// change is the time of the change, hour its local hour before the change.
	change time.Time
	hour   int
	// midnightZone is a zone without daylight saving in which a date begins at midnight: at the
	// change or, without one, at the start of the simulation.
	midnightZone string
	midnight     time.Time
}

// eras are the times at which simulations begin. Schedules of the first era use zones that
// do not change.
var eras = [...]era{
	{beginNs: 1_800_000_000_000_000_000, zone: "Asia/Kolkata", midnightZone: "Pacific/Pitcairn"},
	// 02:00 becomes 03:00.
	{zone: "Europe/Berlin", change: time.Date(2027, time.March, 28, 1, 0, 0, 0, time.UTC), hour: 2, midnightZone: "Atlantic/Cape_Verde"},
	// 03:00 becomes 02:00.
	{zone: "Europe/Berlin", change: time.Date(2027, time.October, 31, 1, 0, 0, 0, time.UTC), hour: 2, midnightZone: "Atlantic/Cape_Verde"},
	// 02:00 becomes 01:30.
	{zone: "Australia/Lord_Howe", change: time.Date(2027, time.April, 3, 15, 0, 0, 0, time.UTC), hour: 1, midnightZone: "Asia/Tokyo"},
	// 00:00 becomes 01:00.
	{zone: "America/Santiago", change: time.Date(2027, time.September, 5, 4, 0, 0, 0, time.UTC), hour: 0, midnightZone: "America/Puerto_Rico"},
}

// chooseEra draws the era of a simulation in which schedules run, and its start.
func chooseEra(rng dice, p *params) (e era, epoch int64) {
	e = eras[rng.IntN(len(eras))]
	if e.change.IsZero() {
		e.midnight = time.Unix(0, e.beginNs)
		return e, e.beginNs
	}
	e.midnight = e.change
	before := 5*time.Second + time.Duration(rng.Int64N(int64(p.active)))
	return e, e.change.Add(-before).Truncate(time.Second).UnixNano()
}

// ms shows a time of the cluster, in Unix milliseconds, from the start of the simulation.
func (w *world) ms(unixMs int64) string { return w.rel(unixMs * int64(time.Millisecond)) }

// rel shows a true time, in Unix nanoseconds, from the start of the simulation.
func (w *world) rel(ns int64) string { return time.Duration(ns - w.epoch).String() }
