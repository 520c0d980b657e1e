package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/store"
)

// Server is what a server tells its system account.
type Server struct {
	Name, Version string
	// SyncAlways: each write is synced before it is acknowledged.
	SyncAlways   bool
	SyncInterval time.Duration
	// Cluster is how many servers share JetStream's metadata; 0 without a cluster.
	Cluster int
}

// ErrNotPermitted says that the servers do not tell this user how they are set.
var ErrNotPermitted = errors.New("only the system account is told how a server is set")

const (
	jszSubject      = "$SYS.REQ.SERVER.PING.JSZ"
	userInfoSubject = "$SYS.REQ.USER.INFO"
	// collect is how long further servers have to answer after the first.
	collect = 300 * time.Millisecond
)

// Servers asks every server with JetStream how it is set. It returns
// ErrNotPermitted unless the connection is of the system account, or of one that
// was given this right. wait bounds the first answer.
func Servers(ctx context.Context, nc *nats.Conn, wait time.Duration) ([]Server, error) {
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		return nil, fmt.Errorf("doctor: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only with the connection
	if err := nc.PublishRequest(jszSubject, sub.Subject, nil); err != nil {
		return nil, fmt.Errorf("doctor: %w", err)
	}
	var out []Server
	for {
		m, err := next(ctx, sub, wait)
		switch {
		case err != nil && len(out) > 0:
			slices.SortFunc(out, func(a, b Server) int { return strings.Compare(a.Name, b.Name) })
			return out, nil
		case errors.Is(err, nats.ErrNoResponders), errors.Is(err, context.DeadlineExceeded):
			return nil, ErrNotPermitted
		case err != nil:
			return nil, fmt.Errorf("doctor: ask the servers: %w", err)
		}
		var r struct {
			Server server.ServerInfo `json:"server"`
			Data   *server.JSInfo    `json:"data"`
		}
		if err := json.Unmarshal(m.Data, &r); err != nil {
			return nil, fmt.Errorf("doctor: a server's answer cannot be read: %w", err)
		}
		if r.Data == nil || r.Data.Disabled {
			continue // a server without JetStream
		}
		s := Server{Name: r.Server.Name, Version: r.Server.Version, SyncAlways: r.Data.Config.SyncAlways, SyncInterval: r.Data.Config.SyncInterval}
		if r.Data.Meta != nil {
			s.Cluster = r.Data.Meta.Size
		}
		out, wait = append(out, s), collect
	}
}

func next(ctx context.Context, sub *nats.Subscription, wait time.Duration) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return sub.NextMsgWithContext(ctx)
}

// askServers fills e.servers.
func (e *examination) askServers(ctx context.Context) {
	nc := e.o.Sys
	if nc == nil {
		nc = e.o.Conn
	}
	var err error
	if e.servers, err = Servers(ctx, nc, askBound); err != nil && !errors.Is(err, ErrNotPermitted) {
		e.found("servers", Unknown, "", "%v", err)
	}
	for _, s := range e.servers {
		if want := max(e.o.Store.Replicas, 1); want > 1 && s.Cluster < want {
			e.found("replicas", Error, fmt.Sprintf("add servers to the cluster, or set replicas to %d", max(s.Cluster, 1)), "the settings ask for %d replicas, and server %s knows %d servers", want, s.Name, max(s.Cluster, 1))
			return
		}
	}
}

// askBound is how long servers have for an answer that most users do not get.
const askBound = time.Second

// promisesSafe reports whether the nodes promise that acknowledged writes survive
// power loss.
func (e *examination) promisesSafe() bool {
	alive := e.alive()
	if !e.o.Safe || !e.o.NodesDecide || len(alive) == 0 {
		return e.o.Safe
	}
	return slices.ContainsFunc(alive, func(n store.Member) bool { return n.Presence.Profile != profileFast })
}

// profileFast is what a node of the fast profile announces.
const profileFast = "fast"

