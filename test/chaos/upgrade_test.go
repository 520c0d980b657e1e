//go:build unix

package chaos

import (
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/test/chaos/check"
	"github.com/belfryio/belfry/test/proc"
)

// TestRollingUpgrade replaces two nodes of the commit before by two of this one
// while clients add, cancel and reschedule: for a while both run together. One old
// node is stopped in good order, one is killed. BELFRY_UPGRADE_FROM is the
// revision to begin with; the default is the commit before.
func TestRollingUpgrade(t *testing.T) {
	from := os.Getenv("BELFRY_UPGRADE_FROM")
	asked := from != ""
	if !asked {
		from = "HEAD~1"
	}
	old, err := proc.BuildRevision(t, from)
	switch {
	case err != nil && asked:
		t.Fatal(err)
	case errors.Is(err, proc.ErrNoRevision):
		t.Skipf("NOT TESTED: the upgrade from the commit before, because it is not here: %v", err)
	case err != nil:
		t.Skipf("NOT TESTED: the upgrade from the commit before, because there is nothing of it to run: %v", err)
	}
	const load = 14 * time.Second
	sd := seed(t)
	t.Logf("seed %d: from %s", sd, from)
	rec := check.NewRecorder(nil)
	rec.Begin()
	recv := newReceiver(t, rec, sd)
	server := proc.NewServers(t, 1)[0]
	server.Start()
	if err := server.WaitHealthy(t.Context(), wellBound); err != nil {
		t.Fatal(err)
	}
	node := func(bin string) *proc.Node {
		n := proc.New(t, proc.Options{Bin: bin, NATSURL: server.URL(), Config: "allow-loopback: true\nlease: 3s\n"})
		n.Start()
		n.Ready(t.Context())
		return n
	}
	first, second := node(old), node(old)
	c := newClient(t, rec, server.URL(), store.DefaultRetention)
	c.useSDK()
	recv.serve(c.nc)
	begin := time.Now().Add(200 * time.Millisecond)
	plans := makePlans(rand.New(rand.NewPCG(sd, 1)), work{
		source: clusterSource, count: int(load.Seconds()) * perSecond, begin: begin, adding: load, spread: clusterSpread, // beyond the horizon: one build reads the index that the other has written
		httpURL: recv.url, moves: true, sdk: true,
	})
	clients := make(chan struct{})
	go func() {
		defer close(clients)
		c.run(t.Context(), plans)
	}()
	at := func(d time.Duration) { wait(t.Context(), time.Until(begin.Add(d))) }
	at(2 * time.Second)
	node("")
	at(5 * time.Second)
	first.Terminate()
	at(7 * time.Second)
	node("")
	at(9 * time.Second)
	second.Kill()
	<-clients

	report := conclude(t, c, rec)
	t.Logf("\n%s", report)
	fail(t, report)
	if report.Acknowledged < len(plans)*9/10 || report.Cancelled == 0 || report.Moved == 0 {
		t.Errorf("the run showed too little")
	}
}
