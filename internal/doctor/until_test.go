package doctor_test

import (
	"testing"
	"time"
)

// until asks, each time anew, until the answer is yes.
func until(t *testing.T, ask func() bool) {
	t.Helper()
	deadline := time.Now().Add(90 * time.Second)
	for !ask() {
		if time.Now().After(deadline) {
			t.Fatal("it does not come")
		}
	}
}
