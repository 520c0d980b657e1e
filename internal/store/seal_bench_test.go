package store_test

import (
	"testing"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store/storetest"
)

// BenchmarkSealCallback measures the cost of encrypting and decrypting the callback of one
// event.
func BenchmarkSealCallback(b *testing.B) {
	const callback = "https://api.example.com/hooks/orders/17/expired?token=0123456789abcdef"
	s := open(b, natstest.Run(b).InProcess())
	id := storetest.ID(1)
	for s.SealCallback(id, callback) == "" { // until the node has read the presences
	}
	b.ReportAllocs()
	for b.Loop() {
		if got, err := s.OpenCallback(id, s.SealCallback(id, callback)); err != nil || got != callback {
			b.Fatal(got, err)
		}
	}
}
