package strictjson_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/strictjson"
)

type named struct {
	ID string `json:"id"`
}

type request struct {
	named
	Limit   int               `json:"limit,omitempty"`
	Items   []named           `json:"items"`
	One     *named            `json:"one"`
	Labels  map[string]string `json:"labels"`
	At      time.Time         `json:"at"`
	Raw     json.RawMessage   `json:"raw"`
	Any     any               `json:"any"`
	Hidden  string            `json:"-"`
	private string
	Plain   bool
}

func TestCheck(t *testing.T) {
	t.Parallel()
	_ = request{}.private // encoding/json ignores it, and so does Check
	for text, want := range map[string]string{
		`{}`: "",
		`{"id":"1","limit":2,"items":[{"id":"1"},{"id":"1"}],"one":{"id":"1"},"labels":{"a":"1","A":"2"},"at":"2027-01-01T00:00:00Z","raw":{"x":1,"x":1},"any":{"x":1},"Plain":true}`: "",
		`{"items":null,"one":null,"labels":null}`: "",
		`{"Limit":1}`:                    `/Limit: unknown field "Limit"`,
		`{"ID":"1"}`:                     `/ID: unknown field "ID"`,
		`{"limit":1,"LIMIT":1}`:          `/LIMIT: unknown field "LIMIT"`,
		`{"limit":1,"limit":1}`:          `/limit: field "limit" twice`,
		`{"plain":true}`:                 `/plain: unknown field "plain"`,
		`{"Hidden":"1"}`:                 `/Hidden: unknown field "Hidden"`,
		`{"private":"1"}`:                `/private: unknown field "private"`,
		`{"named":{"id":"1"}}`:           `/named: unknown field "named"`,
		`{"items":[{"id":"1"},{"x":1}]}`: `/items/x: unknown field "x"`,
		`{"one":{"id":"1","id":"2"}}`:    `/one/id: field "id" twice`,
		`{"labels":{"a":"1","a":"2"}}`:   `/labels/a: field "a" twice`,
		// What does not fit is for json.Unmarshal.
		`{"limit":`: "", `[]`: "", `7`: "", ``: "", `{"items":{"x":1}}`: "", `{"one":[1]}`: "", `{"limit":{"x":1}}`: "",
		strings.Repeat("[", 1<<20):             "",
		`{"any":` + strings.Repeat("[", 1<<20): "",
	} {
		got := ""
		if err := strictjson.Check([]byte(text), new(request)); err != nil {
			got = "/" + strings.Join(append(err.Path, err.Name), "/") + ": " + err.Error()
		}
		if got != want {
			t.Errorf("%.80s: got %s, want %s", text, got, want)
		}
	}
	if err := strictjson.Check([]byte(`{"x":1}`), new(named)); strings.Join(err.Fields, " ") != "id" {
		t.Errorf("got fields %v, want id", err.Fields)
	}
}
