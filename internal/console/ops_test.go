package console_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
)

var letterField = regexp.MustCompile(`name="letter" value="(\d+)"`)

// letters returns the sequences of the dead letters on a page.
func (p page) letters() (all []string) {
	for _, m := range letterField.FindAllStringSubmatch(p.body, -1) {
		all = append(all, m[1])
	}
	return all
}

// letterOf waits for a dead letter of a service, and returns its sequence.
func (b *browser) letterOf(t *testing.T, service string) string {
	t.Helper()
	var all []string
	waittest.Until(t, "there is a dead letter of "+service, func() bool {
		all = b.get(t, "/dead?service="+service).letters()
		return len(all) > 0
	})
	return all[0]
}

// batch adds n timers of a service, due in an hour, with the ids <service>-0 and so on.
func (b *browser) batch(t *testing.T, service, more string, n int) {
	t.Helper()
	for first := 0; first < n; first += 500 {
		var events []string
		for i := first; i < min(first+500, n); i++ {
			events = append(events, fmt.Sprintf(`{"specversion":"1.0","id":"%s-%d","source":"/batch","type":"t","timerafter":"1h","timersvc":"%s"%s}`, service, i, service, more))
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.base+"/v1/events", strings.NewReader("["+strings.Join(events, ",")+"]"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/cloudevents-batch+json")
		waittest.Until(t, "the batch is stored", func() bool { // on a busy machine some events may need another try
			r.Body = io.NopCloser(strings.NewReader("[" + strings.Join(events, ",") + "]"))
			return b.do(t, r).status == http.StatusOK
		})
	}
}

// failed waits until n timers of a service have failed: a dead letter is there before the record says so, and cannot be
// replayed until then.
func (b *browser) failed(t *testing.T, service string, n int) {
	t.Helper()
	waittest.Until(t, "the records have the failures", func() bool {
		return strings.Count(b.get(t, "/timers?state=fail&service="+service).body, "state fail") == n
	})
}

// gone returns the address of a target that answers 410, so that one attempt makes a dead letter.
func gone(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) }))
	t.Cleanup(s.Close)
	return s.URL
}

// testDiscard: dead letters are grouped by cause and callback host; a group is replayed at a rate; selected
// ones are discarded after a page that says which.
func testDiscard(t *testing.T, b *browser) {
	first, second := gone(t), gone(t)
	for i, target := range []string{first, first, first, second} {
		b.add(t, "in", "1ms", "svc", "doomed", "id", fmt.Sprint("doomed-", i), "callback", target)
	}
	b.failed(t, "doomed", 4)
	p := b.get(t, "/dead?service=doomed")
	p.want(t, 200, "Replay these 3", "Replay these 1", strings.TrimPrefix(first, "http://"), strings.TrimPrefix(second, "http://"))
	host := strings.TrimPrefix(first, "http://")
	letters := b.get(t, "/dead?service=doomed&host="+host).letters()
	if len(letters) != 3 {
		t.Fatalf("got letters %v of host %s, want 3", letters, host)
	}
	b.post(t, "/dead/discard", form("letter", letters[0])).want(t, 200, "Discard 1 dead letters?", "doomed-", "cannot be replayed any more")
	if got := b.get(t, "/dead?service=doomed").letters(); len(got) != 4 {
		t.Errorf("the page before has discarded: %d letters are left", len(got))
	}
	b.post(t, "/dead/discard", form("letter", letters[0], "confirm", "yes")).want(t, 200, "1 dead letters are discarded")
	b.post(t, "/dead/discard", form("letter", letters[0])).want(t, 200, "Discard 0 dead letters?").without(t, ">Discard them<")
	b.post(t, "/dead/replay", form("letter", letters[1], "letter", letters[2], "rate", "1/h")).want(t, 200, "2 dead letters are replayed", "The last is called at")
	waittest.Until(t, "one is called now, and the other waits for an hour", func() bool {
		p = b.get(t, "/timers?service=doomed&state=retrying")
		return strings.Count(p.body, "state retrying") == 1
	}, func() string { return p.body })
	b.post(t, "/dead/replay", form("letter", letters[1], "rate", "nonsense")).want(t, 400, "nonsense")
	if got := b.letterOf(t, "doomed"); got == letters[0] {
		t.Errorf("letter %s was discarded, and is there", got)
	}
}

