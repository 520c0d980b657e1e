//go:build unix

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/proc"
)

const (
	newerSource = "/chaos/newer"
	// Every newerEach-th of newerTimers timers gets a record of a newer format.
	newerTimers, newerEach = 40, 4
	// newerAhead is the time until the first timer is due. The records must be planted
	// before, even on a slow disk.
	newerAhead = 60 * time.Second
	newerStep  = 50 * time.Millisecond // between two due times
	// newerMessage is in the output of status and doctor.
	newerMessage = "of a newer version of Belfry"
)

// TestNewerRecordsOnProcesses plants records of the next build's format. A node that
// cannot read them fires all other timers, keeps its low watermarks before the planted
// records, and says so in status, doctor, /readyz and its metrics. When a node that
// reads the format joins, it fires them. Nothing is early or fired twice.
func TestNewerRecordsOnProcesses(t *testing.T) {
	t.Parallel()
	testsize.Long(t, "it builds another program, and tests of the same name as this one in scheduler and internal/sim run without processes")
	next := proc.BuildLevel(t)
	server := proc.NewServers(t, 1)[0]
	server.Start()
	if err := server.WaitHealthy(t.Context(), wellBound); err != nil {
		t.Fatal(err)
	}
	// The environment of the next build has no effect on this one.
	old := newerNode(t, server, proc.Options{Env: proc.LevelEnv(store.LevelTest)})
	c := newClient(t, nil, server.URL(), store.DefaultRetention)
	p := plantNewer(t, c)

	// Only the events are checked here, not their lateness, because the machine may be
	// slow. That these timers fire at all shows that they do not wait for the held
	// records.
	firedTimes(t, c, newerTimers-len(p.planted))
	p.check(t, c, func(id string) bool { return !slices.Contains(p.planted, id) })
	p.add(t, c, "late", time.Now().Add(time.Second))
	firedTimes(t, c, newerTimers-len(p.planted)+1)
	p.held(t, server)
	shows := func(what string, want bool, text func() string) {
		t.Helper()
		eventually(t, wellBound, fmt.Sprintf("%s with newer records: %t", what, want), func(context.Context) (bool, error) {
			if got := text(); strings.Contains(got, newerMessage) != want {
				return false, errors.New(got)
			}
			return true, nil
		})
	}
	cli := func(args ...string) func() string {
		return func() string { return runProgram(server, proc.Build(t), args...) }
	}
	shows("status", true, cli("status"))
	shows("doctor", true, cli("doctor"))
	eventually(t, wellBound, "the node to report the planted records", func(context.Context) (bool, error) {
		n, err := newerOf(old)
		return n == len(p.planted) && metrictest.TextSum(t, old.Metrics(), "belfry_newer_records") == float64(len(p.planted)), err
	})

	newer := newerNode(t, server, proc.Options{Bin: next, Env: proc.LevelEnv(store.LevelTest)})
	firedTimes(t, c, newerTimers+1)
	p.check(t, c, func(string) bool { return true })
	shows("status", false, cli("status"))
	shows("doctor", false, cli("doctor"))
	for _, n := range []*proc.Node{old, newer} {
		if n, err := newerOf(n); n > 0 || err != nil {
			t.Errorf("/readyz still reports %d records of a newer format, %v", n, err)
		}
	}
}

func newerNode(t *testing.T, server *proc.Server, o proc.Options) *proc.Node {
	t.Helper()
	o.NATSURL, o.Config = server.URL(), upgradeConfig
	n := proc.New(t, o)
	n.Start()
	n.Ready(t.Context())
	return n
}

// newerPlan lists the timers that the test adds.
type newerPlan struct {
	ids     []string
	planted []string         // IDs whose record has a newer format
	due     map[string]int64 // Unix milliseconds, by id
}

// plantNewer adds timers and writes the records of some of them in a newer format.
func plantNewer(t *testing.T, c *client) *newerPlan {
	t.Helper()
	p := &newerPlan{due: map[string]int64{}}
	begin := time.Now().Add(newerAhead)
	for i := range newerTimers {
		id := fmt.Sprintf("t%d", i)
		p.add(t, c, id, begin.Add(time.Duration(i)*newerStep))
		if i%newerEach != 0 {
			continue
		}
		timer := schemas.NewTimerID(newerSource, id)
		kv, err := c.js.KeyValue(t.Context(), schemas.BucketTimers(schemas.DefaultGeometry().Shard(timer)))
		if err != nil {
			t.Fatal(err)
		}
		e, err := kv.Get(t.Context(), "timer."+timer.String())
		if err != nil {
			t.Fatal(err)
		}
		r, err := schemas.DecodeRecord(e.Value())
		if err != nil {
			t.Fatal(err)
		}
		// The revision guards against a timer that fired meanwhile.
		if _, err := kv.Update(t.Context(), e.Key(), r.AppendFormat(nil, schemas.RecordFormatTest), e.Revision()); err != nil || r.State != schemas.StatePending {
			t.Fatalf("plant timer %s, state %s: %v", id, r.State, err)
		}
		p.planted = append(p.planted, id)
	}
	return p
}

