package schemas_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/belfryio/belfry/schemas"
)

const added = int64(1_800_000_000_000) // 2027-01-15T08:00:00Z

// doc is a valid add with members replaced: "-name" removes one.
func doc(t testing.TB, change map[string]any) []byte {
	t.Helper()
	m := map[string]any{"specversion": "1.0", "id": "1", "source": "/shop", "type": "t", "timerafter": "10s"}
	for k, v := range change {
		if rest, ok := strings.CutPrefix(k, "-"); ok {
			delete(m, rest)
			continue
		}
		m[k] = v
	}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func parse(data []byte) (schemas.Body, schemas.Spec, error) {
	return schemas.ParseAdd(nil, data, added, schemas.Limits{})
}

func TestParseAddAccepts(t *testing.T) {
	t.Parallel()
	type m = map[string]any
	for name, c := range map[string]struct {
		change m
		check  func(schemas.Spec) bool
	}{
		"defaults": {nil, func(s schemas.Spec) bool {
			return s.Service == "default" && s.Callback == "" && s.MaxAttempts == schemas.DefaultMaxAttempts && s.DueMs == added+10_000
		}},
		"iso duration": {m{"timerafter": "PT1M30S"}, func(s schemas.Spec) bool { return s.DueMs == added+90_000 }},
		"go duration":  {m{"timerafter": "1h30m"}, func(s schemas.Spec) bool { return s.DueMs == added+5_400_000 }},
		"rounded up":   {m{"timerafter": "1ns"}, func(s schemas.Spec) bool { return s.DueMs == added+1 }},
		"zero":         {m{"timerafter": "0s"}, func(s schemas.Spec) bool { return s.DueMs == added }},
		"at":           {m{"-timerafter": 0, "timerat": "2027-01-15T09:00:00.123+01:00"}, func(s schemas.Spec) bool { return s.DueMs == added+123 }},
		"at, finer":    {m{"-timerafter": 0, "timerat": "2027-01-15T08:00:00.0001Z"}, func(s schemas.Spec) bool { return s.DueMs == added+1 }},
		"in the past":  {m{"-timerafter": 0, "timerat": "2001-01-01T00:00:00Z"}, func(s schemas.Spec) bool { return s.DueMs < added }},
		"policy": {m{"timermaxattempts": 3, "timerbackoff": "1s..5m", "timertimeout": "PT5S"}, func(s schemas.Spec) bool {
			return s.MaxAttempts == 3 && s.BackoffFirst == time.Second && s.BackoffTo == 5*time.Minute && s.Timeout == 5*time.Second
		}},
		"attempts as text": {m{"timermaxattempts": "3"}, func(s schemas.Spec) bool { return s.MaxAttempts == 3 }},
		"lone backoff":     {m{"timerbackoff": "200ms"}, func(s schemas.Spec) bool { return s.BackoffFirst == 200*time.Millisecond }},
		"service":          {m{"timersvc": "Orders-2_x"}, func(s schemas.Spec) bool { return s.Service == "Orders-2_x" }},
		"http":             {m{"timercallback": "http://example.com:8080/x?y=1"}, func(s schemas.Spec) bool { return s.Callback != "" }},
		"nats":             {m{"timercallback": "nats:orders.expire"}, func(s schemas.Spec) bool { return s.Callback == "nats:orders.expire" }},
		"null is absent":   {m{"timergroup": nil, "subject": nil}, func(s schemas.Spec) bool { return s.Group == "" }},
		"own extensions":   {m{"mine": true, "other": 7, "more": "x"}, func(s schemas.Spec) bool { return true }},
		"any unicode id":   {m{"id": "é 日本 \U0001F514 * > . /"}, func(s schemas.Spec) bool { return s.EventID == "é 日本 \U0001F514 * > . /" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := doc(t, c.change)
			body, spec, err := parse(data)
			if err != nil {
				t.Fatal(err)
			}
			if !c.check(spec) {
				t.Errorf("got timer %+v, which is not the expected one", spec)
			}
			if !bytes.Equal(body.Data, data) {
				t.Errorf("got body %q, want the bytes of the add", body.Data)
			}
		})
	}
}

func TestParseAddRefuses(t *testing.T) {
	t.Parallel()
	type m = map[string]any
	long := strings.Repeat("x", 3000)
	for name, c := range map[string]struct {
		data []byte
		code schemas.Code
		says string
	}{
		"empty":              {nil, schemas.CodeInvalidEvent, "empty"},
		"not JSON":           {[]byte("hello"), schemas.CodeInvalidEvent, "JSON"},
		"cut off":            {[]byte(`{"id":"1"`), schemas.CodeInvalidEvent, "malformed"},
		"array":              {[]byte(`[]`), schemas.CodeInvalidEvent, "JSON object"},
		"trailing":           {append(doc(t, nil), 'x'), schemas.CodeInvalidEvent, ""},
		"two objects":        {append(doc(t, nil), doc(t, nil)...), schemas.CodeInvalidEvent, "more after"},
		"twice":              {[]byte(`{"id":"1","id":"2"}`), schemas.CodeInvalidEvent, "duplicate"},
		"not UTF-8":          {[]byte("{\"id\":\"\xff\"}"), schemas.CodeInvalidEvent, "UTF-8"},
		"no id":              {doc(t, m{"-id": 0}), schemas.CodeInvalidEvent, "id is missing"},
		"empty source":       {doc(t, m{"source": ""}), schemas.CodeInvalidEvent, "source"},
		"version 0.3":        {doc(t, m{"specversion": "0.3"}), schemas.CodeInvalidEvent, "specversion"},
		"object attribute":   {doc(t, m{"mine": m{"a": 1}}), schemas.CodeInvalidEvent, "mine"},
		"float attribute":    {doc(t, m{"mine": 1.5}), schemas.CodeInvalidEvent, "mine"},
		"huge integer":       {doc(t, m{"mine": 1 << 40}), schemas.CodeInvalidEvent, "32-bit"},
		"bad name":           {doc(t, m{"Mine": "x"}), schemas.CodeInvalidEvent, "lower-case"},
		"control character":  {doc(t, m{"id": "a\r\nb"}), schemas.CodeInvalidEvent, "character"},
		"long":               {doc(t, m{"subject": long}), schemas.CodeInvalidEvent, "limit"},
		"data twice":         {doc(t, m{"data": 1, "data_base64": "YQ=="}), schemas.CodeInvalidEvent, "both"},
		"bad base64":         {doc(t, m{"data_base64": "%"}), schemas.CodeInvalidEvent, "base64"},
		"no due time":        {doc(t, m{"-timerafter": 0}), schemas.CodeInvalidAttribute, "set one of timerat"},
		"two due times":      {doc(t, m{"timerat": "2030-01-01T00:00:00Z"}), schemas.CodeInvalidAttribute, "both"},
		"negative":           {doc(t, m{"timerafter": "-1s"}), schemas.CodeInvalidAttribute, "negative"},
		"not a duration":     {doc(t, m{"timerafter": "soon"}), schemas.CodeInvalidAttribute, "duration"},
		"months":             {doc(t, m{"timerafter": "P1M"}), schemas.CodeInvalidAttribute, "months"},
		"overflow":           {doc(t, m{"timerafter": "PT1e300S"}), schemas.CodeInvalidAttribute, ""},
		"too far":            {doc(t, m{"timerafter": "900000h"}), schemas.CodeInvalidAttribute, "limit"},
		"year 9999":          {doc(t, m{"-timerafter": 0, "timerat": "9999-12-31T23:59:59Z"}), schemas.CodeInvalidAttribute, "limit"},
		"year 1":             {doc(t, m{"-timerafter": 0, "timerat": "0001-01-01T00:00:00Z"}), schemas.CodeInvalidAttribute, "1970"},
		"no time":            {doc(t, m{"-timerafter": 0, "timerat": "tomorrow"}), schemas.CodeInvalidAttribute, "RFC 3339"},
		"service dot":        {doc(t, m{"timersvc": "a.b"}), schemas.CodeInvalidAttribute, "subject"},
		"service star":       {doc(t, m{"timersvc": "*"}), schemas.CodeInvalidAttribute, "subject"},
		"service gt":         {doc(t, m{"timersvc": ">"}), schemas.CodeInvalidAttribute, "subject"},
		"service empty":      {doc(t, m{"timersvc": ""}), schemas.CodeInvalidAttribute, "subject"},
		"service unicode":    {doc(t, m{"timersvc": "é"}), schemas.CodeInvalidAttribute, "subject"},
		"service long":       {doc(t, m{"timersvc": strings.Repeat("s", 300)}), schemas.CodeInvalidAttribute, "64"},
		"callback scheme":    {doc(t, m{"timercallback": "ftp://x"}), schemas.CodeInvalidAttribute, "https://"},
		"callback host":      {doc(t, m{"timercallback": "http:///x"}), schemas.CodeInvalidAttribute, "host"},
		"callback secret":    {doc(t, m{"timercallback": "http://u:secret@/x"}), schemas.CodeInvalidAttribute, "host"},
		"callback wildcard":  {doc(t, m{"timercallback": "nats:a.>"}), schemas.CodeInvalidAttribute, "wildcard"},
		"callback own":       {doc(t, m{"timercallback": "nats:timers.add"}), schemas.CodeInvalidAttribute, "timers"},
		"callback api":       {doc(t, m{"timercallback": "nats:$JS.API.STREAM.DELETE.X"}), schemas.CodeInvalidAttribute, "$JS"},
		"attempts zero":      {doc(t, m{"timermaxattempts": 0}), schemas.CodeInvalidAttribute, "1000"},
		"attempts many":      {doc(t, m{"timermaxattempts": 1001}), schemas.CodeInvalidAttribute, "1000"},
		"backoff reversed":   {doc(t, m{"timerbackoff": "10m..1s"}), schemas.CodeInvalidAttribute, "below"},
		"backoff zero":       {doc(t, m{"timerbackoff": "0s"}), schemas.CodeInvalidAttribute, "10ms"},
		"timeout long":       {doc(t, m{"timertimeout": "1h"}), schemas.CodeInvalidAttribute, "15m"},
		"group empty":        {doc(t, m{"timergroup": ""}), schemas.CodeInvalidAttribute, "group"},
		"set by Belfry":      {doc(t, m{"timerfired": "x"}), schemas.CodeInvalidAttribute, "set by Belfry"},
		"misspelt":           {doc(t, m{"timercalback": "http://x"}), schemas.CodeInvalidAttribute, "unknown"},
		"large":              {doc(t, m{"data": strings.Repeat("x", 2<<20)}), schemas.CodeTooLarge, "limit"},
		"number for a text":  {doc(t, m{"timerafter": 10}), schemas.CodeInvalidAttribute, "duration"},
		"number for an id":   {doc(t, m{"id": 10}), schemas.CodeInvalidEvent, "string"},
		"deep nesting":       {[]byte(`{"id":` + strings.Repeat("[", 100_000) + `}`), schemas.CodeInvalidEvent, ""},
		"nested too deep":    {[]byte(`{"data":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`), schemas.CodeInvalidEvent, "10000 levels"},
		"byte order mark":    {append([]byte("\ufeff"), doc(t, nil)...), schemas.CodeInvalidEvent, "byte order mark"},
		"no-break space":     {append([]byte("\u00a0"), doc(t, nil)...), schemas.CodeInvalidEvent, "JSON object"},
		"half a pair":        {[]byte(`{"id":"\ud800"}`), schemas.CodeInvalidEvent, "surrogate"},
		"half, in a name":    {[]byte(`{"\udc00":"1"}`), schemas.CodeInvalidEvent, "surrogate"},
		"half, in text":      {[]byte(`{"datacontenttype":"text/plain","data":"\ud800"}`), schemas.CodeInvalidEvent, "surrogate"},
		"half, in base64":    {[]byte(`{"data_base64":"\ud800"}`), schemas.CodeInvalidEvent, "surrogate"},
		"not base64":         {doc(t, m{"data_base64": "*"}), schemas.CodeInvalidEvent, "base64"},
		"base64 number":      {doc(t, m{"data_base64": 1}), schemas.CodeInvalidEvent, "not a string"},
		"data two ways":      {doc(t, m{"data": 1, "data_base64": ""}), schemas.CodeInvalidEvent, "both"},
		"twice, escaped":     {[]byte(`{"id":"1","\u0069d":"2"}`), schemas.CodeInvalidEvent, "duplicate"},
		"twice, null":        {[]byte(`{"mine":null,"mine":null}`), schemas.CodeInvalidEvent, "duplicate"},
		"data twice, alike":  {[]byte(`{"data":1,"data":2}`), schemas.CodeInvalidEvent, "duplicate"},
		"base64 twice":       {[]byte(`{"data_base64":null,"data_base64":""}`), schemas.CodeInvalidEvent, "duplicate"},
		"blank id":           {doc(t, m{"id": " 1"}), schemas.CodeInvalidEvent, "white space"},
		"null id":            {doc(t, m{"id": nil}), schemas.CodeInvalidEvent, "missing"},
		"source, no URI":     {doc(t, m{"source": "%zz"}), schemas.CodeInvalidEvent, "URI"},
		"empty subject":      {doc(t, m{"subject": " "}), schemas.CodeInvalidEvent, "subject is empty"},
		"subject number":     {doc(t, m{"subject": 1}), schemas.CodeInvalidEvent, "subject is not a string"},
		"schema, relative":   {doc(t, m{"dataschema": "x/y"}), schemas.CodeInvalidEvent, "absolute"},
		"media type":         {doc(t, m{"datacontenttype": "text/;"}), schemas.CodeInvalidEvent, "media type"},
		"one-digit hour":     {doc(t, m{"time": "2027-01-15T8:00:00Z"}), schemas.CodeInvalidEvent, "RFC 3339"},
		"at, comma":          {doc(t, m{"-timerafter": 0, "timerat": "2027-01-15T08:00:00,5Z"}), schemas.CodeInvalidAttribute, "RFC 3339"},
		"at, one digit":      {doc(t, m{"-timerafter": 0, "timerat": "2027-01-15T8:00:00Z"}), schemas.CodeInvalidAttribute, "RFC 3339"},
		"at, a number":       {doc(t, m{"-timerafter": 0, "timerat": 1_800_000_000}), schemas.CodeInvalidAttribute, "a time such as"},
		"empty ISO duration": {doc(t, m{"timerafter": "PT"}), schemas.CodeInvalidAttribute, "has no value"},
		"no unit":            {doc(t, m{"timerafter": "10"}), schemas.CodeInvalidAttribute, "without a unit"},
		"negative ISO":       {doc(t, m{"timerafter": "-PT1S"}), schemas.CodeInvalidAttribute, "negative"},
		"noncharacter":       {doc(t, m{"mine": "\ufffe"}), schemas.CodeInvalidEvent, "U+FFFE"},
		"service, boolean":   {doc(t, m{"timersvc": true}), schemas.CodeInvalidAttribute, "string"},
		"callback port":      {doc(t, m{"timercallback": "http://h:70000/"}), schemas.CodeInvalidAttribute, "port"},
		"callback part star": {doc(t, m{"timercallback": "nats:a.b*"}), schemas.CodeInvalidAttribute, "wildcard"},
		"unbalanced nesting": {[]byte(`{"a":{"b":[}}`), schemas.CodeInvalidEvent, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := parse(c.data)
			if got := schemas.CodeOf(err); got != c.code {
				t.Fatalf("got code %q (%v), want %q", got, err, c.code)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("got error %q, want %q in it", err, c.says)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error contains a password: %q", err)
			}
		})
	}
}

