package httpcall

import (
	"bytes"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
)

// TestEventAsData: a receiver gets the event that has fired, also if its data is an event or a batch of events.
func TestEventAsData(t *testing.T) {
	t.Parallel()
	got := make(chan *event.Event, 1)
	target := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		e, err := cehttp.NewEventFromHTTPRequest(r)
		if err != nil {
			t.Error(err)
		}
		got <- e
	})
	i := newInvoker(t, loopback)
	const inner = `{"specversion":"1.0","id":"inner","source":"/inner","type":"t","data":{"n":1.50}}`
	for contentType, data := range map[string]string{
		"application/cloudevents+json": inner, "application/cloudevents+json; charset=UTF-8": inner, "application/cloudevents-batch+json": "[" + inner + "]",
		"application/cloudevents+avro": "\x00avro",
	} {
		r := request(target)
		r.Event.SetID("outer")
		r.Event.SetSource("/outer")
		r.Event.SetExtension("timerrun", int32(7))
		r.Event.SetDataContentType(contentType)
		// As schemas.ParseFired reads them.
		r.Event.DataEncoded, r.Event.DataBase64 = []byte(data), contentType == "application/cloudevents+avro"
		if out := i.Invoke(t.Context(), r); !out.Success {
			t.Fatalf("%s: got outcome %+v", contentType, out)
		}
		e := <-got
		if e == nil {
			t.Fatalf("%s: no event arrived", contentType)
		}
		run, _ := e.Extensions()["timerrun"].(int32)
		if e.ID() != "outer" || e.Source() != "/outer" || run != 7 || e.DataContentType() != contentType {
			t.Errorf("%s: the receiver got %s", contentType, e)
		}
		if !sameData(e.Data(), []byte(data)) {
			t.Errorf("%s: got data %s, want %s", contentType, e.Data(), data)
		}
	}
}

// sameData compares data; of JSON the white space is left out.
func sameData(a, b []byte) bool {
	var compact bytes.Buffer
	if json.Compact(&compact, b) == nil {
		b = compact.Bytes()
	}
	return bytes.Equal(a, b)
}
