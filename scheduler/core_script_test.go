package scheduler_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// TestCoreScripts runs the scripts in testdata/core: each command is an event, and its
// expected output lists the actions of the core. To write the present output into the
// scripts:
//
//	go test ./scheduler -run TestCoreScripts -rewrite
//
// Times are relative to the start of the script: `5s` is five seconds after it. One slot
// is one second wide. Commands:
//
//	own epoch=N [watermark=T] [applied=N] [seen=N] [max-inflight=N] [first-inflight=N] [first-fire-at-once=N] [fire-at-once=N] [horizon=T] [retention=T] [head=N] [earlier-epoch=N] [earlier-applied=N]
//	step now=T                     time passes
//	tail now=T                     the tail brings records, one a line
//	loaded now=T                   answers load, with records
//	scanned now=T                  answers scan, with records
//	swept now=T [redispatch]       the sweeper found records
//	claimed now=T id=X [rev=N] [err=E]
//	published now=T id=X [err=E]
//	reread now=T id=X [err=E]      with the record that was read
//	found now=T [id=X…]            answers the dedup check: these events are in the stream
//	finished | dead-lettered | indexed now=T id=X [err=E]
//	failed now=T id=X [rev=N] [err=E]
//	counted now=T waiting=N [id=X…] [last=N]    the count read up to revision last; without last, all
//	pause, resume, drain now=T
//	state [earlier] now=T          shows the clock from which a new owner would resume; with earlier, writes it as a term
//	                               does, and also shows EarlierEpoch and EarlierTail
//
//	indexed now=T id=X tick=T ahead [err=E]    the index entry of a schedule's next due time
//	looked now=T id=X [open] [err=E]           the result of a schedule's last run
//	created now=T id=X [rev=N] [err=E]         the record of a run
//
// A record is written as: id rev=N due=T [state=S] [svc=S] [epoch=N] [fired=T] [callback]
// [moves=N] [added=T] [attempt=N] [done=T].
//
// A schedule is written as: id rev=N every=T [misfire=S] [overlap=S] [limit=N] [grace=T] [end=T]
// [callback] [state=S] [moves=N]; it was added at the start of the script. With the word claimed it has
// what its last claim in the script wrote, with last-epoch=N as if that owner had made the
// claim, and with claimed=N what its Nth claim wrote. Its run N is called id/N.
func TestCoreScripts(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata/core", func(t *testing.T, path string) {
		s := &coreScript{names: map[schemas.TimerID]string{}, claims: map[schemas.TimerID]schemas.Record{}, all: map[schemas.TimerID][]schemas.Record{}}
		datadriven.RunTest(t, path, s.run)
	})
}

// scriptStartMs is the start of every script, in Unix milliseconds.
const scriptStartMs = 1_800_000_000_000

// coreScript is the state of one script.
type coreScript struct {
	core    *scheduler.Core
	from    store.Clock // the clock that own has set, or that state earlier has written
	names   map[schemas.TimerID]string
	claims  map[schemas.TimerID]schemas.Record // the last claim of each timer
	all     map[schemas.TimerID][]schemas.Record
	finals  map[schemas.TimerID]scheduler.ActFinish
	epoch   uint64
	lastRev uint64
}

