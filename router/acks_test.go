package router

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// ackStream is what the tests give for TIMERS_ADD: it removes the run of
// sequences that begins with its first.
type ackStream struct {
	mu    sync.Mutex
	first uint64
	sent  []uint64 // acknowledged one by one
	bulks int
	err   error
}

func (s *ackStream) send(a *add) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, a.seq)
}

func (s *ackStream) remove(_ context.Context, seqs []uint64) (through uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.IsSorted(seqs) {
		return 0, errors.New("not sorted")
	}
	for _, seq := range seqs {
		if seq == s.first {
			s.first++
		}
	}
	if s.err != nil {
		return 0, s.err
	}
	s.bulks++
	return s.first - 1, nil
}

// want checks what was acknowledged one by one since, and what the stream's first is.
func (s *ackStream) want(t *testing.T, first uint64, seqs ...uint64) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.sent)
	if !slices.Equal(s.sent, seqs) || s.first != first {
		t.Fatalf("acknowledged %v and removed those before %d; not %v and %d", s.sent, s.first, seqs, first)
	}
	s.sent = nil
}

func span(from, to uint64) (seqs []uint64) {
	for ; from <= to; from++ {
		seqs = append(seqs, from)
	}
	return seqs
}

func TestAcks(t *testing.T) {
	for name, test := range map[string]func(*testing.T, *acks, *ackStream){
		"many go at once, but for the newest": func(t *testing.T, k *acks, s *ackStream) {
			for _, seq := range span(1, 100) {
				k.deliver(&add{seq: seq, deliveries: 1})
			}
			for i := range uint64(100) {
				k.ack(&add{seq: 100 - i})
			}
			time.Sleep(ackGather - 1)
			s.want(t, 1)
			time.Sleep(time.Nanosecond)
			s.want(t, 100)
			time.Sleep(ackHold)
			s.want(t, 100, 100)
		},
		"few go one by one": func(t *testing.T, k *acks, s *ackStream) {
			for _, seq := range []uint64{5, 3, 6, 6} { // one is delivered twice
				k.ack(&add{seq: seq})
			}
			time.Sleep(ackGather)
			s.want(t, 1, 3, 5, 6)
			k.close()
			s.want(t, 1, 6)
			k.ack(&add{seq: 8})
			s.want(t, 1, 8)
		},
		"one that is worked on holds those after it": func(t *testing.T, k *acks, s *ackStream) {
			for _, seq := range span(1, 200) {
				if seq != 41 {
					k.ack(&add{seq: seq})
				}
			}
			time.Sleep(ackGather)
			s.want(t, 41)
			time.Sleep(ackPatience / 2)
			s.want(t, 41)
			k.ack(&add{seq: 41})
			time.Sleep(ackGather)
			s.want(t, 201)
		},
		"but not for long": func(t *testing.T, k *acks, s *ackStream) {
			for _, seq := range span(1, 200) {
				if seq != 41 {
					k.ack(&add{seq: seq})
				}
			}
			time.Sleep(ackPatience + 2*ackGather)
			s.want(t, 41, span(42, 200)...)
		},
		"a removal that fails": func(t *testing.T, k *acks, s *ackStream) {
			s.err = errors.New("no answer")
			for _, seq := range span(1, 100) {
				k.ack(&add{seq: seq})
			}
			time.Sleep(ackGather)
			s.want(t, 100, span(1, 99)...)
		},
		"one by one where others share the adds": func(t *testing.T, k *acks, s *ackStream) {
			for seq := uint64(1); seq < 400; seq += 2 {
				k.deliver(&add{seq: seq, deliveries: 1})
				k.ack(&add{seq: seq})
			}
			synctest.Wait()
			if len(s.sent) != 199 || s.bulks != 0 {
				t.Fatalf("%d acknowledged, %d removals", len(s.sent), s.bulks)
			}
		},
		"a redelivery is not another's": func(t *testing.T, k *acks, s *ackStream) {
			for _, a := range []*add{{seq: 1, deliveries: 1}, {seq: 2, deliveries: 1}, {seq: 9, deliveries: 2}, {seq: 3, deliveries: 1}} {
				k.deliver(a)
				k.ack(a)
			}
			s.want(t, 1)
		},
		"what a pause has made old goes one by one": func(t *testing.T, k *acks, s *ackStream) {
			old := time.Now().Add(-ackStale)
			k.mu.Lock()
			for _, seq := range span(1, 50) {
				k.hold(doneAdd{&add{seq: seq}, old})
			}
			k.mu.Unlock()
			for _, seq := range span(51, 100) {
				k.ack(&add{seq: seq})
			}
			time.Sleep(ackGather)
			s.want(t, 1, span(1, 50)...)
		},
		"all go in the end": func(t *testing.T, k *acks, s *ackStream) {
			for _, seq := range append(span(1, 100), 102) {
				k.ack(&add{seq: seq})
			}
			k.close()
			s.want(t, 101, 102)
		},
		"no more than a bound is held": func(t *testing.T, k *acks, s *ackStream) {
			for _, seq := range span(2, ackMost+2) {
				k.ack(&add{seq: seq})
			}
			synctest.Wait()
			k.mu.Lock()
			defer k.mu.Unlock()
			if len(k.held) > ackMost {
				t.Errorf("%d are held", len(k.held))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &ackStream{first: 1}
				k := newAcks(s.send, s.remove)
				test(t, k, s)
				k.close()
			})
		})
	}
}
