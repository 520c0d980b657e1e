package app

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/belfryio/belfry/internal/token"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// httpTokens are the tokens of the nodes of startTenants.
func httpTokens() []token.Token {
	return []token.Token{
		{Name: "acme", Tenant: "acme", Scopes: token.Scopes{"read", "write"}},
		{Name: "acme-admin", Tenant: "acme", Scopes: token.Scopes{"admin"}},
		{Name: "acme-reader", Tenant: "acme", Scopes: token.Scopes{"read"}},
		{Name: "acme-payload", Tenant: "acme", Scopes: token.Scopes{"read", "payload"}},
		{Name: "globex", Tenant: "globex", Scopes: token.AllScopes()},
		{Name: "plain", Scopes: token.Scopes{"read", "write", "payload"}},
		{Name: "ops", Scopes: token.Scopes{"admin"}},
	}
}

// call sends a request to the HTTP API with a token. It repeats the request while it gets no answer, or the
// answer is unavailable; see ask.
func (f *tenants) call(name, method, path, body string, header ...string) (status int, answer string) {
	f.t.Helper()
	waittest.Available(f.t, name+": "+method+" "+path, func() bool {
		status, answer = f.callOnce(name, method, path, body, header...)
		return status == http.StatusServiceUnavailable || status == 0
	}, func() string { return answer })
	return status, answer
}

// callOnce sends the request once. Without an answer the status is 0, and answer is the error. It is for waits, which repeat
// the request.
func (f *tenants) callOnce(name, method, path, body string, header ...string) (status int, answer string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), requestBound)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+f.apps[0].HTTPAddr()+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+f.secrets[name])
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

// succeed is call for a request that has to succeed.
func (f *tenants) succeed(name, method, path, body string, header ...string) string {
	f.t.Helper()
	status, answer := f.call(name, method, path, body, header...)
	if status >= 300 {
		f.t.Fatalf("%s: %s %s: status %d: %s", name, method, path, status, answer)
	}
	return answer
}