func (s *coreScript) run(t *testing.T, d *datadriven.TestData) string {
	if d.Cmd == "own" {
		return s.own(t, d)
	}
	if s.core == nil {
		d.Fatalf(t, "the script must begin with own")
	}
	now := s.time(t, d, "now", 0)
	var out strings.Builder
	step := func(ev scheduler.Event) { s.print(&out, s.core.Step(now, ev)) }
	switch d.Cmd {
	case "step":
		step(scheduler.EvTick{})
	case "tail":
		for line := range strings.Lines(d.Input) {
			step(scheduler.EvTail{Timer: s.record(t, d, line)})
		}
	case "loaded":
		ev := scheduler.EvLoaded{Err: s.err(t, d), Load: store.Load{Complete: true}}
		for line := range strings.Lines(d.Input) {
			ev.Load.Timers = append(ev.Load.Timers, s.record(t, d, line))
		}
		step(ev)
	case "scanned":
		for line := range strings.Lines(d.Input) {
			step(scheduler.EvScanned{Timer: s.record(t, d, line)})
		}
		step(scheduler.EvScanDone{Err: s.err(t, d)})
	case "swept":
		for line := range strings.Lines(d.Input) {
			step(scheduler.EvSwept{Timer: s.record(t, d, line), Redispatch: d.HasArg("redispatch")})
		}
	case "claimed":
		ev := scheduler.EvClaimed{ID: s.id(t, d), Err: s.err(t, d)}
		if ev.Err == nil {
			ev.Rev = uint64(s.number(t, d, "rev", 0))
		}
		step(ev)
	case "published":
		step(scheduler.EvPublished{ID: s.id(t, d), Err: s.err(t, d)})
	case "reread":
		ev := scheduler.EvReread{ID: s.id(t, d), Err: s.err(t, d)}
		if ev.Err == nil {
			ev.Timer = s.record(t, d, d.Input)
		}
		step(ev)
	case "found":
		ev := scheduler.EvDedupChecked{Err: s.err(t, d), Found: map[string]struct{}{}}
		for _, a := range d.CmdArgs {
			if a.Key == "id" {
				for _, name := range a.Vals {
					name, run, ok := strings.Cut(name, "/")
					if nominal, is := strings.CutPrefix(run, "overdue-"); is {
						ev.Found[schemas.OverdueID(schemas.NewTimerID("/test", name), s.parseTime(t, d, nominal))] = struct{}{}
						continue
					}
					n, _ := strconv.ParseUint(run, 10, 32)
					if !ok {
						n = 1
					}
					ev.Found[schemas.NewTimerID("/test", name).MsgID(uint32(n))] = struct{}{}
				}
			}
		}
		step(ev)
	case "finished":
		id := s.id(t, d)
		step(scheduler.EvFinished{Finish: s.finals[id], Err: s.err(t, d)})
	case "dead-lettered":
		step(scheduler.EvDeadLettered{ID: s.id(t, d), Err: s.err(t, d)})
	case "failed":
		step(scheduler.EvFailed{ID: s.id(t, d), Rev: uint64(s.number(t, d, "rev", 0)), Err: s.err(t, d)})
	case "indexed":
		ev := scheduler.EvIndexed{ID: s.id(t, d), Err: s.err(t, d), Ahead: d.HasArg("ahead")}
		ev.Record, ev.Tick = ev.ID, s.time(t, d, "tick", 0)/1000
		step(ev)
	case "looked":
		ev := scheduler.EvLooked{ID: s.id(t, d), Open: d.HasArg("open"), Err: s.err(t, d), State: schemas.StateFail}
		if ev.Open {
			ev.State = schemas.StateDelivered
		}
		if d.HasArg("success") {
			ev.State, ev.DoneMs = schemas.StateSuccess, s.time(t, d, "success", 0)
		}
		step(ev)
	case "created":
		ev := scheduler.EvRunCreated{ID: s.id(t, d), Err: s.err(t, d)}
		if ev.Err == nil {
			ev.Rev = uint64(s.number(t, d, "rev", 0))
		}
		step(ev)
	case "counted":
		var waiting []uint64
		for i := range s.number(t, d, "waiting", 0) {
			waiting = append(waiting, uint64(i)) // other keys than those of the script's timers
		}
		for _, a := range d.CmdArgs {
			if a.Key == "id" { // this timer waits, too
				waiting = append(waiting, store.CountKey(scriptID(a.Vals[0])))
			}
		}
		slices.Sort(waiting)
		step(scheduler.EvCounted{Waiting: waiting, Last: uint64(s.number(t, d, "last", int64(s.lastRev))), Err: s.err(t, d)})
	case "pause", "resume":
		s.core.Pause(d.Cmd == "pause")
		step(scheduler.EvTick{})
	case "drain":
		s.print(&out, s.core.Drain(now))
	case "state":
		s.state(&out, d.HasArg("earlier"))
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	if out.Len() == 0 {
		return "nothing\n"
	}
	return out.String()
}

func (s *coreScript) own(t *testing.T, d *datadriven.TestData) string {
	s.epoch = uint64(s.number(t, d, "epoch", 1))
	s.finals = map[schemas.TimerID]scheduler.ActFinish{}
	cfg := scheduler.CoreConfig{
		Geometry:  schemas.Geometry{Shards: 1, SlotWidth: time.Second, WheelSize: 1000},
		HorizonMs: s.time(t, d, "horizon", scriptStartMs+10_000) - scriptStartMs, ScanBehindMs: 60_000,
		MaxLoaded: 100, MaxInflight: int(s.number(t, d, "max-inflight", 10)), FirstInflight: int(s.number(t, d, "first-inflight", 0)), FirstFireAtOnce: int(s.number(t, d, "first-fire-at-once", 0)), FireAtOnce: int(s.number(t, d, "fire-at-once", 0)), SweepMs: 600_000,
		Head:      uint64(s.number(t, d, "head", 0)),
		Retention: time.Duration(s.time(t, d, "retention", scriptStartMs+3600_000)-scriptStartMs) * time.Millisecond,
	}
	c := store.Clock{
		TimeMs: s.time(t, d, "watermark", scriptStartMs), Epoch: s.epoch,
		Tail: uint64(s.number(t, d, "applied", 0)), Seen: uint64(s.number(t, d, "seen", 0)),
		EarlierEpoch: uint64(s.number(t, d, "earlier-epoch", 0)), EarlierTail: uint64(s.number(t, d, "earlier-applied", 0)),
		PendingUnknown: d.HasArg("pending-unknown"), Pending: s.number(t, d, "pending", 0),
	}
	s.core, s.from = scheduler.NewCore(cfg, c, s.epoch), c
	var out strings.Builder
	s.print(&out, s.core.Step(s.time(t, d, "now", c.TimeMs), scheduler.EvTick{}))
	return out.String()
}

// claimOf returns the claim that a word of a record names.
func (s *coreScript) claimOf(id schemas.TimerID, words []string) (rec schemas.Record, ok bool) {
	for _, word := range words {
		number, named := strings.CutPrefix(word, "claimed=")
		if n, err := strconv.Atoi(number); named && err == nil && n > 0 && n <= len(s.all[id]) {
			return s.all[id][n-1], true
		}
	}
	rec, ok = s.claims[id]
	return rec, ok && slices.Contains(words, "claimed")
}

// record reads the description of a record.
func (s *coreScript) record(t *testing.T, d *datadriven.TestData, line string) store.Timer {
	words := strings.Fields(line)
	if len(words) == 0 {
		d.Fatalf(t, "a record has no id")
	}
	name := words[0]
	out := store.Timer{ID: scriptID(name)}
	s.names[out.ID] = name
	r := &out.Record
	if rec, ok := s.claimOf(out.ID, words); ok {
		*r = rec
		if r.Schedule != nil {
			r.Schedule = r.Schedule.Clone()
		}
	} else if rec, ok := s.claims[out.ID]; ok && strings.Contains(name, "/") {
		*r = rec
	} else {
		*r = *timer(name, scriptStartMs).Record
		r.AddedMs = scriptStartMs
	}
	if strings.Contains(line, " every=") {
		r.Schedule = &schemas.Schedule{}
	}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		n, _ := strconv.ParseUint(value, 10, 64)
		switch key {
		case "rev":
			out.Rev = n
		case "due":
			r.DueMs = s.parseTime(t, d, value)
			r.ScheduledMs = r.DueMs
		case "state":
			state, err := schemas.ParseState(value)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			r.State, r.Queued = state, state == schemas.StatePending || state == schemas.StateRetrying
		case "added":
			r.AddedMs = s.parseTime(t, d, value)
		case "svc":
			r.Service = value
		case "epoch":
			r.Epoch = n
		case "done":
			r.DoneMs = s.parseTime(t, d, value)
		case "fired":
			r.FiredMs = s.parseTime(t, d, value)
		case "moves":
			r.Moves = uint32(n)
		case "attempt":
			r.Attempt = uint32(n)
		case "callback":
			r.Callback = "https://example.com/"
		case "claimed":
		case "every":
			r.Schedule.Every = value
		case "limit":
			r.Schedule.Limit = uint32(n)
		case "misfire":
			r.Schedule.Misfire = schemas.Misfire(slices.Index([]string{"one", "all", "skip"}, value))
		case "overlap":
			r.Schedule.Overlap = schemas.Overlap(slices.Index([]string{"skip", "queue", "allow", "replace"}, value))
		case "expect":
			r.Schedule.ExpectMs = s.parseTime(t, d, value) - scriptStartMs
		case "grace":
			r.Schedule.GraceMs = s.parseTime(t, d, value) - scriptStartMs
		case "end":
			r.Schedule.EndMs = s.parseTime(t, d, value)
		case "last-epoch":
			r.Schedule.Last.Epoch = n
		default:
			d.Fatalf(t, "unknown field %s of a record", key)
		}
	}
	if r.Schedule != nil && r.Schedule.NextMs == 0 && r.Run == 1 {
		r.Schedule.AnchorMs = scriptStartMs
		plan, err := recurrence.Compile(out.ID, &r.Schedule.Recurrence, scriptStartMs, nil)
		if err == nil {
			err = plan.Begin(r)
		}
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		r.Queued = r.State == schemas.StatePending
	}
	s.lastRev = max(s.lastRev, out.Rev)
	return out
}

