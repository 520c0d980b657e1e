package token

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 11, 23, 21, 0, 0, 0, time.UTC)

// issued is a token with its secret.
type issued struct {
	Token
	secret string
}

func issue(t *testing.T, name string, expires time.Time, tenant string, scopes ...string) issued {
	t.Helper()
	secret := Generate()
	out := issued{Token{Name: name, Hash: HashOf(secret), Scopes: scopes, Tenant: tenant, Expires: expires}, secret}
	if err := out.Check(); err != nil {
		t.Fatal(err)
	}
	return out
}

// parse returns the set of a file with these tokens.
func parse(t *testing.T, tokens ...issued) *Set {
	t.Helper()
	var file strings.Builder
	for _, i := range tokens {
		fmt.Fprintln(&file, i.String())
	}
	s, err := Parse([]byte(file.String()))
	if err != nil {
		t.Fatalf("%v: %s", err, file.String())
	}
	return s
}

// TestAuthorize: who is admitted, and what a refusal says, with the header of RFC 6750.
func TestAuthorize(t *testing.T) {
	t.Parallel()
	const chosen = "hunter2"
	reader, writer := issue(t, "reader", time.Time{}, "", "read"), issue(t, "writer", now.Add(time.Second), "acme", "read", "write")
	next, old := issue(t, "writer-2", time.Time{}, "acme", "write"), issue(t, "old", now, "", "admin")
	admin, weak := issue(t, "ops", time.Time{}, "", "admin"), issued{Token{Name: "weak", Hash: HashOf(chosen), Scopes: AllScopes()}, chosen}
	file := parse(t, reader, writer, next, old, admin, weak)
	all := file.WithAdmin("tok-1234")
	bearer := func(token string) []string { return []string{"Bearer " + token} }
	const unknown = `Bearer realm="belfry", error="invalid_token", error_description="the token is unknown`
	for name, tt := range map[string]struct {
		set    *Set
		header []string
		scope  string
		want   Identity
		status int
		text   string
		header401,
		missing string
	}{
		"no tokens in the settings":     {set: nil, scope: "payload", want: Identity{Scopes: AllScopes()}},
		"an empty file":                 {set: &Set{}, header: bearer(reader.secret), scope: "read", status: 401, text: "unknown", header401: unknown},
		"no header":                     {set: all, scope: "read", status: 401, text: "send Authorization: Bearer TOKEN", header401: `Bearer realm="belfry"`},
		"another scheme":                {set: all, header: []string{"Basic " + reader.secret}, scope: "read", status: 401, text: "send Authorization", header401: `Bearer realm="belfry"`},
		"two headers":                   {set: all, header: []string{"Bearer x", "Bearer " + reader.secret}, scope: "read", status: 400, text: "several Authorization headers", header401: `Bearer realm="belfry", error="invalid_request"`},
		"empty":                         {set: all, header: bearer(""), scope: "read", status: 401, text: "unknown", header401: unknown},
		"unknown":                       {set: all, header: bearer(Generate()), scope: "read", status: 401, text: "unknown", header401: unknown},
		"a hash":                        {set: all, header: bearer(reader.Hash.String()), scope: "read", status: 401, text: "unknown", header401: unknown},
		"part of a token":               {set: all, header: bearer(reader.secret[:len(reader.secret)-1]), scope: "read", status: 401, text: "unknown", header401: unknown},
		"capitals":                      {set: all, header: bearer(strings.ToUpper(reader.secret)), scope: "read", status: 401, text: "unknown", header401: unknown},
		"a password with a hash":        {set: all, header: bearer(chosen), scope: "read", status: 401, text: "unknown", header401: unknown},
		"reader reads":                  {set: all, header: bearer(reader.secret), scope: "read", want: Identity{"reader", "", Scopes{"read"}}},
		"reader writes":                 {set: all, header: bearer(reader.secret), scope: "write", status: 403, text: "this needs scope write; token reader has read", header401: `Bearer realm="belfry", error="insufficient_scope", error_description="this needs scope write; token reader has read", scope="write"`, missing: "write"},
		"reader sees payload":           {set: all, header: bearer(reader.secret), scope: "payload", status: 403, text: "scope payload", header401: `Bearer realm="belfry", error="insufficient_scope"`, missing: "payload"},
		"writer, a second before":       {set: all, header: []string{"bEARER   " + writer.secret + " "}, scope: "write", want: Identity{"writer", "acme", Scopes{"read", "write"}}},
		"its successor":                 {set: all, header: bearer(next.secret), scope: "write", want: Identity{"writer-2", "acme", Scopes{"write"}}},
		"its successor reads":           {set: all, header: bearer(next.secret), scope: "read", status: 403, text: "scope read", header401: `Bearer realm="belfry", error="insufficient_scope"`, missing: "read"},
		"expired":                       {set: all, header: bearer(old.secret), scope: "read", status: 401, text: "token old has expired at 2026-11-23T21:00:00Z", header401: `Bearer realm="belfry", error="invalid_token", error_description="the token old has expired`},
		"admin writes":                  {set: all, header: bearer(admin.secret), scope: "write", want: Identity{"ops", "", Scopes{"admin"}}},
		"admin sees payload":            {set: all, header: bearer(admin.secret), scope: "payload", status: 403, text: "scope payload", header401: `Bearer realm="belfry", error="insufficient_scope"`, missing: "payload"},
		"http-token-file":               {set: all, header: bearer("tok-1234"), scope: "payload", want: Identity{AdminName, "", AllScopes()}},
		"http-token-file alone":         {set: (*Set)(nil).WithAdmin("tok-1234"), header: bearer("tok-1234"), scope: "admin", want: Identity{AdminName, "", AllScopes()}},
		"http-token-file is not given":  {set: file.WithAdmin(""), header: bearer(""), scope: "read", status: 401, text: "unknown", header401: unknown},
		"a token that is in both files": {set: file.WithAdmin(reader.secret), header: bearer(reader.secret), scope: "admin", want: Identity{AdminName, "", AllScopes()}},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header["Authorization"] = tt.header
		got, err := tt.set.Authorize(r, tt.scope, now)
		if tt.status == 0 {
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%s: got %+v (%v), want %+v", name, got, err, tt.want)
			}
			continue
		}
		e, ok := errors.AsType[*Error](err)
		if !ok {
			t.Errorf("%s: got %+v (%v), want status %d", name, got, err, tt.status)
			continue
		}
		if e.Status != tt.status || !strings.Contains(e.Error(), tt.text) || !strings.HasPrefix(e.Challenge(), tt.header401) || e.Scope != tt.missing || !reflect.DeepEqual(got, Identity{}) {
			t.Errorf("%s: got identity %+v, status %d, %q, scope %q, WWW-Authenticate %q; want no identity, status %d, %q, scope %q, %q", name, got, e.Status, e, e.Scope, e.Challenge(), tt.status, tt.text, tt.missing, tt.header401)
		}
	}
	if (Identity{Tenant: "acme", Scopes: AllScopes()}).AllTenants() || (Identity{Scopes: Scopes{"read", "write", "payload"}}).AllTenants() || !(Identity{Scopes: Scopes{"admin"}}).AllTenants() {
		t.Error("AllTenants: want true only for scope admin without a tenant")
	}
}

