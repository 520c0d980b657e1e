package schemas_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"

	"github.com/belfryio/belfry/schemas"
)

// checkEncodeAdd checks that EncodeAdd and sdk-go's encoder make the same add of an event, that
// EncodeValidAdd agrees with ParseAdd about it, and that the event does not change. It reports
// whether the add is accepted.
func checkEncodeAdd(t *testing.T, e event.Event, set []schemas.Setting) bool {
	t.Helper()
	before := fmt.Sprintf("%+v %+v", e, e.Context)
	want, wantErr := encodeBySDK(&e, set)
	got, err := schemas.EncodeAdd(&e, set)
	body, spec, validErr := schemas.EncodeValidAdd(&e, set, added, schemas.Limits{})
	if after := fmt.Sprintf("%+v %+v", e, e.Context); after != before {
		t.Fatalf("the event was changed:\n%s\n%s", before, after)
	}
	if wantErr != nil {
		if schemas.CodeOf(err) != schemas.CodeInvalidEvent || schemas.CodeOf(validErr) != schemas.CodeInvalidEvent {
			t.Fatalf("sdk-go refuses the event (%v); got %v and %v", wantErr, err, validErr)
		}
		return false
	}
	wantBody, wantSpec, wantErr := schemas.ParseAdd(nil, want, added, schemas.Limits{})
	if schemas.CodeOf(validErr) != schemas.CodeOf(wantErr) {
		t.Fatalf("EncodeValidAdd: %v, ParseAdd: %v\n%s", validErr, wantErr, want)
	}
	if err != nil {
		if schemas.CodeOf(err) != schemas.CodeOf(wantErr) {
			t.Fatalf("EncodeAdd: %v, ParseAdd: %v\n%s", err, wantErr, want)
		}
		return false
	}
	ownBody, ownSpec, ownErr := schemas.ParseAdd(nil, got, added, schemas.Limits{})
	if fmt.Sprint(ownErr) != fmt.Sprint(wantErr) || fmt.Sprint(ownErr) != fmt.Sprint(validErr) {
		t.Fatalf("ParseAdd: %v, of sdk-go's encoding: %v, EncodeValidAdd: %v\n%s\n%s", ownErr, wantErr, validErr, got, want)
	}
	if ownErr != nil {
		return false
	}
	if !bytes.Equal(body.Data, got) || !reflect.DeepEqual(ownBody, body) || !reflect.DeepEqual(ownSpec, wantSpec) {
		t.Fatalf("got %+v\n%s, want %+v\n%s", ownSpec, got, wantSpec, want)
	}
	if spec.Hash = wantSpec.Hash; !reflect.DeepEqual(spec, wantSpec) {
		t.Fatalf("EncodeValidAdd returns %+v, want %+v", spec, wantSpec)
	}
	ownEvent, err := ownBody.Event()
	if err != nil {
		t.Fatal(err)
	}
	wantEvent, err := wantBody.Event()
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(ownEvent, wantEvent) {
		t.Fatalf("got %v\n%s, want %v\n%s", ownEvent, got, wantEvent, want)
	}
	return true
}

// texts are attribute values with everything that JSON or CloudEvents treat specially.
var texts = []string{
	"", "x", " x", "order 17", `a"b\c`, "<a href='x'>&amp;</a>", "Größe", "日本語", "🔔", "\u2028\u2029", "a\tb", "\x00", "\x7f", "\u0085",
	"\ufdd0", "\ufffe", "\xff", "<\xff", "é\xc3", "\xed\xa0\x80", "/", "/shop/orders", "/a b", "//host/x", "http://example.com/?q=1#f", "%zz", ":x", "urn:x:1",
	"application/json", "application/json; charset=utf-8", "text/plain", "TEXT/JSON", "application/cloudevents+json", "foo/json", "a+json", "text/plain; x=\"", strings.Repeat("y", 2049),
	"2027-01-01T00:00:00Z", "2027-01-01T00:00:00.123456789+02:00", "10s", "PT1H", "-1s", "1", "nats:a.b", "https://example.com/x", "0 9 * * *", "P1D", "true",
}

var payloads = []string{
	`{}`, `{"a":1}`, " { \"a\" : [ 1 , 2 ] }\n", `"text"`, `"<&>\u2028\\\" x"`, "\"\u2028\u2029 \u2030\"", `null`, `tru`, ``, ` `, `{"a":1}}`, "\"\xff\"", `"\ud800"`, `1e5`, `01`, `[`, `{"a":"` + "\t" + `"}`,
	"plain text\n", "\x00\x01\xff",
}

