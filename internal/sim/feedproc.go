package sim

import (
	"context"
	"iter"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// feedProc is a process. Its tasks end with it.
type feedProc struct {
	w       *feedWorld
	dead    bool
	dies    func() // kills the process; nil if it lives until the end
	tasks   []*feedTask
	waker   *store.Waker
	serving *feedConsumer
	used    time.Duration
	busy    int
	serves  bool // it is a process of functions
	wanted  bool // a task serves the feed, or is about to
}

// feedTask is a coroutine of a process.
type feedTask struct {
	next   func() (struct{}, bool)
	cancel func()
	yield  func(struct{}) bool
}

type feedTaskKey struct{}

// start starts a process, and starts another one whenever it dies.
func (w *feedWorld) start(run func(*feedProc, context.Context), dies bool) {
	p := &feedProc{w: w}
	p.waker = store.NewWaker(p, feedGrace, func() time.Time { return time.Unix(1_000_000_000, 0).Add(w.now) })
	w.procs = append(w.procs, p)
	p.spawn(func(ctx context.Context) { run(p, ctx) })
	if !dies {
		return
	}
	p.dies = func() {
		if !w.faults || p.dead {
			return
		}
		w.stats.Crashes++
		p.kill()
		w.after(w.upTo(3*time.Second), func() { w.start(run, true) })
	}
	if w.mode == anyDies {
		w.after(w.upTo(40*time.Second), p.dies)
	}
}

// mayDie sometimes kills the process. It is called at the most critical moment: right after a
// request has taken effect.
func (p *feedProc) mayDie(n int) {
	if p.dies != nil && p.w.oneIn(n) {
		p.w.after(0, p.dies)
	}
}

func (p *feedProc) kill() {
	p.dead = true
	for _, t := range p.tasks {
		t.cancel()
	}
	p.tasks = nil
}

// spawn runs f as a task of the process. It always returns true.
func (p *feedProc) spawn(f func(ctx context.Context)) bool {
	t := &feedTask{}
	ctx := context.WithValue(context.Background(), feedTaskKey{}, t)
	t.next, t.cancel = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if e := recover(); e != nil {
				if _, ok := e.(killed); !ok {
					panic(e)
				}
			}
		}()
		t.yield = yield
		f(ctx)
	})
	p.tasks = append(p.tasks, t)
	p.w.after(0, func() { p.resume(t) })
	return true
}

func (p *feedProc) resume(t *feedTask) {
	if !p.dead {
		t.next()
	}
}

// sleep pauses the task of ctx.
func (p *feedProc) sleep(ctx context.Context, d time.Duration) {
	t := ctx.Value(feedTaskKey{}).(*feedTask)
	p.w.after(d, func() { p.resume(t) })
	if !t.yield(struct{}{}) {
		panic(killed{})
	}
}

// call makes a request. The request or its answer may be lost.
func (p *feedProc) call(ctx context.Context, effect func() error) error {
	w, loss := p.w, 25
	if w.mode != anyDies {
		loss = 8
	}
	if w.oneIn(loss) {
		p.sleep(ctx, feedTimeout)
		return schemas.ErrUnavailable
	}
	p.sleep(ctx, w.delay())
	err := effect()
	if w.oneIn(loss) {
		p.sleep(ctx, feedTimeout)
		return schemas.ErrUnavailable
	}
	p.sleep(ctx, w.delay())
	return err
}
