package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/token"
	"github.com/belfryio/belfry/internal/visibility"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// tenantMode is a way to configure the accounts of a server.
type tenantMode struct {
	server natstest.Option
	// accounts has the names of the accounts of the tenants.
	accounts map[string]string
	// login has the credentials of a user.
	login func(user string) nats.Option
	// node sets the credentials of a node.
	node func(*Options)
}

// confMode is the accounts of deploy/tenants/nats.conf, with more that are no tenants: GHOST
// imports the same and is not configured, TEAM has plain imports as in nats.conf.
func confMode(t *testing.T) tenantMode {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(file, []byte(confText(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	return tenantMode{
		server: func(o *server.Options) {
			conf, err := server.ProcessConfigFile(file)
			if err != nil {
				t.Fatal(err)
			}
			o.Accounts, o.Users, o.SystemAccount = conf.Accounts, conf.Users, conf.SystemAccount
		},
		accounts: map[string]string{"acme": "ACME", "globex": "GLOBEX"},
		login:    func(user string) nats.Option { return nats.UserInfo(user, "p") },
		node:     func(o *Options) { o.User, o.Password = "belfry", "p" },
	}
}

// globexImports begins the imports of GLOBEX in deploy/tenants/nats.conf.
const globexImports = `      { service: { account: BELFRY, subject: "timers.t.GLOBEX.add" }, to: "timers.add" }
`

// confText is the text of the accounts for confMode.
func confText(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../deploy/tenants/nats.conf")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	text = text[strings.Index(text, "\naccounts {"):]
	text = strings.Replace(text, "jetstream: { max_file: 90GB, max_streams: 512, max_consumers: 4096 }", "jetstream: enabled", 1)
	text = regexp.MustCompile(`\$[A-Z]+_PASSWORD`).ReplaceAllString(text, "p")
	text = strings.Replace(text, `      { service: "timers.t.*.add", account`, `      { service: "timers.add" }, { service: "timers.api.>" }
      { service: "timers.t.*.add", account`, 1)
	text = strings.Replace(text, "\n  # The servers' own account.", `
  GHOST {
    users: [ { user: ghost, password: p } ]
    imports: [
      { service: { account: BELFRY, subject: "timers.t.GHOST.add" }, to: "timers.add" }
      { service: { account: BELFRY, subject: "timers.t.GHOST.api.>" }, to: "timers.api.>" }
    ]
  }
  TEAM {
    users: [ { user: team, password: p } ]
    imports: [ { service: { account: BELFRY, subject: "timers.add" } }, { service: { account: BELFRY, subject: "timers.api.>" } } ]
  }
`, 1)
	// GLOBEX imports its fired events, too.
	if !strings.Contains(text, globexImports) {
		t.Fatal("nats.conf has no imports of GLOBEX")
	}
	return strings.Replace(text, globexImports, globexImports+strings.ReplaceAll(strings.Join(firedImports(t, text), "\n"), "ACME", "GLOBEX")+"\n", 1)
}

// firedImports returns the lines by which ACME imports its fired events.
func firedImports(t *testing.T, text string) (lines []string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if strings.Contains(line, "account: BELFRY") && (strings.Contains(line, "timers.t.ACME.fired.>") || strings.Contains(line, "TIMERS_TENANT_FIRED.ACME")) {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	if len(lines) != 4 {
		t.Fatalf("nats.conf has %d imports of fired events, want 4", len(lines))
	}
	return lines
}

// tenants is a Belfry with the tenants acme and globex.
type tenants struct {
	t    *testing.T
	mode tenantMode
	apps []*App
	// connect logs a user in.
	connect func(user string) *nats.Conn
	users   map[string]*nats.Conn
	// tokens are the tokens that HTTP accepts; secrets has them in clear text by their names.
	tokens  *token.Set
	secrets map[string]string
}

func startTenants(t *testing.T, mode tenantMode, urls []string, replicas int) *tenants {
	t.Helper()
	f := &tenants{t: t, mode: mode, users: map[string]*nats.Conn{}}
	next := 0
	tokens, secrets := tokenSet(t, httpTokens()...)
	f.tokens, f.secrets = tokens, secrets
	f.connect = func(user string) *nats.Conn {
		next++
		nc, err := nats.Connect(urls[next%len(urls)], mode.login(user))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	for i, url := range urls {
		o := options(t)
		o.NATSURL, o.Data, o.NATSListen, o.Replicas = url, "", DefaultNATSListen, replicas
		o.Roles, o.HistoryFolder = AllRoles(), t.TempDir()
		mode.node(&o)
		o.Node = fmt.Sprintf("n%d", i+1)
		o.Tenants, o.ExportFired = mode.accounts, map[string]bool{"acme": true, "globex": true}
		o.HTTPTokens = tokens
		o.Callbacks.Tenants = map[string]schemas.TenantAllowance{"acme": {Hosts: []string{"127.0.0.1"}}, "globex": {Hosts: []string{"127.0.0.1"}}}
		f.apps = append(f.apps, start(t, o))
	}
	waittest.Until(t, "all nodes serve tenants, with open search indexes", func() bool {
		for _, a := range f.apps {
			if a.store.CanServeTenants() != nil {
				return false
			}
			if _, err := a.Visibility().Search(t.Context(), visibility.Query{}); err != nil {
				return false
			}
		}
		return true
	})
	return f
}

func (f *tenants) as(user string) *nats.Conn {
	if f.users[user] == nil {
		f.users[user] = f.connect(user)
	}
	return f.users[user]
}

// ask sends a request to the API and returns the answer and the code of the error, if any. It repeats the request while
// the answer is unavailable: three servers on one busy disk may have no leader for seconds.
func (f *tenants) ask(user, verb string, request any) (answer []byte, code string) {
	f.t.Helper()
	waittest.Available(f.t, user+": "+verb, func() bool {
		var err error
		if answer, code, err = f.askOnce(user, verb, request); err != nil {
			f.t.Fatalf("%s: %s: %v", user, verb, err)
		}
		return code == string(schemas.CodeUnavailable)
	}, func() string { return string(answer) })
	return answer, code
}

// askOnce returns the first answer, for a wait that repeats the request itself.
func (f *tenants) askOnce(user, verb string, request any) (answer []byte, code string, err error) {
	f.t.Helper()
	data, ok := request.([]byte)
	if !ok {
		data, _ = json.Marshal(request)
	}
	m, err := f.as(user).Request(schemas.SubjectAPIPrefix+verb, data, requestBound)
	if err != nil {
		return nil, "", err
	}
	return m.Data, m.Header.Get(micro.ErrorCodeHeader), nil
}

// must is ask for a request that has to succeed.
func (f *tenants) must(user, verb string, request any) []byte {
	f.t.Helper()
	b, code := f.ask(user, verb, request)
	if code != "" {
		f.t.Fatalf("%s: %s %s: %s: %s", user, verb, request, code, b)
	}
	return b
}

func tenantEvent(id, more string) []byte {
	return fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":"/s","type":"t",%s}`, id, more)
}

// publish adds by timers.add, and waits for the acknowledgement of the stream.
func (f *tenants) publish(user string, event []byte) {
	f.t.Helper()
	js := natstest.JetStream(f.t, f.as(user))
	ctx, cancel := context.WithTimeout(f.t.Context(), requestBound)
	defer cancel()
	if ack, err := js.Publish(ctx, schemas.SubjectAdd, event); err != nil || ack.Stream != schemas.StreamAdd {
		f.t.Fatalf("%s: %v %v", user, ack, err)
	}
}

func (f *tenants) state(user string, ref schemas.TimerRef) string {
	f.t.Helper()
	return f.stateIn(f.ask(user, "get", ref))
}

// stateIn returns the state in an answer to a get request, or the code of its error.
func (f *tenants) stateIn(answer []byte, code string) string {
	f.t.Helper()
	if code != "" {
		return code
	}
	var info schemas.TimerInfo
	if err := json.Unmarshal(answer, &info); err != nil {
		f.t.Fatal(err)
	}
	return info.State.String()
}

// await waits until a timer has a state.
func (f *tenants) await(user string, ref schemas.TimerRef, want string) {
	f.t.Helper()
	got := ""
	waittest.Until(f.t, fmt.Sprintf("%s: timer %+v is %s", user, ref, want), func() bool {
		answer, code, err := f.askOnce(user, "get", ref)
		if err != nil {
			got = err.Error()
			return false
		}
		got = f.stateIn(answer, code)
		return got == want
	}, func() string { return got })
}

// awaitText waits until the answer to a request has all texts.
func (f *tenants) awaitText(user, verb string, request any, texts ...string) {
	f.t.Helper()
	var answer []byte
	var code string
	var err error
	waittest.Until(f.t, fmt.Sprintf("%s: the answer of %s has %q", user, verb, texts), func() bool {
		answer, code, err = f.askOnce(user, verb, request)
		return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(string(answer), text) })
	}, func() string { return fmt.Sprintf("%s %s %v", answer, code, err) })
}

func named(id string) schemas.TimerRef { return schemas.TimerRef{ID: id, Source: "/s"} }

// byID names a timer of a tenant by its id.
func byID(tenant, id string) schemas.TimerRef {
	return schemas.TimerRef{Timer: schemas.NewTenantTimerID(tenant, "/s", id).String()}
}

// TestTenants runs on one server.
func TestTenants(t *testing.T) {
	t.Parallel()
	mode := confMode(t)
	srv := natstest.Run(t, mode.server)
	f := startTenants(t, mode, []string{srv.URL()}, 1)
	testTenants(f)
	for name, test := range map[string]func(*tenants){"http": testTenantHTTP, "console": testTenantConsole, "lists": testTenantHTTPLists, "stream": testTenantStream, "payload": testPayload} {
		t.Run(name, func(t *testing.T) {
			f.t = t
			test(f)
		})
	}
}

// TestTenantsCluster runs on three servers with three nodes.
func TestTenantsCluster(t *testing.T) {
	t.Parallel()
	mode := confMode(t)
	testTenants(startTenants(t, mode, clusterURLs(natstest.Cluster3(t, mode.server)), 3))
}

func clusterURLs(c *natstest.Cluster) (urls []string) {
	for _, s := range c.Servers {
		urls = append(urls, s.URL())
	}
	return urls
}

func testTenants(f *tenants) {
	t := f.t
	for _, part := range []struct {
		name string
		test func(*tenants)
	}{{"doors", testTenantDoors}, {"isolation", testTenantIsolation}, {"callbacks", testTenantCallbacks}, {"flows", testTenantFlows}, {"holds", testTenantHolds}, {"fired", testTenantFired}, {"handled", testTenantHandled}, {"forged", testTenantForged}} {
		t.Run(part.name, func(t *testing.T) {
			f.t = t
			part.test(f)
		})
	}
}

// testTenantDoors: the same event of three accounts and of Belfry's own is four timers.
func testTenantDoors(f *tenants) {
	t := f.t
	for _, user := range []string{"acme", "globex", "team"} {
		f.publish(user, tenantEvent("door", `"timerafter":"1h","timersvc":"orders"`))
		f.await(user, named("door"), "pending")
	}
	var reply schemas.AddReply
	if err := json.Unmarshal(f.must("acme", "add", tenantEvent("door", `"timerafter":"1h","timersvc":"orders"`)), &reply); err != nil || !reply.Duplicate || reply.Timer != schemas.NewTenantTimerID("acme", "/s", "door") {
		t.Errorf("the same event again, by the API: %+v %v", reply, err)
	}
	f.must("globex", "cancel", named("door"))
	for user, want := range map[string]string{"acme": "pending", "globex": "cancelled", "team": "pending", "admin": "pending"} {
		if got := f.state(user, named("door")); got != want {
			t.Errorf("%s: %s, want %s", user, got, want)
		}
	}
	var info schemas.TimerInfo
	if err := json.Unmarshal(f.must("admin", "get", byID("acme", "door")), &info); err != nil || info.Tenant != "acme" || info.Service != "orders" {
		t.Errorf("Belfry's own account sees %+v (%v)", info, err)
	}
	// An account that is not configured is acknowledged by the stream alone, and its add is not a
	// timer of anybody.
	f.publish("ghost", tenantEvent("ghost", `"timerafter":"1h"`))
	if _, code := f.ask("ghost", "get", named("ghost")); code != string(schemas.CodeBadRequest) {
		t.Errorf("an account that is not configured: %q", code)
	}
}

// testTenantIsolation runs every verb of the API as other accounts against what acme has.
func testTenantIsolation(f *tenants) {
	t := f.t
	if _, err := f.as("acme").Subscribe("callbacks.fail", func(m *nats.Msg) {
		_ = m.RespondMsg(&nats.Msg{Header: nats.Header{micro.ErrorHeader: {"no"}, micro.ErrorCodeHeader: {"1"}}})
	}); err != nil {
		t.Fatal(err)
	}
	if err := f.as("acme").Flush(); err != nil {
		t.Fatal(err)
	}
	f.must("acme", "add", tenantEvent("t1", `"timerafter":"1h","timersvc":"orders","timergroup":"g"`))
	f.must("acme", "add", tenantEvent("s1", `"timerevery":"P7D","timersvc":"orders","timergroup":"g"`))
	f.must("acme", "add", tenantEvent("d1", `"timerafter":"0s","timersvc":"orders","timergroup":"g","timermaxattempts":1,"timercallback":"nats:callbacks.fail"`))
	f.await("acme", named("d1"), "fail")
	f.publish("acme", tenantEvent("r1", `"timerafter":"soon"`))
	f.awaitText("acme", "rejected.list", nil, `"r1"`)
	f.awaitText("acme", "dead.list", nil, `"d1"`)

	timers := []string{"t1", "s1", "d1"}
	records := func() string {
		out := ""
		for _, id := range timers {
			out += string(f.must("acme", "get", named(id))) + "\n"
		}
		return out
	}
	before := records()

	const refused = "bad_request"
	one := func(more string) func(ref schemas.TimerRef) []byte {
		return func(ref schemas.TimerRef) []byte {
			b, _ := json.Marshal(ref)
			return []byte(strings.TrimSuffix(string(b), "}") + more + "}")
		}
	}
	// Of each verb: the requests that name a timer, and the requests that name something else with the
	// code that an account other than Belfry's gets, "" for an answer without acme's things.
	type other struct{ request, tenant, team string }
	verbs := map[string]struct {
		one    func(ref schemas.TimerRef) []byte
		others []other
	}{
		"add":               {},
		"get":               {one: one("")},
		"cancel":            {one: one("")},
		"schedule.delete":   {one: one("")},
		"reschedule":        {one: one(`,"after":"2h"`)},
		"list":              {others: []other{{`{}`, "", ""}, {`{"service":"orders"}`, "", ""}, {`{"group":"g"}`, "", ""}, {`{"service":"acme=orders"}`, refused, refused}}},
		"export":            {one: one(""), others: []other{{`{}`, "", ""}, {`{"service":"orders"}`, "", ""}, {`{"group":"g"}`, "", ""}, {`{"service":"acme=orders"}`, refused, refused}, {`{"tenant":"acme"}`, refused, refused}}},
		"search":            {others: []other{{`{}`, "", ""}, {`{"q":"s1"}`, "", ""}, {`{"q":"s*"}`, "", ""}, {`{"source":"/s","sort":"done"}`, "", ""}, {`{"service":"orders"}`, "", ""}, {`{"service":"acme=orders"}`, refused, refused}}},
		"counts":            {others: []other{{`{}`, "", ""}, {`{"service":"acme=orders"}`, refused, refused}}},
		"dead.list":         {others: []other{{`{}`, "", ""}, {`{"service":"orders"}`, "", ""}, {`{"timer":"` + byID("acme", "d1").Timer + `"}`, "", ""}, {`{"service":"acme=orders"}`, refused, refused}}},
		"dead.replay":       {one: one(""), others: []other{{`{"service":"orders"}`, "", ""}, {`{"service":"acme=orders"}`, refused, refused}}},
		"rejected.list":     {others: []other{{`{}`, "", ""}}},
		"order.list":        {others: []other{{`{}`, "", ""}, {`{"service":"orders"}`, "", ""}, {`{"service":"acme=orders"}`, refused, refused}}},
		"service.list":      {others: []other{{`{}`, "", ""}}},
		"bulk.cancel":       {others: []other{{`{"service":"orders"}`, "", ""}, {`{"group":"g"}`, "", ""}, {`{"service":"acme=orders"}`, refused, refused}}},
		"bulk.reschedule":   {others: []other{{`{"service":"orders","after":"2h"}`, "", ""}, {`{"group":"g","after":"2h"}`, "", ""}, {`{"service":"acme=orders","after":"2h"}`, refused, refused}}},
		"bulk.replay":       {others: []other{{`{"service":"orders"}`, "", ""}, {`{"timer":"` + byID("acme", "d1").Timer + `"}`, "", ""}, {`{"sequence":1}`, "", ""}, {`{"service":"acme=orders"}`, refused, refused}}},
		"bulk.discard":      {others: []other{{`{"service":"orders"}`, "", ""}, {`{"timer":"` + byID("acme", "d1").Timer + `"}`, "", ""}, {`{"sequence":1}`, "", ""}, {`{"service":"acme=orders"}`, refused, refused}}},
		"schedule.pause":    {one: one(""), others: []other{{`{"group":"g"}`, "", refused}}},
		"schedule.resume":   {one: one(""), others: []other{{`{"group":"g"}`, "", refused}}},
		"schedule.trigger":  {one: one("")},
		"schedule.backfill": {one: one(`,"from":"2026-01-01T00:00:00Z","to":"2026-01-03T00:00:00Z"`)},
		"schedule.update":   {}, // names its schedule by the event
		"schedule.preview":  {one: one("")},
		"schedule.why":      {one: one("")},
		"schedule.runs":     {one: one("")},
		"calendar.put":      {others: []other{{`{"name":"c","dates":["2026-12-25"]}`, refused, refused}}},
		"calendar.get":      {others: []other{{`{"name":"c"}`, refused, "not_found"}}},
		"calendar.list":     {others: []other{{`{}`, refused, ""}}},
		"calendar.delete":   {others: []other{{`{"name":"c"}`, refused, refused}}},
		"flow.set":          {others: []other{{`{"key":"service:acme=orders","rate":"1/s"}`, refused, refused}}},
		"flow.get":          {others: []other{{`{"key":"orders"}`, refused, ""}}},
		"flow.list":         {others: []other{{`{}`, refused, ""}}},
		"flow.pause":        {others: []other{{`{"key":"orders"}`, refused, refused}}},
		"flow.resume":       {others: []other{{`{"key":"orders"}`, refused, refused}}},
		"flow.reset":        {others: []other{{`{"key":"orders"}`, refused, refused}}},
		"flow.delete":       {others: []other{{`{"key":"orders"}`, refused, refused}}},
	}
	m, err := f.as("admin").Request("$SRV.INFO."+schemas.APIService, nil, requestBound)
	if err != nil {
		t.Fatal(err)
	}
	var info micro.Info
	if err := json.Unmarshal(m.Data, &info); err != nil {
		t.Fatal(err)
	}
	for _, e := range info.Endpoints {
		if verb, ok := strings.CutPrefix(e.Subject, schemas.SubjectAPIPrefix); ok {
			if _, known := verbs[verb]; !known {
				t.Errorf("verb %s is not in this test", verb)
			}
		}
	}
	update := tenantEvent("s1", `"timerevery":"P8D","timersvc":"orders"`)
	for _, user := range []string{"globex", "team", "ghost"} {
		for verb, v := range verbs {
			refs := []schemas.TimerRef{}
			if v.one != nil {
				for _, id := range timers {
					refs = append(refs, named(id), byID("acme", id), schemas.TimerRef{Timer: byID("acme", id).Timer + ".1"})
				}
			}
			for _, ref := range refs {
				want := "not_found"
				if user == "ghost" {
					want = refused
				}
				if b, code := f.ask(user, verb, v.one(ref)); code != want {
					t.Errorf("%s: %s %+v: %q %s, want %s", user, verb, ref, code, b, want)
				}
			}
			for _, o := range v.others {
				want := map[string]string{"globex": o.tenant, "team": o.team, "ghost": refused}[user]
				b, code := f.ask(user, verb, []byte(o.request))
				if code != want {
					t.Errorf("%s: %s %s: %q %s, want %q", user, verb, o.request, code, b, want)
				}
				for _, text := range []string{`"t1"`, `"s1"`, `"d1"`, `"r1"`, `acme`} {
					if code == "" && strings.Contains(string(b), text) {
						t.Errorf("%s: %s %s: it has %s: %s", user, verb, o.request, text, b)
					}
				}
			}
		}
		// The same event updates nothing of acme's: there is no such schedule.
		if b, code := f.ask(user, "schedule.update", update); code != "not_found" && (user != "ghost" || code != refused) {
			t.Errorf("%s: update: %q %s", user, code, b)
		}
	}
	// A group operation of Belfry's own account is one of the default tenant.
	if b := f.must("admin", "schedule.pause", []byte(`{"group":"g"}`)); !strings.Contains(string(b), `"changed":0`) {
		t.Errorf("admin: %s", b)
	}
	if after := records(); after != before {
		t.Errorf("acme's timers changed:\n%s\n%s", before, after)
	}
	if b := string(f.must("acme", "dead.list", nil)); !strings.Contains(b, `"d1"`) {
		t.Errorf("acme's dead letter is gone: %s", b)
	}
	// acme itself can do all of it.
	for _, c := range []struct{ verb, request, want string }{
		{"list", `{"service":"orders"}`, `"s1"`},
		{"schedule.pause", `{"group":"g","note":"n"}`, `"changed":2`},
		{"schedule.resume", `{"group":"g"}`, `"changed":2`},
		{"schedule.trigger", `{"id":"s1","source":"/s"}`, `"tenant":"acme"`},
		{"schedule.preview", `{"id":"s1","source":"/s","n":1}`, `"at"`},
		{"schedule.runs", `{"id":"s1","source":"/s"}`, `"runs"`},
		{"schedule.why", `{"id":"s1","source":"/s"}`, `"answers"`},
		{"reschedule", `{"id":"t1","source":"/s","after":"2h"}`, `"t1"`},
		{"dead.replay", `{"service":"orders"}`, `"replayed":1`},
		{"cancel", `{"id":"t1","source":"/s"}`, `"cancelled"`},
		{"schedule.delete", `{"id":"s1","source":"/s"}`, `"cancelled"`},
	} {
		if b := f.must("acme", c.verb, []byte(c.request)); !strings.Contains(string(b), c.want) {
			t.Errorf("acme: %s %s: %s, want %s", c.verb, c.request, b, c.want)
		}
	}
	f.await("acme", named("d1"), "fail") // again
	for _, event := range [][]byte{
		tenantEvent("x2", `"timercron":"0 9 * * *","timerexclude":"c"`),
		tenantEvent("x3", `"timerafter":"1h","timersvc":"globex=orders"`),
		tenantEvent("x4", `"timerafter":"1h","timercallback":"nats:timers.call.globex.callbacks.x"`),
		tenantEvent("x5", `"timerafter":"1h","timercallback":"https://globex.example/"`),
		tenantEvent("x6", `"timerafter":"1h","timercallback":"/path"`),
	} {
		if b, code := f.ask("acme", "add", event); code != string(schemas.CodeInvalidAttribute) {
			t.Errorf("%s: %q %s", event, code, b)
		}
	}
	// The refusal of a calendar does not say whether the default tenant has it.
	f.must("admin", "calendar.put", []byte(`{"name":"there","dates":["2026-12-25"]}`))
	for _, verb := range []string{"add", "schedule.preview"} {
		request := func(calendar string) []byte {
			if verb == "schedule.preview" {
				return fmt.Appendf(nil, `{"attributes":{"timercron":"0 9 * * *","timerexclude":%q}}`, calendar)
			}
			return tenantEvent("x7", fmt.Sprintf(`"timercron":"0 9 * * *","timerexclude":%q`, calendar))
		}
		there, _ := f.ask("acme", verb, request("there"))
		missing, code := f.ask("acme", verb, request("missing"))
		if string(there) != string(missing) || code != string(schemas.CodeInvalidAttribute) {
			t.Errorf("%s with a calendar that exists: %s; with a missing calendar: %s; want the same", verb, there, missing)
		}
	}
}

// testTenantCallbacks: the callback of a tenant's timer reaches its own account alone, whatever
// subjects other accounts serve.
func testTenantCallbacks(f *tenants) {
	t := f.t
	called := make(chan string, 64)
	for _, user := range []string{"acme", "globex", "admin"} {
		nc := f.as(user)
		for _, subject := range []string{"callbacks.shared", "timers.work.jobs"} {
			if _, err := nc.Subscribe(subject, func(m *nats.Msg) {
				called <- user + " " + subject + " " + m.Header.Get("Idempotency-Key")
				_ = m.Respond([]byte("ok"))
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]bool{}
	for _, user := range []string{"acme", "globex"} {
		f.publish(user, tenantEvent("c1", `"timerafter":"10ms","timersvc":"orders","timercallback":"nats:callbacks.shared"`))
		f.await(user, named("c1"), "success")
		want[user+" callbacks.shared "+schemas.NewTenantTimerID(user, "/s", "c1").MsgID(1)] = true
	}
	f.must("acme", "add", tenantEvent("c2", `"timercron":"* * * * * *","timerlimit":1,"timersvc":"orders","timercallback":"nats:callbacks.shared"`))
	f.await("acme", schemas.TimerRef{Timer: byID("acme", "c2").Timer + ".1"}, "success")
	want["acme callbacks.shared "+byID("acme", "c2").Timer+".1"] = true
	allowed := maps.Clone(want) // a callback may come more than once
	for end := time.After(bound); len(want) > 0 || len(called) > 0; {
		select {
		case got := <-called:
			if !allowed[got] {
				t.Fatalf("called: %s, want %v", got, allowed)
			}
			delete(want, got)
		case <-end:
			t.Fatalf("not called: %v", want)
		}
	}
	// globex serves this subject, acme does not export it: no account but acme's is asked.
	f.must("acme", "add", tenantEvent("c3", `"timerafter":"0s","timersvc":"orders","timermaxattempts":1,"timercallback":"nats:elsewhere.x"`))
	f.await("acme", named("c3"), "fail")
}

// testTenantFlows: the flow keys, services and groups of tenants with the same names are paused one by one. An
// event that waits shows the key of its tenant.
func testTenantFlows(f *tenants) {
	t := f.t
	users := []string{"acme", "globex"}
	for _, user := range users {
		if _, err := f.as(user).Subscribe("callbacks.flow", func(m *nats.Msg) { _ = m.Respond(nil) }); err != nil {
			t.Fatal(err)
		}
		if err := f.as(user).Flush(); err != nil {
			t.Fatal(err)
		}
	}
	for id, p := range map[string]struct{ key, more string }{
		"f1": {"acme=customer:7", `"timersvc":"flows","timerflow":"customer:7"`},
		"f2": {"service:acme=flows", `"timersvc":"flows"`},
		"f3": {"group:acme=flows", `"timersvc":"flows","timergroup":"flows"`},
	} {
		waittest.Until(t, p.key+" is paused", func() bool {
			_, code, err := f.askOnce("admin", "flow.pause", schemas.FlowRequest{Key: p.key, Note: "repair"})
			return err == nil && code == ""
		})
		for _, user := range users {
			f.must(user, "add", tenantEvent(id, `"timerafter":"10ms","timercallback":"nats:callbacks.flow",`+p.more))
		}
		f.await("globex", named(id), "success")
		f.await("acme", named(id), "retrying")
		var info schemas.TimerInfo
		if err := json.Unmarshal(f.must("acme", "get", named(id)), &info); err != nil || info.Flow == nil || info.Flow.Key != p.key || info.Attempts != 0 {
			t.Errorf("%s: acme's event is %+v with flow %+v (%v)", p.key, info, info.Flow, err)
		}
		f.must("admin", "flow.resume", schemas.FlowRequest{Key: p.key})
		f.await("acme", named(id), "success")
	}
}

// testTenantForged: in Belfry's own account, which no tenant reaches, a client can publish on the
// subjects of tenants. The API refuses it.
func testTenantForged(f *tenants) {
	t := f.t
	account := f.mode.accounts["acme"]
	for _, hdr := range []nats.Header{nil, {"Nats-Request-Info": {`{"acc":"` + account + `"}`}}} {
		m, err := f.as("admin").RequestMsg(&nats.Msg{Subject: "timers.t." + account + ".api.list", Header: hdr}, requestBound)
		if err != nil || m.Header.Get(micro.ErrorCodeHeader) != string(schemas.CodeBadRequest) {
			t.Errorf("headers %v: %v %v", hdr, m, err)
		}
	}
	// A tenant reaches no subject of another one.
	for _, subject := range []string{"timers.t." + account + ".add", "timers.t." + account + ".api.list", "timers.call.acme.callbacks.shared", "$KV.clock.x", "$SRV.PING"} {
		if m, err := f.as("globex").Request(subject, nil, requestBound); !errors.Is(err, nats.ErrNoResponders) {
			t.Errorf("globex reaches %s: %v %v", subject, m, err)
		}
	}
}