// testTenantHTTP: over HTTP the tenant of the token is that of the operation. The same event of two
// tenants and of the default tenant is three timers; none of them sees, lists or changes those of
// another, by an id, a name, a service, a cursor or a key.
func testTenantHTTP(f *tenants) {
	t := f.t
	const event = `{"in":"1h","svc":"orders","group":"h","id":"17","source":"/http"}`
	owners := map[string]string{"acme": "acme", "globex": "globex", "plain": ""}
	ids, before := map[string]string{}, map[string]string{}
	for user, tenant := range owners {
		ids[user] = schemas.NewTenantTimerID(tenant, "/http", "17").String()
		if status, answer := f.call(user, "POST", "/v1/timers", event); status != http.StatusCreated || !strings.Contains(answer, ids[user]) {
			t.Fatalf("%s adds: status %d: %s, want 201 and timer %s", user, status, answer, ids[user])
		}
		f.succeed(user, "POST", "/v1/timers", `{"in":"1h","group":"h"}`, "Idempotency-Key", "key-1")
		before[user] = f.succeed(user, "GET", "/v1/timers/"+ids[user], "")
	}
	page := f.succeed("acme", "GET", "/v1/timers?group=h&limit=1", "")
	var first schemas.ListReply
	if err := json.Unmarshal([]byte(page), &first); err != nil || len(first.Timers) != 1 {
		t.Fatalf("a page of one timer: %s (%v)", page, err)
	}
	missing := schemas.NewTimerID("/http", "none").String()
	for victim, id := range ids {
		for attacker := range ids {
			if attacker == victim {
				continue
			}
			for _, attack := range []struct{ method, more, body string }{
				{"GET", "", ""}, {"DELETE", "", ""}, {"DELETE", "?by=" + victim, ""}, {"PATCH", "", `{"in":"2h"}`}, {"PATCH", "", `{"at":"2030-01-01T00:00:00Z"}`}, {"GET", ".1", ""},
				{"PUT", "", `{"cron":"0 9 * * *"}`}, {"POST", "/pause", ""}, {"POST", "/resume", ""}, {"POST", "/trigger", ""}, {"POST", "/backfill", `{"from":"2026-01-01T00:00:00Z","to":"2026-01-02T00:00:00Z"}`},
				{"GET", "/why", ""}, {"GET", "/runs", ""}, {"GET", "/preview", ""},
			} {
				for _, header := range [][]string{nil, {"If-Match", `"1"`}} {
					if attack.method == "GET" && header != nil {
						continue
					}
					status, answer := f.call(attacker, attack.method, "/v1/timers/"+id+attack.more, attack.body, header...)
					_, none := f.call(attacker, attack.method, "/v1/timers/"+missing+attack.more, attack.body, header...)
					if status != http.StatusNotFound || answer != strings.ReplaceAll(none, missing, id) {
						t.Errorf("%s: %s %v of %s's timer: status %d: %s, want 404 and the answer for a timer that does not exist: %s", attacker, attack.method, header, victim, status, answer, none)
					}
				}
			}
		}
		for _, query := range []string{"", "?group=h", "?service=orders", "?group=h&cursor=" + first.Cursor, "?state=pending", "?id=17&source=/http"} {
			answer := f.succeed(victim, "GET", "/v1/timers"+query, "")
			for other, theirs := range ids {
				if has := strings.Contains(answer, theirs); has && other != victim || !has && other == victim && query != "?group=h&cursor="+first.Cursor {
					t.Errorf("%s: list %s has the timer of %s: %v: %s", victim, query, other, has, answer)
				}
			}
			for other, tenant := range owners {
				if tenant != "" && other != victim && strings.Contains(answer, `"tenant":"`+tenant+`"`) {
					t.Errorf("%s: list %s has a timer of tenant %s: %s", victim, query, tenant, answer)
				}
			}
		}
		for _, query := range []string{"?q=17", "?id=17", "?source=/http", "?q=1*&limit=100", "?sort=due&limit=100", "?service=orders&sort=due"} {
			var answer string
			waittest.Until(t, victim+" finds "+query, func() bool {
				_, answer = f.callOnce(victim, "GET", "/v1/timers"+query, "")
				return strings.Contains(answer, id)
			}, func() string { return answer })
			for other, theirs := range ids {
				if other != victim && strings.Contains(answer, theirs) {
					t.Errorf("%s: search %s has the timer of %s: %s", victim, query, other, answer)
				}
			}
		}
		for other, tenant := range owners {
			if answer := f.succeed(victim, "GET", "/v1/counts", ""); other != victim && tenant != "" && strings.Contains(answer, `"tenant":"`+tenant+`"`) {
				t.Errorf("%s: counts have those of tenant %s: %s", victim, tenant, answer)
			}
		}
		for _, service := range []string{"acme=orders", "globex=orders", "=orders"} {
			if status, answer := f.call(victim, "GET", "/v1/timers?service="+service, ""); status != http.StatusBadRequest {
				t.Errorf("%s: list of service %s: status %d: %s, want 400", victim, service, status, answer)
			}
		}
	}
	for _, forged := range []string{`{"in":"1h","svc":"acme=orders"}`, `{"in":"1h","callback":"nats:timers.call.acme.callbacks.x","svc":"=acme"}`, `{"in":"1h","tenant":"acme"}`} {
		if status, answer := f.call("globex", "POST", "/v1/timers", forged); status < 400 || status >= 500 {
			t.Errorf("globex adds %s: status %d: %s, want a refusal", forged, status, answer)
		}
	}
	if status, answer := f.call("globex", "POST", "/v1/timers", `{"in":"1h","callback":"http://127.0.0.2:1/"}`); status != http.StatusUnprocessableEntity || !strings.Contains(answer, "hosts of tenant globex") {
		t.Errorf("globex names a host that only acme may: status %d: %s, want 422 and the setting", status, answer)
	}
	for user, id := range ids {
		if after := f.succeed(user, "GET", "/v1/timers/"+id, ""); after != before[user] {
			t.Errorf("%s's timer has changed: %s, want %s", user, after, before[user])
		}
	}

	// The operator sees the timers of all; the tenant's own users and clients on NATS see its.
	all := f.succeed("ops", "GET", "/v1/timers?group=h", "")
	for user, id := range ids {
		if !strings.Contains(all, id) {
			t.Errorf("the operator's list lacks %s's timer: %s", user, all)
		}
	}
	if got := f.state("acme", schemas.TimerRef{ID: "17", Source: "/http"}); got != "pending" {
		t.Errorf("acme, over NATS: %s, want pending", got)
	}
	if got := f.succeed("acme-admin", "GET", "/v1/timers?group=h", ""); strings.Contains(got, ids["globex"]) || strings.Contains(got, ids["plain"]) || !strings.Contains(got, ids["acme"]) {
		t.Errorf("acme's administrator: %s, want acme's timers alone", got)
	}
	for _, method := range []string{"POST", "DELETE", "PATCH"} {
		path := "/v1/timers"
		if method != "POST" {
			path += "/" + ids["acme"]
		}
		if status, answer := f.call("acme-reader", method, path, `{"in":"2h"}`); status != http.StatusForbidden || !strings.Contains(answer, "scope write") {
			t.Errorf("%s without scope write: status %d: %s, want 403 and the scope", method, status, answer)
		}
	}
	f.succeed("acme", "PATCH", "/v1/timers/"+ids["acme"], `{"in":"2h"}`)
	f.succeed("acme-admin", "DELETE", "/v1/timers/"+ids["acme"], "")
	history := f.succeed("acme-reader", "GET", "/v1/timers/"+ids["acme"], "")
	for _, want := range []string{`"user":"acme"`, `"user":"acme-admin"`, `"state":"cancelled"`} {
		if !strings.Contains(history, want) {
			t.Errorf("acme's timer: %s, want %s", history, want)
		}
	}
	if got := f.succeed("globex", "GET", "/v1/timers/"+ids["globex"], ""); !strings.Contains(got, `"state":"pending"`) {
		t.Errorf("globex's timer after acme cancelled its own: %s, want pending", got)
	}
}

