package schemas

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// agrees checks that the scanner and encoding/json accept the same objects and read the
// same names and strings.
func agrees(t *testing.T, raw []byte) {
	t.Helper()
	type member struct{ name, value string }
	var got []member
	err := eachMember(raw, func(name, value []byte) error {
		got = append(got, member{string(name), string(value)})
		return nil
	})
	if !utf8.Valid(raw) { // parseStructured rejects it earlier
		return
	}
	object := bytes.HasPrefix(bytes.TrimLeft(raw, jsonSpace), []byte("{"))
	if err != nil {
		if object && json.Valid(raw) && !strings.Contains(err.Error(), "surrogate") {
			t.Fatalf("eachMember rejects valid JSON: %v: %.200q", err, raw)
		}
		return
	}
	if !object || !json.Valid(raw) {
		t.Fatalf("eachMember accepts text that is not a valid JSON object: %.200q", raw)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if _, err := dec.Token(); err != nil {
		t.Fatal(err)
	}
	for _, m := range got {
		name, err := dec.Token()
		if err != nil || name != m.name {
			t.Fatalf("got name %q, want %v, as from encoding/json (%v)", m.name, name, err)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil || string(value) != m.value {
			t.Fatalf("got value %q, want %q, as from encoding/json (%v)", m.value, value, err)
		}
		if value[0] != '"' {
			continue
		}
		var want string
		if err := json.Unmarshal(value, &want); err != nil {
			t.Fatal(err)
		}
		if text, ok := unquote(value); ok && text != want || !ok && !strings.Contains(want, "\ufffd") {
			t.Fatalf("unquote(%s): got %q (%v), want %q, as from encoding/json", value, text, ok, want)
		}
		var back string
		if err := json.Unmarshal(quote(nil, want), &back); err != nil || back != want {
			t.Fatalf("quote(%q): got %s, which encoding/json decodes as %q (%v)", want, quote(nil, want), back, err)
		}
	}
	if dec.More() {
		t.Fatalf("eachMember left out members of %.200q", raw)
	}
}

var scannerSeeds = []string{
	`{}`, `{ }`, ` { "a" : 1 , "b":[ ] }` + "\r\n\t", `{"a":1,}`, `{,}`, `{"a"}`, `{"a":}`, `{a:1}`, `{"a":1 "b":2}`, `{"a":1}}`, `{"a":1} x`, `[]`, `"a"`, ``, `{`, `{"`, `{"a":"\`,
	`{"a":0,"b":-0,"c":1e5,"d":1.5E-7,"e":-12.0e+3}`, `{"a":01}`, `{"a":1.}`, `{"a":.5}`, `{"a":+1}`, `{"a":-}`, `{"a":1e}`, `{"a":1e+}`, `{"a":0x1}`, `{"a":NaN}`,
	`{"a":true,"b":false,"c":null}`, `{"a":tru}`, `{"a":True}`, `{"a":nullx}`,
	`{"\u0069\u0064":"1","a\"b":"\"\\\/\b\f\n\r\t\u00e9\ud83d\udd14"}`, `{"a":"\ud800"}`, `{"a":"\udc00\ud800"}`, `{"a":"\ud800\u0041"}`, `{"a":"\ud800\ud800\udc00"}`, `{"\ud800":1}`, `{"a":"\ud800x"}`, `{"a":"\uD83D\n"}`,
	`{"a":"\x41"}`, `{"a":"\u12"}`, `{"a":"\u12G4"}`, "{\"a\":\"\n\"}", "{\"a\":\"\x00\"}", "{\"a\":\"\x7f\"}", "{\"a\":\"\u2028\ufffd\"}",
	`{"a":{"b":[}}`, `{"a":[1,2,{"b":{}}]}`, `{"a":[1 2]}`, `{"a":[1,]}`, `{"a":{"b"}}`, `{"a":1,"a":2}`, "\u00a0{}", "\v{}", "\ufeff{}",
}

func TestScannerAgreesWithEncodingJSON(t *testing.T) {
	t.Parallel()
	for _, s := range scannerSeeds {
		agrees(t, []byte(s))
		// Most truncations and changed bytes make the document malformed.
		for i := range len(s) {
			agrees(t, []byte(s[:i]))
			for _, c := range []byte("\"\\{}[],:0 \x00u") {
				b := []byte(s)
				b[i] = c
				agrees(t, b)
			}
		}
	}
	for _, depth := range []int{maxDepth - 2, maxDepth - 1, maxDepth, maxDepth + 1, 100 * maxDepth} {
		agrees(t, []byte(`{"a":`+strings.Repeat("[", depth)+strings.Repeat("]", depth)+`}`))
		agrees(t, []byte(strings.Repeat(`{"a":`, depth)+"1"+strings.Repeat("}", depth)))
	}
}

func FuzzScanner(f *testing.F) {
	for _, s := range scannerSeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(agrees)
}

func FuzzDecodeHeader(f *testing.F) {
	for _, s := range []string{"", "a b", "100%", "%41", "%", "%4", "\"a\\\"b\"", "\"", "\"a\"b", "é", "\x00\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e := EncodeHeader(s)
		if got := decodeHeader(e); got != s {
			t.Fatalf("%q is encoded as %q and decoded as %q, want the same text", s, e, got)
		}
		for i := range len(e) {
			if e[i] <= ' ' || e[i] > '~' || e[i] == '"' {
				t.Fatalf("%q is encoded as %q, want only printable ASCII without spaces and quotes", s, e)
			}
		}
		decodeHeader(s)
	})
}
