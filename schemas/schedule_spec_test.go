package schemas_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/belfryio/belfry/schemas"
)

// TestScheduleAttributes: ParseAdd reads the attributes of a schedule, and refuses each
// mistake with a text that says what to write.
func TestScheduleAttributes(t *testing.T) {
	t.Parallel()
	type m = map[string]any
	full := m{
		"timerevery": "P1D", "timertz": "Europe/Berlin", "timerstart": "2027-02-01T08:00:00.0001Z", "timerend": "2028-02-01T08:00:00Z", "timerlimit": 4294967295, "timerjitter": "PT1M",
		"timerdst": "gap=skip", "timermisfire": "skip", "timergrace": "1s", "timeroverlap": "queue", "timerexpect": "PT30M", "timercallback": "nats:reports",
	}
	full["timerlimit"] = "4294967295" // larger than an integer of CloudEvents
	fullDays := m{"timercron": "0 9 1 * MON", "timerdays": "or", "timermisfire": "all", "timeroverlap": "replace", "timerjitter": "24h"}
	for name, c := range map[string]struct {
		change m
		want   schemas.Recurrence
	}{
		"cron":  {m{"timercron": "30 2 * * *"}, schemas.Recurrence{Cron: "30 2 * * *"}},
		"every": {m{"timerevery": "90m", "timermisfire": "one", "timeroverlap": "skip", "timerat": nil}, schemas.Recurrence{Every: "90m"}},
		"full": {full, schemas.Recurrence{
			Every: "P1D", Zone: "Europe/Berlin", StartMs: 1_801_468_800_001, EndMs: 1_833_004_800_000, Limit: 1<<32 - 1, JitterMs: 60_000, DST: "gap=skip",
			Misfire: schemas.MisfireSkip, GraceMs: 1000, Overlap: schemas.OverlapQueue, ExpectMs: 1_800_000,
		}},
		"days": {fullDays, schemas.Recurrence{Cron: "0 9 1 * MON", Days: "or", Misfire: schemas.MisfireAll, Overlap: schemas.OverlapReplace, JitterMs: 86_400_000}},
	} {
		c.change["-timerafter"] = 0
		body, spec, err := parse(doc(t, c.change))
		if err != nil || spec.Recurrence == nil || !reflect.DeepEqual(*spec.Recurrence, c.want) || spec.DueMs != 0 {
			t.Errorf("%s: %+v %v, want %+v", name, spec.Recurrence, err, c.want)
			continue
		}
		rec := schemas.NewRecord(&spec, body, added)
		anchor := added
		if c.want.StartMs != 0 {
			anchor = c.want.StartMs
		}
		if want := (&schemas.Schedule{Recurrence: c.want, Progress: schemas.Progress{AnchorMs: anchor}}); !reflect.DeepEqual(rec.Schedule, want) {
			t.Errorf("%s: the record has %+v, want %+v", name, rec.Schedule, want)
		}
		again, err := schemas.DecodeRecord(rec.Append(nil))
		if err != nil || !reflect.DeepEqual(again.Schedule, rec.Schedule) {
			t.Errorf("%s: the record is read as %+v (%v)", name, again.Schedule, err)
		}
		checkAccepted(t, body, spec)
		checkFits(t, body, spec, schemas.DefaultLimitMessage)
	}
	cron := func(name string, v any, more ...any) m {
		c := m{"-timerafter": 0, "timercron": "0 9 * * *", name: v}
		for i := 0; i < len(more); i += 2 {
			c[more[i].(string)] = more[i+1]
		}
		return c
	}
	for name, c := range map[string]struct {
		change m
		says   string
	}{
		"nothing":           {m{"-timerafter": 0}, "set one of timerat, timerafter, timercron and timerevery"},
		"cron and after":    {m{"timercron": "0 9 * * *"}, "timerafter and timercron are both set; set only one of them: timerafter for a timer that fires once, timercron for a schedule, which may begin at timerstart"},
		"every and at":      {m{"-timerafter": 0, "timerat": "2030-01-01T00:00:00Z", "timerevery": "1h"}, "timerat and timerevery are both set"},
		"cron and every":    {m{"-timerafter": 0, "timercron": "0 9 * * *", "timerevery": "1h"}, "timercron and timerevery are both set; set only one of them"},
		"zone alone":        {m{"timertz": "Europe/Berlin"}, "write the offset in timerat"},
		"start alone":       {m{"timerstart": "2030-01-01T00:00:00Z"}, "write the time in timerat"},
		"end alone":         {m{"timerend": "2030-01-01T00:00:00Z"}, "remove it"},
		"limit alone":       {m{"timerlimit": 3}, "fires once"},
		"jitter alone":      {m{"timerjitter": "1s"}, "add it to timerat or timerafter"},
		"dst alone":         {m{"timerdst": "auto"}, "set timercron or timerevery"},
		"days alone":        {m{"timerdays": "or"}, "set timercron or timerevery"},
		"misfire alone":     {m{"timermisfire": "all"}, "set timercron or timerevery"},
		"grace alone":       {m{"timergrace": "1m"}, "set timercron or timerevery"},
		"overlap alone":     {m{"timeroverlap": "skip"}, "set timercron or timerevery"},
		"cron empty":        {m{"-timerafter": 0, "timercron": " "}, `write an expression such as "30 2 * * *"`},
		"every empty":       {m{"-timerafter": 0, "timerevery": ""}, "write a period such as PT15M or P1D"},
		"cron long":         {m{"-timerafter": 0, "timercron": strings.Repeat("1,", 200) + "1 * * * *"}, "the limit is 256"},
		"cron not a string": {m{"-timerafter": 0, "timercron": 5}, `an expression such as "30 2 * * *"`},
		"zone empty":        {cron("timertz", ""), "empty; leave it out"},
		"zone long":         {cron("timertz", strings.Repeat("x", 300)), "the limit is 256"},
		"start, no time":    {cron("timerstart", "tomorrow"), "RFC 3339"},
		"start 1970":        {cron("timerstart", "1970-01-01T00:00:00Z"), "before 1970"},
		"end before start":  {m{"-timerafter": 0, "timercron": "0 9 * * *", "timerstart": "2030-01-01T00:00:00Z", "timerend": "2029-01-01T00:00:00Z"}, "before timerstart, 2030-01-01T00:00:00.000Z"},
		"limit 0":           {cron("timerlimit", 0), "from 1 to 4294967295"},
		"limit large":       {cron("timerlimit", "4294967296"), "from 1 to 4294967295"},
		"limit boolean":     {cron("timerlimit", true), "must be a string"},
		"jitter negative":   {cron("timerjitter", "-1s"), "0s or more"},
		"jitter long":       {cron("timerjitter", "25h"), "24h or less"},
		"jitter fine":       {cron("timerjitter", "1us"), "round it"},
		"jitter, no unit":   {cron("timerjitter", "30"), "without a unit"},
		"grace short":       {cron("timergrace", "999ms"), "1s or more"},
		"expect short":      {cron("timerexpect", "999ms"), "1s or more"},
		"expect long":       {cron("timerexpect", "745h"), "744h or less"},
		"expect and jitter": {cron("timerexpect", "1m", "timerjitter", "1m"), "longer than timerjitter"},
		"expect alone":      {cron("timerexpect", "1m"), "needs timercallback"},
		"misfire":           {cron("timermisfire", "none"), "one, all or skip"},
		"overlap":           {cron("timeroverlap", "none"), "skip, queue, allow or replace"},
	} {
		_, _, err := parse(doc(t, c.change))
		if schemas.CodeOf(err) != schemas.CodeInvalidAttribute || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want an error that says %q", name, err, c.says)
		}
		if err != nil {
			checkRefusal(t, err)
		}
	}
}
