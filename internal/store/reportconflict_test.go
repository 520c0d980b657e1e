package store

import (
	"bytes"
	"errors"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

// interceptor is a dialer. Its connections call before ahead of each write that contains command.
type interceptor struct {
	command string
	before  atomic.Pointer[func()]
}

// Dial implements nats.CustomDialer.
func (i *interceptor) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	return &intercepted{c, i}, err
}

type intercepted struct {
	net.Conn
	*interceptor
}

func (c *intercepted) Write(b []byte) (int, error) {
	if before := c.before.Load(); before != nil && bytes.Contains(b, []byte(c.command)) {
		(*before)()
	}
	return c.Conn.Write(b)
}

// reportConflicts opens a store of one shard. Before each of the first n requests with command, another
// process changes the shard's damage report. It returns the number of these requests so far.
func reportConflicts(t *testing.T, command string, n int) (s *Store, requests *int) {
	t.Helper()
	srv := natstest.Run(t)
	i := &interceptor{command: command}
	s = openOneShard(t, srv.Connect(nats.SetCustomDialer(i)), Config{})
	other := openNode(t, srv.Connect(), Config{Node: "n2"}).DamageReports
	requests = new(int)
	before := func() {
		if *requests++; *requests > n {
			return
		}
		if _, err := other.change(t.Context(), 0, func(d *ShardDamage) {
			d.Known = append(d.Known, strconv.Itoa(*requests))
		}); err != nil {
			t.Error(err)
		}
	}
	i.before.Store(&before)
	return s, requests
}

// TestInspectRepeats: an inspection starts over if the damage report changes meanwhile, reportTries times.
// It returns what any of its attempts found to be gone.
func TestInspectRepeats(t *testing.T) {
	t.Parallel()
	for conflicts, want := range map[int]error{0: nil, 1: nil, reportTries - 1: nil, reportTries: ErrRevision} {
		t.Run(strconv.Itoa(conflicts), func(t *testing.T) {
			t.Parallel()
			s, requests := reportConflicts(t, "$JS.API.STREAM.INFO.KV_timers_0 ", conflicts)
			i := s.Inspector
			gone, damaged := schemas.NewTimerID("/test", "gone"), schemas.NewTimerID("/test", "damaged")
			i.dec.damaged[0].note(DamagedRecord{Timer: gone.String(), Revision: 1, Newer: true})
			rev, err := i.jet.Put(t.Context(), i.shards.subjects[0].timer+damaged.String(), []byte("x"), 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			i.dec.damaged[0].note(DamagedRecord{Timer: damaged.String(), Revision: rev, Reason: "damaged"})
			in, err := s.Inspect(t.Context(), 0, 0, 0, nil)
			if !errors.Is(err, want) || (err == nil) != (want == nil) {
				t.Fatalf("%v, want %v", err, want)
			}
			if tries := min(conflicts+1, reportTries); *requests != tries {
				t.Errorf("%d attempts, want %d", *requests, tries)
			}
			if !slices.ContainsFunc(in.Gone, func(r NewerRecord) bool { return r.ID == gone }) {
				t.Errorf("gone are %+v, want %s", in.Gone, gone)
			}
			if want != nil {
				return
			}
			if got, err := s.read(t.Context(), 0); err != nil || len(got.Known) != conflicts || len(got.Records) != 1 {
				t.Errorf("the report is %+v, %v; want the changes of the other process and a damaged record", got, err)
			}
		})
	}
}

// TestClockWaitsForReport: a clock is not written while damaged records cannot be reported, because the
// report changes again and again. The error is not that of another writer of the clock.
func TestClockWaitsForReport(t *testing.T) {
	t.Parallel()
	s, requests := reportConflicts(t, "PUB $KV.clock.damage.0 ", reportTries)
	clock, rev, err := s.ReadClock(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	s.Inspector.dec.damaged[0].note(DamagedRecord{Timer: "a", Revision: 1, Reason: "damaged"})
	if _, err := s.WriteClock(t.Context(), 0, clock, rev); !errors.Is(err, schemas.ErrUnavailable) || errors.Is(err, ErrRevision) {
		t.Errorf("%v, want %v", err, schemas.ErrUnavailable)
	}
	if *requests != reportTries {
		t.Errorf("%d tries, want %d", *requests, reportTries)
	}
	if _, err := s.WriteClock(t.Context(), 0, clock, rev); err != nil {
		t.Errorf("after the changes: %v", err)
	}
}

// TestInspectKeepsLaterRevisions: a timer is gone when an inspection reads it, and is added again in that moment. The
// inspection takes only the revision that it knew for gone.
func TestInspectKeepsLaterRevisions(t *testing.T) {
	t.Parallel()
	id := schemas.NewTimerID("/test", "again")
	i := &interceptor{command: id.String()}
	s := openOneShard(t, natstest.Run(t).Connect(nats.SetCustomDialer(i)), Config{})
	set := &s.Inspector.dec.damaged[0]
	set.note(DamagedRecord{Timer: id.String(), Revision: 1, Newer: true})
	requests := 0
	before := func() {
		requests++
		set.note(DamagedRecord{Timer: id.String(), Revision: 9, Newer: true})
	}
	i.before.Store(&before)
	in, err := s.Inspect(t.Context(), 0, 0, 0, nil)
	if err != nil || requests == 0 {
		t.Fatalf("%v after %d requests", err, requests)
	}
	if want := []NewerRecord{{ID: id, Rev: 1}}; !slices.Equal(in.Gone, want) {
		t.Errorf("gone are %+v, want %+v", in.Gone, want)
	}
	if left := set.list(); len(left) != 1 || left[0].Revision != 9 {
		t.Errorf("known are %+v, want revision 9", left)
	}
}

// TestAuditKeepsReport: an audit keeps the damaged records that another process has reported.
func TestAuditKeepsReport(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	s := openOneShard(t, srv.Connect(), Config{})
	if _, err := openNode(t, srv.Connect(), Config{Node: "n2"}).change(t.Context(), 0, func(d *ShardDamage) {
		d.Records = []DamagedRecord{{Timer: "a", Revision: 1}}
	}); err != nil {
		t.Fatal(err)
	}
	d, err := s.Audit(t.Context(), 0, Inspection{Key: "k", Suspect: true}, Expectation{Pending: -1}, 0, func(Timer) error { return nil })
	if err != nil || len(d.Records) != 1 || d.Records[0].Timer != "a" {
		t.Errorf("the report has %+v, %v; want record a", d.Records, err)
	}
}
