package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Names of figures of a system in processes of its own.
const (
	apartFigure = "CPU a timer, without the clients"
	diskFigure  = "disk a timer"
	idleAfter   = "after the run"
)

// startApart starts the system under test in processes of its own.
func (e *Env) startApart(ctx context.Context) error {
	var err error
	if e.deployed, err = e.deploy(true); err != nil {
		return err
	}
	if _, err := e.deployed.start(ctx); err != nil {
		return err
	}
	e.url = e.deployed.url
	return e.begin(ctx)
}

// cpu returns the CPU time of servers and node so far, in seconds.
func (d *deployment) cpu() (float64, error) {
	servers, node, err := d.usage()
	return servers.cpuSeconds + node.cpuSeconds, err
}

func (d *deployment) diskBytes() (int64, error) { return diskBytes(d.dirs...) }

// nextCollection is the metric of the heap size at which Go collects next.
const nextCollection = "go_memstats_next_gc_bytes"

// liveHeap returns the size of the node's heap after its last garbage collection, in MB. It
// assumes that the heap may double before the next collection. The present size of the heap is
// no use, because most of it is garbage.
func (d *deployment) liveHeap(ctx context.Context) (mb float64, err error) {
	m, err := d.askMetrics(ctx)
	next, ok := m[nextCollection]
	if err == nil && !ok {
		err = errors.New("the node's metrics lack " + nextCollection)
	}
	return next / 2 / 1e6, err
}

// askMetrics returns the node's metrics without labels, by name.
func (d *deployment) askMetrics(ctx context.Context) (metrics map[string]float64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.metrics, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the node for its metrics: %w", err)
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	metrics = map[string]float64{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, text, _ := strings.Cut(lines.Text(), " ")
		if v, err := strconv.ParseFloat(text, 64); err == nil { // skips comments
			metrics[name] = v
		}
	}
	return metrics, lines.Err()
}

// after adds figures of the memory of servers and node at the end, and with Idle of their
// CPU while they have no work.
func (e *Env) after(ctx context.Context, r *Result) error {
	e.disconnect()
	if e.Idle {
		p := e.progress()
		defer p.end()
		i, err := e.idle(ctx, e.deployed, p, idleAfter)
		if err != nil {
			return err
		}
		i.figures(r, e.deployed, idleAfter)
	} else {
		servers, node, err := e.deployed.usage()
		if err != nil {
			return err
		}
		memory(r, e.deployed, servers, node, idleAfter)
	}
	return e.deployed.heapFigure(ctx, r, "heap of the node, "+idleAfter)
}

// heapFigure adds a figure of the node's live heap, if there is a node with metrics.
func (d *deployment) heapFigure(ctx context.Context, r *Result, name string) error {
	if d.metrics == "" {
		return nil
	}
	heap, err := d.liveHeap(ctx)
	if err != nil {
		return err
	}
	r.figure(name, heap, "MB")
	return nil
}

// beside fires Beside timers a second while others are pending, and adds figures of their
// cost. It returns the number of timers that it fired.
func (e *Env) beside(ctx context.Context, r *Result, d *deployment) (int, error) {
	if e.Beside == 0 {
		return 0, nil
	}
	if err := d.heapFigure(ctx, r, "heap of the node, pending"); err != nil {
		return 0, err
	}
	rate, lead := e.Rate, e.Lead
	e.Rate, e.Lead, e.deployed = e.Beside, defaultSteadyLead, d
	defer func() { e.Rate, e.Lead, e.deployed = rate, lead, nil }()
	if err := e.begin(ctx); err != nil {
		return 0, err
	}
	s, err := e.steady(ctx)
	if err != nil {
		return 0, err
	}
	r.beside(withPending, s)
	e.disconnect()
	return e.Beside*e.Seconds + max(e.Warmup, 0), nil
}

// withPending is the prefix of figures that were measured while timers were pending.
const withPending = "beside them: "

// add returns the sum of two accounts.
func (v *Verified) add(o Verified) {
	v.Expected += o.Expected
	v.Found += o.Found
	v.Missing += o.Missing
	v.Duplicates += o.Duplicates
	v.Early += o.Early
	v.Wrong += o.Wrong
	v.Unseen += o.Unseen
	v.Removed += o.Removed
	v.Repeated += o.Repeated
	for why, n := range o.Why {
		if v.Why == nil {
			v.Why = map[string]int{}
		}
		v.Why[why] += n
	}
}
