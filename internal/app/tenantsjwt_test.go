package app

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/testsize"
)

// TestTenantsOperatorMode runs the checks of TestTenants on a server in operator mode: an operator,
// its accounts and their users are JWTs, and the name of an account is its public key.
func TestTenantsOperatorMode(t *testing.T) {
	t.Parallel()
	mode := operatorMode(t)
	srv := natstest.Run(t, mode.server)
	f := startTenants(t, mode, []string{srv.URL()}, 1)
	testTenants(f)
	t.Run("imports", func(t *testing.T) {
		f.t = t
		testForgedImports(f)
	})
}

// TestTenantsOperatorModeCluster runs them on three servers with three nodes.
func TestTenantsOperatorModeCluster(t *testing.T) {
	t.Parallel()
	testsize.Long(t, "three nodes; TestTenantsCluster and TestTenantsOperatorMode show the two parts")
	mode := operatorMode(t)
	testTenants(startTenants(t, mode, clusterURLs(natstest.Cluster3(t, mode.server)), 3))
}

// testForgedImports: the JWT of account MALLORY imports the subjects of acme, and acme's private export
// without an activation token. The server serves none of them.
func testForgedImports(f *tenants) {
	t := f.t
	f.must("acme", "add", tenantEvent("private", `"timerafter":"1h"`))
	for _, subject := range []string{"timers.add", "timers.api.list", "callbacks.shared"} {
		m, err := f.as("mallory").Request(subject, tenantEvent("forged", `"timerafter":"1h"`), requestBound)
		if !errors.Is(err, nats.ErrNoResponders) {
			t.Errorf("mallory: %s: %v %v, want no responders", subject, m, err)
		}
	}
	testForgedFired(f)
	if _, code := f.ask("acme", "get", named("forged")); code != "not_found" {
		t.Errorf("the add of mallory: %q, want not_found", code)
	}
}

// operatorMode makes the JWTs that docs/tenants.md describes, with the accounts of tenantAccounts and
// account MALLORY. The server resolves accounts from memory.
func operatorMode(t *testing.T) tenantMode {
	t.Helper()
	j := newJWTs(t, "BELFRY", "SYS", "ACME", "GLOBEX", "GHOST", "TEAM", "MALLORY")
	belfry, sys := j.accounts["BELFRY"], j.accounts["SYS"]

	belfry.claims.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit}
	belfry.export("timers.t.*.add", jwt.Export{AccountTokenPosition: 3})
	belfry.export("timers.t.*.api.>", jwt.Export{AccountTokenPosition: 3})
	belfry.export("timers.t.*.fired.>", jwt.Export{Type: jwt.Stream, AccountTokenPosition: 3})
	belfry.export("$JS.API.CONSUMER.INFO.TIMERS_TENANT_FIRED.*", jwt.Export{AccountTokenPosition: 6})
	belfry.export("$JS.API.CONSUMER.MSG.NEXT.TIMERS_TENANT_FIRED.*", jwt.Export{ResponseType: jwt.ResponseTypeStream, AccountTokenPosition: 7})
	belfry.export("$JS.ACK.TIMERS_TENANT_FIRED.*.>", jwt.Export{AccountTokenPosition: 4})
	belfry.export("timers.add", jwt.Export{})
	belfry.export("timers.api.>", jwt.Export{})
	for tenant, name := range map[string]string{"acme": "ACME", "globex": "GLOBEX"} {
		account := j.accounts[name]
		for _, subject := range []string{"callbacks.>", "timers.work.>"} {
			account.export(subject, jwt.Export{TokenReq: true, ResponseType: jwt.ResponseTypeStream, ResponseThreshold: 16 * time.Minute})
			belfry.importFrom(account, subject, "timers.call."+tenant+"."+subject, account.activate(belfry, subject))
		}
	}
	for _, subject := range []string{"$SYS.REQ.SERVER.PING.JSZ", "$SYS.REQ.ACCOUNT." + belfry.key + ".INFO"} {
		sys.export(subject, jwt.Export{TokenReq: true, ResponseType: jwt.ResponseTypeStream})
		belfry.importFrom(sys, subject, subject, sys.activate(belfry, subject))
	}
	for _, name := range []string{"ACME", "GLOBEX", "GHOST"} {
		account := j.accounts[name]
		account.importFrom(belfry, "timers.t."+account.key+".add", "timers.add", "")
		account.importFrom(belfry, "timers.t."+account.key+".api.>", "timers.api.>", "")
	}
	j.accounts["TEAM"].importFrom(belfry, "timers.add", "timers.add", "")
	j.accounts["TEAM"].importFrom(belfry, "timers.api.>", "timers.api.>", "")
	acme, mallory := j.accounts["ACME"], j.accounts["MALLORY"]
	mallory.importFrom(belfry, "timers.t."+acme.key+".add", "timers.add", "")
	mallory.importFrom(belfry, "timers.t."+acme.key+".api.>", "timers.api.>", "")
	for _, account := range []*jwtAccount{acme, j.accounts["GLOBEX"], mallory} {
		owner := account
		if account == mallory {
			owner = acme
		}
		account.importFired(belfry, owner.key)
	}
	mallory.importFrom(acme, "callbacks.>", "callbacks.>", "")

	for user, name := range map[string]string{"admin": "BELFRY", "acme": "ACME", "globex": "GLOBEX", "ghost": "GHOST", "team": "TEAM", "mallory": "MALLORY"} {
		j.user(user, name, jwt.Permissions{})
	}
	j.user("belfry", "BELFRY", belfryPermissions(t, belfry.key))
	return tenantMode{
		server:   j.server(sys),
		accounts: map[string]string{"acme": acme.key, "globex": j.accounts["GLOBEX"].key},
		login:    func(user string) nats.Option { return nats.UserCredentials(j.file(user)) },
		node:     func(o *Options) { o.Creds = j.file("belfry") },
	}
}

