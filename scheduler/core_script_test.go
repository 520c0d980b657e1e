package scheduler_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

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
//	own epoch=N [watermark=T] [applied=N] [seen=N] [max-inflight=N] [horizon=T] [retention=T]
//	step now=T                     time passes
//	tail now=T                     the tail brings records, one a line
//	loaded now=T                   answers load, with records
//	scanned now=T                  answers scan, with records
//	swept now=T [redispatch]       the sweeper found records
//	claimed now=T id=X [rev=N] [err=E]
//	published now=T id=X [err=E]
//	reread now=T id=X [err=E]      with the record that was read
//	found now=T [id=X…]            answers the dedup check: these events are in the stream
//	finished | dead-lettered | failed | indexed now=T id=X [err=E]
//	counted now=T waiting=N
//	pause, resume, drain now=T
//	state now=T                    shows what a new owner would resume from
//
// A record is written as: id rev=N due=T [state=S] [svc=S] [epoch=N] [fired=T] [callback]
// [moves=N].
func TestCoreScripts(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata/core", func(t *testing.T, path string) {
		s := &coreScript{names: map[schemas.TimerID]string{}}
		datadriven.RunTest(t, path, s.run)
	})
}

// scriptStartMs is the start of every script, in Unix milliseconds.
const scriptStartMs = 1_800_000_000_000

// coreScript is the state of one script.
type coreScript struct {
	core    *scheduler.Core
	names   map[schemas.TimerID]string
	claims  map[schemas.TimerID]schemas.Record
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
					ev.Found[schemas.NewTimerID("/test", name).MsgID(1)] = struct{}{}
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
		step(scheduler.EvFailed{ID: s.id(t, d), Err: s.err(t, d)})
	case "indexed":
		step(scheduler.EvIndexed{ID: s.id(t, d), Err: s.err(t, d)})
	case "counted":
		waiting := make([]uint64, s.number(t, d, "waiting", 0))
		for i := range waiting {
			waiting[i] = uint64(i) // other keys than those of the script's timers
		}
		step(scheduler.EvCounted{Waiting: waiting, Last: s.lastRev, Err: s.err(t, d)})
	case "pause", "resume":
		s.core.Pause(d.Cmd == "pause")
		step(scheduler.EvTick{})
	case "drain":
		s.print(&out, s.core.Drain(now))
	case "state":
		s.state(&out)
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
	s.claims, s.finals = map[schemas.TimerID]schemas.Record{}, map[schemas.TimerID]scheduler.ActFinish{}
	cfg := scheduler.CoreConfig{
		Geometry:  schemas.Geometry{Shards: 1, SlotWidth: time.Second, WheelSize: 1000},
		HorizonMs: s.time(t, d, "horizon", scriptStartMs+10_000) - scriptStartMs, ScanBehindMs: 60_000,
		MaxLoaded: 100, MaxInflight: int(s.number(t, d, "max-inflight", 10)), SweepMs: 600_000,
		Retention: time.Duration(s.time(t, d, "retention", scriptStartMs+3600_000)-scriptStartMs) * time.Millisecond,
	}
	c := store.Clock{
		TimeMs: s.time(t, d, "watermark", scriptStartMs), Epoch: s.epoch,
		Tail: uint64(s.number(t, d, "applied", 0)), Seen: uint64(s.number(t, d, "seen", 0)),
		PendingUnknown: d.HasArg("pending-unknown"), Pending: s.number(t, d, "pending", 0),
	}
	s.core = scheduler.NewCore(cfg, c, s.epoch)
	var out strings.Builder
	s.print(&out, s.core.Step(s.time(t, d, "now", c.TimeMs), scheduler.EvTick{}))
	return out.String()
}

// record reads the description of a record.
func (s *coreScript) record(t *testing.T, d *datadriven.TestData, line string) store.Timer {
	words := strings.Fields(line)
	if len(words) == 0 {
		d.Fatalf(t, "a record has no id")
	}
	name := words[0]
	w := timer(name, scriptStartMs)
	s.names[w.ID] = name
	out := store.Timer{ID: w.ID, Record: *w.Record}
	r := &out.Record
	r.AddedMs = scriptStartMs
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
			r.State, r.Queued = state, state == schemas.StatePending
		case "svc":
			r.Service = value
		case "epoch":
			r.Epoch = n
		case "fired":
			r.FiredMs = s.parseTime(t, d, value)
		case "moves":
			r.Moves = uint32(n)
		case "callback":
			r.Callback = "https://example.com/"
		default:
			d.Fatalf(t, "unknown field %s of a record", key)
		}
	}
	s.lastRev = max(s.lastRev, out.Rev)
	return out
}

func (s *coreScript) id(t *testing.T, d *datadriven.TestData) schemas.TimerID {
	var name string
	d.ScanArgs(t, "id", &name)
	return schemas.NewTimerID("/test", name)
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

func (s *coreScript) state(out *strings.Builder) {
	var c store.Clock
	s.core.Checkpoint(&c)
	fmt.Fprintf(out, "low watermark %s, applied %d of %d, %d entries", at(c.TimeMs), c.Tail, c.Seen, s.core.Loaded())
	if pending, known := s.core.Pending(); known {
		fmt.Fprintf(out, ", %d pending\n", pending)
	} else {
		fmt.Fprint(out, ", pending unknown\n")
	}
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
			fmt.Fprintf(out, "index %s at %s", s.names[a.ID], at(a.Tick*1000))
			delayed(out, a.Delay)
		default:
			fmt.Fprintf(out, "%T\n", a)
		}
	}
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
