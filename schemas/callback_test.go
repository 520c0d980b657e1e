package schemas_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/belfryio/belfry/schemas"
)

func TestCheckCallback(t *testing.T) {
	t.Parallel()
	for callback, want := range map[string]string{
		"nats:orders.expired":     "",
		"nats:timers.work.orders": "",
		"nats:a/b":                "",
		"https://x.example/p?q=1": "",
		"/hooks/orders?x=1":       "",

		"nats:":                     "needs a subject",
		"nats://timers.add":         "without //",
		"nats://orders.expired":     "without //",
		"nats:timers.add":           "reserved",
		"nats:timers":               "reserved",
		"nats:timers.work":          "reserved",
		"nats:timers.work.bills":    "another service",
		"nats:timers.work.orders.x": "another service",
		"nats:$JS.API.STREAM.LIST":  "reserved",
		"nats:$KV.timers_0.timer.x": "reserved",
		"nats:_INBOX.abc":           "reserved",
		"nats:_INBOX_orders.abc":    "reserved",
		"nats:_R_.abc":              "reserved",
		"nats:_GR_.abc":             "reserved",
		"nats:_ANY.abc":             "reserved",
		"nats:a.*":                  "wildcards",
		"nats:a.>":                  "wildcards",
		"nats:a b":                  "blank",
		"nats:a..b":                 "empty token",
		"//x.example/p":             "must be https://",
		"ftp://x.example":           "must be https://",
		"https:///p":                "no host",
		"/hooks#x":                  "#fragment",
		"hooks":                     "must be https://",
		"/../../admin":              "segment",
		"/a/%2e%2e/%2E./b":          "segment",
		"/a/./b":                    "segment",
	} {
		err := schemas.CheckCallback(callback, "orders")
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("CheckCallback(%s): got error %v, want %q", callback, err, want)
		}
	}
}

func TestCallbackRules(t *testing.T) {
	t.Parallel()
	base, err := url.Parse("https://api.example.com/hooks/")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		rules    schemas.CallbackRules
		callback string
		want     string // in the error; "" is allowed
	}{
		"subject, no rules":        {schemas.CallbackRules{}, "nats:a.b", ""},
		"host, no rules":           {schemas.CallbackRules{}, "https://x.example", ""},
		"path, no base URL":        {schemas.CallbackRules{}, "/x", "no base-url"},
		"no subject":               {schemas.CallbackRules{Subjects: []string{}}, "nats:a.b", "callback-subjects"},
		"own workers":              {schemas.CallbackRules{Subjects: []string{}}, "nats:timers.work.orders", ""},
		"subject":                  {schemas.CallbackRules{Subjects: []string{"x", "a.b"}}, "nats:a.b", ""},
		"subject below":            {schemas.CallbackRules{Subjects: []string{"a.b"}}, "nats:a.b.c", "callback-subjects"},
		"subject above":            {schemas.CallbackRules{Subjects: []string{"a.b.c"}}, "nats:a.b", "callback-subjects"},
		"wildcard of one token":    {schemas.CallbackRules{Subjects: []string{"a.*"}}, "nats:a.b", ""},
		"wildcard of two tokens":   {schemas.CallbackRules{Subjects: []string{"a.*"}}, "nats:a.b.c", "callback-subjects"},
		"wildcard amid":            {schemas.CallbackRules{Subjects: []string{"a.*.c"}}, "nats:a.b.c", ""},
		"rest":                     {schemas.CallbackRules{Subjects: []string{"a.>"}}, "nats:a.b.c", ""},
		"rest needs a token":       {schemas.CallbackRules{Subjects: []string{"a.>"}}, "nats:a", "callback-subjects"},
		"no host":                  {schemas.CallbackRules{Hosts: []string{}}, "https://x.example", "callback-hosts"},
		"no host of its own":       {schemas.CallbackRules{Hosts: []string{}, OwnHosts: true}, "https://x.example", "setting hosts of service orders"},
		"no subject of its own":    {schemas.CallbackRules{Subjects: []string{}, OwnSubjects: true}, "nats:a.b", "setting subjects of service orders"},
		"host":                     {schemas.CallbackRules{Hosts: []string{"x.example"}}, "http://X.Example.:8080/p", ""},
		"another host":             {schemas.CallbackRules{Hosts: []string{"x.example"}}, "https://x.example.evil", "callback-hosts"},
		"user info is no host":     {schemas.CallbackRules{Hosts: []string{"x.example"}}, "https://x.example@evil.example/", "callback-hosts"},
		"below":                    {schemas.CallbackRules{Hosts: []string{"*.example.com"}}, "https://a.b.example.com", ""},
		"not below":                {schemas.CallbackRules{Hosts: []string{"*.example.com"}}, "https://example.com", "callback-hosts"},
		"a suffix":                 {schemas.CallbackRules{Hosts: []string{"*.example.com"}}, "https://badexample.com", "callback-hosts"},
		"every host":               {schemas.CallbackRules{Hosts: []string{"*"}}, "http://x.example", ""},
		"port":                     {schemas.CallbackRules{Hosts: []string{"x.example:443"}}, "https://x.example/", ""},
		"another port":             {schemas.CallbackRules{Hosts: []string{"x.example:443"}}, "http://x.example/", "callback-hosts"},
		"scheme":                   {schemas.CallbackRules{Hosts: []string{"https://x.example"}}, "http://x.example", "callback-hosts"},
		"address":                  {schemas.CallbackRules{Hosts: []string{"10.0.0.7"}}, "http://10.0.0.7:1/", ""},
		"address in six":           {schemas.CallbackRules{Hosts: []string{"[::1]:80"}}, "http://[0:0::1]/", ""},
		"credentials in the clear": {schemas.CallbackRules{Hosts: []string{"x.example"}, HTTPSOnly: true}, "http://x.example", "callback-hosts"},
		"credentials":              {schemas.CallbackRules{Hosts: []string{"x.example"}, HTTPSOnly: true}, "https://x.example", ""},
		"clear on purpose":         {schemas.CallbackRules{Hosts: []string{"http://x.example"}, HTTPSOnly: true}, "http://x.example", ""},
		"credentials for nobody":   {schemas.CallbackRules{HTTPSOnly: true}, "https://x.example", "callback-hosts"},
		"path":                     {schemas.CallbackRules{BaseURL: base, Hosts: []string{schemas.HostPatternOf(base)}}, "/x", ""},
		"path elsewhere":           {schemas.CallbackRules{BaseURL: base, Hosts: []string{"other.example"}}, "/x", "callback-hosts"},
	} {
		err := c.rules.Check(c.callback, "orders")
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", name, err, c.want)
		}
	}
	rules := schemas.CallbackRules{BaseURL: base}
	for path, want := range map[string]string{
		"/orders":            "https://api.example.com/hooks/orders",
		"/orders?x=1":        "https://api.example.com/hooks/orders?x=1",
		"/":                  "https://api.example.com/hooks/",
		"/a%2Fb":             "https://api.example.com/hooks/a%2Fb",
		"https://y.example/": "https://y.example/",
	} {
		if got, err := rules.Resolve(path, "orders"); err != nil || got != want {
			t.Errorf("Resolve(%s): got %s (%v), want %s", path, got, err, want)
		}
	}
}

