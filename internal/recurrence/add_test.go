package recurrence_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/schemas"
)

// TestParseAdd: an add that is accepted has a first run, and a recurrence that never fires
// is refused with a text that says what to write.
func TestParseAdd(t *testing.T) {
	t.Parallel()
	at := func(s string) int64 {
		t.Helper()
		ms, err := schemas.ParseTime(s)
		if err != nil {
			t.Fatal(err)
		}
		return ms
	}
	added := at("2027-03-27T12:00:00.5Z")
	type m = map[string]string
	parse := func(attrs m) (schemas.Record, schemas.Spec, error) {
		t.Helper()
		all := m{"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
		for name, v := range attrs {
			all[name] = v
		}
		data, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		return recurrence.ParseAdd(nil, data, added, schemas.Limits{MaxHorizon: 366 * 24 * time.Hour}, nil)
	}
	for _, c := range []struct {
		attrs   m
		nominal string
	}{
		{m{"timercron": "30 2 * * *", "timertz": "Europe/Berlin"}, "2027-03-28T01:00:00Z"}, // 02:30 does not exist that day
		{m{"timercron": "30 2 * * *"}, "2027-03-28T02:30:00Z"},
		{m{"timercron": "* * * * * *"}, "2027-03-27T12:00:01Z"},
		{m{"timerevery": "90m"}, "2027-03-27T13:30:00.5Z"},
		{m{"timerevery": "90m", "timerstart": "2027-03-01T00:00:00Z"}, "2027-03-27T13:30:00Z"},
		{m{"timerevery": "P1M", "timerstart": "2027-03-31T09:00:00Z"}, "2027-03-31T09:00:00Z"},
		{m{"timercron": "0 9 * * *", "timerstart": "2027-06-01T00:00:00Z", "timerend": "2027-06-01T09:00:00Z"}, "2027-06-01T09:00:00Z"},
	} {
		rec, spec, err := parse(c.attrs)
		if err != nil {
			t.Errorf("%v: %v", c.attrs, err)
			continue
		}
		want := at(c.nominal)
		if rec.Schedule.NextMs != want || rec.ScheduledMs != want || rec.DueMs != want || rec.Schedule.NextDueMs != want || spec.DueMs != want {
			t.Errorf("%v: the first run is at %s, due at %s; want %s", c.attrs, schemas.FormatTime(rec.ScheduledMs), schemas.FormatTime(rec.DueMs), c.nominal)
		}
		if rec.State != schemas.StatePending || !rec.Queued || rec.Run != 1 || rec.FiredMs != 0 || rec.Moves != 0 {
			t.Errorf("%v: the record is %+v", c.attrs, rec.RunState)
		}
	}
	_, spec, err := parse(m{"timercron": "0 9 * * *", "timerjitter": "1h"})
	if nominal := at("2027-03-28T09:00:00Z"); err != nil || spec.DueMs < nominal || spec.DueMs >= nominal+3_600_000 {
		t.Errorf("with jitter the first run is due at %s (%v)", schemas.FormatTime(spec.DueMs), err)
	}
	if _, spec, err := parse(m{"timerafter": "1s"}); err != nil || spec.Recurrence != nil || spec.DueMs != added+1000 {
		t.Errorf("a one-shot timer: %+v %v", spec, err)
	}
	for _, c := range []struct {
		attrs m
		says  string
	}{
		{m{"timercron": "0 9 * *"}, "timercron"},
		{m{"timercron": "CRON_TZ=UTC 0 9 * * *"}, "timertz"},
		{m{"timercron": "@every 5m"}, "timerevery 5m"},
		{m{"timercron": "0 0 30 2 *"}, "timercron"},
		{m{"timercron": "0 9 1 * MON"}, "timerdays"},
		{m{"timercron": "0 9 * * *", "timertz": "CET"}, "Europe/Berlin"},
		{m{"timercron": "0 9 * * *", "timerdst": "gap"}, "timerdst"},
		{m{"timercron": "0 9 1 * MON", "timerdays": "both"}, "timerdays"},
		{m{"timerevery": "1d"}, "P1D"},
		{m{"timerevery": "100ms"}, "1s"},
		{m{"timerevery": "P1D", "timerdays": "or"}, "remove timerdays"},
		{m{"timercron": "0 9 * * *", "timerend": "2027-03-27T13:00:00Z"}, "check timerstart, timerend and timerexclude"},
		{m{"timercron": "0 9 * * *", "timerstart": "2029-01-01T00:00:00Z"}, "2029-01-01T09:00:00.000Z, further ahead than the limit of 366 days"},
	} {
		if _, _, err := parse(c.attrs); schemas.CodeOf(err) != schemas.CodeInvalidAttribute || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v; want an error that says %q", c.attrs, err, c.says)
		}
	}
}