// testTenantHTTPLists: a tenant's token sees and changes its own dead letters, rejected adds and groups
// alone, and reaches nothing that all tenants share.
func testTenantHTTPLists(f *tenants) {
	t := f.t
	ids := map[string]string{}
	for user, callback := range map[string]string{"acme": "http://127.0.0.1:1/path-77ac", "globex": "nats:callbacks.none"} {
		ids[user] = schemas.NewTenantTimerID(user, "/dead", "secret-"+user).String()
		f.succeed(user, "POST", "/v1/timers", `{"in":"1ms","svc":"dead","group":"lists","id":"secret-`+user+`","source":"/dead","callback":"`+callback+`","maxattempts":1}`)
		f.succeed(user, "POST", "/v1/timers", `{"in":"1h","group":"lists"}`)
		f.succeed(user, "POST", "/v1/timers", `{"in":"1h","svc":"held"}`)
		f.publish(user, tenantEvent("secret-"+user, `"timerafter":"soon","data":"data-5c0e"`))
	}
	for user := range ids {
		var dead, rejected string
		waittest.Until(t, "the dead letter and the rejected add of "+user+" are listed", func() bool {
			_, dead = f.callOnce(user, "GET", "/v1/dead-letters", "")
			_, rejected = f.callOnce(user, "GET", "/v1/rejections", "")
			return strings.Contains(dead, ids[user]) && strings.Contains(rejected, "secret-"+user)
		}, func() string { return dead + rejected })
	}
	for user, sees := range map[string]bool{"acme-payload": true, "acme": false} {
		all := f.succeed(user, "GET", "/v1/dead-letters", "") + f.succeed(user, "GET", "/v1/rejections", "") + f.succeed(user, "GET", "/v1/timers/"+ids["acme"]+"/why", "")
		for _, secret := range []string{"path-77ac", "data-5c0e"} {
			if strings.Contains(all, secret) != sees {
				t.Errorf("token %s sees %s: %v, want %v: %s", user, secret, !sees, sees, all)
			}
		}
	}
	for attacker, victim := range map[string]string{"acme": "globex", "globex": "acme", "plain": "acme"} {
		for _, list := range []string{"/v1/dead-letters", "/v1/dead-letters?service=dead", "/v1/dead-letters?timer=" + ids[victim], "/v1/rejections", "/v1/order-keys"} {
			if answer := f.succeed(attacker, "GET", list, ""); strings.Contains(answer, ids[victim]) || strings.Contains(answer, "secret-"+victim) {
				t.Errorf("%s: %s has something of %s: %s", attacker, list, victim, answer)
			}
		}
		if status, answer := f.call(attacker, "POST", "/v1/dead-letters/replay", `{"timer":"`+ids[victim]+`"}`); status != http.StatusNotFound {
			t.Errorf("%s replays the dead letter of %s: status %d: %s, want 404", attacker, victim, status, answer)
		}
		for _, op := range []string{"replay", "discard"} {
			for _, filter := range []string{`"timer":"` + ids[victim] + `"`, `"sequence":1`, `"sequence":2`, `"sequences":[1,2,3,4]`} {
				if answer := f.succeed(attacker, "POST", "/v1/bulk/"+op, `{`+filter+`,"dry_run":true}`); strings.Contains(answer, ids[victim]) {
					t.Errorf("%s selects a dead letter of %s to %s with %s: %s", attacker, victim, op, filter, answer)
				}
			}
		}
		for seq := range 4 {
			path := fmt.Sprintf("/v1/dead-letters/%d?timer=%s", seq+1, ids[victim])
			if status, answer := f.call(attacker, "DELETE", path, ""); status != http.StatusNotFound {
				t.Errorf("%s discards the dead letter of %s: status %d: %s, want 404", attacker, victim, status, answer)
			}
		}
		if answer := f.succeed(attacker, "GET", "/v1/services", ""); strings.Contains(answer, `"tenant":"`+victim+`"`) {
			t.Errorf("%s sees the services of %s: %s", attacker, victim, answer)
		}
	}
	if answer := f.succeed("ops", "GET", "/v1/dead-letters", ""); !strings.Contains(answer, ids["acme"]) || !strings.Contains(answer, ids["globex"]) {
		t.Errorf("the operator's dead letters: %s, want those of all tenants", answer)
	}
	for _, c := range []struct{ user, want string }{{"plain", `"matched":0`}, {"acme", `"done":1`}, {"acme-admin", `"matched":0`}, {"globex", `"done":1`}} {
		if answer := f.succeed(c.user, "POST", "/v1/bulk/cancel", `{"service":"held"}`); !strings.Contains(answer, c.want) {
			t.Errorf("%s cancels its service: %s, want %s", c.user, answer, c.want)
		}
	}
	if status, answer := f.call("acme-reader", "POST", "/v1/bulk/cancel", `{"service":"held"}`); status != http.StatusForbidden {
		t.Errorf("a bulk cancel without scope write: status %d: %s, want 403", status, answer)
	}
	f.succeed("acme", "POST", "/v1/groups/lists/pause", "")
	if got := f.succeed("acme", "GET", "/v1/timers?group=lists&state=paused", ""); strings.Count(got, `"state":"paused"`) != 1 {
		t.Errorf("acme has paused its group: %s, want one timer", got)
	}
	if got := f.succeed("globex", "GET", "/v1/timers?group=lists&state=paused", ""); strings.Contains(got, "paused") {
		t.Errorf("acme has paused its group; globex has %s, want no paused timer", got)
	}
	for _, user := range []string{"acme", "acme-admin", "globex"} {
		for _, shared := range []struct{ method, path, body string }{
			{"GET", "/v1/status", ""}, {"GET", "/v1/doctor", ""}, {"GET", "/v1/flows", ""}, {"GET", "/v1/flows/x", ""}, {"PUT", "/v1/flows/x", `{"rate":"1/s"}`}, {"DELETE", "/v1/flows/x", ""}, {"POST", "/v1/flows/x/pause", ""},
			{"GET", "/v1/calendars", ""}, {"GET", "/v1/calendars/x", ""}, {"PUT", "/v1/calendars/x", `{"dates":["2027-12-25"]}`}, {"DELETE", "/v1/calendars/x", ""},
		} {
			if status, answer := f.call(user, shared.method, shared.path, shared.body); status != http.StatusForbidden {
				t.Errorf("%s: %s %s: status %d: %s, want 403", user, shared.method, shared.path, status, answer)
			}
		}
	}
	f.succeed("plain", "GET", "/v1/flows", "")
	if status, answer := f.call("plain", "PUT", "/v1/flows/x", `{"rate":"1/s"}`); status != http.StatusForbidden || !strings.Contains(answer, "scope admin") {
		t.Errorf("a limit without scope admin: status %d: %s, want 403 and the scope", status, answer)
	}
	f.succeed("ops", "PUT", "/v1/flows/x", `{"rate":"1/s","dry_run":true}`)
	// An update is of the caller's own tenant, so that an operator cannot replace the default tenant's
	// schedule by mistake.
	for _, user := range []string{"acme", "plain"} {
		f.succeed(user, "POST", "/v1/timers", `{"cron":"0 9 * * *","svc":"lists","id":"same","source":"/lists"}`)
	}
	path := "/v1/timers/" + schemas.NewTenantTimerID("acme", "/lists", "same").String()
	if status, answer := f.call("ops", "PUT", path, `{"cron":"0 10 * * *","svc":"lists"}`); status != http.StatusBadRequest || !strings.Contains(answer, "a token of that tenant") {
		t.Errorf("the operator updates a schedule of acme: status %d: %s, want 400", status, answer)
	}
	if got := f.succeed("plain", "GET", "/v1/timers?id=same&source=/lists", ""); !strings.Contains(got, "0 9 * * *") {
		t.Errorf("the default tenant's schedule after that: %s, want it unchanged", got)
	}
}

