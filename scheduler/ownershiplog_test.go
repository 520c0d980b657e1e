package scheduler

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// TestOwnershipIsOneLine: shards that are taken together make one log line, and so do
// shards that are given up together. A failed attempt makes none.
func TestOwnershipIsOneLine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := zerolog.New(&out)
	var l ownershipLog
	l.flush(log)
	for n, from := range []string{"b", "", "a", "b", "a"} {
		l.taking(TakeShard{Shard: n, From: from})
	}
	for _, n := range []int{3, 1, 0, 2} {
		l.note(ShardTaken{Shard: n})
	}
	l.note(ShardTaken{Shard: 4, Err: errors.New("lost")})
	l.flush(log)
	l.flush(log)
	l.note(TermEnded{Shard: 2})
	l.note(TermEnded{Shard: 0})
	l.flush(log)
	want := `{"level":"info","shards":[0,1,2,3],"from":["a","b"],"message":"shards taken"}
{"level":"info","shards":[0,2],"message":"shards given up"}
`
	if out.String() != want {
		t.Errorf("log:\n%s\nwant:\n%s", out.String(), want)
	}
	if strings.Count(out.String(), "\n") != 2 {
		t.Error("want one line for each change")
	}
}
