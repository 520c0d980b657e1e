package sim

import (
	"iter"
	"slices"
	"time"
)

// proc is a coroutine. It runs until it waits for an answer, and continues with the answer. The
// coroutines of a node end with its process.
type proc struct {
	w      *world
	n      *node
	next   func() (struct{}, bool)
	cancel func()
	yield  func(struct{}) bool
	done   bool
	turn   uint64 // number of its wait, so that a wait ends only once
}

// killed is the panic that ends a proc whose process has died.
type killed struct{}

// spawn starts f in a node's process; it runs until its first wait.
func (w *world) spawn(n *node, f func(p *proc)) *proc {
	p := &proc{w: w, n: n}
	p.next, p.cancel = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if e := recover(); e != nil {
				if _, ok := e.(killed); !ok {
					panic(e)
				}
			}
		}()
		p.yield = yield
		f(p)
	})
	n.procs = append(n.procs, p)
	p.resume()
	return p
}

// resume runs the proc until its next wait.
func (p *proc) resume() {
	was := p.w.current
	p.w.current = p
	_, alive := p.next()
	p.w.current = was
	if alive {
		return
	}
	p.done = true
	if p.n.ended++; p.n.ended > len(p.n.procs)/2 {
		p.n.ended = 0
		p.n.procs = slices.DeleteFunc(p.n.procs, func(o *proc) bool { return o.done })
	}
}

// stop ends the proc in its present wait.
func (p *proc) stop() {
	if !p.done {
		p.done = true
		p.cancel()
	}
}

// park waits until resume is called.
func (p *proc) park() {
	if !p.yield(struct{}{}) {
		panic(killed{})
	}
}

// sleep waits for a while by the node's monotonic clock.
func (p *proc) sleep(d time.Duration) { p.sleepOr(d, nil) }

// sleepOr waits for a while, or until the signal is given.
func (p *proc) sleepOr(d time.Duration, s *signal) {
	if s != nil && s.set {
		s.set = false
		return
	}
	p.turn++
	turn := p.turn
	if s != nil {
		s.waiter, s.turn = p, turn
	}
	wake := func() {
		if !p.done && p.turn == turn {
			p.turn++
			p.resume()
		}
	}
	p.n.after(max(d, 0), wake)
	p.park()
	if s != nil {
		s.waiter = nil
	}
}

// signal wakes a proc; it is a channel of one slot.
type signal struct {
	waiter *proc
	turn   uint64
	set    bool
}

func (s *signal) give() {
	p := s.waiter
	if p == nil || p.done || p.turn != s.turn {
		s.set = true
		return
	}
	p.turn++
	s.waiter = nil
	wake := func() {
		if !p.done {
			p.resume()
		}
	}
	p.n.soon(wake)
}
