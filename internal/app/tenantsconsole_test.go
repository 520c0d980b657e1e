package app

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// testTenantConsole: on the pages of the console, too, a tenant's token sees and changes only what is the
// tenant's, and nothing that concerns all tenants.
func testTenantConsole(f *tenants) {
	t := f.t
	ids := map[string]string{}
	for user, tenant := range map[string]string{"acme": "acme", "globex": "globex", "plain": ""} {
		f.succeed(user, "POST", "/v1/timers", `{"in":"1h","svc":"console","id":"console-of-`+user+`","source":"/http"}`)
		ids[user] = schemas.NewTenantTimerID(tenant, "/http", "console-of-"+user).String()
	}
	// The list of a service comes from the search index.
	for user := range ids {
		var text string
		waittest.Until(f.t, "the search index has the timer of "+user, func() bool {
			_, text = f.callOnce(user, "GET", "/timers?service=console", "")
			return strings.Contains(text, "console-of-"+user)
		}, func() string { return text })
	}
	for victim, id := range ids {
		for attacker := range ids {
			page := func(method, path string, form url.Values) (int, string) {
				return f.call(attacker, method, path, form.Encode(), "Content-Type", "application/x-www-form-urlencoded")
			}
			if status, text := page("GET", "/timers?service=console", nil); status != http.StatusOK || strings.Contains(text, "console-of-"+victim) != (attacker == victim) {
				t.Errorf("%s lists, with a timer of %s: status %d: %s", attacker, victim, status, text)
			}
			if status, _ := page("GET", "/timers/"+id, nil); (status == http.StatusOK) != (attacker == victim) {
				t.Errorf("%s opens the page of a timer of %s: got status %d", attacker, victim, status)
			}
			if attacker == victim {
				continue
			}
			for _, path := range []string{"/cancel", "/move", "/fire", "/pause", "/resume", "/replay", "/trigger", "/backfill", "/edit"} {
				if status, text := page("POST", "/timers/"+id+path, url.Values{"in": {"2h"}, "cron": {"0 9 * * *"}, "from": {"2026-01-01T00:00:00Z"}, "to": {"2026-01-02T00:00:00Z"}, "confirm": {"yes"}}); status != http.StatusNotFound {
					t.Errorf("%s: POST %s of a timer of %s: got status %d, want 404: %s", attacker, path, victim, status, text)
				}
			}
			if _, text := page("POST", "/timers/cancel", url.Values{"timer": {id}, "confirm": {"yes"}}); !strings.Contains(text, "0 timers are cancelled") {
				t.Errorf("%s cancels a timer of %s among others: got %s", attacker, victim, text)
			}
		}
		if answer := f.succeed(victim, "GET", "/v1/timers/"+id, ""); !strings.Contains(answer, `"state":"pending"`) {
			t.Errorf("the timer of %s: got %s, want it pending", victim, answer)
		}
	}
	f.consoleGroups()
	for _, path := range []string{"/cluster", "/cluster/doctor", "/limits", "/limits/key?key=adds:acme=", "/calendars", "/calendars/holidays"} {
		for _, user := range []string{"acme-admin", "globex"} {
			if status, text := f.call(user, "GET", path, ""); status != http.StatusForbidden {
				t.Errorf("%s: GET %s: got status %d, want 403: %s", user, path, status, text)
			}
		}
	}
}

// consoleGroups: groups and bulk changes of the console are those of the caller's tenant, also if another
// tenant has a group and a service of that name; and no tenant's token changes a limit or a calendar.
func (f *tenants) consoleGroups() {
	t := f.t
	post := func(user, path string, form url.Values) (int, string) {
		return f.call(user, "POST", path, form.Encode(), "Content-Type", "application/x-www-form-urlencoded")
	}
	users := []string{"acme", "globex", "plain"}
	for _, user := range users {
		f.succeed(user, "POST", "/v1/timers", `{"in":"1h","svc":"consoled","group":"consoled","id":"consoled-`+user+`","source":"/http"}`)
	}
	for i, user := range users {
		if _, text := f.call(user, "GET", "/groups?group=consoled", ""); !strings.Contains(text, "all 1 timers that wait") {
			t.Errorf("%s: the page of groups has other timers: %s", user, text)
		}
		form := url.Values{"group": {"consoled"}, "service": {"consoled"}, "in": {"2h"}}
		for _, path := range []string{"/groups/pause", "/timers/cancel-all", "/timers/reschedule-all"} {
			status, text := post(user, path, form)
			for _, other := range users {
				if strings.Contains(text, "consoled-"+other) != (other == user) {
					t.Errorf("%s: POST %s, with the timer of %s: status %d: %s", user, path, other, status, text)
				}
			}
		}
		form.Set("confirm", "yes")
		if _, text := post(user, "/timers/cancel-all", form); !strings.Contains(text, "1 timers are cancelled") {
			t.Errorf("%s cancels its timers: %s", user, text)
		}
		for _, other := range users[i+1:] {
			if answer := f.succeed(other, "GET", "/v1/timers?source=/http&id=consoled-"+other, ""); !strings.Contains(answer, `"state":"pending"`) {
				t.Errorf("%s has changed the timer of %s: %s", user, other, answer)
			}
		}
	}
	for _, path := range []string{"/limits/set", "/limits/pause", "/limits/resume", "/limits/reset", "/limits/delete", "/calendars/set", "/calendars/holidays/delete"} {
		for _, user := range []string{"acme-admin", "globex"} {
			if status, text := post(user, path, url.Values{"key": {"api.example.com"}, "rate": {"1/s"}, "name": {"holidays"}, "dates": {"2027-12-25"}, "confirm": {"yes"}}); status != http.StatusForbidden {
				t.Errorf("%s: POST %s: got status %d, want 403: %s", user, path, status, text)
			}
		}
	}
}
