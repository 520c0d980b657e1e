package router_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// deadPages sends a bulk request on dead letters, a JSON object without cursor, until there is no cursor. It
// returns the sum of the counts, the letters in the answers, and the last page.
func (f *fixture) deadPages(verb, request string) (sum schemas.BulkCounts, letters []schemas.DeadInfo, last schemas.BulkDeadReply) {
	f.t.Helper()
	for n, cursor := 0, ""; n == 0 || cursor != ""; n++ {
		var page schemas.BulkDeadReply
		if code, text := f.answer(verb, fmt.Appendf(nil, `{%s,"cursor":%q}`, request, cursor), &page); code != "" || n > 100 {
			f.t.Fatalf("%s, page %d: %s %s", verb, n, code, text)
		}
		sum.Add(page.BulkCounts)
		letters = append(letters, page.Dead...)
		cursor, last = page.Cursor, page
	}
	return sum, letters, last
}

// TestBulkReplayRate: a replay at a rate makes each letter due after the one before, over all pages, also of
// letters whose record has expired.
func TestBulkReplayRate(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	names := []string{"a", "b", "c", "d", "e"}
	for i, id := range names {
		f.dead(id, 3, i%2 == 0)
	}
	if sum, _, _ := f.deadPages("bulk.replay", `"service":"mail","rate":"1/h","limit":2,"dry_run":true`); sum.Matched != 5 || f.letters() != 5 {
		t.Errorf("the dry run has %+v", sum)
	}
	before := time.Now()
	sum, _, last := f.deadPages("bulk.replay", `"service":"mail","rate":"1/h","limit":2`)
	if sum.Done != 5 || f.letters() != 0 {
		t.Errorf("the replay has %+v, and %d letters are left", sum, f.letters())
	}
	var dues []time.Time
	for _, id := range names {
		info := f.op("get", id, "")
		if info.State != schemas.StateRetrying || !info.Next.Equal(info.Due) {
			t.Errorf("%s is %s, due at %s, with the next attempt at %s", id, info.State, info.Due, info.Next)
		}
		dues = append(dues, info.Due)
	}
	if dues[0].Before(before.Add(-time.Second)) || dues[0].After(time.Now().Add(time.Second)) {
		t.Errorf("the first is due at %s, want now", dues[0])
	}
	for i := range dues[1:] {
		// The first one is due when it is written, which is after the times were planned.
		slack := time.Millisecond
		if i == 0 {
			slack = bound
		}
		if d := dues[i+1].Sub(dues[i]); d < time.Hour-slack || d > time.Hour+time.Millisecond {
			t.Errorf("letter %d is due %s after the one before, want 1h", i+1, d)
		}
	}
	if !last.Last.Equal(dues[len(dues)-1]) {
		t.Errorf("the last due time is %s, want %s", last.Last, dues[len(dues)-1])
	}
}

// TestBulkSequences: a request selects dead letters by their sequences, page by page, and no others.
func TestBulkSequences(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
		f.dead(id, 3, true)
	}
	_, all, _ := f.deadPages("bulk.discard", `"service":"mail","dry_run":true`)
	list := func(from ...int) string {
		var texts []string
		for _, i := range from {
			texts = append(texts, fmt.Sprint(all[i].Sequence))
		}
		return "[" + strings.Join(texts, ",") + "]"
	}
	names := func(letters []schemas.DeadInfo) (ids []string) {
		for _, d := range letters {
			ids = append(ids, d.ID)
		}
		return ids
	}
	const page = `,"limit":2`
	if sum, letters, _ := f.deadPages("bulk.discard", `"dry_run":true,"sequences":`+list(5, 1, 3, 1)+page); sum.Matched != 3 || sum.Done != 0 || len(letters) != 3 {
		t.Errorf("the dry run has %+v of %s", sum, names(letters))
	}
	if sum, letters, _ := f.deadPages("bulk.discard", `"sequences":`+list(5, 1, 3, 1)+page); sum.Done != 3 || !slices.Equal(names(letters), []string{"b", "d", "f"}) {
		t.Errorf("the discard has %+v of %s", sum, names(letters))
	}
	if sum, letters, _ := f.deadPages("bulk.replay", `"rate":"10/s","sequences":`+list(0, 1, 2)+page); sum.Done != 2 || !slices.Equal(names(letters), []string{"a", "c"}) {
		t.Errorf("the replay has %+v of %s", sum, names(letters))
	}
	if sum, _, _ := f.deadPages("bulk.replay", `"service":"chat","sequences":`+list(4)+page); sum.Matched != 0 {
		t.Errorf("the letter of another service was selected: %+v", sum)
	}
	if got := f.states("a", "b", "c", "d", "e", "f"); got != "retrying fail retrying fail fail fail" {
		t.Errorf("the states are %s", got)
	}
	for _, c := range []struct{ verb, body, want string }{
		{"bulk.replay", `{"service":"mail","rate":"10"}`, "such as 5/s"},
		{"bulk.replay", `{"service":"mail","rate":"100000000/s"}`, "the most is"},
		{"bulk.replay", `{"service":"mail","rate":"1/s","cursor":"17"}`, "was not returned by bulk.replay"},
		{"bulk.replay", `{"sequences":[1],"sequence":1}`, "either sequence or sequences"},
		{"bulk.replay", `{"sequences":[1],"cursor":"17/x"}`, "was not returned by bulk.replay"},
		{"bulk.replay", `{"sequences":[` + strings.Repeat("1,", schemas.MaxBulkSequences) + `1]}`, "the limit is 2000"},
		{"bulk.discard", `{"service":"mail","rate":"1/s"}`, "rate spreads the calls of a replay"},
	} {
		if code, text := f.answer(c.verb, []byte(c.body), nil); code != "bad_request" || !strings.Contains(text, c.want) {
			t.Errorf("%s %.80s: %s %q, want bad_request and %q", c.verb, c.body, code, text, c.want)
		}
	}
}