// testBulk: selected timers, and all that a filter selects, are rescheduled and cancelled after a page that
// says which, in steps that say how far they are.
func testBulk(t *testing.T, b *browser) {
	const n = 320 // more than a step
	b.batch(t, "many", `,"timergroup":"many"`, n)
	one := b.add(t, "in", "1h", "svc", "few", "id", "few-1").timer(t)
	b.listed(t, "/timers?service=many", "many-")
	b.get(t, "/timers?service=many").want(t, 200, "Reschedule the selected", "Cancel all that match", "Reschedule all that match")
	b.get(t, "/timers?service=many&state=success").want(t, 200).without(t, "all that match")

	b.post(t, "/timers/reschedule", form("timer", one, "in", "2h")).want(t, 200, "Reschedule 1 timers?", "The new due time is")
	const at = "2033-12-24T18:00:00.000Z"
	b.post(t, "/timers/reschedule", form("timer", one, "at", at, "confirm", "yes")).want(t, 200, "1 timers are rescheduled")
	b.get(t, "/timers/"+one).want(t, 200, "2033-12-24 18:00:00")
	b.post(t, "/timers/reschedule", form("timer", one)).want(t, 400, "in or at")

	// A step ends after some time, too, so the page before may show fewer on a busy machine.
	b.post(t, "/timers/reschedule-all", form("service", "many", "at", at)).want(t, 200, "or more timers?", "They will be due at "+at, "many-", "Reschedule them")
	if body := b.get(t, "/timers?service=many").body; strings.Contains(body, "2033-12-24 18:00:00") {
		t.Errorf("the page before has changed something: %s", body)
	}
	steps := func(path string, fields ...string) {
		t.Helper()
		f, whole := form(append(fields, "confirm", "yes")...), true
		for i := 0; ; i++ {
			p := b.post(t, path, f).want(t, 200)
			whole = whole && !strings.Contains(p.body, `class="problem"`) // a call that took too long is not counted
			done := hidden(p, "done")
			if done == "" {
				if whole {
					p.want(t, 200, fmt.Sprint(n, " timers are "))
				}
				if i == 0 {
					t.Errorf("%s: %d timers were changed in one step, want several", path, n)
				}
				return
			}
			p.want(t, 200, "Go on with the others", done+" done")
			for _, name := range []string{"done", "refused", "cursor"} {
				f.Set(name, hidden(p, name))
			}
			if i > n {
				t.Fatalf("%s does not end: %s", path, p.body)
			}
		}
	}
	steps("/timers/reschedule-all", "service", "many", "at", at)
	b.listed(t, "/timers?service=many", "2033-12-24 18:00:00")
	b.post(t, "/timers/reschedule-all", form("service", "many", "at", at)).want(t, 200, "Reschedule 0 timers?")
	steps("/timers/cancel-all", "group", "many")
	b.post(t, "/timers/cancel-all", form("group", "many")).want(t, 200, "Cancel 0 timers?")
	b.get(t, "/timers/"+one).want(t, 200, "pending")
}

// listed waits until a list, which comes from the search index, has a text.
func (b *browser) listed(t *testing.T, path, text string) {
	t.Helper()
	waittest.Until(t, path+" has "+text, func() bool { return strings.Contains(b.get(t, path).body, text) }, func() string { return b.get(t, path).body })
}

// hidden returns the value of a hidden field; "" if the page has none.
func hidden(p page, name string) string {
	m := regexp.MustCompile(`<input type="hidden" name="` + name + `" value="([^"]*)">`).FindStringSubmatch(p.body)
	if m == nil {
		return ""
	}
	return m[1]
}

// testLimits: a limit is looked at, stored, paused, resumed and deleted; a limit of adds has its quotas.
func testLimits(t *testing.T, b *browser) {
	testsize.NotShort(t, "it waits until changes are in force")
	const path = "/limits/key?key=api.example.com"
	b.get(t, path).want(t, 200, "No limit")
	limit := []string{"key", "api.example.com", "rate", "100/m", "burst", "10", "parallel", "5", "circuit", "0"}
	b.post(t, "/limits/set", form(limit...)).want(t, 200, "Change the limit of api.example.com?", "no limit of its own", "100/1m", "Store it")
	b.get(t, path).want(t, 200, "No limit")
	b.post(t, "/limits/set", form(append(limit, "confirm", "yes")...)).want(t, 200, "The limit is stored.", "100/1m", `value="5"`, "next slot")
	b.get(t, "/limits").want(t, 200, "api.example.com", "100/1m")
	b.post(t, "/limits/set", form(append(limit, "revision", "999999", "confirm", "yes")...)).want(t, 409, "revision")
	b.post(t, "/limits/set", form("key", "api.example.com")).want(t, 400, "limits nothing")
	b.post(t, "/limits/set", form("key", "api.example.com", "parallel", "many")).want(t, 400, "many")
	b.post(t, "/limits/pause", form("key", "api.example.com", "note", "repair")).want(t, 200, "The calls are paused.", "repair")
	b.post(t, "/limits/delete", form("key", "api.example.com")).want(t, 409, "paused")
	b.post(t, "/limits/resume", form("key", "api.example.com")).want(t, 200, "The calls go on.")
	b.post(t, "/limits/reset", form("key", "api.example.com")).want(t, 404, "nothing was reset")
	b.get(t, path).want(t, 200).without(t, "repair")
	b.post(t, "/limits/delete", form("key", "api.example.com")).want(t, 200, "The limit is deleted.")
	b.get(t, path).want(t, 200, "No limit")

	b.post(t, "/limits/set", form("key", "customer:*", "parallel", "1", "confirm", "yes")).want(t, 200, "Keys in use")
	b.post(t, "/limits/set", form("key", "adds:limited", "pending", "100", "schedules", "5", "bytes", "100000", "confirm", "yes")).want(t, 200, "pending timers", "schedules")
	b.add(t, "in", "1h", "svc", "limited", "id", "limited-1")
	waittest.Until(t, "the limit counts the timer", func() bool {
		return strings.Contains(b.get(t, "/limits/key?key=adds:limited").body, ">adds:limited</a></td><td>1</td>")
	}, func() string { return b.get(t, "/limits/key?key=adds:limited").body })
}

