package bench

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/app"
)

// deployment has the processes that a run starts: servers, and for workloads that kill
// or observe a node, the node.
type deployment struct {
	servers  []*process
	node     *process // nil for a node in this process
	profile  app.Profile
	url      string
	replicas int
	dirs     []string
	metrics  string // URL of the node's metrics, if the node is a separate process
	http     string // address of its HTTP API, with metrics
	// system reports that the processes are the whole system under test.
	system bool
}

// whole reports whether the processes are the whole system under test: a node with its servers, the
// servers of a peer, or the floor.
func (d *deployment) whole() bool { return d != nil && d.system }

// deploy prepares the servers of Config.On, and with whole the whole system under test, without
// starting them. If they still run at the end of the Env, it kills them.
func (e *Env) deploy(whole bool) (*deployment, error) {
	d := &deployment{profile: e.Profile, replicas: 1, system: whole}
	withNode := whole && !e.peer()
	count := map[Topology]int{OnServer: 1, OnCluster: replicas}[e.On]
	if count > 1 {
		d.replicas = replicas
	}
	if (count > 0 || whole) && e.Child == nil {
		return nil, bad("this run starts processes, but Config.Child is not set")
	}
	addrs, err := freeAddrs(2*count + 2)
	if err != nil {
		return nil, err
	}
	clients, routes, natsAddr, httpAddr := addrs[:count], addrs[count:2*count], addrs[2*count], addrs[2*count+1]
	d.url = "nats://" + natsAddr
	if count > 0 {
		d.url = "nats://" + strings.Join(clients, ",nats://")
	}
	for n := range count {
		dir, err := e.TempDir()
		if err != nil {
			return nil, err
		}
		d.dirs = append(d.dirs, dir)
		spec := serverSpec{Name: fmt.Sprintf("n%d", n+1), Data: dir, Listen: clients[n]}
		if count > 1 {
			spec.Cluster, spec.Routes = routes[n], routes
		}
		p := &process{lost: e.lost, what: "nats-server " + spec.Name, ready: serves("nats://"+spec.Listen, d.replicas)}
		p.command = func() *exec.Cmd {
			spec.SyncAlways = d.profile == app.ProfileSafe
			return e.command(childSpec{Server: &spec})
		}
		d.servers = append(d.servers, p)
		e.onClose(p.kill)
	}
	if whole && e.System == Floor {
		return d, e.deployFloor(d, natsAddr)
	}
	if !withNode {
		return d, nil
	}
	spec := nodeSpec{HTTP: httpAddr, Shards: e.Shards, Retention: e.Retention, NoSearchIndex: e.NoSearchIndex}
	if count > 0 {
		spec.NATSURL, spec.Replicas = d.url, d.replicas
	} else {
		if spec.Data, err = e.TempDir(); err != nil {
			return nil, err
		}
		d.dirs = append(d.dirs, spec.Data)
		spec.NATSListen = natsAddr
	}
	d.http, d.metrics = httpAddr, "http://"+httpAddr+"/metrics"
	d.node = &process{lost: e.lost, what: "the node", endsBySignal: true, ready: answers("http://" + httpAddr + "/readyz")}
	d.node.command = func() *exec.Cmd {
		spec.Profile = d.profile
		return e.command(childSpec{Node: &spec})
	}
	e.onClose(d.node.kill)
	return d, nil
}

// deployFloor prepares the process of the floor, with its embedded server.
func (e *Env) deployFloor(d *deployment, addr string) error {
	dir, err := e.TempDir()
	if err != nil {
		return err
	}
	d.dirs = append(d.dirs, dir)
	d.node = &process{lost: e.lost, what: "the floor", ready: hasStream(d.url, floorAddStream)}
	d.node.command = func() *exec.Cmd {
		safe := d.profile == app.ProfileSafe
		return e.command(childSpec{Floor: &floorSpec{Server: serverSpec{Name: "floor", Data: dir, Listen: addr, SyncAlways: safe}, Batches: safe}})
	}
	e.onClose(d.node.kill)
	return nil
}

func (d *deployment) all() []*process {
	if d.node == nil {
		return d.servers
	}
	return append(append([]*process(nil), d.servers...), d.node)
}

// start starts all processes and returns the time until they were ready.
func (d *deployment) start(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	for _, p := range d.servers {
		if err := p.launch(); err != nil {
			return 0, err
		}
	}
	for _, p := range d.servers {
		if err := p.await(ctx); err != nil {
			return 0, err
		}
	}
	if d.node != nil {
		if err := d.node.launch(); err != nil {
			return 0, err
		}
		if err := d.node.await(ctx); err != nil {
			return 0, err
		}
	}
	return time.Since(begun), nil
}

// kill kills all processes at the same time.
func (d *deployment) kill() error {
	all := d.all()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, p := range all {
		wg.Go(func() { errs[i] = p.kill() })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// stop stops the node, and then the servers.
func (d *deployment) stop() error {
	all := d.all()
	for i := len(all) - 1; i >= 0; i-- {
		if err := all[i].stop(); err != nil {
			return err
		}
	}
	return nil
}

// usage returns the usage of all servers together, and of the node.
func (d *deployment) usage() (servers, node used, err error) {
	for _, p := range d.servers {
		u, err := p.usage()
		if err != nil {
			return servers, node, err
		}
		servers.cpuSeconds += u.cpuSeconds
		servers.rssMB += u.rssMB
	}
	if d.node != nil {
		node, err = d.node.usage()
	}
	return servers, node, err
}
