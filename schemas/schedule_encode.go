package schemas

import "encoding/binary"

// This file encodes Schedule and Origin, the values of two critical extensions: a node that
// does not know them must not fire the record. Each value begins with its layout, so that
// a later version can change it; a reader that does not know the layout treats the record
// as newer.

// layoutSchedule and layoutOrigin are the layouts that this version writes and reads.
const (
	layoutSchedule = 1
	layoutOrigin   = 1
)

// The least bytes of an encoded ManualRun, Span, Expected, Overdue and Decision. requestBytes is
// the size of a request's id.
const (
	requestBytes  = 8
	expectedBytes = 6
	overdueBytes  = 8
	manualBytes   = 2
	spanBytes     = 2
	decisionBytes = 6
)

// append appends the encoded schedule: numbers as uvarints, times as zig-zag varints,
// strings and lists with their lengths.
func (s *Schedule) append(dst []byte) []byte {
	dst = append(dst, layoutSchedule)
	for _, t := range [...]string{s.Cron, s.Every, s.Zone, s.DST, s.Days, s.ExcludeMode} {
		dst = appendString(dst, t)
	}
	dst = binary.AppendUvarint(dst, uint64(len(s.Exclude)))
	for _, name := range s.Exclude {
		dst = appendString(dst, name)
	}
	dst = appendTimes(dst, s.StartMs, s.EndMs, s.JitterMs, s.GraceMs, s.ExpectMs)
	dst = append(dst, byte(s.Misfire), byte(s.Overlap))
	dst = appendNumbers(dst, s.Limit, s.Fired, s.Counted, s.CaughtUp)
	dst = appendTimes(dst, s.AnchorMs, s.NextMs, s.NextDueMs, s.NextKey, s.ChangedMs, s.CountedMs, s.PausedUntilMs, s.ForgottenMs, s.KnownFromMs, s.PassedMs)
	dst = binary.AppendUvarint(dst, s.Calendars)
	dst = appendString(appendString(dst, s.PauseNote), s.Zones)
	dst = s.Last.append(dst)
	// One byte states which of the optional parts follow.
	var has byte
	if s.CatchUp != nil {
		has |= 1
	}
	if s.Waiting != nil {
		has |= 2
	}
	if s.Backfill != nil {
		has |= 4
	}
	if len(s.Requests) > 0 {
		has |= 8
	}
	if s.DoneKey != 0 {
		has |= 16
	}
	dst = append(dst, has)
	if s.CatchUp != nil {
		dst = append(dst, byte(*s.CatchUp))
	}
	if w := s.Waiting; w != nil {
		dst = appendNumbers(appendTimes(dst, w.NominalMs, w.DueMs), w.Missed)
	}
	if b := s.Backfill; b != nil {
		dst = appendTimes(dst, b.NextMs, b.ToMs, b.EveryMs, b.DueMs)
		dst = append(dst, flag(b.Allow))
		dst = appendNumbers(dst, b.Fired)
		dst = binary.AppendUvarint(dst, uint64(len(b.Except)))
		for _, e := range b.Except {
			dst = appendTimes(dst, e.FromMs, e.ToMs-e.FromMs)
		}
	}
	if s.DoneKey != 0 {
		dst = appendTimes(dst, s.DoneKey)
	}
	dst = binary.AppendUvarint(dst, uint64(len(s.Manual)))
	for _, m := range s.Manual {
		dst = append(appendTimes(dst, m.AtMs), flag(m.Allow))
	}
	dst = s.Alarm.append(dst)
	dst = binary.AppendUvarint(dst, uint64(len(s.Expected)))
	var before Expected // neighbours differ little, so their differences are short
	for _, e := range s.Expected {
		dst = append(dst, byte(e.Kind))
		dst = appendTimes(dst, e.FromMs-before.ToMs, e.ToMs-e.FromMs, e.DeadlineMs-e.ToMs)
		dst = appendNumbers(dst, e.Count, e.Run)
		before = e
	}
	dst = binary.AppendUvarint(dst, uint64(len(s.Overdue)))
	for _, o := range s.Overdue {
		dst = append(dst, byte(o.Kind), byte(o.State))
		dst = appendTimes(dst, o.FromMs, o.ToMs-o.FromMs, o.DeadlineMs-o.ToMs, o.AtMs-o.DeadlineMs)
		dst = appendNumbers(dst, o.Count, o.Run)
	}
	if len(s.Requests) > 0 {
		dst = binary.AppendUvarint(dst, uint64(len(s.Requests)))
		for _, id := range s.Requests {
			dst = binary.BigEndian.AppendUint64(dst, id)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(s.Decisions)))
	for _, d := range s.Decisions {
		// The times of a range are near each other, so their differences are short.
		dst = append(dst, byte(d.Kind))
		dst = appendTimes(dst, d.FromMs, d.ToMs-d.FromMs, d.AtMs-d.ToMs)
		dst = appendNumbers(dst, d.Count, d.Run)
	}
	return dst
}

