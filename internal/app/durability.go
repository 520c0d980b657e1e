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

// syncAsked is how long servers have to tell how they are set.
const syncAsked = time.Second

// checkDurability refuses to promise more than the server's settings give; where
// they cannot be known, it returns a warning to give once all else is well. Three
// replicas on three servers give it whatever the settings are; an embedded server
// is set as the profile says.
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
	a.setPhase("asking the servers how they are set")
	loose, err := a.looseServers(ctx)
	switch {
	case err == nil && len(loose) == 0:
		a.syncs = store.SyncAlways
	case err == nil:
		a.syncs = store.SyncInterval
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case !errors.Is(err, doctor.ErrNotPermitted):
		return nil, errorOf(ErrUnreachable, err, "ask the servers how they are set: %v", err)
	}
	switch {
	case !safe || replicated || a.syncs == store.SyncAlways:
		return warn, nil
	case a.syncs == store.SyncInterval:
		return nil, badConfig("profile safe promises that acknowledged timers survive power loss, and with %d replica they do not: %s. Set sync_interval: always in the server's jetstream block, or use --replicas 3 on three servers, or say --profile fast", a.o.Replicas, strings.Join(loose, ", "))
	}
	return func() {
		a.o.Log.Warn().Str("profile", string(a.o.Profile)).Int("replicas", a.o.Replicas).
			Msg("THE SERVER DOES NOT TELL WHETHER IT SYNCS EVERY WRITE: with one replica, acknowledged timers survive power loss only if its jetstream block has sync_interval: always, which is not its default. Set that, or use --replicas 3 on three servers; say --profile fast if it is meant")
	}, nil
}

// warnShared logs a warning if Belfry shares its account with its users. It does not apply
// to the embedded server, which checks its own users.
func (a *App) warnShared(ctx context.Context) {
	if a.o.embedded() {
		return
	}
	// On a connection of its own, as looseServers.
	nc, err := Dial(a.o, "belfry "+a.node+" (start)")
	if err != nil {
		return // the node's own connection says more
	}
	defer nc.Close()
	b, err := doctor.ReadBoundary(ctx, nc, nil)
	if err != nil || !b.Shared {
		return
	}
	a.o.Log.Warn().Str("account", b.Account).Str("do", doctor.SecurityModel).
		Msg("Belfry shares its NATS account with its users: every client with access to the account can change every timer, regardless of its permissions")
}

// looseServers are those that sync later than they acknowledge, in words. It asks
// on a connection of its own, since a user that may not ask is told so in a way
// that would look like a fault of the node.
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
