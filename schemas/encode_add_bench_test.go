package schemas_test

import (
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry/schemas"
)

// benchEvent is an event with 400 bytes of data, and the settings of a timer.
func benchEvent(t testing.TB) (event.Event, []schemas.Setting) {
	e := event.New()
	e.SetID("order-4711")
	e.SetSource("/shop/orders")
	e.SetType("order.timeout")
	if err := e.SetData(event.ApplicationJSON, strings.Repeat("x", 398)); err != nil {
		t.Fatal(err)
	}
	return e, []schemas.Setting{{Name: schemas.AttrAt, Value: "2027-01-01T00:00:00.123Z"}, {Name: schemas.AttrService, Value: "shop"}}
}

// BenchmarkEncodeAdd compares the encoder of adds with that of sdk-go.
func BenchmarkEncodeAdd(b *testing.B) {
	e, set := benchEvent(b)
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			if _, err := schemas.EncodeAdd(&e, set); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("validate", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			if _, _, err := schemas.EncodeValidAdd(&e, set, added, schemas.Limits{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("sdk", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			if _, err := encodeBySDK(&e, set); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("sdk-validate", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			data, err := encodeBySDK(&e, set)
			if err != nil {
				b.Fatal(err)
			}
			if _, _, err := schemas.ParseAdd(nil, data, added, schemas.Limits{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// encodeBySDK encodes an add with sdk-go.
func encodeBySDK(e *event.Event, set []schemas.Setting) ([]byte, error) {
	with := e.Clone()
	schemas.Apply(&with, set)
	_, data, err := schemas.EncodeEvent(with, schemas.ModeStructured)
	return data, err
}
