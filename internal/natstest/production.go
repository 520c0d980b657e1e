package natstest

import (
	"crypto/x509"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/certtest"
	"github.com/belfryio/belfry/internal/tcptest"
	"github.com/belfryio/belfry/internal/testsize"
)

// Production is a server that runs the repository's nats.conf.
type Production struct {
	*Server
	// CA is the PEM file of the CA that clients have to trust.
	CA string
}

// RunProduction starts a server with the nats.conf at path, as it is except for the
// addresses, which are on loopback with random ports. Each user's password is the
// user's name and "-pw"; that of sys is "admin-pw". edit, unless it is nil, changes the
// text of the file first.
func RunProduction(tb testing.TB, path string, edit func(conf string) string) *Production {
	tb.Helper()
	conf, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	text := string(conf)
	if edit != nil {
		text = edit(text)
	}
	dir := tb.TempDir()
	ca := certtest.New(tb)
	cert, key := ca.Files("belfry-test", x509.ExtKeyUsageServerAuth)
	p := &Production{CA: ca.File()}
	text = define(text, map[string]string{"BELFRY_STORE": filepath.Join(dir, "js"), "BELFRY_CERT": cert, "BELFRY_KEY": key, "BELFRY_CA": p.CA})
	opts := load(tb, dir, text)
	opts.Host, opts.Port, opts.HTTPPort = "127.0.0.1", tcptest.FreePort(tb), -1
	p.Server = &Server{opts: *opts, tb: tb}
	tb.Cleanup(p.Stop)
	p.launch()
	p.await()
	return p
}

// RunProductionCluster starts three servers with the cluster's nats.conf at path, on
// loopback with ports of its own, and waits for a leader. Passwords are as with
// RunProduction, that of sys is "sys-pw".
func RunProductionCluster(tb testing.TB, path string) *Cluster {
	tb.Helper()
	testsize.NotShort(tb, "this test runs three servers")
	conf, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	c := &Cluster{tb: tb}
	ports := freePorts(tb, 2*len(c.Servers))
	var routes []string
	for i := range c.Servers {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", ports[2*i+1]))
	}
	for i := range c.Servers {
		dir := tb.TempDir()
		text := define(string(conf), map[string]string{
			"NATS_NAME": fmt.Sprintf("n%d", i+1), "NATS_HOST": "127.0.0.1", "NATS_STORE": dir,
			"NATS_PORT": strconv.Itoa(ports[2*i]), "NATS_CLUSTER_PORT": strconv.Itoa(ports[2*i+1]), "NATS_ROUTES": `["` + strings.Join(routes, `","`) + `"]`,
		})
		s := &Server{opts: *load(tb, dir, text), tb: tb}
		tb.Cleanup(s.Stop)
		s.launch()
		c.Servers[i] = s
	}
	for _, s := range c.Servers {
		s.await()
	}
	c.WaitReady()
	return c
}

// define puts the variables, and a password for each user that the text names, before the
// text. nats-server prefers a variable of the file to the environment.
func define(text string, variables map[string]string) string {
	for _, m := range regexp.MustCompile(`\$([A-Z]+)_PASSWORD`).FindAllStringSubmatch(text, -1) {
		variables[m[1]+"_PASSWORD"] = strings.ToLower(m[1]) + "-pw"
	}
	out := ""
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		value := variables[name]
		if _, err := strconv.Atoi(value); err != nil && !strings.HasPrefix(value, "[") {
			value = strconv.Quote(value)
		}
		out += name + ": " + value + "\n"
	}
	return out + text
}

// load reads a configuration as nats-server does.
func load(tb testing.TB, dir, text string) *server.Options {
	tb.Helper()
	file := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		tb.Fatalf("%s: %v", file, err)
	}
	opts.NoSigs, opts.NoLog = true, true
	return opts
}

// SyncsAlways reports whether the server syncs every write.
func (p *Production) SyncsAlways() bool { return p.opts.SyncAlways }

// URLOf is the server's address with a user's credentials.
func (p *Production) URLOf(user string) string {
	return fmt.Sprintf("tls://%s:%s-pw@%s", user, user, p.Addr())
}

// ConnectAs connects as a user until the test ends.
func (p *Production) ConnectAs(user string, options ...nats.Option) *nats.Conn {
	p.tb.Helper()
	return connect(p.tb, p.URLOf(user), append([]nats.Option{nats.RootCAs(p.CA)}, options...))
}

// AddTeam edits nats.conf as its comments say: it repeats the account of team orders,
// and each line of account BELFRY that names orders, for another team.
func AddTeam(team string) func(conf string) string {
	return func(conf string) string {
		rename := strings.NewReplacer("orders", team, "ORDERS", strings.ToUpper(team))
		begin := strings.Index(conf, "\n  ORDERS {")
		end := begin + strings.Index(conf[begin:], "\n  }\n") + len("\n  }\n")
		var out strings.Builder
		for line := range strings.Lines(conf[:begin]) {
			out.WriteString(line)
			if strings.HasPrefix(strings.TrimSpace(line), "{") && strings.Contains(line, "orders") {
				out.WriteString(rename.Replace(line))
			}
		}
		return out.String() + conf[begin:end] + rename.Replace(conf[begin:end]) + conf[end:]
	}
}