// TestGenerate: tokens differ, have the documented form, and 256 random bits.
func TestGenerate(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		text := Generate()
		if seen[text] || !generated(text) || len(text) != len("bfy_")+52 {
			t.Fatalf("got token %s, want a new one of the form bfy_ and 52 characters", text)
		}
		seen[text] = true
	}
	for _, text := range []string{"", "bfy_", "bfy_" + strings.Repeat("a", 51), "bfy_" + strings.Repeat("1", 52), "bfx_" + strings.Repeat("a", 52)} {
		if generated(text) {
			t.Errorf("%q counts as a generated token, want not", text)
		}
	}
	if got := HashOf("abc").String(); got != "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" {
		t.Errorf("hash of abc: got %s, want that of sha256sum", got)
	}
}

// TestParse: the file may be YAML or JSON; an error names the line, and shows no token.
func TestParse(t *testing.T) {
	t.Parallel()
	secret := Generate()
	hash := HashOf(secret).String()
	want := []Token{{Name: "1", Hash: HashOf(secret), Scopes: Scopes{"read"}, Line: 2}, {Name: "b", Hash: HashOf("b"), Scopes: Scopes{"write", "payload"}, Tenant: "acme", Expires: now, Line: 3}}
	for _, text := range []string{
		"# comment\n- {name: 1, hash: " + hash + ", scopes: [read]}\n- name: b\n  hash: " + HashOf("b").String() + "\n  scopes:\n  - write\n  - payload\n  tenant: acme\n  expires: 2026-11-23T22:00:00+01:00\n",
		"[\n{\"name\":\"1\",\"hash\":\"" + hash + "\",\"scopes\":[\"read\"]},\n{\"name\":\"b\",\"hash\":\"" + HashOf("b").String() + "\",\"scopes\":[\"write\",\"payload\"],\"tenant\":\"acme\",\"expires\":\"2026-11-23T21:00:00Z\"}]",
	} {
		s, err := Parse([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		got := s.Tokens()
		for i := range got {
			got[i].Expires = got[i].Expires.UTC()
		}
		if got[1].Expires = now; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", text, got, want)
		}
	}
	for _, text := range []string{"", "\n", "# only a comment\n", "[]", "---\n"} {
		if s, err := Parse([]byte(text)); text != "---\n" && (err != nil || s == nil || len(s.Tokens()) != 0) {
			t.Errorf("%q: got %v (%v), want a set without tokens", text, s, err)
		}
	}
	good := "- {name: a, hash: " + hash + ", scopes: [read]}\n"
	for text, want := range map[string]string{
		"tokens: 7":                    "line 1: the file must be a list",
		secret:                         "line 1: the file must be a list",
		good + "- " + secret:           "line 2: must be a group",
		good + "- {" + secret + ": 1}": "line 2: bfy_",
		good + "- {name: b, hash: " + secret + ", scopes: [read]}":                                       "line 2: hash: this is a token",
		good + "- {name: " + secret + ", hash: sha256:" + strings.Repeat("00", 32) + ", scopes: [read]}": "line 2: name: this is the text of a token",
		good + "- {name: b, hash: sha256:" + strings.Repeat("00", 31) + ", scopes: [read]}":              "line 2: hash: must be sha256:",
		good + "- {name: b, hash: sha256:" + strings.Repeat("0g", 32) + ", scopes: [read]}":              "line 2: hash: must be sha256:",
		good + "- {name: b, hash: md5:00, scopes: [read]}":                                               "line 2: hash: must be sha256:",
		good + "- {name: b, hash: [x], scopes: [read]}":                                                  "line 2: hash: must be a text",
		good + "- {name: b, scopes: [read]}":                                                             "line 2: a token needs hash",
		good + "- {name: b, hash: " + HashOf("b").String() + "}":                                         "line 2: a token needs scopes",
		good + "- {hash: " + HashOf("b").String() + ", scopes: [read]}":                                  "line 2: a token needs name",
		good + "-\n  name: b\n  hash: " + HashOf("b").String() + "\n  scopes: read\n":                    "line 5: scopes: must be a list",
		good + "- {name: b, hash: " + HashOf("b").String() + ", scopes: []}":                             "line 2: scopes: must have at least one",
		good + "- {name: b, hash: " + HashOf("b").String() + ", scopes: [cook]}":                         `line 2: scopes: scope "cook" does not exist`,
		good + "- {name: b, hash: " + HashOf("b").String() + ", scopes: [read, read]}":                   "line 2: scopes: duplicate scope read",
		good + "- {name: b, hash: " + HashOf("b").String() + ", scopes: [[read]]}":                       "line 2: scopes: must be a list",
		good + "- {name: 'a b', hash: " + HashOf("b").String() + ", scopes: [read]}":                     "line 2: name",
		good + "- {name: http-token-file, hash: " + HashOf("b").String() + ", scopes: [read]}":           "line 2: name",
		good + "- {name: '', hash: " + HashOf("b").String() + ", scopes: [read]}":                        "line 2: name: must be a text",
		good + "- {name: b, hash: " + HashOf("b").String() + ", scopes: [read], tenant: ACME}":           "line 2: tenant",
		good + "- {name: b, hash: " + HashOf("b").String() + ", scopes: [read], expires: 2027-01-01}":    "line 2: expires: must be a time with an offset",
		good + "- {name: b, hash: " + HashOf("b").String() + ", scopes: [read], scope: [x]}":             "line 2: scope: unknown key; the keys of a token are",
		good + "- {name: b, name: c, hash: " + HashOf("b").String() + ", scopes: [read]}":                `line 2: duplicate key "name"`,
		good + "- {name: a, hash: " + HashOf("b").String() + ", scopes: [read]}":                         "line 2: token a: line 1 has the same name",
		good + "- {name: b, hash: " + hash + ", scopes: [read]}":                                         "line 2: token b: line 1 has the same hash",
		good + "- &x {name: b, hash: " + HashOf("b").String() + ", scopes: [read]}\n- *x":                "line 3: must be a group",
		good + "---\n" + good:               "one YAML document",
		good + "- {name: b":                 "not YAML: line",
		good + "\t- x":                      "not YAML: line",
		strings.Repeat("- x\n", 1001):       "the limit is 1000",
		strings.Repeat("#", MaxFileBytes+1): "the limit is 1048576",
	} {
		s, err := Parse([]byte(text))
		if err == nil || s != nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), hash) {
			t.Errorf("%.200s: got %v (%v), want an error with %q, and no token or hash in it", text, s, err, want)
		}
	}
}

