package accounts

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

const bound = 60 * time.Second

// TestConfigFile: two servers report the same accounts for the generated configuration
// and for the shipped nats.conf.
func TestConfigFile(t *testing.T) {
	t.Parallel()
	file := natstest.RunProduction(t, "../../nats.conf", nil)
	made := natstest.Run(t, func(o *server.Options) {
		belfry, orders, sys := server.NewAccount(Belfry), server.NewAccount("ORDERS"), server.NewAccount(System)
		team := Team{Account: orders, Services: []string{"orders"}, Callbacks: []string{"callbacks.orders.>"}}
		if err := ExportShared(belfry); err != nil {
			t.Fatal(err)
		}
		if err := team.Connect(belfry); err != nil {
			t.Fatal(err)
		}
		o.Accounts, o.SystemAccount = []*server.Account{belfry, orders, sys}, System
		o.Users = []*server.User{{Username: "sys", Password: "x", Account: sys}, {Username: "orders", Password: "x", Account: orders}}
	})
	fileSys := file.Connect(nats.RootCAs(file.CA), nats.UserInfo("sys", "admin-pw"))
	madeSys := made.Connect(nats.UserInfo("sys", "x"))
	for _, account := range []string{Belfry, "ORDERS"} {
		want, got := layout(t, madeSys, account), layout(t, fileSys, account)
		for _, line := range want {
			if !slices.Contains(got, line) {
				t.Errorf("nats.conf: account %s lacks %s", account, line)
			}
		}
		for _, line := range got {
			// The file also lets Belfry query the servers, and every account has the
			// server's own $SYS imports.
			if !slices.Contains(want, line) && !strings.Contains(line, "$SYS.") {
				t.Errorf("nats.conf: account %s has also %s", account, line)
			}
		}
		if len(want) < 8 {
			t.Errorf("account %s: %v", account, want)
		}
	}
	// Exactly the documented subjects cross from the team's account.
	nc := made.Connect(nats.UserInfo("orders", "x"))
	if _, err := nc.Request(schemas.SubjectAPIPrefix+"list", nil, bound); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("list: %v", err)
	}
}

// layout lists the exports and imports of an account that the server reports to its
// system account.
func layout(t *testing.T, sys *nats.Conn, account string) []string {
	t.Helper()
	m, err := sys.Request("$SYS.REQ.ACCOUNT."+account+".INFO", nil, bound)
	if err != nil {
		t.Fatal(err)
	}
	var r struct{ Data server.AccountInfo }
	if err := json.Unmarshal(m.Data, &r); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range r.Data.Exports {
		out = append(out, fmt.Sprintf("export %s %s to %v, %s answers within %s", e.Type, e.Subject, e.ApprovedAccounts, e.ResponseType, e.ResponseThreshold))
	}
	for _, i := range r.Data.Imports {
		out = append(out, fmt.Sprintf("import %s %s of %s as %s", i.Type, i.Subject, i.Account, i.LocalSubject))
	}
	return out
}
