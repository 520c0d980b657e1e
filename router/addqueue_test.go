package router

import "testing"

// TestAddQueueAllocates: a group is one allocation, whatever number of adds it has and however many
// tenants they are of.
func TestAddQueueAllocates(t *testing.T) {
	q := newAddQueue()
	adds := make([]Add, 300)
	for i := range adds {
		adds[i].Tenant = []string{"", "acme", "globex"}[i%3]
	}
	for step, tenants := range map[int]int{3: 1, 1: 3} { // each third add is of the default tenant
		got := testing.AllocsPerRun(100, func() {
			for i := 0; i < len(adds); i += step {
				q.put(&adds[i])
			}
			for q.size > 0 {
				if !q.wait() || len(q.take(MaxBatch)) == 0 {
					t.Fatal("the queue lost adds")
				}
			}
		})
		if got != 1 {
			t.Errorf("adds of %d tenants take %v allocations, want 1", tenants, got)
		}
	}
}
