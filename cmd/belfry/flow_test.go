package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestFlowCommands: limits are set, shown, listed, paused, resumed and deleted on the command
// line, as text and as JSON.
func TestFlowCommands(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	run := func(line string) result { return n.client(t, strings.Fields(line)...) }
	shows := func(line string, want ...string) {
		t.Helper()
		r := run(line)
		for _, w := range want {
			if r.code != exitOK || !strings.Contains(strings.Join(strings.Fields(r.out), " "), w) {
				t.Errorf("%s: got %v, want %q", line, r, w)
			}
		}
	}
	shows("flow show api.example.com", "limit none: every call begins when it is due")
	run("flow reset api.example.com").oneLine(t, exitNotFound, "nothing was reset")
	if r := run("flow ls"); r.code != exitOK || r.out != "" {
		t.Errorf("flow ls: %v, want nothing", r)
	}
	shows("flow set api.example.com --rate 100/1m --dry-run", "rate 100/1m burst 2", "waiting 0")
	shows("flow show api.example.com", "limit none")
	made := ok[belfry.FlowChange](t, n, strings.Fields("flow set api.example.com --rate 100/1m --burst 10 --parallel 5 --by ann")...)[0]
	if l := made.Limit; l == nil || l.Rate != "100/1m" || l.Burst != 10 || l.Parallel != 5 || l.By != "ann" || made.Before != nil {
		t.Errorf("flow set: %+v", made)
	}
	shows("flow set customer:* --parallel 1", "flow customer:* parallel 1 state active")
	shows("flow set customer:7 --rate 7/1s", "flow customer:7 rate 7/1s burst 2")
	shows("flow set api.example.com --rate 200/1m", "rate 200/1m", "before 100/1m burst 10, parallel 5")
	shows("flow show api.example.com", "rate 200/1m", "waiting 0", "next slot 20")
	shows("flow set adds:orders --rate 50/1s --pending 100000", "rate 50/1s burst 5", "pending 100000 state active")
	shows("flow set adds:orders --pending 300", "pending 300 state active", "before 50/1s burst 5, pending 100000")
	shows("flow show adds:orders", "pending 300", "pending now 0 of 300")
	shows("flow set adds:acme= --schedules 5 --services 2 --bytes 9000", "schedules 5 services 2 bytes 9000 state active")
	shows("flow ls", "KEY RATE BURST PARALLEL PENDING SCHEDULES SERVICES BYTES REVISION STATE adds:acme= 5 2 9000")
	shows("flow show adds:acme=", "schedules now 0 of 5", "services now 0 of 2", "bytes now 0 of 9000")
	shows("flow set adds:acme= --bytes 1", "before schedules 5, services 2, bytes 9000")
	shows("flow rm adds:acme=", "limit none")
	shows("flow rm adds:orders", "limit none")
	shows("flow show customer:1", "limit of customer:*", "parallel 1", "in flight 0")
	shows("flow show customer:*", "parallel 1", "not for customer:7")
	if st := ok[belfry.FlowStatus](t, n, "flow", "show", "customer:9")[0]; st.Limit == nil || st.Limit.Key != "customer:*" || len(st.Keys) != 1 {
		t.Errorf("flow show: %+v", st)
	}
	shows("flow pause api.example.com --note repair", "state paused: repair", "rate 200/1m", "paused by "+whoami())
	shows("flow ls", "KEY RATE BURST PARALLEL PENDING REVISION STATE api.example.com 200/1m", "paused: repair customer:* 1", "active customer:7 7/1s")
	if l := ok[belfry.FlowLimitInfo](t, n, "flow", "list"); len(l) != 3 || l[0].Key != "api.example.com" || !l[0].Paused {
		t.Errorf("flow list: %+v", l)
	}
	shows("status", "PAUSED SINCE BY NOTE api.example.com 20", "Z "+whoami()+" repair")
	shows("doctor", "api.example.com is paused since 20", "by "+whoami()+" (repair)", "belfry flow resume 'api.example.com'")
	if st := ok[statusJSON](t, n, "status")[0]; len(st.Paused) != 1 || st.Paused[0].Key != "api.example.com" || st.Paused[0].Note != "repair" || time.Since(st.Paused[0].Since) > time.Hour {
		t.Errorf("status: paused %+v", st.Paused)
	}
	run("flow rm api.example.com").oneLine(t, exitRefused, "resume it first")
	shows("flow resume api.example.com", "state active", "rate 200/1m")
	if r := run("status"); strings.Contains(r.out, "PAUSED") {
		t.Errorf("status after the resume: %v", r)
	}
	run("flow set api.example.com --rate 1/1s --revision 999999").oneLine(t, exitRefused, "revision")
	run("flow pause api.example.com --revision 999999").oneLine(t, exitRefused, "revision")
	run("flow resume api.example.com --revision 999999").oneLine(t, exitRefused, "revision")
	run("flow rm api.example.com --revision 999999").oneLine(t, exitRefused, "revision")
	shows("flow rm api.example.com", "flow api.example.com limit none of its own any more")
	run("flow rm api.example.com").oneLine(t, exitNotFound, "no limit is stored")
	run("flow resume customer:1").oneLine(t, exitNotFound, "customer:*")
	run("flow show nobody:*").oneLine(t, exitNotFound, "nobody:*")
	if r := run("order ls"); r.code != exitOK || r.out != "" {
		t.Errorf("order ls: %v, want nothing", r)
	}
	head := schemas.NewTimerID("/s", "head")
	// The order covers only events that have reached the key, so the second one is added when the first one has.
	for waiting, id := range []string{"head", "next"} {
		ok[belfry.Receipt](t, n, strings.Fields("add --in 0s --svc jobs --key job:1 --backoff 10m..1h --callback http://127.0.0.1:1 --source /s --id "+id)...)
		waittest.Until(t, fmt.Sprintf("the head waits for its next attempt, and %d other timers behind it", waiting), func() bool {
			k := ok[belfry.OrderedKey](t, n, "order", "ls", "--svc", "jobs")
			return len(k) == 1 && k[0].Key == "job:1" && k[0].Waiting == waiting && k[0].Head.Timer == head && k[0].Head.State == schemas.OrderRetrying
		})
	}
	shows("order ls", "KEY SERVICE HEAD STATE SINCE WAITING ATTEMPTS ERROR job:1 jobs "+head.String()+" retrying until 20", " 1 1 ")
	if k := ok[belfry.OrderedKey](t, n, "order", "ls", "--svc", "others"); len(k) != 0 {
		t.Errorf("order ls of another service: %+v", k)
	}
	nc, err := nats.Connect(n.nats)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Request("$KV.clock.node.old", []byte(`{"v":1,"reads":5,"roles":["functions"]}`), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	shows("status", "node old obeys no flow limits")
	if _, err := nc.Request("$KV.clock.node.old", []byte(`{"v":1,"reads":99,"roles":["functions"]}`), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "limits may be changed again", func() bool { return run("flow pause hooks.example.com").code == exitOK })
	shows("flow pause hooks.example.com", "state paused")
	shows("flow resume hooks.example.com", "limit none of its own any more")
	n.stop(t)
}

// TestFlowUsage: wrong arguments end with exit code 2, before any request; mistyped commands
// are answered with a suggestion.
func TestFlowUsage(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"flow set": "usage", "flow set x": "--rate", "flow set x y --parallel 1": "usage", "flow set a|b --parallel 1": "letters", "flow set " + strings.Repeat("x", 162) + " --parallel 1": "161",
		"flow set x --rate 100": "--rate", "flow set x --rate 0/1s": "--rate", "flow set x --rate 1/0s": "--rate", "flow set x --rate 1/x": "--rate", "flow set x --rate= ": "--rate",
		"flow set x --rate 1/1s --burst 0": "--burst 0", "flow set x --rate 1/1s --burst -1": "--burst -1", "flow set x --parallel 1 --burst 2": "--burst is the number of calls of a rate",
		"flow set x --parallel 0": "--parallel 0", "flow set x --parallel -1": "--parallel -1", "flow set x --parallel many": "--parallel", "flow set x --parallel 999999999": "parallel", "flow set x --rate 1/1s --burst 999999999": "burst",
		"flow set adds:x --pending 0": "--pending 0", "flow set x --pending 3": "--pending limits the adds of a service or tenant, and x is", "flow set adds:x --pending 9999999999": "pending", "flow set x --parallel 1 --revision -1": "--revision", "flow set x --parallel 1 --by " + strings.Repeat("b", 129): "--by",
		"flow show": "usage", "flow show a|b": "letters", "flow ls x": "usage", "flow pause": "usage", "flow pause x --note " + strings.Repeat("n", 257): "--note", "flow pause a|b": "letters",
		"flow resume": "usage", "flow resume a|b": "letters", "flow rm": "usage", "flow rm x --note n": "--note", "flow rm a|b": "letters",
		"order ls x": "usage", "order lss": "did you mean ls", "order ls -n -1": "--limit", "flow reset": "usage", "flow reset a*": "pattern", "flow reset a|b": "letters", "flow resum x": "resume", "flow sho x": "show", "flwo ls": "flow", "flow list x": "usage",
	} {
		belfryRun(t, strings.Fields(line)...).oneLine(t, exitUsage, want)
	}
}

