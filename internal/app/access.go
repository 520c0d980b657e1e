package app

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/belfryio/belfry/internal/accounts"
	"github.com/belfryio/belfry/schemas"
)

// User is a user of the embedded server. If there are users, every client must log in.
//
// The account is the boundary, as in nats.conf: administrators share account BELFRY with
// the node and may do everything in it. The other users belong to teams: users with the
// same services are a team and share an account. A team adds timers; gets, cancels and
// reschedules timers whose source and id it knows; receives the fired events
// and dead letters of its services, and serves the callback subjects
// callbacks.<service>.> and timers.work.<service>. Nothing else crosses.
type User struct {
	// Name is 1 to 64 printable characters without spaces, unique.
	Name string
	// Password is the password, or its bcrypt hash ("nats server passwd" makes one).
	Password string
	// Admin gives the user everything in account BELFRY; it has no Services then.
	Admin bool
	// Services are the services of the user's team. A service belongs to one team: users
	// that share a service must have the same list.
	Services []string
}

// ServerTLS names the PEM files of a listener.
type ServerTLS struct {
	Cert, Key string
	// CA signs the certificates of clients. If it is set, each client needs a certificate.
	CA string
}

const (
	// nodeUser is the node's own user of the embedded server. Each start of the process
	// generates a new password for it.
	nodeUser = "belfry-node"
	// teamPrefix and the team's services make the name of a team's account.
	teamPrefix = "team-"
	// maxUsers bounds the users of the embedded server.
	maxUsers = 10_000
	// noAccount is the account that nats-server uses while there are no users.
	noAccount = "$G"
	// serverTLSTimeoutSeconds bounds the TLS handshake of a client.
	serverTLSTimeoutSeconds = 5
)

// OnLoopback reports whether only this host can reach a HOST:PORT that a server listens
// on. A name other than localhost counts as reachable by others.
func OnLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false // Validate reports the invalid address
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// validateAccess returns an error for a listener beyond loopback without authentication.
func (o *Options) validateAccess() error {
	if err := o.HTTPTLS.validate("http-tls"); err != nil {
		return err
	}
	if o.HTTPTLS.CA != "" {
		return badConfig("http takes no client certificates: use http-tokens or http-token-file")
	}
	if o.HTTP != NoHTTP && !OnLoopback(o.HTTP) && !o.asksForToken() && !o.Insecure {
		return badConfig("http listens on %s, where others can reach it, and every client would be able to read, change and cancel all timers: set http-tokens or http-token-file (and http-tls-cert and http-tls-key), listen on 127.0.0.1, or use --insecure if the network is closed", o.HTTP)
	}
	if err := o.validateTenants(); err != nil {
		return err
	}
	if err := checkTokens(o.HTTPTokens, o.Tenants); err != nil {
		return err
	}
	if _, err := o.newOIDC(); err != nil {
		return err
	}
	if !o.embedded() {
		if len(o.Users) > 0 || o.NATSTLS != (ServerTLS{}) {
			return badConfig("nats-users, nats-user and nats-tls-… are for the embedded server: the server at nats-url has its own")
		}
		return nil
	}
	if err := o.NATSTLS.validate("nats-tls"); err != nil {
		return err
	}
	if err := validateUsers(o.Users); err != nil {
		return err
	}
	if OnLoopback(o.NATSListen) || o.Insecure {
		return nil
	}
	switch {
	case len(o.Users) == 0:
		return badConfig("nats-listen is %s, where others can reach it, and without users every client may read, change and delete all timers: set nats-users (or nats-user and nats-password-file) and nats-tls-cert and nats-tls-key, listen on 127.0.0.1, or use --insecure if the network is closed", o.NATSListen)
	case o.NATSTLS.Cert == "":
		return badConfig("nats-listen is %s, where others can reach it, and without TLS passwords and timers cross the network in the clear: set nats-tls-cert and nats-tls-key, listen on 127.0.0.1, or use --insecure if the network is closed", o.NATSListen)
	}
	return nil
}

func (t ServerTLS) validate(name string) error {
	if (t.Cert == "") != (t.Key == "") {
		return badConfig("%s-cert and %s-key belong together: set both", name, name)
	}
	if t.CA != "" && t.Cert == "" {
		return badConfig("%s-ca checks the certificates of clients: it needs %s-cert and %s-key", name, name, name)
	}
	return nil
}