func TestBinaryMode(t *testing.T) {
	t.Parallel()
	hdr := nats.Header{
		"ce-specversion": {"1.0"}, "Ce-Id": {"100%25 sure"}, "CE-SOURCE": {"/a b"}, "ce-type": {"t"}, "ce-timerafter": {"1s"},
		"Content-Type": {"text/plain"}, "ce-mine": {"%E2%82%AC"}, "X-Own": {"kept"}, "Nats-Msg-Id": {"dropped"},
	}
	body, spec, err := schemas.ParseAdd(hdr, []byte{0, 1, 2}, added, schemas.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if spec.EventID != "100% sure" || spec.Source != "/a b" {
		t.Errorf("got id %q and source %q, want \"100%% sure\" and \"/a b\"", spec.EventID, spec.Source)
	}
	out, data := body.Message(schemas.Fired{ScheduledMs: added, FiredMs: added + 2, Run: 1, Attempt: 1})
	if !bytes.Equal(data, []byte{0, 1, 2}) || out.Get("X-Own") != "kept" || out.Get("Nats-Msg-Id") != "" || out["ce-mine"][0] != "%E2%82%AC" {
		t.Errorf("got headers %v and data %v, want the data and the user's headers unchanged, without Nats-Msg-Id", out, data)
	}
	e, fspec, f, err := schemas.ParseFired(out, data)
	if err != nil {
		t.Fatal(err)
	}
	if e.Extensions()["mine"] != "€" || f.FiredMs != added+2 || fspec.Hash != spec.Hash || fspec.Timer != spec.Timer || e.DataContentType() != "text/plain" {
		t.Errorf("got event %v, fired %+v, want the timer that was added", e, f)
	}
	for name, h := range map[string]nats.Header{
		"twice":    {"ce-specversion": {"1.0"}, "ce-id": {"1", "2"}},
		"two ways": {"ce-specversion": {"1.0"}, "ce-id": {"1"}, "Ce-Id": {"2"}},
		"newline":  {"ce-specversion": {"1.0"}, "ce-id": {"a%0d%0ab"}},
		"batch":    {"content-type": {"application/cloudevents-batch+json"}},
		"avro":     {"content-type": {"application/cloudevents+avro"}},
	} {
		if _, _, err := schemas.ParseAdd(h, nil, added, schemas.Limits{}); schemas.CodeOf(err) != schemas.CodeInvalidEvent {
			t.Errorf("%s: got error %v, want code invalid_event", name, err)
		}
	}
}

func TestHashIsOfTheTimer(t *testing.T) {
	t.Parallel()
	hash := func(change map[string]any) [16]byte {
		_, s, err := parse(doc(t, change))
		if err != nil {
			t.Fatal(err)
		}
		return s.Hash
	}
	type m = map[string]any
	base := hash(nil)
	if hash(m{"time": "2026-01-01T00:00:00Z", "traceparent": "00-x"}) != base {
		t.Error("a repeated add with another time and traceparent has another hash, want the same")
	}
	for _, c := range []m{{"timerafter": "11s"}, {"data": 1}, {"mine": "x"}, {"type": "u"}, {"timersvc": "x"}} {
		if hash(c) == base {
			t.Errorf("%v does not change the hash, want another hash", c)
		}
	}
	hdr := nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/shop"}, "ce-type": {"t"}, "ce-timerafter": {"10s"}}
	if _, s, err := schemas.ParseAdd(hdr, nil, added, schemas.Limits{}); err != nil || s.Hash != base {
		t.Errorf("the same event in binary mode: got hash %x (%v), want %x", s.Hash, err, base)
	}
}

func TestFiredKeepsTheBytes(t *testing.T) {
	t.Parallel()
	data := []byte(`  {"specversion":"1.0", "id":"x","source":"/s","type":"t","timerafter":"1s",` + "\n" + `"mine":true,"n":5,"data":{"b":[1, 2.50],"a":"}"} } `)
	body, _, err := parse(data)
	if err != nil {
		t.Fatal(err)
	}
	hdr, out := body.Message(schemas.Fired{ScheduledMs: added, FiredMs: added, Run: 1, Attempt: 2})
	want := bytes.TrimSuffix(bytes.TrimSpace(data), []byte("}"))
	if !bytes.HasPrefix(out, want) {
		t.Errorf("got fired event %s, want it to begin with %s", out, want)
	}
	e, _, f, err := schemas.ParseFired(hdr, out)
	if err != nil {
		t.Fatal(err)
	}
	if string(e.Data()) != `{"b":[1, 2.50],"a":"}"}` || e.Extensions()["mine"] != true || e.Extensions()["n"] != int32(5) || f.Attempt != 2 {
		t.Errorf("got event %v, attempt %d, want the data and the extensions of the add, attempt 2", e, f.Attempt)
	}
	var sdk event.Event
	if err := json.Unmarshal(out, &sdk); err != nil {
		t.Fatalf("sdk-go cannot decode the fired event: %v", err)
	}
	back, err := schemas.StripFired(hdr, out)
	if err != nil || !bytes.Equal(back.Data, body.Data) {
		t.Errorf("StripFired of the fired event: got %s (%v), want the bytes of the add", back.Data, err)
	}
	dead, deadOut := body.DeadMessage(schemas.Fired{ScheduledMs: added, FiredMs: added, Run: 1, Attempt: 2}, "exhausted", "line\n\"quoted\" \x00")
	if back, err := schemas.StripFired(dead, deadOut); err != nil || !bytes.Equal(back.Data, body.Data) {
		t.Errorf("StripFired of the dead letter: got %s (%v), want the bytes of the add", back.Data, err)
	}
}

func TestRedaction(t *testing.T) {
	t.Parallel()
	r := schemas.Record{Definition: schemas.Definition{Callback: "https://user:hunter2@example.com/x"}, RunState: schemas.RunState{State: schemas.StatePending}}
	b, err := json.Marshal(schemas.FromRecord(schemas.TimerID{}, &r, 1))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(b, []byte("hunter2")) {
		t.Errorf("got %s, want no password in it", b)
	}
}

func compiler(t testing.TB, name string) *jsonschema.Schema {
	t.Helper()
	raw, err := schemas.Files.ReadFile("json/" + name + ".schema.json")
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("belfry:"+name, v); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("belfry:" + name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func valid(t testing.TB, s *jsonschema.Schema, data []byte) error {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(v)
}

// TestAsyncAPINamesEverySubject leaves out timers.api: router/natsapi compares its verbs.
func TestAsyncAPINamesEverySubject(t *testing.T) {
	t.Parallel()
	raw, err := schemas.Files.ReadFile("asyncapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var api struct {
		AsyncAPI string
		Channels map[string]struct{ Address string }
	}
	if err := yaml.Unmarshal(raw, &api); err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, c := range api.Channels {
		have[c.Address] = true
	}
	want := []string{schemas.SubjectAdd, schemas.SubjectRejected, schemas.SubjectFiredPrefix + "{service}", schemas.SubjectRetryPrefix + "{service}", schemas.SubjectDeadPrefix + "{service}", schemas.SubjectOverduePrefix + "{service}", schemas.SubjectWork("{service}")}
	for _, w := range want {
		if !have[w] {
			t.Errorf("asyncapi.yaml does not describe the subject %s", w)
		}
	}
}

func TestErrorsCompare(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	err := fmt.Errorf("outer: %w", schemas.Errorf(schemas.CodeConflict, "taken: %w", cause))
	if !errors.Is(err, schemas.ErrConflict) || errors.Is(err, schemas.ErrNotFound) || !errors.Is(err, cause) || err.Error() != "outer: taken: cause" {
		t.Errorf("got error %v, want \"outer: taken: cause\", which is ErrConflict and wraps the cause", err)
	}
}

// NoCallback removes the callback at any position in the document, and nothing else.
func TestMessageWithoutCallback(t *testing.T) {
	t.Parallel()
	const rest = `"specversion":"1.0","id":"1","source":"/s","type":"t","timerafter":"1s"`
	const member = `"timercallback":"https://u:hunter2@x.example/?q=\"timercallback\",hunter2"`
	for name, doc := range map[string]string{
		"first":  `{` + member + ` , ` + rest + `}`,
		"middle": `{"specversion":"1.0", ` + member + ` ,"id":"1","source":"/s","type":"t","timerafter":"1s"}`,
		"last":   `{` + rest + `,` + "\n " + member + `}`,
		"nested": `{` + rest + `,"data":{"timercallback":"nats:mine"},` + member + `}`,
		"before": `{` + member + `,` + rest + `,"data":{"timercallback":"nats:mine"}}`,
	} {
		body, spec, err := parse([]byte(doc))
		if err != nil {
			t.Fatalf("ParseAdd of %s: %v", name, err)
		}
		hdr, data := body.Message(schemas.Fired{ScheduledMs: added, FiredMs: added, Run: 1, Attempt: 1, NoCallback: true})
		e, fspec, _, err := schemas.ParseFired(hdr, data)
		if err != nil || fspec.Callback != "" || strings.Contains(string(data), "hunter2") || e.ID() != "1" || e.Type() != "t" || !strings.Contains(spec.Callback, "hunter2") {
			t.Errorf("%s: got (%v)\n%s\nwant the event without its callback", name, err, data)
		}
		if strings.Contains(doc, "nats:mine") != strings.Contains(string(e.Data()), "nats:mine") {
			t.Errorf("%s: got data %s, want only the member of the data itself to stay", name, e.Data())
		}
		back, err := schemas.StripFired(hdr, data)
		if err != nil || strings.Contains(string(back.Data), "hunter2") {
			t.Errorf("%s: StripFired returned %s (%v), want no callback in it", name, back.Data, err)
		}
	}
	body, _, err := schemas.ParseAdd(nats.Header{"CE-TimerCallback": {"https://hunter2.example"}, "ce-id": {"1"}, "ce-source": {"/s"}, "ce-type": {"t"}, "ce-specversion": {"1.0"}, "ce-timerafter": {"1s"}}, []byte("x"), added, schemas.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if hdr, _ := body.Message(schemas.Fired{ScheduledMs: added, FiredMs: added, Run: 1, Attempt: 1, NoCallback: true}); strings.Contains(fmt.Sprint(hdr), "hunter2") {
		t.Errorf("binary mode: got headers %v, want no callback in them", hdr)
	}
}