// TestFlowWithoutServer: the commands say that no server can be reached.
func TestFlowWithoutServer(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"flow ls", "flow set x --parallel 1", "flow show x", "flow pause x", "flow resume x", "flow reset x", "flow rm x", "order ls"} {
		belfryRun(t, append(strings.Fields(line), "--nats-url", "nats://127.0.0.1:1", "--timeout", (5*time.Second).String())...).oneLine(t, exitUnreachable)
	}
}

// hooks counts the calls of each event, and remembers when the last one came.
type hooks struct {
	mu    sync.Mutex
	calls map[string]int
	last  time.Time
}

func (h *hooks) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls[r.Header.Get("ce-id")]++
	h.last = time.Now()
}

// called returns the number of events with a call, and the time of the last call.
func (h *hooks) called() (int, time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.calls), h.last
}

// TestFlowBacklog: 60 timers of one flow key are due at once. They are called at the key's rate;
// while the key is paused none is called; after the resume all are, once each, with one attempt.
func TestFlowBacklog(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	h := &hooks{calls: map[string]int{}}
	hook := httptest.NewServer(h)
	t.Cleanup(hook.Close)
	run := func(line string) result {
		t.Helper()
		r := n.client(t, strings.Fields(line)...)
		if r.code != exitOK {
			t.Fatalf("%s: %v", line, r)
		}
		return r
	}
	status := func() belfry.FlowStatus {
		t.Helper()
		return ok[belfry.FlowStatus](t, n, "flow", "show", "backlog")[0]
	}
	add := func(from, to int, when string) {
		t.Helper()
		for i := from; i < to; i++ {
			run(fmt.Sprintf("add %s --svc s --callback %s --flow backlog --id e%d", when, hook.URL, i))
		}
	}
	allCalled := func(want int) {
		t.Helper()
		waittest.UntilWithin(t, 3*time.Minute, "all timers are called", func() bool { got, _ := h.called(); return got == want },
			func() string { got, _ := h.called(); return fmt.Sprintf("%d of %d; %+v", got, want, status()) })
	}
	run("flow set backlog --rate 20/1s --burst 2")
	due := time.Now().Add(5 * time.Second)
	const all = 60
	add(0, all, "--at "+due.UTC().Format(time.RFC3339Nano))
	allCalled(all)
	// The bound of the limit, whatever the machine's speed: two at once, then one every 50 ms. The clocks
	// of the node and of this test are the same.
	if _, last := h.called(); last.Sub(due) < (all-2)*50*time.Millisecond-500*time.Millisecond {
		t.Errorf("%d calls at 20/s took %s from %s", all, last.Sub(due), due)
	}

	const more = 20
	run("flow pause backlog --note repair")
	add(all, all+more, "--in 0s")
	waittest.Until(t, "all events wait", func() bool { return status().Keys[0].Waiting == more }, func() string { return fmt.Sprintf("%+v", status()) })
	if got, _ := h.called(); got != all {
		t.Errorf("%d timers were called, want %d: the key is paused", got, all)
	}
	if r := run("flow show backlog"); !strings.Contains(r.out, "paused: repair") || strings.Contains(r.out, "next slot") {
		t.Errorf("flow show: %v", r)
	}
	if r := run(fmt.Sprintf("get e%d --source belfry-cli", all)); !strings.Contains(r.out, "for its slot at ") || !strings.Contains(r.out, "(flow backlog)") || !strings.Contains(r.out, "retrying") {
		t.Errorf("get: %v", r)
	}
	if r := run(fmt.Sprintf("why e%d --source belfry-cli", all)); !strings.Contains(r.out, "waits for its slot") || !strings.Contains(r.out, "paused since") || !strings.Contains(r.out, "repair") {
		t.Errorf("why: %v", r)
	}
	run("flow resume backlog")
	allCalled(all + more)
	for _, i := range []int{0, all - 1, all, all + more - 1} {
		waittest.Until(t, "the timer succeeds", func() bool {
			info := ok[schemas.TimerInfo](t, n, "get", fmt.Sprint("e", i), "--source", "belfry-cli")[0]
			return info.State == schemas.StateSuccess && info.Attempts == 1 && info.Flow == nil
		})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, calls := range h.calls {
		if calls != 1 {
			t.Errorf("%s was called %d times", id, calls)
		}
	}
	n.stop(t)
}