// config reads the files. It returns nil if t names no files.
func (t ServerTLS) config(name string) (*tls.Config, error) {
	if t.Cert == "" {
		return nil, nil
	}
	c, err := server.GenTLSConfig(&server.TLSConfigOpts{CertFile: t.Cert, KeyFile: t.Key, CaFile: t.CA, Verify: t.CA != ""})
	if err != nil {
		return nil, badConfig("%s-cert, %s-key and %s-ca: %w", name, name, name, err)
	}
	return c, nil
}

var userName = regexp.MustCompile(`^[!-~]{1,64}$`)

func validateUsers(users []User) error {
	if len(users) > maxUsers {
		return badConfig("nats-users has %d users; the limit is %d", len(users), maxUsers)
	}
	seen, owner := map[string]bool{nodeUser: true}, map[string]string{}
	for _, u := range users {
		switch {
		case !userName.MatchString(u.Name):
			return badConfig("nats-users: name %.80q must be 1 to 64 printable characters without spaces", u.Name)
		case seen[u.Name]:
			return badConfig("nats-users: name %s is taken", u.Name)
		case u.Password == "":
			return badConfig("nats-users: user %s has no password", u.Name)
		case u.Admin == (len(u.Services) > 0):
			return badConfig("nats-users: user %s needs either services or admin: true", u.Name)
		}
		seen[u.Name] = true
		for _, svc := range u.Services {
			if !schemas.ValidService(svc) {
				return badConfig("nats-users: user %s: service %.80q must be 1 to %d letters, digits, '-' or '_'", u.Name, svc, schemas.MaxServiceLength)
			}
			if t, ok := owner[svc]; ok && t != u.team() {
				return badConfig("nats-users: service %s is in two different lists of services: users that share a service must have the same list", svc)
			}
			owner[svc] = u.team()
		}
	}
	return nil
}

// team returns the name of the account of the user's team.
func (u User) team() string {
	services := slices.Compact(slices.Sorted(slices.Values(u.Services)))
	return teamPrefix + strings.Join(services, "+")
}

// account returns the name of the server's account that holds Belfry's streams.
func (o *Options) account() string {
	if len(o.Users) == 0 {
		return noAccount
	}
	return accounts.Belfry
}

// addUsers adds the users, their accounts and the node's own user, with nodePassword, to
// the server's options.
func (o *Options) addUsers(so *server.Options, nodePassword string) error {
	if len(o.Users) == 0 {
		return nil
	}
	teams := map[string][]string{} // the services by the name of the account
	for _, u := range o.Users {
		if !u.Admin {
			teams[u.team()] = u.Services
		}
	}
	// Only a config file can enable JetStream for an account before the server starts.
	var text strings.Builder
	fmt.Fprintf(&text, "accounts {\n  %s { jetstream: enabled }\n  %s {}\n", accounts.Belfry, accounts.System)
	for _, name := range slices.Sorted(maps.Keys(teams)) {
		fmt.Fprintf(&text, "  %q {}\n", name)
	}
	fmt.Fprintf(&text, "}\nsystem_account: %s\n", accounts.System)
	var conf server.Options
	if err := conf.ProcessConfigString(text.String()); err != nil {
		return fmt.Errorf("accounts of the embedded server: %w", err)
	}
	byName := map[string]*server.Account{}
	for _, a := range conf.Accounts {
		byName[a.Name] = a
	}
	belfry := byName[accounts.Belfry]
	if err := accounts.ExportShared(belfry); err != nil {
		return err
	}
	for name, services := range teams {
		t := accounts.Team{Account: byName[name], Services: services}
		for _, svc := range services {
			t.Callbacks = append(t.Callbacks, "callbacks."+svc+".>")
		}
		if err := t.Connect(belfry); err != nil {
			return err
		}
	}
	if err := letAsk(belfry, byName[accounts.System]); err != nil {
		return err
	}
	so.Accounts, so.SystemAccount = conf.Accounts, conf.SystemAccount
	so.Users = []*server.User{{Username: nodeUser, Password: nodePassword, Account: belfry}}
	for _, u := range o.Users {
		account := belfry
		if !u.Admin {
			account = byName[u.team()]
		}
		so.Users = append(so.Users, &server.User{Username: u.Name, Password: u.Password, Account: account})
	}
	return nil
}

