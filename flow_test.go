package belfry_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestFlows sets, pauses, resumes and deletes limits with the client. A paused timer waits with
// its flow key, and is called after the resume.
func TestFlows(t *testing.T) {
	t.Parallel()
	c := connect(t)
	ctx := t.Context()
	called := make(chan string, 8)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { called <- r.Header.Get("ce-id") }))
	t.Cleanup(hook.Close)

	limit := belfry.FlowLimit{Rate: "50/1s", Burst: 2, Parallel: 4}
	if r, err := c.SetFlow(ctx, "hooks", limit, belfry.FlowDryRun()); err != nil || r.Limit == nil || r.Limit.Revision != 0 {
		t.Fatalf("dry run: %+v, %v", r, err)
	}
	if st, err := c.GetFlow(ctx, "hooks"); err != nil || st.Limit != nil {
		t.Fatalf("after a dry run: %+v, %v", st, err)
	}
	made, err := c.SetFlow(ctx, "hooks", limit, belfry.FlowBy("ann"))
	if err != nil || made.Limit.Rate != "50/1s" || made.Limit.Burst != 2 || made.Limit.Parallel != 4 || made.Limit.By != "ann" {
		t.Fatalf("set: %+v, %v", made, err)
	}
	if _, err := c.SetFlow(ctx, "hooks", limit, belfry.FlowRevision(made.Limit.Revision+1)); !errors.Is(err, belfry.ErrConflict) {
		t.Errorf("set of another revision: %v", err)
	}
	if _, err := c.SetFlow(ctx, "hooks", belfry.FlowLimit{}); !errors.Is(err, belfry.ErrBadRequest) || !strings.Contains(fmt.Sprint(err), "100/1m") {
		t.Errorf("a limit of nothing: %v", err)
	}
	if p, err := c.PauseFlow(ctx, "hooks", "repair", belfry.FlowRevision(made.Limit.Revision)); err != nil || !p.Limit.Paused || p.Limit.PauseNote != "repair" || p.Limit.Rate != "50/1s" {
		t.Fatalf("pause: %+v, %v", p, err)
	}
	r, err := c.Add(ctx, newEvent("waits"), belfry.After(0), belfry.WithCallback(hook.URL), belfry.Flow("hooks"))
	if err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the timer waits", func() bool {
		got, err := c.Get(ctx, r.Timer)
		return err == nil && got.Flow != nil && got.Flow.Key == "hooks" && got.Flow.Slot.After(got.Due.Add(-time.Second)) && got.Attempts == 0 && got.State == belfry.StateRetrying
	})
	if st, err := c.GetFlow(ctx, "hooks"); err != nil || len(st.Keys) != 1 || st.Keys[0].Waiting != 1 {
		t.Errorf("the key: %+v, %v", st, err)
	}
	if _, err := c.DeleteFlow(ctx, "hooks"); !errors.Is(err, belfry.ErrConflict) {
		t.Errorf("delete of a paused limit: %v", err)
	}
	if p, err := c.ResumeFlow(ctx, "hooks"); err != nil || p.Limit.Paused {
		t.Fatalf("resume: %+v, %v", p, err)
	}
	if id := waittest.Receive(t, "the callback after the resume", called); id != "waits" {
		t.Errorf("called with %s", id)
	}
	waittest.Until(t, "the timer succeeds", func() bool {
		got, err := c.Get(ctx, r.Timer)
		return err == nil && got.State == belfry.StateSuccess && got.Attempts == 1 && got.Flow == nil
	})
	if all, err := c.Flows(ctx); err != nil || len(all) != 1 || all[0].Key != "hooks" {
		t.Errorf("flows: %+v, %v", all, err)
	}
	if _, err := c.DeleteFlow(ctx, "hooks"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.DeleteFlow(ctx, "hooks"); !errors.Is(err, belfry.ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
	if _, err := c.GetFlow(ctx, "hooks:*"); !errors.Is(err, belfry.ErrNotFound) {
		t.Errorf("get of a pattern without a limit: %v", err)
	}
	if _, err := c.Add(ctx, newEvent("bad"), belfry.After(0), belfry.Flow("a b")); !errors.Is(err, belfry.ErrInvalidAttribute) {
		t.Errorf("a flow key that is not valid: %v", err)
	}
}
