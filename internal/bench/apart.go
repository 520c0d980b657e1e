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

// What is told of a node that is a process of its own.
const (
	apartFigure = "CPU a timer, of server and node"
	diskFigure  = "disk a timer"
	idleAfter   = "after the run"
)

// startApart starts everything but the clients in processes of their own.
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

// hasNode reports whether the node is one of the processes.
func (d *deployment) hasNode() bool { return d != nil && d.node != nil }

// cpu is what servers and node have used until now, in seconds.
func (d *deployment) cpu() (float64, error) {
	servers, node, err := d.usage()
	return servers.cpuSeconds + node.cpuSeconds, err
}

func (d *deployment) diskBytes() (int64, error) { return diskBytes(d.dirs...) }

// liveHeap is what the node's heap held at its last collection, in MB: half of
// what it may grow to until the next one. What it holds now is no measure, as
// most of it may be garbage.
func (d *deployment) liveHeap(ctx context.Context) (mb float64, err error) {
	const name = "go_memstats_next_gc_bytes "
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.metrics, nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("ask the node for its metrics: %w", err)
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), name); ok {
			v, err := strconv.ParseFloat(text, 64)
			return v / 2 / 1e6, err
		}
	}
	return 0, errors.Join(errors.New("the node's metrics do not tell its heap"), lines.Err())
}

// after tells what servers and node have come to use, and with Idle what they use
// then when nothing is asked of them.
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
	heap, err := e.deployed.liveHeap(ctx)
	if err != nil {
		return err
	}
	r.figure("heap of the node, "+idleAfter, heap, "MB")
	return nil
}

// beside has timers fire beside those that are pending and tells what they cost;
// it returns how many there were.
func (e *Env) beside(ctx context.Context, r *Result, d *deployment) (int, error) {
	if e.Beside == 0 {
		return 0, nil
	}
	heap, err := d.liveHeap(ctx)
	if err != nil {
		return 0, err
	}
	r.figure("heap of the node, pending", heap, "MB")
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
	for _, f := range s.Figures {
		r.figure(besides+f.Name, f.Value, f.Unit)
	}
	for _, l := range s.Latencies {
		l.Name = besides + l.Name
	}
	r.Latencies = append(r.Latencies, s.Latencies...)
	r.Verified.add(s.Verified)
	e.disconnect()
	return e.Beside*e.Seconds + max(e.Warmup, 0), nil
}

// besides begins the names of what was measured beside pending timers.
const besides = "beside them: "

// add puts two accounts together.
func (v *Verified) add(o Verified) {
	v.Expected += o.Expected
	v.Found += o.Found
	v.Missing += o.Missing
	v.Duplicates += o.Duplicates
	v.Early += o.Early
	v.Wrong += o.Wrong
	v.Unseen += o.Unseen
	v.Repeated += o.Repeated
	for why, n := range o.Why {
		if v.Why == nil {
			v.Why = map[string]int{}
		}
		v.Why[why] += n
	}
}