// belfryPermissions returns the permissions of user belfry in deploy/tenants/nats.conf, for an account with a
// public key.
func belfryPermissions(t *testing.T, key string) (p jwt.Permissions) {
	t.Helper()
	var o server.Options
	confMode(t).server(&o)
	for _, u := range o.Users {
		if u.Username == "belfry" {
			p.Pub.Allow, p.Sub.Allow = u.Permissions.Publish.Allow, u.Permissions.Subscribe.Allow
		}
	}
	for i, subject := range p.Pub.Allow {
		p.Pub.Allow[i] = strings.Replace(subject, ".BELFRY.", "."+key+".", 1)
	}
	if len(p.Pub.Allow) == 0 || len(p.Sub.Allow) == 0 {
		t.Fatal("nats.conf has no permissions of user belfry")
	}
	return p
}

// jwts is an operator with its accounts and users.
type jwts struct {
	t        *testing.T
	dir      string
	operator nkeys.KeyPair
	accounts map[string]*jwtAccount
}

type jwtAccount struct {
	t      *testing.T
	pair   nkeys.KeyPair
	key    string
	claims *jwt.AccountClaims
}

func newJWTs(t *testing.T, accounts ...string) *jwts {
	t.Helper()
	operator, err := nkeys.CreateOperator()
	if err != nil {
		t.Fatal(err)
	}
	j := &jwts{t: t, dir: t.TempDir(), operator: operator, accounts: map[string]*jwtAccount{}}
	for _, name := range accounts {
		pair, err := nkeys.CreateAccount()
		if err != nil {
			t.Fatal(err)
		}
		a := &jwtAccount{t: t, pair: pair, key: publicKey(t, pair)}
		a.claims = jwt.NewAccountClaims(a.key)
		a.claims.Name = name
		j.accounts[name] = a
	}
	return j
}

func publicKey(t *testing.T, pair nkeys.KeyPair) string {
	t.Helper()
	key, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// export adds an export to the account, of a service unless e has another type.
func (a *jwtAccount) export(subject string, e jwt.Export) {
	e.Name, e.Subject = subject, jwt.Subject(subject)
	if e.Type == jwt.Unknown {
		e.Type = jwt.Service
	}
	a.claims.Exports.Add(&e)
}

// importFrom adds the import of a service that another account exports. activation is needed for a private
// export.
func (a *jwtAccount) importFrom(from *jwtAccount, subject, local, activation string) {
	a.claims.Imports.Add(&jwt.Import{
		Name: from.claims.Name + " " + subject, Subject: jwt.Subject(subject), Account: from.key, LocalSubject: jwt.RenamingSubject(local),
		Type: jwt.Service, Token: activation,
	})
}

// importFired adds the imports of the fired events of an account.
func (a *jwtAccount) importFired(belfry *jwtAccount, owner string) {
	a.claims.Imports.Add(&jwt.Import{
		Name: "fired events", Subject: jwt.Subject("timers.t." + owner + ".fired.>"), Account: belfry.key, LocalSubject: "timers.fired.>", Type: jwt.Stream,
	})
	for _, verb := range []string{"CONSUMER.INFO.", "CONSUMER.MSG.NEXT."} {
		consumer := verb + "TIMERS_TENANT_FIRED." + owner
		a.importFrom(belfry, "$JS.API."+consumer, "JS.BELFRY.API."+consumer, "")
	}
	a.importFrom(belfry, "$JS.ACK.TIMERS_TENANT_FIRED."+owner+".>", "$JS.ACK.TIMERS_TENANT_FIRED."+owner+".>", "")
}

// activate signs a token that lets another account import a private export.
func (a *jwtAccount) activate(to *jwtAccount, subject string) string {
	a.t.Helper()
	claims := jwt.NewActivationClaims(to.key)
	claims.ImportSubject, claims.ImportType = jwt.Subject(subject), jwt.Service
	token, err := claims.Encode(a.pair)
	if err != nil {
		a.t.Fatal(err)
	}
	return token
}

// file is the credentials file of a user.
func (j *jwts) file(user string) string { return filepath.Join(j.dir, user+".creds") }

// user makes a user of an account, with a credentials file.
func (j *jwts) user(name, account string, p jwt.Permissions) {
	j.t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		j.t.Fatal(err)
	}
	claims := jwt.NewUserClaims(publicKey(j.t, pair))
	claims.Name, claims.Permissions = name, p
	token, err := claims.Encode(j.accounts[account].pair)
	if err != nil {
		j.t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		j.t.Fatal(err)
	}
	creds, err := jwt.FormatUserConfig(token, seed)
	if err != nil {
		j.t.Fatal(err)
	}
	if err := os.WriteFile(j.file(name), creds, 0o600); err != nil {
		j.t.Fatal(err)
	}
}

// server makes a server trust the operator and resolve its accounts.
func (j *jwts) server(system *jwtAccount) natstest.Option {
	j.t.Helper()
	operator := jwt.NewOperatorClaims(publicKey(j.t, j.operator))
	operator.SystemAccount = system.key
	resolver := &server.MemAccResolver{}
	for name, a := range j.accounts {
		token, err := a.claims.Encode(j.operator)
		if err == nil {
			err = resolver.Store(a.key, token)
		}
		if err != nil {
			j.t.Fatalf("account %s: %v", name, err)
		}
	}
	return func(o *server.Options) {
		o.TrustedOperators, o.SystemAccount, o.AccountResolver = []*jwt.OperatorClaims{operator}, system.key, resolver
	}
}