func (l *LastRun) append(dst []byte) []byte {
	dst = appendNumbers(dst, l.Run, l.Missed)
	dst = append(dst, byte(l.Trigger))
	dst = appendTimes(dst, l.NominalMs, l.DueMs, l.ClaimedMs)
	return binary.AppendUvarint(binary.AppendUvarint(dst, l.Epoch), l.Before)
}

// append appends the encoded origin.
func (o *Origin) append(dst []byte) []byte {
	dst = append(append(dst, layoutOrigin), o.Schedule[:]...)
	dst = append(dst, byte(o.Trigger), flag(o.Waited))
	return appendTimes(appendNumbers(dst, o.Missed), o.DeadlineMs)
}

// readSchedule decodes the value of extension extSchedule. It returns nil if the value has
// another layout or is malformed.
func readSchedule(value []byte) *Schedule {
	d := decoder{b: value}
	if d.byte() != layoutSchedule {
		return nil
	}
	var s Schedule
	d.strings(&s.Cron, &s.Every, &s.Zone, &s.DST, &s.Days, &s.ExcludeMode)
	if n := d.count(1); n > 0 {
		s.Exclude = make([]string, n)
		for i := range s.Exclude {
			d.strings(&s.Exclude[i])
		}
	}
	d.times(&s.StartMs, &s.EndMs, &s.JitterMs, &s.GraceMs, &s.ExpectMs)
	s.Misfire, s.Overlap = Misfire(d.byte()), Overlap(d.byte())
	d.numbers(&s.Limit, &s.Fired, &s.Counted, &s.CaughtUp)
	d.times(&s.AnchorMs, &s.NextMs, &s.NextDueMs, &s.NextKey, &s.ChangedMs, &s.CountedMs, &s.PausedUntilMs, &s.ForgottenMs, &s.KnownFromMs, &s.PassedMs)
	s.Calendars = d.uvarint()
	d.strings(&s.PauseNote, &s.Zones)
	s.Last = d.lastRun()
	has := d.byte()
	if has&1 != 0 {
		m := Misfire(d.byte())
		s.CatchUp = &m
	}
	if has&2 != 0 {
		s.Waiting = &WaitingRun{}
		d.times(&s.Waiting.NominalMs, &s.Waiting.DueMs)
		d.numbers(&s.Waiting.Missed)
	}
	if has&4 != 0 {
		b := &Backfill{}
		d.times(&b.NextMs, &b.ToMs, &b.EveryMs, &b.DueMs)
		b.Allow = d.byte() == 1
		d.numbers(&b.Fired)
		if n := d.count(spanBytes); n > 0 {
			b.Except = make([]Span, n)
			for i := range b.Except {
				e := &b.Except[i]
				d.times(&e.FromMs, &e.ToMs)
				e.ToMs += e.FromMs
			}
		}
		s.Backfill = b
	}
	if has&16 != 0 {
		d.times(&s.DoneKey)
		d.bad = d.bad || s.DoneKey == 0
	}
	if n := d.count(manualBytes); n > 0 {
		s.Manual = make([]ManualRun, n)
		for i := range s.Manual {
			d.times(&s.Manual[i].AtMs)
			s.Manual[i].Allow = d.byte() == 1
		}
	}
	s.Alarm = d.lastRun()
	if n := d.count(expectedBytes); n > 0 {
		s.Expected = make([]Expected, n)
		var before Expected
		for i := range s.Expected {
			e := &s.Expected[i]
			e.Kind = DecisionKind(d.byte())
			d.times(&e.FromMs, &e.ToMs, &e.DeadlineMs)
			e.FromMs += before.ToMs
			e.ToMs += e.FromMs
			e.DeadlineMs += e.ToMs
			d.numbers(&e.Count, &e.Run)
			before = *e
		}
	}
	if n := d.count(overdueBytes); n > 0 {
		s.Overdue = make([]Overdue, n)
		for i := range s.Overdue {
			o := &s.Overdue[i]
			o.Kind, o.State = DecisionKind(d.byte()), State(d.byte())
			d.times(&o.FromMs, &o.ToMs, &o.DeadlineMs, &o.AtMs)
			o.ToMs += o.FromMs
			o.DeadlineMs += o.ToMs
			o.AtMs += o.DeadlineMs
			d.numbers(&o.Count, &o.Run)
		}
	}
	if has&8 != 0 {
		s.Requests = make([]uint64, d.count(requestBytes))
		d.bad = d.bad || len(s.Requests) == 0
		for i := range s.Requests {
			s.Requests[i] = binary.BigEndian.Uint64(d.take(requestBytes))
		}
	}
	if n := d.count(decisionBytes); n > 0 {
		s.Decisions = make([]Decision, n)
		for i := range s.Decisions {
			p := &s.Decisions[i]
			p.Kind = DecisionKind(d.byte())
			d.times(&p.FromMs, &p.ToMs, &p.AtMs)
			p.ToMs += p.FromMs
			p.AtMs += p.ToMs
			d.numbers(&p.Count, &p.Run)
		}
	}
	if d.bad || len(d.b) > 0 || has > 31 || !s.known() {
		return nil
	}
	return &s
}

