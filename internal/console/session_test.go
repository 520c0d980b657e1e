package console

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestSessions: a session ends after its time, at a logout, and when a newer one needs its place.
func TestSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSessions()
		first := s.begin("token-1")
		if got := s.token(first); got != "token-1" {
			t.Fatalf("got token %q, want token-1", got)
		}
		s.end(first)
		if got := s.token(first); got != "" {
			t.Errorf("got token %q after the logout, want none", got)
		}
		old := s.begin("token-2")
		time.Sleep(time.Minute)
		newer := s.begin("token-3")
		for range maxSessions - 1 {
			s.begin("token-4")
		}
		if s.token(old) != "" || s.token(newer) != "token-3" || len(s.all) != maxSessions {
			t.Errorf("got %d sessions, and the tokens %q and %q; want %d sessions without the oldest", len(s.all), s.token(old), s.token(newer), maxSessions)
		}
		time.Sleep(sessionTime)
		if got := s.token(newer); got != "" {
			t.Errorf("got token %q after the session's time, want none", got)
		}
		s.begin("token-5")
		if len(s.all) != 1 {
			t.Errorf("got %d sessions, want only the new one", len(s.all))
		}
	})
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
