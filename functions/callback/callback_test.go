package callback

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/belfryio/belfry/schemas"
)

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	date := func(d time.Duration) string { return now.Add(d).Format("Mon, 02 Jan 2006 15:04:05 GMT") }
	for _, c := range []struct {
		value, date string
		want        time.Duration
		ok          bool
	}{
		{"2", "", 2 * time.Second, true},
		{" 2 ", "", 2 * time.Second, true},
		{"0", "", 0, true},
		{"86400", "", MaxRetryAfter, true},
		{"86401", "", MaxRetryAfter, true},
		{strings.Repeat("9", 60), "", MaxRetryAfter, true},
		{date(90 * time.Second), "", 90 * time.Second, true},
		{date(time.Hour + 90*time.Second), date(time.Hour), 90 * time.Second, true}, // the callee's clock is an hour ahead
		{date(-time.Hour), "", 0, true},
		{date(1000 * time.Hour), "", MaxRetryAfter, true},
		{"", "", 0, false},
		{"-1", "", 0, false},
		{"1.5", "", 0, false},
		{"soon", "", 0, false},
		{"0x10", "", 0, false},
		{"Sun, 99 Foo 2026 00:00:00 GMT", "", 0, false},
	} {
		got, ok := RetryAfter(c.value, c.date, now.UnixMilli())
		if got != c.want || ok != c.ok {
			t.Errorf("RetryAfter(%q, %q) = %v, %v; want %v, %v", c.value, c.date, got, ok, c.want, c.ok)
		}
	}
}

func TestClip(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"plain", 10, "plain"}, {"plain", 3, "pla"}, {"a\x00b\r\nc\x7f", 10, "a b  c "},
		{"äöü", 3, "ä"}, {"äöü", 1, ""}, {"\xff\xfe", 10, "\uFFFD"}, {"", 0, ""},
	} {
		if got := Clip(c.in, c.n); got != c.want {
			t.Errorf("Clip(%q, %d) = %q; want %q", c.in, c.n, got, c.want)
		}
	}
}

func FuzzClip(f *testing.F) {
	f.Add("a\xffbä\n", 3)
	f.Fuzz(func(t *testing.T, s string, n int) {
		n &= 1023
		got := Clip(s, n)
		if len(got) > n || !utf8.ValidString(got) || strings.ContainsAny(got, "\r\n\x00") {
			t.Fatalf("Clip(%q, %d) = %q", s, n, got)
		}
	})
}

func TestExcerptIsBoundedAndOwn(t *testing.T) {
	t.Parallel()
	big := []byte(strings.Repeat("x", 5000))
	got := Excerpt(big)
	big[0] = 'y'
	if len(got) != schemas.MaxOutcomeResponse || got[0] != 'x' {
		t.Fatalf("%d bytes, first %q", len(got), got[0])
	}
	if Excerpt(nil) != nil {
		t.Fatal("an empty answer has an excerpt")
	}
}