// follow opens a stream of fired events with a token, and returns a function that returns the data of
// the next event.
func (f *tenants) follow(name, service string) func() string {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), bound)
	f.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.apps[0].HTTPAddr()+"/v1/stream?service="+service, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+f.secrets[name])
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = resp.Body.Close() }) // the body has no end
	if resp.StatusCode != http.StatusOK {
		f.t.Fatalf("%s: stream of %s: status %d", name, service, resp.StatusCode)
	}
	lines := bufio.NewScanner(resp.Body)
	return func() string {
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				return data
			}
		}
		f.t.Fatalf("%s: the stream of %s has ended: %v", name, service, lines.Err())
		return ""
	}
}

// testTenantStream: a stream has the events of the caller's own tenant alone, and their data only
// with scope payload.
func testTenantStream(f *tenants) {
	t := f.t
	callers := map[string]string{"acme": "acme", "acme-payload": "acme", "globex": "globex", "plain": "", "ops": ""}
	next := map[string]func() string{}
	for user := range callers {
		next[user] = f.follow(user, "followed")
	}
	next["ops-acme"], callers["ops-acme"] = f.follow("ops", "acme=followed"), "acme"
	for range 2 {
		for user, tenant := range map[string]string{"acme": "acme", "globex": "globex", "plain": ""} {
			f.succeed(user, "POST", "/v1/timers", `{"in":"1ms","svc":"followed","type":"of-`+tenant+`","data":"data-5c0e"}`)
		}
	}
	for user, tenant := range callers {
		for range 2 {
			data := next[user]()
			if !strings.Contains(data, `"type":"of-`+tenant+`"`) {
				t.Errorf("%s: event %s, want one of tenant %q", user, data, tenant)
			}
			if payload := user == "acme-payload" || user == "globex" || user == "plain"; strings.Contains(data, "data-5c0e") != payload {
				t.Errorf("%s: event %s, want the data: %v", user, data, payload)
			}
		}
	}
	for _, user := range []string{"acme", "globex", "plain"} {
		if status, answer := f.call(user, "GET", "/v1/stream?service=globex=followed", ""); status != http.StatusBadRequest {
			t.Errorf("%s: a stream of another tenant: status %d: %s, want 400", user, status, answer)
		}
	}
}

