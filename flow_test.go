package belfry_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/belfryio/belfry"
)

// TestFlows sets, pauses, resumes and deletes limits with the client.
func TestFlows(t *testing.T) {
	t.Parallel()
	c := connect(t)
	ctx := t.Context()

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
	if _, err := c.DeleteFlow(ctx, "hooks"); !errors.Is(err, belfry.ErrConflict) {
		t.Errorf("delete of a paused limit: %v", err)
	}
	if p, err := c.ResumeFlow(ctx, "hooks"); err != nil || p.Limit.Paused {
		t.Fatalf("resume: %+v, %v", p, err)
	}
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
