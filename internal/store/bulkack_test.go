package store

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// ackStream simulates TIMERS_ADD: a purge removes the contiguous run of sequences that begins
// with its first.
type ackStream struct {
	mu    sync.Mutex
	first uint64
	sent  []uint64 // acknowledged one by one
	bulks int
	err   error
}

func (s *ackStream) ackOne(a *Add) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, a.Seq)
}

func (s *ackStream) purge(_ context.Context, seqs []uint64) (through uint64, err error) {
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

// want checks the adds acknowledged one by one since the last call, and the stream's first.
func (s *ackStream) want(t *testing.T, first uint64, seqs ...uint64) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.sent)
	if !slices.Equal(s.sent, seqs) || s.first != first {
		t.Fatalf("acknowledged %v, and the stream begins at %d; want %v and %d", s.sent, s.first, seqs, first)
	}
	s.sent = nil
}

func span(from, to uint64) (seqs []uint64) {
	for ; from <= to; from++ {
		seqs = append(seqs, from)
	}
	return seqs
}

func TestBulkAcker(t *testing.T) {
	for name, test := range map[string]func(*testing.T, *bulkAcker, *ackStream){
		"many adds are purged together, except the newest": func(t *testing.T, b *bulkAcker, s *ackStream) {
			for _, seq := range span(1, 100) {
				b.delivered(&Add{Seq: seq, Deliveries: 1})
			}
			for i := range uint64(100) {
				b.ack(&Add{Seq: 100 - i})
			}
			time.Sleep(flushDelay - 1)
			s.want(t, 1)
			time.Sleep(time.Nanosecond)
			s.want(t, 100)
			time.Sleep(newestHold)
			s.want(t, 100, 100)
		},
		"few adds are acknowledged one by one": func(t *testing.T, b *bulkAcker, s *ackStream) {
			for _, seq := range []uint64{5, 3, 6, 6} { // add 6 is delivered twice
				b.ack(&Add{Seq: seq})
			}
			time.Sleep(flushDelay)
			s.want(t, 1, 3, 5, 6)
			b.close()
			s.want(t, 1, 6)
			b.ack(&Add{Seq: 8})
			s.want(t, 1, 8)
		},
		"an unfinished add holds back later adds": func(t *testing.T, b *bulkAcker, s *ackStream) {
			for _, seq := range span(1, 200) {
				if seq != 41 {
					b.ack(&Add{Seq: seq})
				}
			}
			time.Sleep(flushDelay)
			s.want(t, 41)
			time.Sleep(maxGapWait / 2)
			s.want(t, 41)
			b.ack(&Add{Seq: 41})
			time.Sleep(flushDelay)
			s.want(t, 201)
		},
		"an unfinished add holds back later adds for maxGapWait": func(t *testing.T, b *bulkAcker, s *ackStream) {
			for _, seq := range span(1, 200) {
				if seq != 41 {
					b.ack(&Add{Seq: seq})
				}
			}
			time.Sleep(maxGapWait + 2*flushDelay)
			s.want(t, 41, span(42, 200)...)
		},
		"a purge fails": func(t *testing.T, b *bulkAcker, s *ackStream) {
			s.err = errors.New("no answer")
			for _, seq := range span(1, 100) {
				b.ack(&Add{Seq: seq})
			}
			time.Sleep(flushDelay)
			s.want(t, 100, span(1, 99)...)
		},
		"one by one while another router shares the stream": func(t *testing.T, b *bulkAcker, s *ackStream) {
			for seq := uint64(1); seq < 400; seq += 2 {
				b.delivered(&Add{Seq: seq, Deliveries: 1})
				b.ack(&Add{Seq: seq})
			}
			synctest.Wait()
			if len(s.sent) != 199 || s.bulks != 0 {
				t.Fatalf("%d acknowledged, %d removals", len(s.sent), s.bulks)
			}
		},
		"a redelivery is no sign of another router": func(t *testing.T, b *bulkAcker, s *ackStream) {
			for _, a := range []*Add{{Seq: 1, Deliveries: 1}, {Seq: 2, Deliveries: 1}, {Seq: 9, Deliveries: 2}, {Seq: 3, Deliveries: 1}} {
				b.delivered(a)
				b.ack(a)
			}
			s.want(t, 1)
		},
		"adds older than maxPurgeAge are acknowledged one by one": func(t *testing.T, b *bulkAcker, s *ackStream) {
			old := time.Now().Add(-maxPurgeAge)
			b.mu.Lock()
			for _, seq := range span(1, 50) {
				b.add(finishedAdd{&Add{Seq: seq}, old})
			}
			b.mu.Unlock()
			for _, seq := range span(51, 100) {
				b.ack(&Add{Seq: seq})
			}
			time.Sleep(flushDelay)
			s.want(t, 1, span(1, 50)...)
		},
		"close removes all adds": func(t *testing.T, b *bulkAcker, s *ackStream) {
			for _, seq := range append(span(1, 100), 102) {
				b.ack(&Add{Seq: seq})
			}
			b.close()
			s.want(t, 101, 102)
		},
		"the buffer is bounded": func(t *testing.T, b *bulkAcker, s *ackStream) {
			for _, seq := range span(2, maxBuffered+2) {
				b.ack(&Add{Seq: seq})
			}
			synctest.Wait()
			b.mu.Lock()
			defer b.mu.Unlock()
			if len(b.buffer) > maxBuffered {
				t.Errorf("%d adds are buffered", len(b.buffer))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &ackStream{first: 1}
				b := newBulkAcker(s.ackOne, s.purge)
				test(t, b, s)
				b.close()
			})
		})
	}
}