// testPayload: without scope payload an answer has nothing that an event carries for its callee,
// and nothing that the callee answers.
func testPayload(f *tenants) {
	t := f.t
	callee := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(w, r.Body); err != nil { // the data of the event
			t.Error(err)
		}
		fmt.Fprint(w, " answer-8f2a")
	}))
	t.Cleanup(callee.Close)
	add := f.succeed("acme", "POST", "/v1/timers", `{"in":"1ms","id":"p","source":"/http","svc":"mail","callback":"`+callee.URL+`/path-77ac?key=query-31bd","data":"data-5c0e"}`)
	id := schemas.NewTenantTimerID("acme", "/http", "p").String()
	seen := ""
	waittest.Until(t, "the callback succeeds", func() bool {
		_, seen = f.callOnce("acme-payload", "GET", "/v1/timers/"+id, "")
		return strings.Contains(seen, `"state":"success"`)
	}, func() string { return seen })
	if !strings.Contains(seen, "answer-8f2a") || !strings.Contains(seen, "data-5c0e") || !strings.Contains(seen, "path-77ac") {
		t.Errorf("with scope payload: %s, want the path of the callback, and its answer with the data", seen)
	}
	for _, user := range []string{"acme", "acme-reader", "acme-admin", "ops"} {
		all := add + f.succeed(user, "GET", "/v1/timers/"+id, "") + f.succeed(user, "GET", "/v1/timers?service=mail", "") + f.succeed(user, "GET", "/v1/timers", "")
		if user == "acme" {
			_, refused := f.call(user, "DELETE", "/v1/timers/"+id, "")
			_, late := f.call(user, "PATCH", "/v1/timers/"+id, `{"in":"1h"}`)
			all += refused + late
		}
		for _, secret := range []string{"answer-8f2a", "data-5c0e", "path-77ac", "query-31bd"} {
			if strings.Contains(all, secret) {
				t.Errorf("token %s without scope payload sees %s: %s", user, secret, all)
			}
		}
		if !strings.Contains(all, `"callback":"http://127.0.0.1`) || !strings.Contains(all, `"state":"success"`) {
			t.Errorf("token %s: %s, want the state and the host of the callback", user, all)
		}
	}
}
