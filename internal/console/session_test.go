package console

import (
	"crypto/rand"
	"testing"
	"testing/synctest"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// TestSessions: a session ends after its time, at a logout, and when a newer one needs its place.
func TestSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSessions()
		begin := func(token string, expires time.Time) string {
			name, _ := s.begin(token, expires)
			return name
		}
		first := begin("token-1", time.Time{})
		if got := s.token(first); got != "token-1" {
			t.Fatalf("got token %q, want token-1", got)
		}
		ended := func(name string) bool {
			ctx, cancel := s.within(t.Context(), name)
			defer cancel()
			synctest.Wait()
			return ctx.Err() != nil
		}
		ctx, cancel := s.within(t.Context(), first)
		defer cancel()
		if ended(first) || !ended("another") {
			t.Error("a context within a session has ended, or one without a session has not")
		}
		s.end(first)
		if synctest.Wait(); ctx.Err() == nil || !ended(first) {
			t.Error("a context within a session goes on after the logout")
		}
		if got := s.token(first); got != "" {
			t.Errorf("got token %q after the logout, want none", got)
		}
		old := begin("token-2", time.Time{})
		time.Sleep(time.Minute)
		newer := begin("token-3", time.Time{})
		for range maxSessions - 1 {
			begin("token-4", time.Time{})
		}
		if s.token(old) != "" || s.token(newer) != "token-3" || len(s.all) != maxSessions {
			t.Errorf("got %d sessions, and the tokens %q and %q; want %d sessions without the oldest", len(s.all), s.token(old), s.token(newer), maxSessions)
		}
		brief := begin("token-6", time.Now().Add(time.Hour))
		time.Sleep(time.Hour - time.Second)
		if s.token(brief) != "token-6" {
			t.Error("got no token before it expires")
		}
		time.Sleep(time.Second)
		if s.token(brief) != "" || s.token(newer) == "" {
			t.Errorf("got the tokens %q and %q when the first has expired, want none and token-3", s.token(brief), s.token(newer))
		}
		if !s.use("state", time.Now().Add(time.Minute)) || s.use("state", time.Now().Add(time.Minute)) {
			t.Error("got a login that may not begin a session, or may twice")
		}
		for range maxSessions {
			s.use(rand.Text(), time.Now().Add(time.Minute))
		}
		if len(s.used) != maxSessions {
			t.Errorf("got %d logins in memory, want at most %d", len(s.used), maxSessions)
		}
		ctx, cancel = s.within(t.Context(), newer)
		defer cancel()
		time.Sleep(sessionTime)
		if synctest.Wait(); ctx.Err() == nil {
			t.Error("a context within a session goes on after its time")
		}
		if got := s.token(newer); got != "" {
			t.Errorf("got token %q after the session's time, want none", got)
		}
		begin("token-5", time.Time{})
		if len(s.all) != 1 {
			t.Errorf("got %d sessions, want only the new one", len(s.all))
		}
	})
}

// TestRowOf: a schedule that has ended is not late, and a waiting one is.
func TestRowOf(t *testing.T) {
	t.Parallel()
	for state, want := range map[schemas.State]string{schemas.StatePending: "due and not fired", schemas.StateCompleted: "", schemas.StateCancelled: "", schemas.StatePaused: ""} {
		info := schemas.TimerInfo{State: state, Due: schemas.TimeOf(1_000_000), Schedule: &schemas.ScheduleInfo{}}
		if got := rowOf(info, 1_000_000+2*lateMs).Late; got != want {
			t.Errorf("state %s: %q, want %q", state, got, want)
		}
	}
}

// TestLocal: only a path of this console is a place to go to after the login.
func TestLocal(t *testing.T) {
	t.Parallel()
	for next, want := range map[string]string{
		"/timers?q=1": "/timers?q=1", "": "/", "//evil.example/x": "/", `/\evil.example`: "/", "https://evil.example/": "/", "javascript:alert(1)": "/", "/\tx": "/", "/%0d%0aSet-Cookie:x": "/%0d%0aSet-Cookie:x", "timers": "/",
	} {
		if got := local(next); got != want {
			t.Errorf("local(%q): got %q, want %q", next, got, want)
		}
	}
}

// TestShellQuote: a text is one word of a shell, whatever is in it.
func TestShellQuote(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"abc": "abc", "": "''", "a b": "'a b'", "$(reboot)": "'$(reboot)'", "it's": `'it'\''s'`, "a\nb": "'a\nb'"} {
		if got := shellQuote(text); got != want {
			t.Errorf("shellQuote(%q): got %s, want %s", text, got, want)
		}
	}
}