func (s *coreScript) id(t *testing.T, d *datadriven.TestData) schemas.TimerID {
	var name string
	d.ScanArgs(t, "id", &name)
	return scriptID(name)
}

// scriptID returns the timer id of a timer, of a schedule, or of a schedule's run (id/N).
func scriptID(name string) schemas.TimerID {
	schedule, run, ok := strings.Cut(name, "/")
	id := schemas.NewTimerID("/test", schedule)
	if n, err := strconv.ParseUint(run, 10, 32); ok && err == nil {
		id = schemas.RunTimer(id, uint32(n))
	}
	return id
}

func (s *coreScript) number(t *testing.T, d *datadriven.TestData, key string, otherwise int64) int64 {
	if !d.HasArg(key) {
		return otherwise
	}
	var n int64
	d.ScanArgs(t, key, &n)
	return n
}

// time returns an argument in Unix milliseconds.
func (s *coreScript) time(t *testing.T, d *datadriven.TestData, key string, otherwise int64) int64 {
	if !d.HasArg(key) {
		return otherwise
	}
	var v string
	d.ScanArgs(t, key, &v)
	return s.parseTime(t, d, v)
}

func (s *coreScript) parseTime(t *testing.T, d *datadriven.TestData, v string) int64 {
	after, err := time.ParseDuration(v)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return scriptStartMs + after.Milliseconds()
}

