package httpapi_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/app"
)

const (
	// benchConnections is the number of clients at a time that add timers one by one.
	benchConnections = 64
	// benchBatches is that number for batches: each has 128 adds under way, and a router up to 1,024.
	benchBatches = 4
)

// BenchmarkAdd adds timers to a node of its own, from the same machine: one by one, and in batches of
// 500. An operation is one timer.
func BenchmarkAdd(b *testing.B) {
	for _, profile := range []app.Profile{app.ProfileFast, app.ProfileSafe} {
		for name, batch := range map[string]int{"one": 1, "batch": 500} {
			b.Run(fmt.Sprintf("%s/%s", profile, name), func(b *testing.B) { benchmarkAdd(b, profile, batch) })
		}
	}
}

func benchmarkAdd(b *testing.B, profile app.Profile, batch int) {
	a, err := app.New(app.Options{Data: b.TempDir(), NATSListen: "127.0.0.1:0", HTTP: "127.0.0.1:0", Profile: profile, Log: zerolog.Nop()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			b.Error(err)
		}
	})
	if err := a.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: benchConnections}}
	b.Cleanup(client.CloseIdleConnections)
	url, kind, connections := "http://"+a.HTTPAddr()+"/v1/timers", jsonType, benchConnections
	if batch > 1 {
		connections = benchBatches
		url, kind = "http://"+a.HTTPAddr()+"/v1/events", "application/cloudevents-batch+json"
	}
	var next atomic.Int64
	var workers sync.WaitGroup
	b.ResetTimer()
	for range connections {
		workers.Go(func() {
			for {
				last := int(next.Add(int64(batch)))
				first := last - batch
				if first >= b.N {
					return
				}
				status, answer, err := post(client, url, kind, benchBody(first, min(last, b.N), batch))
				if err != nil || status >= 300 {
					b.Errorf("status %d, %v: %.300s", status, err, answer)
					return
				}
			}
		})
	}
	workers.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "timers/s")
}

// benchBody returns a request with the timers from first on, up to last.
func benchBody(first, last, batch int) string {
	data := strings.Repeat("x", 200)
	if batch == 1 {
		return fmt.Sprintf(`{"in":"24h","svc":"bench","id":"%d","source":"/bench","data":%q}`, first, data)
	}
	var out bytes.Buffer
	for i := first; i < last; i++ {
		sep := ","
		if i == first {
			sep = "["
		}
		fmt.Fprintf(&out, `%s{"specversion":"1.0","type":"t","timerafter":"24h","timersvc":"bench","id":"%d","source":"/bench","data":%q}`, sep, i, data)
	}
	return out.String() + "]"
}

func post(client *http.Client, url, kind, body string) (status int, answer []byte, err error) {
	resp, err := client.Post(url, kind, strings.NewReader(body)) //nolint:noctx // a benchmark ends with its node
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}