// randomEvent returns an event of which most attributes are good, and settings.
func randomEvent(r *rand.Rand) (event.Event, []schemas.Setting) {
	pick := func(of []string) string { return of[r.IntN(len(of))] }
	rarely := func() bool { return r.IntN(12) == 0 }
	e := event.New()
	if rarely() {
		e = event.New(event.CloudEventsVersionV03)
	}
	text := func(good string) string {
		if rarely() {
			return pick(texts)
		}
		return good
	}
	e.SetID(text("order-17"))
	e.SetSource(text("/shop"))
	e.SetType(text("order.timeout"))
	if r.IntN(3) == 0 {
		e.SetSubject(text("17"))
	}
	if r.IntN(4) == 0 {
		e.SetTime(time.Unix(r.Int64N(4e9), r.Int64N(1e9)).In(time.FixedZone("", r.IntN(7200))))
	}
	if r.IntN(6) == 0 {
		e.SetDataSchema(text("http://example.com/schema"))
	}
	switch r.IntN(6) {
	case 0:
		e.SetDataContentType(text(event.ApplicationJSON))
	case 1:
		e.SetDataContentType(text(event.TextPlain))
	}
	if r.IntN(3) > 0 {
		e.DataEncoded = []byte(`{"a":1}`)
		if r.IntN(3) == 0 {
			e.DataEncoded = []byte(pick(payloads))
		}
		e.DataBase64 = rarely()
	}
	for range r.IntN(4) {
		name := []string{"mine", "traceparent", "a1", "data", "database64", "timerfoo", "timergroup", schemas.AttrCallback, schemas.AttrMaxAttempts, schemas.AttrBackoff, schemas.AttrFired, "Upper", "id"}[r.IntN(13)]
		var v any = pick(texts)
		switch r.IntN(10) {
		case 0:
			v = r.Int32()
		case 1:
			v = r.IntN(2) == 0
		case 2:
			v = []byte(pick(texts))
		case 3:
			v = types.Timestamp{Time: time.Unix(r.Int64N(4e9), 0)}
		case 4:
			u, err := url.Parse("http://example.com/ü?x=<y>")
			if err == nil {
				v = *u
			}
		case 5:
			v = -1.5
		}
		e.SetExtension(name, v)
	}
	if c, ok := e.Context.(*event.EventContextV1); ok && r.IntN(30) == 0 { // past the setters
		c.Extensions = map[string]any{[]string{"a b", "UP", "id", "", "data_base64", "x"}[r.IntN(6)]: []any{"v", nil, 1.5, int64(1) << 40, int32(1)}[r.IntN(5)]}
	}
	due := []schemas.Setting{{Name: schemas.AttrAt, Value: text("2027-01-01T00:00:00Z")}, {Name: schemas.AttrAfter, Value: text("10s")}, {Name: schemas.AttrCron, Value: text("0 9 * * *")}}
	r.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	set := due[:1]
	if rarely() {
		set = due[:2*r.IntN(2)] // none or two
	}
	for _, s := range []schemas.Setting{
		{Name: schemas.AttrService, Value: text("shop")}, {Name: schemas.AttrKey, Value: text("k")}, {Name: schemas.AttrCallback, Value: text("nats:shop.x")}, {Name: "timergroup", Remove: true},
	} {
		if r.IntN(3) == 0 {
			set = append(set, s)
		}
	}
	return e, set
}

// cloneable reports whether sdk-go's Clone accepts the event's extensions; it panics for others.
func cloneable(e *event.Event) (ok bool) {
	defer func() { ok = recover() == nil }()
	e.Clone()
	return true
}

// TestEncodeAdd: EncodeAdd agrees with sdk-go's encoder, and EncodeValidAdd with ParseAdd.
func TestEncodeAdd(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	accepted := 0
	const n = 5_000
	for range n {
		e, set := randomEvent(r)
		if cloneable(&e) && checkEncodeAdd(t, e, set) {
			accepted++
		}
	}
	if accepted < n/10 || accepted > n*9/10 {
		t.Errorf("%d of %d events were accepted: the events are not varied", accepted, n)
	}
}

// TestEncodeAddDepth: the limit of nested data is that of ParseAdd.
func TestEncodeAddDepth(t *testing.T) {
	t.Parallel()
	for depth, want := range map[int]bool{9_999: true, 10_000: false, 10_001: false} {
		e, set := benchEvent(t)
		e.DataEncoded = []byte(strings.Repeat("[", depth) + strings.Repeat("]", depth))
		if got := checkEncodeAdd(t, e, set); got != want {
			t.Errorf("%d levels: accepted %v, want %v", depth, got, want)
		}
	}
}

func TestEncodeAddWithoutContext(t *testing.T) {
	t.Parallel()
	if _, err := schemas.EncodeAdd(&event.Event{}, nil); schemas.CodeOf(err) != schemas.CodeInvalidEvent {
		t.Error(err)
	}
	if _, _, err := schemas.EncodeValidAdd(&event.Event{}, nil, added, schemas.Limits{}); schemas.CodeOf(err) != schemas.CodeInvalidEvent {
		t.Error(err)
	}
}

func FuzzEncodeAdd(f *testing.F) {
	f.Add("1", "/shop", "t", "", "application/json", []byte(`{"a": "<b>"}`), false, "mine", "v", "10s")
	f.Add("\u2028", "/ü", "t", "s", "text/plain", []byte("a\u2029b"), false, "timergroup", "g", "PT1H")
	f.Add("1", "urn:x", "t", "", "", []byte{0, 255}, true, "a1", "\xff", "")
	f.Fuzz(func(t *testing.T, id, source, typ, subject, contentType string, data []byte, base64 bool, name, value, after string) {
		e := event.New()
		c, ok := e.Context.(*event.EventContextV1)
		if !ok {
			t.Fatal("not a context of version 1.0")
		}
		c.ID, c.Type = id, typ
		if u, err := url.Parse(source); err == nil {
			c.Source.URL = *u
		}
		if subject != "" {
			c.Subject = &subject
		}
		if contentType != "" {
			c.DataContentType = &contentType
		}
		e.DataEncoded, e.DataBase64 = data, base64
		if name != "" {
			c.Extensions = map[string]any{name: value}
		}
		checkEncodeAdd(t, e, []schemas.Setting{{Name: schemas.AttrAfter, Value: after}})
	})
}

// TestEncodeAddAllocations: an add is one allocation, its message.
func TestEncodeAddAllocations(t *testing.T) {
	e, set := benchEvent(t)
	n := testing.AllocsPerRun(200, func() {
		if _, _, err := schemas.EncodeValidAdd(&e, set, added, schemas.Limits{}); err != nil {
			t.Fatal(err)
		}
	})
	if n > 2 { // with the race detector the pool of encoders loses some
		t.Errorf("%.1f allocations, want 1", n)
	}
}