// FuzzParse: Parse never panics, and each file that it accepts has the same tokens after it
// was written again, as belfry token new writes lines.
func FuzzParse(f *testing.F) {
	f.Add([]byte("- {name: a, hash: " + HashOf("a").String() + ", scopes: [read, write], tenant: acme, expires: 2027-01-31T00:00:00Z}\n"))
	f.Add([]byte(`[{"name":"true","hash":"` + HashOf("b").String() + `","scopes":["admin"]}]`))
	f.Add([]byte("- &a [*a]\n--- x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse(data)
		if err != nil {
			if s != nil {
				t.Fatalf("%q: got a set beside error %v, want none", data, err)
			}
			return
		}
		var again bytes.Buffer
		for _, token := range s.Tokens() {
			fmt.Fprintln(&again, token.String())
		}
		second, err := Parse(again.Bytes())
		if err != nil {
			t.Fatalf("%q was written as %q: %v", data, again.String(), err)
		}
		for i, want := range s.Tokens() {
			got := second.Tokens()[i]
			if got.Name != want.Name || got.Hash != want.Hash || !reflect.DeepEqual(got.Scopes, want.Scopes) || got.Tenant != want.Tenant || got.Expires.Unix() != want.Expires.Unix() {
				t.Fatalf("%q was written as %q: got %+v, want %+v", data, again.String(), got, want)
			}
		}
	})
}

