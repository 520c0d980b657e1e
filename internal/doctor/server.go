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

// Server holds the settings that a server reports to its system account.
type Server struct {
	Name, Version string
	// SyncAlways is true if the server syncs each write before it acknowledges it.
	SyncAlways   bool
	SyncInterval time.Duration
	// Cluster is the number of servers in JetStream's metadata group; 0 without a cluster.
	Cluster int
}

// ErrNotPermitted means that the servers do not report their settings to this user.
var ErrNotPermitted = errors.New("a server reports its settings only to the system account")

const (
	jszSubject      = "$SYS.REQ.SERVER.PING.JSZ"
	userInfoSubject = "$SYS.REQ.USER.INFO"
	// collect bounds the answers of further servers, after the first answer.
	collect = 300 * time.Millisecond
)

// Servers returns the settings of every server with JetStream. It returns ErrNotPermitted
// unless the connection's account is the system account, or imports
// $SYS.REQ.SERVER.PING.JSZ from it. wait bounds the first answer.
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

// askServers sets e.servers.
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
			e.found("replicas", Error, fmt.Sprintf("add servers to the cluster, or set replicas to %d", max(s.Cluster, 1)), "the settings have %d replicas, but server %s knows only %d servers", want, s.Name, max(s.Cluster, 1))
			return
		}
	}
}

// askBound bounds requests that most users may not make, and that therefore get no answer.
const askBound = time.Second

// promisesSafe reports whether the nodes have the safe profile.
func (e *examination) promisesSafe() bool {
	alive := e.alive()
	if !e.o.Safe || !e.o.NodesDecide || len(alive) == 0 {
		return e.o.Safe
	}
	return slices.ContainsFunc(alive, func(n store.Member) bool { return n.Presence.Profile != profileFast })
}

// profileFast is the profile that a node with the fast profile announces.
const profileFast = "fast"

// sync checks which failures an acknowledged write survives.
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
	if !known { // nodes with an embedded server announce its setting
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
		e.found("sync", OK, "", "writes are replicated, and synced later on %s: acknowledged writes survive the power loss of one server, but not of all servers at once", strings.Join(loose, ", "))
	case known && e.promisesSafe():
		e.found("sync", Error, set+", or run the nodes with replicas 3 on three servers, or with profile fast", "with profile safe acknowledged timers must survive power loss, but the only replica is synced later on %s", strings.Join(loose, ", "))
	case known:
		e.found("sync", Warning, "nothing if profile fast is intended; otherwise "+set, "writes are synced later on %s: power loss may lose acknowledged writes", strings.Join(loose, ", "))
	case replicated:
		e.found("sync", Unknown, "give --sys-creds or --sys-url, a user of the system account", "writes are replicated; the servers do not report to this user whether they sync each write")
	default:
		e.found("sync", Unknown, "give --sys-creds or --sys-url, a user of the system account; or check that the server's config has sync_interval: always", "the server does not report to this user whether it syncs each write before it acknowledges it; otherwise power loss may lose two minutes of acknowledged timers")
	}
}

// neededPublish and neededSubscribe list the subjects that a node uses.
var (
	neededPublish = []string{
		"timers.>", "_INBOX.>", "_R_.>", "$KV.clock.>", "$KV.services.>", "$KV.timers_0.>", "$JS.API.INFO", "$JS.API.STREAM.>", "$JS.API.CONSUMER.>", "$JS.API.DIRECT.GET.>",
		"$JS.ACK.TIMERS_ADD.>", "$JS.ACK.TIMERS_FIRED.>", "$JS.ACK.TIMERS_RETRY.>",
	}
	neededSubscribe = []string{"_INBOX.>", "timers.api.>", "$SRV.>"}
)

// permissions compares the user's permissions with the permissions of a node.
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
		e.found("permissions", Unknown, "let the user publish to "+userInfoSubject, "the server does not report this user's permissions")
		return
	}
	p := r.Data.Permissions
	if p == nil {
		e.found("permissions", OK, "", "this user may do everything in its account (%s)", r.Data.Account)
		return
	}
	missing := append(refused("publish to", p.Publish, neededPublish), refused("subscribe to", p.Subscribe, neededSubscribe)...)
	if len(missing) > 0 {
		e.found("permissions", Error, "grant these permissions if this is the user of a node; nats.conf shows a node's permissions. A user that only reads needs fewer", "user %q may not %s", r.Data.UserID, strings.Join(missing, ", "))
		return
	}
	e.found("permissions", OK, "", "user %q may do what a node needs", r.Data.UserID)
}

// refused returns the subjects of need that the permissions do not fully allow.
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
