package jet

import (
	"errors"
	"testing"
)

func TestStale(t *testing.T) {
	t.Parallel()
	c := Reads{&Connection{}}
	for _, tt := range []struct {
		a    Answer
		rest bool
		seen uint64
		ok   bool
	}{
		{Answer{Found: true, UpTo: 10}, false, 10, true},
		{Answer{Found: true, UpTo: 9}, false, 10, false},
		{Answer{}, false, 0, false}, // without even the witness
		{Answer{}, true, 10, true},
	} {
		if err := c.checkFresh("s", &tt.a, tt.rest, tt.seen); (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrUnavailable) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}