// TestWithVerify: a set asks its function about tokens that it does not have, but not about texts of the
// form of its own; scopes and the token of http-token-file are as without it.
func TestWithVerify(t *testing.T) {
	t.Parallel()
	var asked []string
	verify := func(_ context.Context, text string, _ time.Time) (Identity, bool, error) {
		asked = append(asked, text)
		switch text {
		case "theirs":
			return Identity{Name: "oidc:anna", Scopes: Scopes{"read"}}, true, nil
		case "invalid":
			return Identity{}, true, Invalid("no")
		case "down":
			return Identity{}, true, Unavailable("later")
		}
		return Identity{}, false, nil
	}
	var none *Set
	if none.WithVerify(nil) != nil {
		t.Error("without a function a nil set asks for a token")
	}
	for name, set := range map[string]*Set{"nil": none.WithVerify(verify), "empty": (&Set{}).WithVerify(verify), "later": (&Set{}).WithVerify(verify).WithAdmin("other")} {
		for text, want := range map[string]int{"theirs": 200, "invalid": 401, "down": 503, "unknown": 401, Generate(): 401, "": 401} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			r.Header.Set("Authorization", "Bearer "+text)
			id, err := set.Authorize(r, ScopeRead, time.Now())
			status := 200
			if e, ok := errors.AsType[*Error](err); ok {
				status = e.Status
			}
			if status != want || want == 200 && id.Name != "oidc:anna" {
				t.Errorf("%s set, token %q: got %+v, status %d (%v), want %d", name, text, id, status, err, want)
			}
			if _, err := set.Authorize(r, ScopeWrite, time.Now()); err == nil {
				t.Errorf("%s set, token %q: scope write is allowed", name, text)
			}
		}
	}
	for _, text := range asked {
		if strings.HasPrefix(text, "bfy_") {
			t.Error("the function was asked about a token of the form of the set's own")
		}
	}
	set := none.WithAdmin("operator").WithVerify(verify)
	asked = nil
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer operator")
	if id, err := set.Authorize(r, ScopeAdmin, time.Now()); err != nil || id.Name != AdminName || len(asked) > 0 {
		t.Errorf("the token of http-token-file: got %+v, %v, asked about %s", id, err, asked)
	}
}