// Resolve must also keep paths below the base URL that CheckCallback would reject: another
// version may have accepted them.
func TestPathsStayBelowTheBaseURL(t *testing.T) {
	t.Parallel()
	rules := schemas.CallbackRules{BaseURL: &url.URL{Scheme: "https", Host: "api.example.com", Path: "/hooks"}}
	for _, path := range []string{"/../admin", "/a/%2e%2e/%2e%2e/admin"} {
		if got, err := rules.Resolve(path, "orders"); err == nil {
			t.Errorf("Resolve(%s): got %s, want an error", path, got)
		}
	}
}

func TestPatterns(t *testing.T) {
	t.Parallel()
	for p, ok := range map[string]bool{
		"orders.>": true, "*": true, ">": true, "a.*.b": true,
		"": false, "a.": false, "a.>.b": false, "a*": false, "a b": false, "timers.>": false, "$JS.>": false, "_INBOX.>": false,
	} {
		if err := schemas.CheckSubjectPattern(p); (err == nil) != ok {
			t.Errorf("CheckSubjectPattern(%q): got error %v, want it valid: %v", p, err, ok)
		}
	}
	for p, ok := range map[string]bool{
		"*": true, "x.example": true, "*.x.example": true, "https://x.example:8443": true, "10.0.0.1": true, "::1": true, "[::1]:80": true, "localhost": true,
		"": false, "x.example/p": false, "ftp://x": false, "x:0": false, "x:": false, "a*.example": false, "*.": false, "*.10.0.0.1": false, "user@x": false, "[::1": false, "x..y": false,
	} {
		if err := schemas.CheckHostPattern(p); (err == nil) != ok {
			t.Errorf("CheckHostPattern(%q): got error %v, want it valid: %v", p, err, ok)
		}
	}
}

func TestRedactURL(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"https://h.example/p":                       "https://h.example/p",
		"https://alice:hunter2@h.example/p?token=x": "https://xxxxx@h.example/p?xxxxx",
		"https://token@h.example/p":                 "https://xxxxx@h.example/p",
		"https://h.example/p#frag":                  "https://h.example/p",
		"/hooks/orders?key=x":                       "/hooks/orders?xxxxx",
		`https://h.example/a b"c`:                   "https://h.example/a%20b%22c",
		"nats:orders.new":                           "nats:orders.new",
		"nats://127.0.0.1:4222":                     "nats://127.0.0.1:4222",
		"nats://alice:hunter2@127.0.0.1:4222":       "nats://xxxxx@127.0.0.1:4222",
		"https://alice:hunter2@h.example:bad port/": "https://xxxxx@h.example:bad port/",
		"alice:hunter2@h.example":                   "xxxxx@h.example",
		"https://h.example:bad port/?token=x":       "https://h.example:bad port/?xxxxx",
	} {
		if got := schemas.RedactURL(in); got != want {
			t.Errorf("RedactURL(%q): got %q, want %q", in, got, want)
		}
	}
	if got := schemas.RedactURLs("nats://user:hunter2@a:1, nats://token@b,nats://user:hunter2@%zz"); strings.Contains(got, "hunter2") || strings.Contains(got, "token") {
		t.Errorf("RedactURLs: got %s, want no credentials", got)
	}
}
