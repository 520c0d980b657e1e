package jet

import (
	"fmt"
	"slices"
	"testing"
)

// acked keeps a write and acknowledges it with a sequence. It overwrites the data before the acknowledgement.
func acked(o *ownWrites, subject string, seq uint64) {
	data := []byte(subject)
	done := o.keep(subject, data, true, func(Ack, error) {})
	clear(data)
	done(Ack{Seq: seq}, nil)
}

// takes returns the sequences, subjects and data that o gives to its follower.
func takes(o *ownWrites, most int) (got []string, gap uint64) {
	took, gap, _ := o.take(make([]ownWrite, 0, most))
	for _, w := range took {
		got = append(got, fmt.Sprintf("%d%s%s", w.seq, w.subject, w.data))
	}
	return got, gap
}

// TestOwnWrites checks the order in which writes are given, gaps, and what is forgotten.
func TestOwnWrites(t *testing.T) {
	t.Parallel()
	o := newOwnWrites("r.")
	acked(o, "r.a", 9) // before begin
	o.begin(10)
	for _, w := range []struct {
		seq     uint64
		subject string
	}{{12, "r.c"}, {10, "r.a"}, {11, "r.b.b"}, {14, "r.d"}} {
		acked(o, w.subject, w.seq)
	}
	if got, gap := takes(o, 2); !slices.Equal(got, []string{"10r.ar.a", "11"}) || gap != 0 {
		t.Errorf("%q, gap %d", got, gap)
	}
	if got, gap := takes(o, 2); !slices.Equal(got, []string{"12r.cr.c"}) || gap != 14 {
		t.Errorf("%q, gap %d", got, gap)
	}
	if got, gap := takes(o, 2); got != nil || gap != 14 {
		t.Errorf("%q, gap %d, want 14", got, gap)
	}
	if o.advance(13) {
		t.Error("13 is taken for this client's write")
	}
	acked(o, "r.e", 13) // had passed
	acked(o, "x.e", 13)
	if got, gap := takes(o, 2); !slices.Equal(got, []string{"14r.dr.d"}) || gap != 0 || o.takeLate() != 2 || o.takeLate() != 0 {
		t.Errorf("%q, gap %d", got, gap)
	}
	acked(o, "r.f", 16)
	if o.advance(15) || !o.advance(16) || o.advance(16) || o.bytes != 0 {
		t.Errorf("15 and 16 are taken for another's and this client's write: %+v", o)
	}
	o.keep("r.h", nil, true, func(Ack, error) {})(Ack{Seq: 17, Duplicate: true}, nil) // 17 may be another message
	o.keep("r.h", nil, true, func(Ack, error) {})(Ack{Seq: 17}, ErrUnavailable)
	if got, gap := takes(o, 2); got != nil || gap != 0 {
		t.Errorf("%q, gap %d", got, gap)
	}
	o.end()
	acked(o, "r.g", 17)
	if _, _, ok := o.take(nil); ok {
		t.Error("it keeps writes after its end")
	}
}

// TestOwnWritesWake checks that the next write wakes a follower that found none, once.
func TestOwnWritesWake(t *testing.T) {
	t.Parallel()
	o := newOwnWrites("r.")
	o.begin(1)
	acked(o, "r.a", 1)
	if len(o.wake) != 0 {
		t.Error("a write wakes a follower that does not wait")
	}
	takes(o, 8)
	takes(o, 8)
	acked(o, "r.b", 2)
	<-o.wake
	acked(o, "r.c", 3)
	if len(o.wake) != 0 {
		t.Error("it is woken twice")
	}
	takes(o, 8)
	takes(o, 8)
	acked(o, "r.e", 5) // behind a gap
	<-o.wake
	if _, gap := takes(o, 8); gap != 5 {
		t.Errorf("gap %d, want 5", gap)
	}
	acked(o, "r.f", 6)
	if len(o.wake) != 0 {
		t.Error("another write behind the gap wakes the follower")
	}
	acked(o, "r.d", 4)
	<-o.wake
	o.end()
	<-o.wake
	if n := o.open.Load(); n != 0 {
		t.Errorf("%d writes are without an acknowledgement", n)
	}
}

// TestOwnWritesBounds checks that the ring grows without losing a write, and that ownWrites ends when it is full.
func TestOwnWritesBounds(t *testing.T) {
	t.Parallel()
	o := newOwnWrites("r.")
	o.begin(100)
	for n := range uint64(maxOwnWrites) {
		acked(o, "r.a", 100+n^1) // neighbours in the other order
	}
	for n := range maxOwnWrites / ownBatch {
		got, _ := takes(o, ownBatch)
		if len(got) != ownBatch || got[0] != fmt.Sprintf("%dr.ar.a", 100+n*ownBatch) {
			t.Fatalf("%d: %d, from %q", n, len(got), got[0])
		}
	}
	if o.bytes != 0 {
		t.Errorf("%d bytes", o.bytes)
	}
	acked(o, "r.a", o.next+maxOwnWrites)
	if o.keeps.Load() {
		t.Error("a write beyond the ring does not end ownWrites")
	}
	o.begin(1)
	big := string(make([]byte, maxOwnBytes/4))
	for n := range uint64(4) {
		if !o.keeps.Load() {
			t.Fatalf("it ended before write %d", n+1)
		}
		acked(o, "r."+big, n+1)
	}
	if o.keeps.Load() {
		t.Error("data beyond the bound does not end ownWrites")
	}
}