// testCalendars: a calendar is made after a look at the runs that it moves, shown with its next dates, changed and deleted.
func testCalendars(t *testing.T, b *browser) {
	testsize.NotShort(t, "it waits until changes are in force")
	b.post(t, "/calendars/set", form("name", "festive", "dates", "2027-12-24, *-12-25 # every year\n*-01-01")).want(t, 200, "Store calendar festive?", "3 dates. 0 schedules exclude")
	b.get(t, "/calendars/festive").want(t, 404)
	b.post(t, "/calendars/set", form("name", "festive", "dates", "2001-12-24 *-12-25\n*-01-01", "confirm", "yes")).want(t, 200, "The calendar is stored.", "Next dates", "-12-25</li>", "-01-01</li>").without(t, "2001-12-24</li>")
	b.get(t, "/calendars").want(t, 200, "festive")
	id := b.add(t, "cron", "0 9 * * *", "tz", "Europe/Berlin", "svc", "festive", "exclude", "festive", "id", "festive-1").timer(t)
	b.post(t, "/calendars/set", form("name", "festive", "dates", "*-*-*")).want(t, 400, `class="problem"`)
	b.post(t, "/calendars/set", form("name", "festive", "dates", "*-12-26")).want(t, 200, "1 schedules exclude the calendar")
	b.post(t, "/calendars/set", form("name", "festive", "dates", "*-12-26", "revision", "999999", "confirm", "yes")).want(t, 409, "revision")
	b.post(t, "/calendars/festive/delete", form()).want(t, 409, "festive-1")
	b.post(t, "/timers/"+id+"/cancel", form()).want(t, 200)
	b.post(t, "/calendars/festive/delete", form()).want(t, 200, "The calendar is deleted.")
	b.get(t, "/calendars/festive").want(t, 404, "no calendar")
}

// testGroups: a group is found among the timers that wait, paused after a look at them, and resumed.
func testGroups(t *testing.T, b *browser) {
	b.add(t, "in", "1h", "svc", "grouped", "id", "grouped-1", "group", "season")
	b.add(t, "in", "1h", "svc", "grouped", "id", "grouped-2", "group", "season")
	b.add(t, "in", "1h", "svc", "grouped", "id", "grouped-3", "group", "other-season")
	b.get(t, "/groups?group=season").want(t, 200, "all 2 timers that wait in group season", "season").without(t, "other-season")
	b.post(t, "/groups/pause", form("group", "season", "note", "stocktaking")).want(t, 200, "Pause 2 timers?", "grouped-1", "grouped-2").without(t, "grouped-3")
	b.post(t, "/groups/pause", form("group", "season", "note", "stocktaking", "confirm", "yes")).want(t, 200, "2 timers are paused")
	b.get(t, "/groups?group=season").want(t, 200, "stocktaking", "/groups/resume").without(t, "/groups/pause")
	b.post(t, "/groups/resume", form("group", "season", "catchup", "skip")).want(t, 200, "Resume 2 timers?")
	b.post(t, "/groups/resume", form("group", "season", "catchup", "skip", "confirm", "yes")).want(t, 200, "2 timers are resumed")
	b.get(t, "/groups?group=season").want(t, 200, "/groups/pause").without(t, "/groups/resume")
}

// testOrders: an ordering key with a failing event is listed, with the event whose turn it is.
func testOrders(t *testing.T, b *browser) {
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	t.Cleanup(target.Close)
	id := b.add(t, "in", "1ms", "svc", "ordered", "id", "ordered-1", "key", "customer-42", "backoff", "1h", "callback", target.URL).timer(t)
	var p page
	waittest.Until(t, "the key is listed", func() bool {
		p = b.get(t, "/orders?service=ordered")
		return strings.Contains(p.body, "customer-42") && strings.Contains(p.body, "/timers/"+id)
	}, func() string { return p.body })
	b.get(t, "/orders?service=nobody").want(t, 200, "No ordering key has events.")
}
