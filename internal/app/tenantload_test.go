package app

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

const (
	// loadTimers and loadEvery are the timers of tenant acme and the pause between their adds.
	loadTimers = 75
	loadEvery  = 40 * time.Millisecond
	// loadFlood is how many timers each of the three flooding clients of globex adds, as fast as it can.
	loadFlood = 2000
	// loadLate bounds the lateness of a callback of acme, with a wide margin for a busy machine.
	loadLate = 20 * time.Second
	// loadSecret is in the events of acme. globex must never receive it.
	loadSecret = "of acme alone"
	// attackReply begins the reply subjects of the requests that nobody may answer.
	attackReply = "attack.reply."
)

// TestTenantsUnderLoad: tenant acme adds timers at a steady rate. Meanwhile globex adds timers as fast as it
// can, with the same ids, and attacks each timer of acme: with the API, with the subjects of streams and
// buckets, and with answers to the callbacks. All timers of acme succeed in time, and globex receives
// nothing of acme.
func TestTenantsUnderLoad(t *testing.T) {
	t.Parallel()
	mode := confMode(t)
	testTenantsUnderLoad(t, startTenants(t, mode, []string{natstest.Run(t, mode.server).URL()}, 1))
}

// TestTenantsUnderLoadCluster is TestTenantsUnderLoad with three servers.
func TestTenantsUnderLoadCluster(t *testing.T) {
	testsize.NotShort(t, "a load on three servers")
	testsize.NotRace(t, "a load on three servers")
	t.Parallel()
	mode := confMode(t)
	testTenantsUnderLoad(t, startTenants(t, mode, clusterURLs(natstest.Cluster3(t, mode.server)), 3))
}

func testTenantsUnderLoad(t *testing.T, f *tenants) {
	x := &tenantLoad{tenants: f, replies: make(chan string, 4*loadTimers), victims: make(chan string, loadTimers), called: map[string]int{}, unknown: map[string]int{}, stop: make(chan struct{})}
	acme, globex := f.as("acme"), f.as("globex")
	x.subscribe(acme, "callbacks.fire", x.fired)
	x.subscribe(globex, ">", x.eavesdrop)
	x.subscribe(globex, "callbacks.fire", func(m *nats.Msg) { _ = m.Respond(nil) })

	for range 3 {
		x.start("globex", x.flood)
	}
	x.start("globex", x.attack)
	x.start("globex", x.forgeReplies)
	x.addAll()
	waittest.Until(t, "all timers of acme have called", func() bool { return x.uncalled() == 0 }, func() string { return fmt.Sprint(x.uncalled(), " have not") })
	for n := range loadTimers {
		f.await("acme", named(loadID(n)), "success")
	}
	close(x.stop)
	x.running.Wait()
	x.report()
}

// tenantLoad is the state of TestTenantsUnderLoad.
type tenantLoad struct {
	*tenants
	running sync.WaitGroup
	stop    chan struct{}
	// replies has the reply subjects of the callbacks of acme, and victims the ids of its timers.
	replies, victims chan string

	mu                       sync.Mutex
	called                   map[string]int // of each event of acme
	latest                   time.Duration  // the greatest lateness
	flooded, attacks, forged int
	unknown                  map[string]int // answers not_found by verb
	faults                   []string
}

// start runs an attack with a connection of its own.
func (x *tenantLoad) start(user string, run func(*nats.Conn)) {
	x.t.Helper()
	nc := x.connect(user)
	x.running.Go(func() { run(nc) })
}

// report fails the test for everything that went wrong, and for an attack that did not happen.
func (x *tenantLoad) report() {
	x.t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, fault := range x.faults {
		x.t.Error(fault)
	}
	if x.latest > loadLate {
		x.t.Errorf("a callback of acme was %s late, want at most %s", x.latest, loadLate)
	}
	for verb := range attackedVerbs {
		if x.unknown[verb] == 0 {
			x.t.Errorf("globex: %s never answered %s", verb, schemas.CodeNotFound)
		}
	}
	if x.flooded < loadTimers || x.attacks < loadTimers || x.forged == 0 {
		x.t.Errorf("globex added %d timers, made %d requests and forged %d answers; want at least %d, %d and 1", x.flooded, x.attacks, x.forged, loadTimers, loadTimers)
	}
	x.t.Logf("globex added %d timers, made %d requests and forged %d answers; acme was at most %s late", x.flooded, x.attacks, x.forged, x.latest)
}

func loadID(n int) string { return fmt.Sprintf("load-%d", n) }

func (x *tenantLoad) subscribe(nc *nats.Conn, subject string, handle nats.MsgHandler) {
	x.t.Helper()
	if _, err := nc.Subscribe(subject, handle); err != nil {
		x.t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		x.t.Fatal(err)
	}
}

func (x *tenantLoad) fault(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.faults) < 20 {
		x.faults = append(x.faults, fmt.Sprintf(format, args...))
	}
}

// notFound takes note that a verb knows no timer of acme's.
func (x *tenantLoad) notFound(verb string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.unknown[verb]++
}

func (x *tenantLoad) count(n *int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	*n++
}

