package store

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

func TestParseAck(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]ack{
		`{"stream":"S", "seq":7}`:                                         {Seq: 7},
		`{"stream":"S","seq":18446744073709551615}`:                       {Seq: 1<<64 - 1},
		`{"stream":"S","seq":7,"duplicate": true}`:                        {Seq: 7, Duplicate: true},
		`{"stream":"S","domain":"d","seq":9}`:                             {Seq: 9},
		`{"type":"io.nats.jetstream.api.v1.x_response","success":true}`:   {},
		`{"stream":"seq","seq":3,"batch":"b","count":1}`:                  {Seq: 3},
		`{"error":{"code":400,"err_code":10071,"description":"d"}}`:       {Error: &jetstream.APIError{ErrorCode: 10071}},
		`{"error":{"err_code":10077,"description":"\"seq\":5}"},"seq":0}`: {Error: &jetstream.APIError{ErrorCode: 10077}},
	} {
		got, err := parseAck([]byte(in))
		if err != nil || got.Seq != want.Seq || got.Duplicate != want.Duplicate || (got.Error == nil) != (want.Error == nil) {
			t.Errorf("%s: %+v %v", in, got, err)
		} else if got.Error != nil && got.Error.ErrorCode != want.Error.ErrorCode {
			t.Errorf("%s: %+v", in, got.Error)
		}
	}
	for _, in := range []string{"", "+OK", "-ERR", `{"seq":`, `{"seq":x}`} {
		if a, err := parseAck([]byte(in)); err == nil && a.Seq != 0 {
			t.Errorf("%q: %+v", in, a)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		api  jetstream.APIError
		want error
	}{
		{jetstream.APIError{Code: 400, ErrorCode: 10071}, ErrRevision},
		{jetstream.APIError{Code: 400, ErrorCode: 10164}, ErrRevision},
		{jetstream.APIError{Code: 404, ErrorCode: 10037}, schemas.ErrNotFound},
		{jetstream.APIError{Code: 400, ErrorCode: 10043}, schemas.ErrNotFound},
		{jetstream.APIError{Code: 503, ErrorCode: 10077, Description: "maximum bytes exceeded"}, schemas.ErrStoreFull},
		{jetstream.APIError{Code: 503, ErrorCode: 10077, Description: "maximum messages exceeded"}, schemas.ErrStoreFull},
		{jetstream.APIError{Code: 503, ErrorCode: 10023}, schemas.ErrStoreFull},
		{jetstream.APIError{Code: 500, ErrorCode: 10047}, schemas.ErrStoreFull},
		{jetstream.APIError{Code: 503, ErrorCode: 10008}, schemas.ErrUnavailable},
		{jetstream.APIError{Code: 400, ErrorCode: 10054}, &schemas.Error{Code: schemas.CodeTooLarge}},
	} {
		if err := apiError("op", &c.api); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v; want %v", c.api, err, c.want)
		}
	}
}

// TestParts: the filters of any range cover each of its parts once, and no other.
func TestParts(t *testing.T) {
	t.Parallel()
	for _, r := range [][2]uint64{{0, slotParts}, {0, 1}, {5, 5}, {31, 33}, {0, 1024}, {1000, 3000}, {slotParts - 1, slotParts}, {1, slotParts}} {
		covered := make([]int, slotParts)
		for _, f := range partFilters("p.", r[0], r[1]) {
			tokens := strings.Split(strings.TrimSuffix(strings.TrimPrefix(f, "p."), ".>"), ".")
			first, width := uint64(0), uint64(slotParts)
			for _, tok := range tokens {
				width /= 32
				first += uint64(strings.Index(idAlphabet, tok)) * width
			}
			for p := first; p < first+width; p++ {
				covered[p]++
			}
		}
		for p, n := range covered {
			want := 0
			if uint64(p) >= r[0] && uint64(p) < r[1] {
				want = 1
			}
			if n != want {
				t.Fatalf("%v: part %d is covered %d times", r, p, n)
			}
		}
	}
}

func TestSlotSubject(t *testing.T) {
	t.Parallel()
	s := &Store{geo: schemas.DefaultGeometry()}
	s.subjects = make([]shardSubjects, s.geo.Shards)
	for i := range s.subjects {
		s.subjects[i].slot = "$KV.t.slot."
	}
	for i := range 1000 {
		id := benchID(i)
		subject := s.slotSubject(s.geo.Shard(id), id, int64(i))
		if got := timerOfSlot(subject); got != id.String() {
			t.Fatalf("%s: %s; want %s", subject, got, id)
		}
	}
	if timerOfSlot("short") != "" {
		t.Error("a key that is no index entry")
	}
}

func TestStale(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a    answer
		rest bool
		seen uint64
		ok   bool
	}{
		{answer{found: true, upTo: 10}, false, 10, true},
		{answer{found: true, upTo: 9}, false, 10, false},
		{answer{}, false, 0, false}, // without even the meta key
		{answer{}, true, 10, true},
	} {
		if err := checkFresh("s", &c.a, c.rest, c.seen); (err == nil) != c.ok || err != nil && !errors.Is(err, schemas.ErrUnavailable) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestLateAck: an answer that comes after its call was given up is not taken for
// that of the slot's next user.
func TestLateAck(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	p, err := newPublisher(nc, 1, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	sub, err := nc.SubscribeSync("slow") // answers when told to
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 4)
	call := func() string {
		t.Helper()
		p.send("op", "slow", nil, nil, func(a ack, err error) {
			if err == nil && a.Seq != 2 {
				err = errors.New("another call's answer")
			}
			results <- err
		})
		m, err := sub.NextMsg(30 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return m.Reply
	}
	first := call()
	if err := <-results; !errors.Is(err, schemas.ErrUnavailable) {
		t.Fatalf("no answer: %v", err)
	}
	second := call()
	for reply, data := range map[string]string{first: `{"stream":"S","seq":1}`} {
		if err := nc.Publish(reply, []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Publish(second, []byte(`{"stream":"S","seq":2}`)); err != nil {
		t.Fatal(err)
	}
	if err := <-results; err != nil {
		t.Fatal(err)
	}
	if len(results) != 0 {
		t.Fatal("answered more than once")
	}
}
