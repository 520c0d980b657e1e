package httpapi_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/iotest"

	"github.com/belfryio/belfry/internal/httpapi"
)

// unread is a body that nobody may read.
type unread struct{ t *testing.T }

func (b unread) Read([]byte) (int, error) {
	b.t.Error("a body that is too large was read")
	return 0, io.EOF
}

// TestLargeBodyIsNotRead: a body whose length says that it is too large is refused before any of it is read.
func TestLargeBodyIsNotRead(t *testing.T) {
	t.Parallel()
	a := newFakeAPI(t, fake{})
	for path, media := range map[string]string{"/v1/timers": "application/json", "/v1/events": "application/cloudevents+json", "/v1/events?": "application/cloudevents-batch+json"} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", path, unread{t})
		r.Header.Set("Content-Type", media)
		r.ContentLength = 64 << 20
		a.ServeHTTP(w, r)
		if w.Code != http.StatusRequestEntityTooLarge {
			t.Errorf("%s %s: got %d %s, want 413", path, media, w.Code, w.Body)
		}
	}
}

// TestReadAll: a body is read whole, whatever its length says, and its buffer has not more than twice what has arrived.
func TestReadAll(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, httpapi.FirstBuffer - 1, httpapi.FirstBuffer, httpapi.FirstBuffer + 1, 5*httpapi.FirstBuffer + 7, 1 << 20} {
		body := bytes.Repeat([]byte("0123456789"), size/10+1)[:size]
		for _, length := range []int{-1, size, size + 1, 64 << 20} {
			got, err := httpapi.ReadAll(iotest.HalfReader(bytes.NewReader(body)), int64(length))
			if err != nil || !bytes.Equal(got, body) {
				t.Fatalf("a body of %d bytes with length %d: got %d bytes and error %v", size, length, len(got), err)
			}
			if most := max(2*size, httpapi.FirstBuffer); cap(got) > most {
				t.Errorf("a body of %d bytes with length %d: got a buffer of %d bytes, want at most %d", size, length, cap(got), most)
			}
			if length == size && size > httpapi.FirstBuffer && cap(got) != size+1 {
				t.Errorf("a body of %d bytes: got a buffer of %d bytes at the end, want one more than its length", size, cap(got))
			}
		}
	}
	broken := errors.New("connection reset")
	if _, err := httpapi.ReadAll(io.MultiReader(bytes.NewReader([]byte("x")), iotest.ErrReader(broken)), 5); !errors.Is(err, broken) {
		t.Errorf("got error %v, want %v", err, broken)
	}
}