// scriptErrors names the errors that a store returns to a core.
var scriptErrors = map[string]error{
	"wrong-revision": store.ErrRevision,
	"unavailable":    schemas.ErrUnavailable,
	"not-found":      schemas.ErrNotFound,
	"newer":          schemas.ErrNewer,
	"damaged":        schemas.ErrDamaged,
	"too-large":      schemas.Errorf(schemas.CodeTooLarge, "the headers have 70000 bytes"),
}

func (s *coreScript) err(t *testing.T, d *datadriven.TestData) error {
	if !d.HasArg("err") {
		return nil
	}
	var name string
	d.ScanArgs(t, "err", &name)
	err, ok := scriptErrors[name]
	if !ok {
		d.Fatalf(t, "unknown error %s; there are %v", name, slices.Sorted(maps.Keys(scriptErrors)))
	}
	return err
}

// state shows the clock from which a new owner would resume. With earlier it writes the clock, as a term does.
func (s *coreScript) state(out *strings.Builder, earlier bool) {
	var c store.Clock
	if earlier {
		c = s.from // a term's clock never decreases
	}
	s.core.Checkpoint(&c)
	if earlier {
		s.from = c
	}
	fmt.Fprintf(out, "low watermark %s, applied %d of %d, %d entries", at(c.TimeMs), c.Tail, c.Seen, s.core.Loaded())
	if pending, known := s.core.Pending(); known {
		fmt.Fprintf(out, ", %d pending", pending)
	} else {
		fmt.Fprint(out, ", pending unknown")
	}
	if c.EarlierEpoch != 0 && earlier {
		fmt.Fprintf(out, ", for claims up to epoch %d applied %d", c.EarlierEpoch, c.EarlierTail)
	}
	fmt.Fprintln(out)
}

