package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// This file adds timers over the node's HTTP API, as a program without a NATS client would.

// httpAdder is the connection of one worker.
type httpAdder struct {
	a      *Adder
	client *http.Client
	base   string // such as http://127.0.0.1:8420
}

// httpAdder returns the connection of a worker to the node of this run. close ends it.
func (a *Adder) httpAdder() (h *httpAdder, closeIdle func(), err error) {
	addr := a.env.httpAddr()
	if addr == "" {
		return nil, nil, errors.New("the node has no HTTP")
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 1}
	return &httpAdder{a, &http.Client{Transport: transport}, "http://" + addr}, transport.CloseIdleConnections, nil
}

// timer adds timer n by POST /v1/timers.
func (h *httpAdder) timer(ctx context.Context, n int, dueMs int64) error {
	body := make([]byte, 0, 192+len(h.a.pad))
	body = append(body, `{"id":"`...)
	body = append(body, h.a.ID(n)...)
	body = append(body, `","source":"`+source+`","type":"belfry.bench","svc":"`...)
	body = append(body, h.a.serviceOf(n)...)
	body = append(body, `","at":"`...)
	body = append(body, schemas.FormatTime(dueMs)...)
	if h.a.callback != "" {
		body = append(body, `","callback":"`...)
		body = append(body, h.a.callback...)
	}
	body = append(body, `","data":"`...)
	body = append(body, h.a.pad...)
	body = append(body, `"}`...)
	return h.post(ctx, "/v1/timers", "application/json", body, http.StatusCreated, nil)
}

// batch adds timers by POST /v1/events.
func (h *httpAdder) batch(ctx context.Context, numbers []int, due func(int) int64) error {
	body := []byte{'['}
	for i, n := range numbers {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, h.a.message("", n, due(n)).Data...)
	}
	var answer struct {
		Results []struct {
			Timer schemas.TimerID `json:"timer"`
		} `json:"results"`
	}
	if err := h.post(ctx, "/v1/events", "application/cloudevents-batch+json", append(body, ']'), http.StatusOK, &answer); err != nil {
		return err
	}
	if len(answer.Results) != len(numbers) {
		return fmt.Errorf("the answer has %d results for %d events", len(answer.Results), len(numbers))
	}
	for i, n := range numbers {
		if answer.Results[i].Timer != h.a.Timer(n) {
			return errors.New("the answer names another timer")
		}
	}
	return nil
}

// post sends a request and decodes its answer, unless out is nil.
func (h *httpAdder) post(ctx context.Context, path, media string, body []byte, want int, out any) (err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", media)
	resp, err := h.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	answer, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode != want:
		return fmt.Errorf("refused: %s: %.500s", resp.Status, answer)
	case out != nil:
		return json.Unmarshal(answer, out)
	}
	return nil
}

// httpBatches adds batches over HTTP, one at a time.
func (a *Adder) httpBatches(ctx context.Context, take func() (int, bool), due func(int) int64) error {
	h, closeIdle, err := a.httpAdder()
	if err != nil {
		return err
	}
	defer closeIdle()
	for numbers := gather(take); len(numbers) > 0; numbers = gather(take) {
		bctx, cancel := context.WithTimeout(ctx, addTimeout)
		err := h.batch(bctx, numbers, due)
		cancel()
		if err != nil {
			return fmt.Errorf("a batch of adds was not stored: %w", err)
		}
		a.done.Add(int64(len(numbers)))
	}
	return nil
}

// httpSingles adds one timer at a time over HTTP; see singles.
func (a *Adder) httpSingles(ctx context.Context, take func() (int, bool), due func(int) int64, pace func(int) time.Time, answered func(time.Duration)) error {
	h, closeIdle, err := a.httpAdder()
	if err != nil {
		return err
	}
	defer closeIdle()
	return a.oneByOne(ctx, func(ctx context.Context, n int) error { return h.timer(ctx, n, due(n)) }, take, pace, answered)
}
