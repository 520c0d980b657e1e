// Package agenda orders the actions of a simulation in a test by their virtual times.
package agenda

import "container/heap"

// Agenda is a queue of actions by their times, in a unit that the caller chooses. The zero value is
// empty.
type Agenda struct {
	queue queue
	added int
}

// Len returns the number of actions in the queue.
func (a *Agenda) Len() int { return len(a.queue) }

// Add adds an action at a time.
func (a *Agenda) Add(at int64, do func()) {
	a.added++
	heap.Push(&a.queue, action{at, a.added, do})
}

// Next removes the earliest action and returns its time. Actions at the same time come in the order
// in which they were added. The agenda must not be empty.
func (a *Agenda) Next() (at int64, do func()) {
	x := heap.Pop(&a.queue).(action)
	return x.at, x.do
}

type action struct {
	at    int64
	added int
	do    func()
}

// queue implements heap.Interface.
type queue []action

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].added < q[j].added
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(action)) }
func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}
