package schemas_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

// exported adds an event at addedMs, changes its record, and exports it an hour later.
func exported(t *testing.T, hdr nats.Header, data string, change func(*schemas.Record)) (info schemas.ExportInfo, now schemas.Spec) {
	t.Helper()
	const addedMs = 1_800_000_000_000
	body, spec, err := schemas.ParseAdd(hdr, []byte(data), addedMs, schemas.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	rec := schemas.NewRecord(&spec, body, addedMs)
	if change != nil {
		change(&rec)
	}
	info, err = rec.Export(spec.Timer, 7, addedMs+time.Hour.Milliseconds())
	if err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(string(info.Event), "\n\r") || !json.Valid(info.Event) {
		t.Fatalf("the event is not one line of JSON: %s", info.Event)
	}
	if _, now, err = schemas.ParseAdd(nil, info.Event, addedMs, schemas.Limits{}); err != nil {
		t.Fatalf("the event cannot be added again: %v: %s", err, info.Event)
	}
	if info.Hash != fmt.Sprintf("%x", spec.Hash) || info.Revision != 7 || now.Timer != spec.Timer {
		t.Errorf("got %+v of %+v", info, spec)
	}
	return info, now
}

// TestExportIsTheEvent: an event with an absolute due time is exported as the same event, in either
// mode and with any data.
func TestExportIsTheEvent(t *testing.T) {
	t.Parallel()
	binary := func(more ...string) nats.Header {
		h := nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"a \" b"}, "ce-source": {"/s"}, "ce-type": {"t"}, "Ce-Timerat": {"2030-01-01T00:00:00Z"}, "ce-color": {"r%C3%B6t"}}
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = []string{more[i+1]}
		}
		return h
	}
	const start = `{"specversion":"1.0","id":"a","source":"/s","type":"t","timerat":"2030-01-01T00:00:00Z"`
	for name, x := range map[string]struct {
		hdr  nats.Header
		data string
		lost []string
	}{
		"structured":          {nil, start + `,"n":7,"flag":true,"data":{"a":1.50,"b":"\u00e4\n"}}`, nil},
		"base64":              {nil, start + `,"data_base64":"AAECAw=="}`, nil},
		"text":                {nil, start + `,"datacontenttype":"text/plain","data":"two\nlines"}`, nil},
		"no data":             {nil, start + `,"data":null,"timergroup":null}`, nil},
		"headers":             {nats.Header{"X-Mine": {"1"}}, start + `}`, []string{schemas.LostHeaders}},
		"binary JSON":         {binary("content-type", "application/json"), `{"a":1.50}`, nil},
		"binary without type": {binary(), `{"a":1.50}`, nil},
		"binary text":         {binary("content-type", "text/plain"), "two\nlines \"q\"", nil},
		"binary bytes":        {binary("content-type", "image/png", "X-Mine", "1"), "\x00\xff", []string{schemas.LostHeaders}},
		"binary, not JSON":    {binary("content-type", "application/json"), "\x00\xff", nil},
		"binary, no data":     {binary(), "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			info, again := exported(t, x.hdr, x.data, nil)
			if fmt.Sprintf("%x", again.Hash) != info.Hash || !slices.Equal(info.Lost, x.lost) {
				t.Errorf("got another event, or lost %s, want %s: %s", info.Lost, x.lost, info.Event)
			}
		})
	}
	lines, _ := exported(t, nil, start+`,"data":{`+"\r\n  \"a\": 1\n"+`}}`, nil)
	if !slices.Equal(lines.Lost, []string{schemas.LostSpaces}) || !strings.Contains(string(lines.Event), `"data":{"a":1}`) {
		t.Errorf("data with line breaks: lost %s: %s", lines.Lost, lines.Event)
	}
}

// TestExportIsAbsolute: relative times become absolute, and what the event cannot say is named.
func TestExportIsAbsolute(t *testing.T) {
	t.Parallel()
	const start = `{"specversion":"1.0","id":"a","source":"/s","type":"t"`
	has := func(name string, info schemas.ExportInfo, lost string, want ...string) {
		t.Helper()
		for _, w := range want {
			absent, no := strings.CutPrefix(w, "!")
			if strings.Contains(string(info.Event), absent) == no {
				t.Errorf("%s: want %s in %s", name, w, info.Event)
			}
		}
		if got := strings.Join(info.Lost, " "); got != lost {
			t.Errorf("%s: lost %q, want %q", name, got, lost)
		}
	}
	info, _ := exported(t, nil, start+`,"timerafter":"2h"}`, nil)
	has("after", info, "", `"timerat":"2027-01-15T10:00:00.000Z"`, "!timerafter", "!belfrystate")
	info, _ = exported(t, nil, start+`,"timerat":"2030-01-01T00:00:00Z"}`, func(r *schemas.Record) {
		if err := r.Reschedule(1_900_000_000_000, 1_800_000_000_000, schemas.Caller{}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Pause(1_800_000_000_000, `why "not"`, schemas.Caller{}); err != nil {
			t.Fatal(err)
		}
	})
	has("moved and paused", info, "history", `"timerat":"2030-03-17T17:46:40.000Z"`, "!2030-01-01", `"belfrystate":"paused","belfrynote":"why \"not\""`)
	info, _ = exported(t, nil, start+`,"timerevery":"15m","timerlimit":"9"}`, func(r *schemas.Record) {
		s := r.Schedule
		s.Fired, s.Last.Run, s.NextMs, s.PauseNote = 4, 4, 1_800_000_900_000, "hot"
		r.State, s.Waiting, s.Backfill, s.Manual = schemas.StatePaused, &schemas.WaitingRun{}, &schemas.Backfill{}, []schemas.ManualRun{{}}
	})
	has("period", info, "backfill missed runs triggers waiting", `"timerevery":"15m"`, `"timerstart":"2027-01-15T08:00:00.000Z"`, `"timerlimit":"5"`, `!"9"`, `"belfrynote":"hot"`)
	info, _ = exported(t, nil, start+`,"timercron":"0 9 * * *","timerstart":"2029-01-01T00:00:00Z","timerlimit":"9"}`, nil)
	has("cron", info, "", `"timerstart":"2029-01-01T00:00:00Z"`, `"timerlimit":"9"`)
	info, _ = exported(t, nil, start+`,"timerafter":"2h","timercallback":"https://u:p@x.example/?k=1"}`, func(r *schemas.Record) { r.State, r.Attempt = schemas.StateRetrying, 2 })
	has("retrying", info, "attempts", "https://u:p@x.example/?k=1")
}

// TestExportWithoutEvent: a record whose event is gone has none.
func TestExportWithoutEvent(t *testing.T) {
	t.Parallel()
	rec := schemas.Record{RunState: schemas.RunState{State: schemas.StateSuccess}}
	if info, err := rec.Export(schemas.TimerID{}, 1, 0); err != nil || info.Event != nil || info.State != schemas.StateSuccess {
		t.Errorf("got %+v, %v", info, err)
	}
	rec.Body = schemas.Body{Mode: schemas.ModeStructured, Data: []byte("{")}
	if _, err := rec.Export(schemas.TimerID{}, 1, 0); err == nil {
		t.Error("a damaged event: no error")
	}
}
