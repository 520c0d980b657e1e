// Package accounts lays out the NATS accounts that separate Belfry from its users.
//
// Belfry's streams, buckets, nodes and operators are in one account. Each team of users
// has an account of its own, which imports from Belfry's what Shared and Team say, and
// exports the subjects of its callbacks:
//
//	team's account                                    Belfry's account
//	timers.add, timers.api.add … ──── service ──────▶ stream TIMERS_ADD, nodes
//	timers.fired.<svc>, timers.dead.<svc>,
//	timers.overdue.<svc>  ◀───────── stream ──────── nodes
//	JS.BELFRY.API…, $JS.ACK… ──────── service ──────▶ consumer <svc> of TIMERS_FIRED
//	callbacks.…, timers.work.<svc> ◀─ service ─────── nodes
//
// # Why accounts
//
// nats-server checks what a user may publish to, but not the reply subject of a request.
// In one account, a user that may publish to timers.add alone can therefore have the
// stream's answer published to $KV.timers_0.timer.<id>, which is a write to the bucket.
// A service import replaces the reply subject by one of the server's own; the answer is
// published under the requested reply subject, but in the team's account.
//
// # What must not be exported or enabled
//
//   - $JS.API.CONSUMER.CREATE: the deliver subject of a push consumer is a write, too.
//   - $KV, $JS.API.STREAM, and the other verbs of timers.api: they are about the timers of
//     all teams.
//   - JetStream in a team's account: a reply subject that begins with $JS.ACK passes an
//     import unchanged (nats-server 2.15.2, client.processServiceImport). Clients may not
//     send one, a stream's push consumer does.
//   - Leaf nodes that a team runs, for the same reason.
//
// nats.conf at the top of the repository is this layout for one team; a test compares them.
package accounts

import (
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/belfryio/belfry/schemas"
)

const (
	// Belfry names the account of Belfry's streams, buckets, nodes and operators.
	Belfry = "BELFRY"
	// System names the servers' own account.
	System = "SYS"
	// ResponseThreshold bounds how long a callback may take before the server forgets
	// where its answer goes. It must exceed the longest timertimeout.
	ResponseThreshold = 16 * time.Minute
)

// Shared returns the subjects that Belfry's account exports as services to every team.
func Shared() []string {
	out := []string{schemas.SubjectAdd}
	for _, verb := range []string{
		"add", "get", "cancel", "reschedule",
		"schedule.pause", "schedule.resume", "schedule.trigger", "schedule.backfill", "schedule.update", "schedule.delete", "schedule.preview", "schedule.runs", "schedule.why",
	} {
		out = append(out, schemas.SubjectAPIPrefix+verb)
	}
	return out
}

// Team is a team of users: an account with the services whose events it receives.
type Team struct {
	// Account is the team's account; it must not have JetStream.
	Account *server.Account
	// Services are the timer services of the team, as in the attribute timersvc.
	Services []string
	// Callbacks are subjects that timers may name as "nats:<subject>", such as
	// callbacks.orders.>. They and timers.work.<service> are served by the team.
	Callbacks []string
}

// ExportShared adds to Belfry's account what every team may import.
func ExportShared(belfry *server.Account) error {
	for _, subject := range Shared() {
		if err := belfry.AddServiceExport(subject, nil); err != nil {
			return fmt.Errorf("export %s from account %s: %w", subject, belfry.Name, err)
		}
	}
	return nil
}

// Connect adds to both accounts the exports and imports of a team. ExportShared must
// have been called.
func (t Team) Connect(belfry *server.Account) error {
	for _, subject := range Shared() {
		if err := t.use(belfry, subject, subject); err != nil {
			return err
		}
	}
	callbacks := t.Callbacks
	for _, svc := range t.Services {
		if err := t.events(belfry, svc); err != nil {
			return err
		}
		callbacks = append(callbacks[:len(callbacks):len(callbacks)], schemas.WorkSubjectPrefix+svc)
	}
	for _, subject := range callbacks {
		if err := t.serve(belfry, subject); err != nil {
			return err
		}
	}
	return nil
}

// use imports a service of Belfry's account under the subject local.
func (t Team) use(belfry *server.Account, local, subject string) error {
	if err := t.Account.AddServiceImport(belfry, local, subject); err != nil {
		return fmt.Errorf("import %s into account %s: %w", subject, t.Account.Name, err)
	}
	return nil
}

// events gives the team the events of a service, and the consumer of TIMERS_FIRED that
// has the service's name.
func (t Team) events(belfry *server.Account, svc string) error {
	only := []*server.Account{t.Account}
	for _, subject := range []string{schemas.SubjectFired(svc), schemas.SubjectDead(svc), schemas.SubjectOverdue(svc)} {
		if err := belfry.AddStreamExport(subject, only); err != nil {
			return fmt.Errorf("export %s from account %s: %w", subject, belfry.Name, err)
		}
		if err := t.Account.AddStreamImport(belfry, subject, ""); err != nil {
			return fmt.Errorf("import %s into account %s: %w", subject, t.Account.Name, err)
		}
	}
	consumer := schemas.StreamFired + "." + svc
	for _, s := range []struct {
		local, subject string
		answers        server.ServiceRespType
	}{
		{schemas.JetStreamPrefix + ".CONSUMER.INFO." + consumer, "$JS.API.CONSUMER.INFO." + consumer, server.Singleton},
		{schemas.JetStreamPrefix + ".CONSUMER.MSG.NEXT." + consumer, "$JS.API.CONSUMER.MSG.NEXT." + consumer, server.Streamed},
		{"$JS.ACK." + consumer + ".>", "$JS.ACK." + consumer + ".>", server.Singleton},
	} {
		if err := belfry.AddServiceExportWithResponse(s.subject, s.answers, only); err != nil {
			return fmt.Errorf("export %s from account %s: %w", s.subject, belfry.Name, err)
		}
		if err := t.use(belfry, s.local, s.subject); err != nil {
			return err
		}
	}
	return nil
}

// serve exports a callback subject of the team to Belfry's account. A worker may send
// progress before its answer, hence several responses.
func (t Team) serve(belfry *server.Account, subject string) error {
	if err := t.Account.AddServiceExportWithResponse(subject, server.Streamed, []*server.Account{belfry}); err != nil {
		return fmt.Errorf("export %s from account %s: %w", subject, t.Account.Name, err)
	}
	if err := t.Account.SetServiceExportResponseThreshold(subject, ResponseThreshold); err != nil {
		return fmt.Errorf("export %s from account %s: %w", subject, t.Account.Name, err)
	}
	if err := belfry.AddServiceImport(t.Account, subject, subject); err != nil {
		return fmt.Errorf("import %s into account %s: %w", subject, belfry.Name, err)
	}
	return nil
}