// letAsk permits Belfry's account to request the server's settings and accounts, as nats.conf
// does. belfry doctor uses this.
func letAsk(belfry, system *server.Account) error {
	for _, subject := range []string{"$SYS.REQ.SERVER.PING.JSZ", "$SYS.REQ.ACCOUNT." + accounts.Belfry + ".INFO"} {
		if err := system.AddServiceExportWithResponse(subject, server.Streamed, []*server.Account{belfry}); err != nil {
			return fmt.Errorf("export %s: %w", subject, err)
		}
		if err := belfry.AddServiceImport(system, subject, subject); err != nil {
			return fmt.Errorf("import %s: %w", subject, err)
		}
	}
	return nil
}

// moveStreams moves the streams in the data folder to another account if that is
// necessary: after the first user was configured, or the last one removed. It renames the
// account's folder, so it moves all streams or none.
func (o *Options) moveStreams() (moved bool, err error) {
	want, other := o.account(), accounts.Belfry
	if want == other {
		other = noAccount
	}
	dir := filepath.Join(o.Data, server.JetStreamStoreDir)
	from, to := filepath.Join(dir, other), filepath.Join(dir, want)
	if !hasStreams(from) {
		return false, nil
	}
	if hasStreams(to) {
		return false, badConfig("data folder %s has streams of account %s and of account %s: with nats-users Belfry uses %s, without it %s; move one of the folders in %s away",
			o.Data, noAccount, accounts.Belfry, accounts.Belfry, noAccount, dir)
	}
	if err := os.RemoveAll(to); err != nil { // has no streams
		return false, badConfig("data folder %s: %w", o.Data, err)
	}
	if err := os.Rename(from, to); err != nil {
		return false, badConfig("data folder %s: move the streams to account %s: %w", o.Data, want, err)
	}
	return true, nil
}

// hasStreams reports whether an account's folder holds a stream.
func hasStreams(account string) bool {
	entries, err := os.ReadDir(filepath.Join(account, "streams"))
	return err == nil && len(entries) > 0
}

// warnInsecure logs each listener that other hosts can reach without authentication or
// encryption.
func (o *Options) warnInsecure() {
	if o.HTTP != NoHTTP && !OnLoopback(o.HTTP) && o.asksForToken() && o.HTTPTLS.Cert == "" {
		o.Log.Warn().Str("http", o.HTTP).Msg("HTTP listens beyond this host without TLS: tokens cross the network in the clear; give http-tls-cert and http-tls-key")
	}
	if !o.Insecure {
		return
	}
	if o.embedded() && !OnLoopback(o.NATSListen) && (len(o.Users) == 0 || o.NATSTLS.Cert == "") {
		what := "without TLS: passwords and timers cross the network in the clear"
		if len(o.Users) == 0 {
			what = "without users: everybody who reaches it may read, change and delete all timers"
		}
		o.Log.Warn().Str("nats_listen", o.NATSListen).Msg("INSECURE: the embedded server listens beyond this host " + what)
	}
	if o.HTTP != NoHTTP && !OnLoopback(o.HTTP) && !o.asksForToken() {
		o.Log.Warn().Str("http", o.HTTP).Msg("INSECURE: HTTP listens beyond this host without a token: every client that reaches it may read, change and cancel all timers")
	}
}

// ownCredentials returns the credentials with which Dial connects to the embedded server of
// another process with the same settings: the user and password of the first administrator
// whose password is not a hash, and a TLS configuration that trusts the server's
// certificate.
func (o *Options) ownCredentials() (user, password string, t *tls.Config, err error) {
	for _, u := range o.Users {
		if u.Admin && !strings.HasPrefix(u.Password, "$2") {
			user, password = u.Name, u.Password
			break
		}
	}
	if o.NATSTLS.Cert == "" {
		return user, password, nil, nil
	}
	pair, err := tls.LoadX509KeyPair(o.NATSTLS.Cert, o.NATSTLS.Key)
	if err != nil {
		return "", "", nil, badConfig("nats-tls-cert and nats-tls-key: %w", err)
	}
	t, err = (TLS{CA: o.NATSTLS.Cert}).Config()
	if err != nil {
		return "", "", nil, err
	}
	// Accept any host name: this is the certificate that the server presents.
	switch leaf := pair.Leaf; {
	case leaf == nil:
	case len(leaf.DNSNames) > 0:
		t.ServerName = strings.Replace(leaf.DNSNames[0], "*", "x", 1)
	case len(leaf.IPAddresses) > 0:
		t.ServerName = leaf.IPAddresses[0].String()
	}
	if o.NATSTLS.CA != "" {
		t.Certificates = []tls.Certificate{pair} // the only client certificate in the settings
	}
	return user, password, t, nil
}

// dialable returns an address at which a process of this host reaches a server that
// listens on HOST:PORT.
func dialable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}