// add adds a timer.
func (p *newerPlan) add(t *testing.T, c *client, id string, due time.Time) {
	t.Helper()
	a := plan{source: newerSource, id: id, dueMs: due.UnixMilli(), service: "newer", data: `"newer"`}
	// callTimeout is too short here: this add is not repeated.
	ctx, cancel := context.WithTimeout(t.Context(), wellBound)
	defer cancel()
	m, err := c.nc.RequestMsgWithContext(ctx, a.message(schemas.SubjectAPIPrefix+"add"))
	if err == nil {
		err = decode(m, &struct{}{})
	}
	if err != nil {
		t.Fatal(err)
	}
	p.ids, p.due[id] = append(p.ids, id), a.dueMs
}

// held checks that no low watermark has passed a planted record.
func (p *newerPlan) held(t *testing.T, server *proc.Server) {
	t.Helper()
	nc := dial(t, server.URL())
	look, err := store.Look(nc, wellBound)
	if err != nil {
		t.Fatal(err)
	}
	defer look.Close()
	cluster, err := look.ReadCluster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	js := natstest.JetStream(t, nc)
	for _, id := range p.planted {
		timer := schemas.NewTimerID(newerSource, id)
		shard := schemas.DefaultGeometry().Shard(timer)
		at := cluster.Clocks[shard]
		if at.Err != nil {
			t.Fatal(at.Err)
		}
		c := at.Clock
		kv, err := js.KeyValue(t.Context(), schemas.BucketTimers(shard))
		if err != nil {
			t.Fatal(err)
		}
		e, err := kv.Get(t.Context(), "timer."+timer.String())
		if err != nil {
			t.Fatal(err)
		}
		// An owner resumes with the index at TimeMs and with the stream after Tail.
		if c.TimeMs > p.due[id] && c.Tail >= e.Revision() {
			t.Errorf("the clock of shard %d, %+v, has passed timer %s, due %d, revision %d", shard, c, id, p.due[id], e.Revision())
		}
	}
}

// check compares the fired events with the added timers. Only the timers that wanted
// selects may have fired, once and not early.
func (p *newerPlan) check(t *testing.T, c *client, wanted func(id string) bool) {
	t.Helper()
	got := firedTimes(t, c, 0)
	for _, id := range p.ids {
		times := got[id]
		switch {
		case !wanted(id) && len(times) > 0:
			t.Errorf("timer %s fired, though the node cannot read its record", id)
		case wanted(id) && len(times) != 1:
			t.Errorf("timer %s fired %d times, want once", id, len(times))
		case wanted(id) && times[0].UnixMilli() < p.due[id]:
			t.Errorf("timer %s fired at %s, due at %s", id, times[0], schemas.FormatTime(p.due[id]))
		}
	}
}

// firedTimes waits until count events are in TIMERS_FIRED and returns the times at which
// each timer fired.
func firedTimes(t *testing.T, c *client, count int) map[string][]time.Time {
	t.Helper()
	var s jetstream.Stream
	eventually(t, concludeBound, fmt.Sprintf("%d events", count), func(ctx context.Context) (ok bool, err error) {
		if s, err = c.js.Stream(ctx, schemas.StreamFired); err != nil {
			return false, err
		}
		n := int(s.CachedInfo().State.LastSeq)
		if n < count {
			err = fmt.Errorf("there are %d", n)
		}
		return n >= count, err
	})
	times := map[string][]time.Time{}
	for seq := uint64(1); seq <= s.CachedInfo().State.LastSeq; seq++ {
		m, err := s.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		e, _, _, err := schemas.ParseFired(m.Header, m.Data)
		if err != nil {
			t.Fatal(err)
		}
		times[e.ID()] = append(times[e.ID()], m.Time)
	}
	return times
}

// runProgram runs a command against a server and returns its output.
func runProgram(server *proc.Server, bin string, args ...string) string {
	cmd := exec.Command(bin, args...)
	cmd.Env = []string{"HOME=" + os.TempDir(), "PATH=" + os.Getenv("PATH"), "NATS_URL=" + server.URL()}
	out, err := cmd.CombinedOutput()
	return fmt.Sprintf("%s%v", out, err)
}

// newerOf is the number of records of newer formats in the body of /readyz.
func newerOf(n *proc.Node) (int, error) {
	_, body, err := n.Readiness()
	if err != nil {
		return 0, err
	}
	var r struct {
		Shards []struct {
			NewerRecords int `json:"newer_records"`
		}
	}
	err = json.Unmarshal([]byte(body), &r)
	sum := 0
	for _, s := range r.Shards {
		sum += s.NewerRecords
	}
	return sum, err
}