// print writes the actions, one a line.
func (s *coreScript) print(out *strings.Builder, actions []scheduler.Action) {
	for _, a := range actions {
		switch a := a.(type) {
		case scheduler.ActLoad:
			fmt.Fprintf(out, "load %s to %s", at(a.Ticks[0]*1000), at(a.Ticks[len(a.Ticks)-1]*1000))
			delayed(out, a.Delay)
		case scheduler.ActScan:
			fmt.Fprintf(out, "scan through %s", at(a.ThroughMs))
			delayed(out, a.Delay)
		case scheduler.ActClaim:
			s.claims[a.ID] = *a.Record
			s.all[a.ID] = append(s.all[a.ID], *a.Record)
			if a.Record.Schedule != nil {
				s.printTurn(out, a)
				continue
			}
			fmt.Fprintf(out, "claim %s at rev %d: %s, epoch %d\n", s.names[a.ID], a.Rev, a.Record.State, a.Record.Epoch)
		case scheduler.ActPublish:
			fmt.Fprintf(out, "publish %s to %s as %s, %d ms late\n", s.names[a.ID], a.Msg.Subject, s.msgID(a.Msg.MsgID), a.LateMs)
		case scheduler.ActFinish:
			s.finals[a.ID] = a
			fmt.Fprintf(out, "finish %s at rev %d: %s\n", s.names[a.ID], a.Rev, a.Record.State)
		case scheduler.ActDeadLetter:
			fmt.Fprintf(out, "dead-letter %s to %s: %s\n", s.names[a.ID], a.Msg.Subject, a.Msg.Header[schemas.HeaderError][0])
		case scheduler.ActFail:
			fmt.Fprintf(out, "fail %s at rev %d: %s\n", s.names[a.ID], a.Rev, a.Record.State)
		case scheduler.ActReread:
			fmt.Fprintf(out, "reread %s", s.names[a.ID])
			delayed(out, a.Delay)
		case scheduler.ActDedupCheck:
			ids := make([]string, 0, len(a.IDs))
			for id := range a.IDs {
				ids = append(ids, s.msgID(id))
			}
			slices.Sort(ids)
			fmt.Fprintf(out, "dedup-check %s in %s since %s", strings.Join(ids, " "), strings.Join(a.Subjects, " "), at(a.SinceMs))
			delayed(out, a.Delay)
		case scheduler.ActCount:
			fmt.Fprintf(out, "count through rev %d", a.Through)
			delayed(out, a.Delay)
		case scheduler.ActIndex:
			fmt.Fprintf(out, "index %s at %s", s.names[a.Record], at(a.Tick*1000))
			if a.Ahead {
				out.WriteString(", ahead")
			}
			delayed(out, a.Delay)
		case scheduler.ActLook:
			fmt.Fprintf(out, "look at %s", s.names[a.Run])
			delayed(out, a.Delay)
		case scheduler.ActOverdue:
			fmt.Fprintf(out, "publish %s to %s as %s, for %d nominal times: %s\n", s.names[a.ID], a.Msg.Subject, s.msgID(a.Msg.MsgID), a.Count, errorCode(a.Msg.Data))
		case scheduler.ActCreateRun:
			s.claims[a.ID] = *a.Record
			fmt.Fprintf(out, "create %s: %s, due %s, nominal %s, epoch %d\n", s.names[a.ID], a.Record.State, at(a.Record.DueMs), at(a.Record.ScheduledMs), a.Record.Epoch)
		case scheduler.ActEndRun:
			fmt.Fprintf(out, "end %s for run %d\n", s.names[a.ID], a.By)
		case scheduler.ActSkipped:
			for _, x := range a.Skipped {
				fmt.Fprintf(out, "skipped %s: %d from %s to %s: %s\n", s.names[a.ID], x.Count, at(x.FromMs), at(x.ToMs), x.Kind)
			}
		default:
			fmt.Fprintf(out, "%T\n", a)
		}
	}
}

// printTurn writes the claim of a schedule: its run, if one fires, and what is due next.
func (s *coreScript) printTurn(out *strings.Builder, a scheduler.ActClaim) {
	r := a.Record
	fmt.Fprintf(out, "claim %s at rev %d: %s", s.names[a.ID], a.Rev, r.State)
	if l := r.Schedule.Last; l.ClaimedMs != 0 {
		s.names[schemas.RunTimer(a.ID, l.Run)] = fmt.Sprintf("%s/%d", s.names[a.ID], l.Run)
		fmt.Fprintf(out, ", last run %d of %s at %s before %d", l.Run, at(l.NominalMs), at(l.ClaimedMs), l.Before)
		if l.Missed > 0 {
			fmt.Fprintf(out, " for %d missed", l.Missed)
		}
	}
	if l := r.Schedule.Alarm; l.Run != 0 {
		s.names[schemas.OverdueTimer(a.ID, l.Run)] = fmt.Sprintf("%s/overdue-%d", s.names[a.ID], l.Run)
		fmt.Fprintf(out, ", last overdue event %d of %s at %s before %d", l.Run, at(l.NominalMs), at(l.ClaimedMs), l.Before)
	}
	if w := r.Schedule.Waiting; w != nil {
		fmt.Fprintf(out, ", the run of %s waits", at(w.NominalMs))
	}
	if r.Queued {
		fmt.Fprintf(out, ", due next %s", at(r.DueMs))
	}
	out.WriteByte('\n')
}

// errorCode returns the reason of an overdue event.
func errorCode(data []byte) string {
	var event struct {
		Code string `json:"timererrorcode"`
	}
	if err := json.Unmarshal(data, &event); err != nil {
		return err.Error()
	}
	return event.Code
}

// msgID replaces the timer id in a message id by the timer's name.
func (s *coreScript) msgID(id string) string {
	for tid, name := range s.names {
		if rest, ok := strings.CutPrefix(id, tid.String()); ok {
			return name + rest
		}
	}
	return id
}

func delayed(out *strings.Builder, d time.Duration) {
	if d > 0 {
		fmt.Fprintf(out, ", in %s", d)
	}
	out.WriteByte('\n')
}

// at shows a time as its distance from the script's start.
func at(ms int64) string {
	return (time.Duration(ms-scriptStartMs) * time.Millisecond).String()
}