// lastRun decodes what LastRun.append has encoded.
func (d *decoder) lastRun() (l LastRun) {
	d.numbers(&l.Run, &l.Missed)
	l.Trigger = Trigger(d.byte())
	d.times(&l.NominalMs, &l.DueMs, &l.ClaimedMs)
	l.Epoch, l.Before = d.uvarint(), d.uvarint()
	return l
}

// known reports whether this version knows each policy of the schedule. A node must not run a
// schedule by another policy than its user chose.
func (s *Schedule) known() bool {
	return s.Misfire <= MisfireSkip && s.Overlap <= OverlapReplace && s.Last.Trigger <= TriggerBackfill && s.Alarm.Trigger <= TriggerBackfill && (s.CatchUp == nil || *s.CatchUp <= MisfireSkip)
}

// readOrigin decodes the value of extension extOrigin. It returns nil if the value has
// another layout or is malformed.
func readOrigin(value []byte) *Origin {
	d := decoder{b: value}
	if d.byte() != layoutOrigin {
		return nil
	}
	var o Origin
	copy(o.Schedule[:], d.take(len(o.Schedule)))
	o.Trigger, o.Waited = Trigger(d.byte()), d.byte() == 1
	d.numbers(&o.Missed)
	d.times(&o.DeadlineMs)
	if d.bad || len(d.b) > 0 || o.Trigger > TriggerBackfill || o.Schedule.IsZero() {
		return nil
	}
	return &o
}

func appendTimes(dst []byte, all ...int64) []byte {
	for _, ms := range all {
		dst = binary.AppendVarint(dst, ms)
	}
	return dst
}

func appendNumbers(dst []byte, all ...uint32) []byte {
	for _, n := range all {
		dst = binary.AppendUvarint(dst, uint64(n))
	}
	return dst
}

func flag(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// byte decodes one byte; 0 if there is none.
func (d *decoder) byte() byte {
	if b := d.take(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

// count decodes the length of a list whose elements take at least size bytes each.
func (d *decoder) count(size int) int {
	n := d.uvarint()
	if n > uint64(len(d.b)/size) {
		d.bad = true
		return 0
	}
	return int(n)
}

func (d *decoder) times(into ...*int64) {
	for _, p := range into {
		*p = d.varint()
	}
}

func (d *decoder) numbers(into ...*uint32) {
	for _, p := range into {
		*p = d.uint32()
	}
}
