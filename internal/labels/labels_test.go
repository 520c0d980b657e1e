package labels

import (
	"fmt"
	"sync"
	"testing"
)

func TestServices(t *testing.T) {
	t.Parallel()
	var l Services
	labels := make([][]string, 4)
	var wg sync.WaitGroup
	for g := range labels {
		wg.Go(func() {
			for i := range 1200 {
				labels[g] = append(labels[g], l.Label(fmt.Sprint("svc-", i)))
			}
		})
	}
	wg.Wait()
	distinct := map[string]bool{}
	for i := range 1200 {
		distinct[l.Label(fmt.Sprint("svc-", i))] = true
	}
	// Concurrent first uses of one service may leave a place empty, never one too many.
	if n := len(distinct); n > MaxServices+1 || !distinct[OtherServices] {
		t.Errorf("1200 services have %d labels", n)
	}
	for range 2 {
		for i := range MaxServices {
			l.Label(fmt.Sprint("svc-", i))
		}
	}
	if got := l.Label("svc-0"); got != "svc-0" {
		t.Errorf("the label of a known service is %s", got)
	}
}
