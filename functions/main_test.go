package functions

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen: far longer than it takes.
const patience = 60 * time.Second

// eventually waits for the condition.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	end := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("in vain: %s", what)
		}
	}
}