func (x *tenantLoad) stopped() bool {
	select {
	case <-x.stop:
		return true
	default:
		return false
	}
}

// addAll adds the timers of acme and gives their ids to the attacker.
func (x *tenantLoad) addAll() {
	x.t.Helper()
	tick := time.NewTicker(loadEvery)
	defer tick.Stop()
	for n := range loadTimers {
		<-tick.C
		due := time.Now().Add(time.Second).UTC().Format(time.RFC3339Nano)
		x.publish("acme", tenantEvent(loadID(n), fmt.Sprintf(`"timerat":%q,"timersvc":"orders","timermaxattempts":1,"timercallback":"nats:callbacks.fire","datacontenttype":"application/json","data":{"secret":%q,"due":%q}`, due, loadSecret, due)))
		x.victims <- loadID(n)
	}
}

// fired is the callback of acme. globex gets the reply subject first.
func (x *tenantLoad) fired(m *nats.Msg) {
	var data struct {
		Secret string    `json:"secret"`
		Due    time.Time `json:"due"`
	}
	id := m.Header.Get("ce-id")
	if err := json.Unmarshal(m.Data, &data); err != nil || data.Secret != loadSecret || !strings.HasPrefix(id, "load-") {
		x.fault("acme got the callback %q %v of another tenant: %s", id, m.Header, m.Data)
	}
	select {
	case x.replies <- m.Reply:
	default:
	}
	late := time.Since(data.Due)
	x.mu.Lock()
	x.called[id]++
	x.latest = max(x.latest, late)
	x.mu.Unlock()
	_ = m.Respond(nil)
}

func (x *tenantLoad) uncalled() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return loadTimers - len(x.called)
}

// eavesdrop receives everything in the account of globex.
func (x *tenantLoad) eavesdrop(m *nats.Msg) {
	refused := strings.Contains(string(m.Data), "JetStream not enabled for account")
	if strings.Contains(string(m.Data), loadSecret) || strings.HasPrefix(m.Subject, attackReply) && !refused {
		x.fault("globex received %s: %s", m.Subject, m.Data)
	}
}

// flood adds timers of globex without a pause, half of them due at once.
func (x *tenantLoad) flood(nc *nats.Conn) {
	for n := 0; n < loadFlood && !x.stopped(); n++ {
		when := []string{"0s", "1h"}[n%2]
		event := tenantEvent(fmt.Sprintf("load-%d", n), `"timerafter":"`+when+`","timersvc":"orders","timercallback":"nats:callbacks.fire"`)
		if _, err := nc.Request(schemas.SubjectAdd, event, requestBound); err != nil {
			x.fault("globex adds: %v", err)
			return
		}
		x.count(&x.flooded)
	}
}

// attackedVerbs are the verbs that globex tries on timers of acme, with the attributes that they need.
var attackedVerbs = map[string]string{"get": "", "cancel": "", "reschedule": `,"after":"1h"`, "schedule.pause": "", "dead.replay": ""}

// attack does to each timer of acme what globex can try.
func (x *tenantLoad) attack(nc *nats.Conn) {
	for {
		var id string
		select {
		case id = <-x.victims:
		case <-x.stop:
			return
		}
		timer := byID("acme", id).Timer
		var verbs sync.WaitGroup // each operation waits for adds on their way, of which the flood makes many
		for verb, more := range attackedVerbs {
			verbs.Go(func() {
				m, err := nc.Request(schemas.SubjectAPIPrefix+verb, []byte(`{"timer":"`+timer+`"`+more+`}`), requestBound)
				// A busy store may give no answer: then nobody knows whether there is such a timer.
				switch {
				case err != nil:
					x.fault("globex: %s of %s: %v", verb, id, err)
				case m.Header.Get(micro.ErrorCodeHeader) == string(schemas.CodeNotFound):
					x.notFound(verb)
				case m.Header.Get(micro.ErrorCodeHeader) != string(schemas.CodeUnavailable):
					x.fault("globex: %s of %s: %v", verb, id, m)
				}
				x.count(&x.attacks)
			})
		}
		verbs.Wait()
		for _, subject := range []string{
			"timers.t.ACME.add", "timers.t.ACME.api.cancel", "timers.call.acme.callbacks.fire", "timers.fired.acme=orders",
			"$JS.API.STREAM.NAMES", "$JS.API.STREAM.PURGE." + schemas.StreamAdd, "$JS.API.DIRECT.GET." + schemas.StreamFired, "$KV.clock.meta",
		} {
			_ = nc.PublishRequest(subject, attackReply+subject, []byte(`{"timer":"`+timer+`"}`)) // see eavesdrop
			x.count(&x.attacks)
		}
	}
}

// forgeReplies answers the callbacks of acme, as globex, with failures.
func (x *tenantLoad) forgeReplies(nc *nats.Conn) {
	for {
		select {
		case subject := <-x.replies:
			_ = nc.PublishMsg(&nats.Msg{Subject: subject, Header: nats.Header{micro.ErrorHeader: {"forged"}, micro.ErrorCodeHeader: {"1"}}})
			x.count(&x.forged)
		case <-x.stop:
			return
		}
	}
}
