package scheduler_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// TestCoordinatorScripts runs the scripts in testdata/coordinator: what one node, named
// me, does about the shards as it sees other nodes come and go. To write the present
// output into the scripts:
//
//	go test ./scheduler -run TestCoordinatorScripts -rewrite
//
// A lease lasts 3 s and owners write every second. Commands:
//
//	node shards=N [exclusive]          starts the node
//	look now=T [heartbeat-age=T] [err] what the node reads: one line a key
//	took now=T shard=N [err]           the answer to a take
//	ended now=T shard=N                the shard was released or lost
//	leave now=T                        the node begins to stop
//
// A line of look is `clock N owner=X epoch=N` or `alive X`, for a key that was written
// since the last look. A key that is not named has not changed. `gone X` removes the
// presence key of a node, and `damaged N` damages a clock.
func TestCoordinatorScripts(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata/coordinator", func(t *testing.T, path string) {
		s := &coordinatorScript{}
		datadriven.RunTest(t, path, s.run)
	})
}

type coordinatorScript struct {
	coordinator *scheduler.Coordinator
	view        store.Cluster
	rev         uint64
}

func (s *coordinatorScript) run(t *testing.T, d *datadriven.TestData) string {
	now := s.duration(t, d, "now")
	var shard int
	if d.HasArg("shard") {
		d.ScanArgs(t, "shard", &shard)
	}
	var err error
	if d.HasArg("err") {
		err = store.ErrRevision
	}
	switch d.Cmd {
	case "node":
		var shards int
		d.ScanArgs(t, "shards", &shards)
		*s = coordinatorScript{coordinator: scheduler.NewCoordinator(scheduler.CoordinatorConfig{
			Node: "me", Exclusive: d.HasArg("exclusive"), Shards: shards, Lease: 3 * time.Second, Heartbeat: time.Second,
		})}
		for n := range shards {
			s.rev++
			s.view.Clocks = append(s.view.Clocks, store.ClockAt{Shard: n, Rev: s.rev})
		}
		return ""
	case "look":
		s.change(t, d, now)
		return s.show(s.coordinator.Step(now, scheduler.SnapshotRead{Cluster: s.view, HeartbeatAge: s.duration(t, d, "heartbeat-age"), Err: err}))
	case "took":
		return s.show(s.coordinator.Step(now, scheduler.ShardTaken{Shard: shard, Err: err}))
	case "ended":
		return s.show(s.coordinator.Step(now, scheduler.TermEnded{Shard: shard}))
	case "leave":
		return s.show(s.coordinator.Step(now, scheduler.LeaveCluster{}))
	}
	d.Fatalf(t, "unknown command %s", d.Cmd)
	return ""
}

// change applies the lines of a look to what the node sees.
func (s *coordinatorScript) change(t *testing.T, d *datadriven.TestData, now time.Duration) {
	for line := range strings.Lines(d.Input) {
		s.rev++
		var n int
		var name string
		var epoch uint64
		if _, err := fmt.Sscanf(line, "clock %d owner=%s epoch=%d", &n, &name, &epoch); err == nil {
			if name == "nobody" {
				name = ""
			}
			s.view.Clocks[n] = store.ClockAt{Shard: n, Rev: s.rev, StoredMs: now.Milliseconds(), Clock: store.Clock{Owner: name, Epoch: epoch, LeaseMs: 3000}}
			continue
		}
		if _, err := fmt.Sscanf(line, "damaged %d", &n); err == nil {
			s.view.Clocks[n].Rev, s.view.Clocks[n].StoredMs, s.view.Clocks[n].Err = s.rev, now.Milliseconds(), schemas.ErrDamaged
			continue
		}
		verb, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		i := slices.IndexFunc(s.view.Nodes, func(m store.Member) bool { return m.Node == name })
		switch {
		case verb == "alive" && i < 0:
			m := store.Member{Node: name, Rev: s.rev, StoredMs: now.Milliseconds()}
			m.Presence.Scheduler = store.SchedulerActive
			s.view.Nodes = append(s.view.Nodes, m)
		case verb == "alive":
			s.view.Nodes[i].Rev, s.view.Nodes[i].StoredMs = s.rev, now.Milliseconds()
		case verb == "gone" && i >= 0:
			s.view.Nodes = slices.Delete(s.view.Nodes, i, i+1)
		default:
			d.Fatalf(t, "unknown line %q", line)
		}
	}
}

func (s *coordinatorScript) show(actions []scheduler.CoordinatorAction) string {
	var out strings.Builder
	for _, a := range actions {
		switch a := a.(type) {
		case scheduler.TakeShard:
			from := a.From
			if from == "" {
				from = "nobody"
			}
			fmt.Fprintf(&out, "take shard %d from %s, epoch %d", a.Shard, from, a.Clock.Epoch)
			if a.Damaged {
				out.WriteString(", its clock is damaged")
			}
			out.WriteByte('\n')
		case scheduler.ReleaseShard:
			fmt.Fprintf(&out, "release shard %d\n", a.Shard)
		}
	}
	if out.Len() == 0 {
		return "nothing\n"
	}
	return out.String()
}

func (s *coordinatorScript) duration(t *testing.T, d *datadriven.TestData, key string) time.Duration {
	if !d.HasArg(key) {
		return 0
	}
	var v string
	d.ScanArgs(t, key, &v)
	after, err := time.ParseDuration(v)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return after
}
