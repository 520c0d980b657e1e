package doctor_test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/doctor"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/testsize"
)

// TestBoundary: doctor explains the risk of running everything in one account.
func TestBoundary(t *testing.T) {
	t.Parallel()
	t.Run("no accounts", func(t *testing.T) {
		t.Parallel()
		srv := natstest.Run(t)
		f := examine(t, doctor.Options{Conn: srv.Connect(), Store: config(1)})
		want(t, f, "accounts", doctor.Warning, "no accounts", "regardless of its permissions", "nats.conf", "Security model")
	})
	t.Run("no accounts, on loopback", func(t *testing.T) {
		t.Parallel()
		srv := natstest.Run(t)
		f := examine(t, doctor.Options{Conn: srv.Connect(), Store: config(1), Loopback: true})
		want(t, f, "accounts", doctor.OK, "only on this machine")
	})
	t.Run("users in Belfry's account", func(t *testing.T) {
		t.Parallel()
		srv := natstest.Run(t, withAccounts(t, 100))
		as(srv, t, "few")
		f := examine(t, doctor.Options{Conn: as(srv, t, "node"), Sys: as(srv, t, "sys"), Store: config(1)})
		want(t, f, "accounts", doctor.Warning, "account APP exports no timers.add", "few, node")
		f = examine(t, doctor.Options{Conn: as(srv, t, "node"), Store: config(1)})
		want(t, f, "accounts", doctor.Unknown, "few, node", "$SYS.REQ.ACCOUNT.APP.INFO", "--sys-url")
	})
	t.Run("the server says nothing", func(t *testing.T) {
		t.Parallel()
		testsize.NotShort(t, "it waits for time-outs")
		srv := natstest.Run(t, func(o *server.Options) {
			o.Users = []*server.User{{Username: "mute", Password: "pw", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: []string{"$JS.API.>"}}, Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
			}}}
		})
		f := examine(t, doctor.Options{Conn: as(srv, t, "mute"), Store: config(1)})
		want(t, f, "accounts", doctor.Unknown, "$SYS.REQ.USER.INFO")
	})
	t.Run("nats.conf", func(t *testing.T) {
		t.Parallel()
		srv := natstest.RunProduction(t, "../../nats.conf", nil)
		for _, user := range []string{"belfry", "admin"} {
			f := examine(t, doctor.Options{Conn: srv.ConnectAs(user), Store: config(1)})
			want(t, f, "accounts", doctor.OK, "exports of account BELFRY", user)
		}
		// A team does not get the advice to enable JetStream for its own account.
		f := examine(t, doctor.Options{Conn: srv.ConnectAs("orders", nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})), Store: config(1)})
		want(t, f, "jetstream", doctor.Error, "connect as a user of Belfry's account")
		for _, finding := range f {
			if strings.Contains(finding.Do, "NAME { jetstream") && !strings.Contains(finding.Do, "do not enable it in an account of users") {
				t.Errorf("got finding %+v, want the advice to name the account's users as an exception", finding)
			}
		}
	})
}
