package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/doctor"
	"github.com/belfryio/belfry/internal/store"
)

// syncAsked bounds the wait for the servers' sync settings.
const syncAsked = time.Second

// checkDurability returns an error if the server's settings contradict profile safe. If
// the server does not report its settings, it returns a function that logs a warning, to
// call when the node has started. It checks nothing with three replicas, which survive the
// power loss of one server with any settings, or with the embedded server, which the node
// configures itself.
func (a *App) checkDurability(ctx context.Context) (warn func(), err error) {
	warn = func() {}
	safe, replicated := a.o.Profile == ProfileSafe, a.o.Replicas >= 3
	if a.o.embedded() {
		a.syncs = store.SyncInterval
		if safe {
			a.syncs = store.SyncAlways
		}
		return warn, nil
	}
	a.setPhase("reading the servers' settings")
	loose, err := a.looseServers(ctx)
	switch {
	case err == nil && len(loose) == 0:
		a.syncs = store.SyncAlways
	case err == nil:
		a.syncs = store.SyncInterval
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case !errors.Is(err, doctor.ErrNotPermitted):
		return nil, errorOf(ErrUnreachable, err, "read the servers' settings: %v", err)
	}
	switch {
	case !safe || replicated || a.syncs == store.SyncAlways:
		return warn, nil
	case a.syncs == store.SyncInterval:
		return nil, badConfig("with profile safe acknowledged timers must survive power loss, but with %d replica they do not: %s. Set sync_interval: always in the server's jetstream block, or use --replicas 3 on three servers, or use --profile fast", a.o.Replicas, strings.Join(loose, ", "))
	}
	return func() {
		a.o.Log.Warn().Str("profile", string(a.o.Profile)).Int("replicas", a.o.Replicas).
			Msg("THE SERVER DOES NOT REPORT WHETHER IT SYNCS EVERY WRITE: with one replica, acknowledged timers survive power loss only if its jetstream block has sync_interval: always, which is not the default. Set that, or use --replicas 3 on three servers, or use --profile fast if losing timers is acceptable")
	}, nil
}

// warnShared logs a warning if Belfry shares its account with its users. It does not apply
// to the embedded server, which checks its own users.
func (a *App) warnShared(ctx context.Context) {
	if a.o.embedded() {
		return
	}
	// Use a separate connection, like looseServers.
	nc, err := Dial(a.o, "belfry "+a.node+" (start)")
	if err != nil {
		return // the node's own connection reports the error
	}
	defer nc.Close()
	b, err := doctor.ReadBoundary(ctx, nc, nil)
	if err != nil || !b.Shared {
		return
	}
	a.o.Log.Warn().Str("account", b.Account).Str("do", doctor.SecurityModel).
		Msg("Belfry shares its NATS account with its users: every client with access to the account can change every timer, regardless of its permissions")
}

// looseServers returns texts about the servers that acknowledge writes before they sync
// them. It uses a separate connection: if the user lacks the permission, the server reports
// a permissions violation on the connection, which would look like an error of the node.
func (a *App) looseServers(ctx context.Context) ([]string, error) {
	nc, err := Dial(a.o, "belfry "+a.node+" (start)")
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	servers, err := doctor.Servers(ctx, nc, syncAsked)
	var loose []string
	for _, s := range servers {
		if !s.SyncAlways {
			loose = append(loose, fmt.Sprintf("server %s syncs every %s", s.Name, s.SyncInterval))
		}
	}
	return loose, err
}
