package schemas

import (
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// TestAttrKey: timerkey is parsed from adds with a callback, for one-shot timers and schedules; an
// invalid one, or one without a callback, is refused with a reason. An event that was accepted
// before keeps it.
func TestAttrKey(t *testing.T) {
	add := func(key, more, value, callback string) (Spec, error) {
		hdr := nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/t"}, "ce-type": {"t"}, "ce-timerkey": {key}, more: {value}}
		if callback != "" {
			hdr["ce-timercallback"] = []string{callback}
		}
		_, spec, err := ParseAdd(hdr, nil, 0, Limits{})
		return spec, err
	}
	for _, more := range [][2]string{{"ce-timerafter", "1s"}, {"ce-timerevery", "1h"}} {
		for _, key := range []string{"a", "customer:7", "A/b_c-d@e.f", strings.Repeat("k", MaxOrderKey)} {
			if spec, err := add(key, more[0], more[1], "nats:x"); err != nil || spec.Key != key {
				t.Errorf("%s %q: got %q and error %v", more[0], key, spec.Key, err)
			}
		}
		for _, key := range []string{"customer:*", "a b", "ä", strings.Repeat("k", MaxOrderKey+1)} {
			if _, err := add(key, more[0], more[1], "nats:x"); CodeOf(err) != CodeInvalidAttribute || !strings.Contains(err.Error(), "timerkey") {
				t.Errorf("%s %q: got error %v, want invalid_attribute that names timerkey", more[0], key, err)
			}
		}
		if _, err := add("k", more[0], more[1], ""); CodeOf(err) != CodeInvalidAttribute || !strings.Contains(err.Error(), "timercallback") {
			t.Errorf("%s without a callback: got error %v, want invalid_attribute that names timercallback", more[0], err)
		}
	}
}

// TestKeyOfRecord: the ordering key survives encoding, in every format, and the claim; get shows
// it. A node that does not know the extension must not use the record.
func TestKeyOfRecord(t *testing.T) {
	hdr := nats.Header{
		"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/t"}, "ce-type": {"t"},
		"ce-timerafter": {"1s"}, "ce-timerkey": {"customer:7"}, "ce-timercallback": {"nats:x"},
	}
	body, spec, err := ParseAdd(hdr, nil, 0, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	rec := NewRecord(&spec, body, 5)
	for _, f := range []RecordFormat{RecordFormat1, RecordFormat2} {
		b := rec.AppendFormat(nil, f)
		if got, err := DecodeRecord(b); err != nil || got.Key != "customer:7" {
			t.Errorf("format %d: got %q, error %v", f, got.Key, err)
		}
		if _, err := DecodeRecordUpTo(b, RecordFormat1); !errors.Is(err, ErrNewer) {
			t.Errorf("format %d, read by an older node: got error %v, want ErrNewer", f, err)
		}
	}
	if !rec.Extended() || !(Extension{Type: extKey}).Critical() {
		t.Error("a node that does not know ordering keys must read the record before a call, and must fail to")
	}
	id := spec.Timer
	if got := NewClaim(id, 3, &rec).Record(&spec, Fired{}); got.Key != "customer:7" {
		t.Errorf("from the claim: got key %q", got.Key)
	}
	if info := FromRecord(id, &rec, 3); info.Order == nil || *info.Order != (OrderInfo{Key: "customer:7"}) {
		t.Errorf("got %+v", info.Order)
	}
	rec.State = StateDelivered
	rec.DeferTurn(99_000)
	if !rec.AwaitsTurn() || rec.Deferred() || rec.DueMs != 99_000 || rec.Attempt != 0 {
		t.Errorf("waits: got %+v, deferral %+v", rec.RunState, rec.Deferral)
	}
	info := FromRecord(id, &rec, 3)
	if want := `"order":{"key":"customer:7","waits":true,"deferrals":1}`; !strings.Contains(string(info.Append(nil)), want) || info.Flow != nil {
		t.Errorf("got %s, want it to contain %s", info.Append(nil), want)
	}
	rec.Defer("flow", 1, 100_000, true)
	if rec.AwaitsTurn() || !rec.Deferred() {
		t.Errorf("a wait for a slot is taken for a wait for the turn: %+v", rec.Deferral)
	}
}