// sync tells how safe an acknowledged write is.
func (e *examination) sync() {
	replicated := len(e.streams) > 0
	for _, h := range e.streams {
		replicated = replicated && h.Replicas >= 3
	}
	if len(e.streams) == 0 {
		replicated = e.o.Store.Replicas >= 3
	}
	var loose []string
	for _, s := range e.servers {
		if !s.SyncAlways {
			loose = append(loose, fmt.Sprintf("%s (every %s)", s.Name, s.SyncInterval))
		}
	}
	known := len(e.servers) > 0
	if !known { // nodes with a server of their own know how it is set
		for _, n := range e.cluster.Nodes {
			switch n.Presence.Sync {
			case store.SyncAlways:
				known = true
			case store.SyncInterval:
				known, loose = true, append(loose, "the server of "+n.Node)
			}
		}
	}
	const set = "set sync_interval: always in the jetstream block of every server"
	switch {
	case known && len(loose) == 0:
		e.found("sync", OK, "", "every server syncs each write before it acknowledges it")
	case known && replicated:
		e.found("sync", OK, "", "writes are replicated, and synced later on %s: what was acknowledged survives the power loss of one server, not that of all at once", strings.Join(loose, ", "))
	case known && e.promisesSafe():
		e.found("sync", Error, set+", or run the nodes with replicas 3 on three servers, or with profile fast", "the settings promise that acknowledged timers survive power loss (profile safe), and one replica is synced later on %s", strings.Join(loose, ", "))
	case known:
		e.found("sync", Warning, "nothing, if profile fast is meant; otherwise "+set, "writes are synced later on %s: power loss may lose what was acknowledged since", strings.Join(loose, ", "))
	case replicated:
		e.found("sync", Unknown, "give --sys-creds or --sys-url, a user of the system account", "writes are replicated; whether the servers sync each is not told to this user")
	default:
		e.found("sync", Unknown, "give --sys-creds or --sys-url, a user of the system account; or look whether the server's config says sync_interval: always", "whether the server syncs each write before it acknowledges it is not told to this user; without that, power loss may lose two minutes of acknowledged timers")
	}
}

// needed is what a node publishes and subscribes to.
var (
	neededPublish = []string{
		"timers.>", "_INBOX.>", "_R_.>", "$KV.clock.>", "$KV.services.>", "$KV.timers_0.>", "$JS.API.INFO", "$JS.API.STREAM.>", "$JS.API.CONSUMER.>", "$JS.API.DIRECT.GET.>",
		"$JS.ACK.TIMERS_ADD.>", "$JS.ACK.TIMERS_FIRED.>", "$JS.ACK.TIMERS_RETRY.>",
	}
	neededSubscribe = []string{"_INBOX.>", "timers.api.>", "$SRV.>"}
)

// permissions compares those of this user with what a node needs.
func (e *examination) permissions(ctx context.Context) {
	var r struct {
		Data *server.UserInfo `json:"data"`
	}
	ask, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	m, err := e.o.Conn.RequestWithContext(ask, userInfoSubject, nil)
	if err == nil {
		err = json.Unmarshal(m.Data, &r)
	}
	if err != nil || r.Data == nil {
		e.found("permissions", Unknown, "let the user publish to "+userInfoSubject, "the server does not tell what this user may do")
		return
	}
	p := r.Data.Permissions
	if p == nil {
		e.found("permissions", OK, "", "this user may do everything in its account (%s)", r.Data.Account)
		return
	}
	missing := append(refused("publish to", p.Publish, neededPublish), refused("subscribe to", p.Subscribe, neededSubscribe)...)
	if len(missing) > 0 {
		e.found("permissions", Error, "grant it if this is the user of a node; nats.conf shows a node's rights. A user that only looks needs less", "user %q may not %s", r.Data.UserID, strings.Join(missing, ", "))
		return
	}
	e.found("permissions", OK, "", "user %q may do what a node needs", r.Data.UserID)
}

// refused lists what of need the permissions do not allow in full.
func refused(verb string, p *server.SubjectPermission, need []string) []string {
	if p == nil {
		return nil
	}
	var out []string
	for _, subject := range need {
		allowed := len(p.Allow) == 0 || slices.ContainsFunc(p.Allow, func(a string) bool { return server.SubjectMatchesFilter(subject, a) })
		denied := slices.ContainsFunc(p.Deny, func(d string) bool { return server.SubjectsCollide(subject, d) })
		if !allowed || denied {
			out = append(out, verb+" "+subject)
		}
	}
	return out
}
