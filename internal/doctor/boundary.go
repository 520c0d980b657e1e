package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

// Boundary describes who has access to Belfry's account. NATS checks no permission on a
// reply subject, so every user in that account can change every timer.
type Boundary struct {
	// Account is the name of Belfry's account; empty if the server does not report it.
	Account string
	// Shared is true if clients that add timers must be in Belfry's account: it is the
	// server's global account, or it does not export timers.add.
	Shared bool
	// Known is true if Shared is known. The server reports exports only to the system
	// account, and to an account that imports $SYS.REQ.ACCOUNT.<its name>.INFO.
	Known bool
	// Users lists the users that are connected to the account now, sorted; nil if the
	// server does not report them.
	Users []string
}

// Subjects of requests about accounts.
const (
	accountInfoSubject = "$SYS.REQ.ACCOUNT.%s.INFO"
	connectionsSubject = "$SYS.REQ.ACCOUNT.PING.CONNZ"
	// maxUsers bounds the number of users in a finding.
	maxUsers = 8
)

// SecurityModel is the advice for an account that is shared with users.
const SecurityModel = "give Belfry an account of its own and each team of users another, with service imports, as nats.conf does; docs/operations.md, \"Security model\", says why"

// ReadBoundary reads the description of nc's account from the server. sys is a connection of
// the system account, or nil. Fields that the server does not report stay empty, without an
// error.
func ReadBoundary(ctx context.Context, nc, sys *nats.Conn) (Boundary, error) {
	var b Boundary
	var user struct {
		Data *server.UserInfo `json:"data"`
	}
	if err := askServer(ctx, nc, userInfoSubject, nil, &user); err != nil || user.Data == nil {
		return b, ctx.Err()
	}
	b.Account = user.Data.Account
	if b.Account == server.DEFAULT_GLOBAL_ACCOUNT {
		b.Shared, b.Known = true, true
	} else {
		if sys == nil {
			sys = nc
		}
		var info struct {
			Data *server.AccountInfo `json:"data"`
		}
		if err := askServer(ctx, sys, fmt.Sprintf(accountInfoSubject, b.Account), nil, &info); err == nil && info.Data != nil {
			b.Known = true
			b.Shared = !slices.ContainsFunc(info.Data.Exports, func(e server.ExtExport) bool {
				return e.Type == jwt.Service && (server.SubjectMatchesFilter(schemas.SubjectAdd, string(e.Subject)) || string(e.Subject) == schemas.SubjectTenantAdd)
			})
		}
	}
	var conns struct {
		Data *server.Connz `json:"data"`
	}
	if err := askServer(ctx, nc, connectionsSubject, []byte(`{"auth":true}`), &conns); err == nil && conns.Data != nil {
		users := map[string]bool{}
		for _, c := range conns.Data.Conns {
			if c.AuthorizedUser != "" {
				users[c.AuthorizedUser] = true
			}
		}
		b.Users = slices.Sorted(maps.Keys(users))
	}
	return b, ctx.Err()
}

// askServer sends a request to the server and decodes the answer. It returns an error if no
// answer arrives within askBound, for example because the user lacks the permission.
func askServer(ctx context.Context, nc *nats.Conn, subject string, request []byte, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, subject, request)
	if err != nil {
		return fmt.Errorf("doctor: ask %s: %w", subject, err)
	}
	if err := json.Unmarshal(m.Data, answer); err != nil {
		return fmt.Errorf("doctor: the answer of %s cannot be read: %w", subject, err)
	}
	return nil
}

// boundary checks that users are in accounts of their own.
func (e *examination) boundary(ctx context.Context) {
	b, err := ReadBoundary(ctx, e.o.Conn, e.o.Sys)
	if err != nil && !errors.Is(err, context.Canceled) {
		e.found("accounts", Unknown, "", "%v", err)
		return
	}
	connected := ""
	if n := len(b.Users); n > 0 {
		users := strings.Join(b.Users[:min(n, maxUsers)], ", ")
		if n > maxUsers {
			users += fmt.Sprintf(" and %d others", n-maxUsers)
		}
		connected = "; connected to it through this server: " + users
	}
	const all = "every client with access to it can change every timer, regardless of its permissions"
	switch {
	case b.Account == "":
		e.found("accounts", Unknown, "let the user publish to "+userInfoSubject, "the server does not report the account's name")
	case b.Shared && e.o.Loopback:
		e.found("accounts", OK, "", "Belfry and its users share one account on an embedded server that listens only on this machine: every program on it can change every timer")
	case b.Shared && b.Account == server.DEFAULT_GLOBAL_ACCOUNT:
		e.found("accounts", Warning, SecurityModel, "the server has no accounts: Belfry and its users share one, and %s%s", all, connected)
	case b.Shared:
		e.found("accounts", Warning, SecurityModel, "account %s exports no %s, so users of Belfry have users in it, and %s%s", b.Account, schemas.SubjectAdd, all, connected)
	case !b.Known:
		e.found("accounts", Unknown, "give --sys-creds or --sys-url, or let account "+b.Account+" import "+fmt.Sprintf(accountInfoSubject, b.Account)+" from the system account, as nats.conf does", "the server does not report to this user whether users have their own accounts; in account %s %s%s", b.Account, all, connected)
	default:
		e.found("accounts", OK, "", "users reach Belfry only through the exports of account %s%s", b.Account, connected)
	}
}
