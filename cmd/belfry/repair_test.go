package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/doctor"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestRepair: another client overwrites a timer. status and doctor report it while the
// node runs; repair reports it, and with --apply restores the timer.
func TestRepair(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	if found := ok[store.RepairFinding](t, n, "repair"); len(found) > 0 {
		t.Fatalf("repair of a new store: got %+v, want no findings", found)
	}
	ok[added](t, n, "add", "--in", "1h", "--id", "victim", "--source", "/s")
	id := schemas.NewTimerID("/s", "victim").String()
	nc, err := nats.Connect(n.nats)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var shard string
	waittest.Until(t, "the record is stored", func() bool { // in the shard that has the key
		shards := len(ok[statusJSON](t, n, "status")[0].Shards)
		for _, s := range []string{"0", "1", "2", "3", "4", "5", "6", "7"}[:min(shards, 8)] {
			m, err := nc.Request("$JS.API.STREAM.MSG.GET.KV_timers_"+s, []byte(`{"last_by_subj":"$KV.timers_`+s+`.timer.`+id+`"}`), bound)
			if err == nil && !strings.Contains(string(m.Data), `"error"`) {
				shard = s
			}
		}
		return shard != ""
	})
	if err := nc.PublishMsg(&nats.Msg{Subject: "timers.add", Reply: "$KV.timers_" + shard + ".timer." + id, Data: []byte(`{"specversion":"1.0","id":"x","source":"/s","type":"t","timerafter":"1h"}`)}); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "status reports the damage", func() bool {
		problems := ok[statusJSON](t, n, "status")[0].Problems
		return slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, "1 damaged records") })
	})
	findings := parseLines[struct{ Findings []doctor.Finding }](t, n.client(t, "doctor", "--nats-url", n.nats, "-o", "json").out)[0].Findings
	if !slices.ContainsFunc(findings, func(f doctor.Finding) bool {
		return f.Check == "damage" && f.Level == doctor.Error && strings.Contains(f.Do, "belfry repair")
	}) {
		t.Errorf("doctor: got %+v, want an error of check damage that names belfry repair", findings)
	}
	if r := n.client(t, "repair"); r.code != exitUnhealthy || !strings.Contains(r.out, "DAMAGED") || !strings.Contains(r.out, id) || !strings.Contains(r.out, "previous revision") {
		t.Errorf("repair: got %v, want exit code %d and the damaged record of timer %s with its repair", r, exitUnhealthy, id)
	}
	found := ok[store.RepairFinding](t, n, "repair", "--apply")
	if len(found) != 1 || found[0].Kind != "record" || !found[0].Applied {
		t.Errorf("repair --apply: got %+v, want one record, repaired", found)
	}
	if r := n.client(t, "get", "victim", "--source", "/s"); r.code != exitOK || !strings.Contains(r.out, "pending") {
		t.Errorf("get after the repair: got %v, want exit code 0 and state pending", r)
	}
	waittest.Until(t, "status reports no damage", func() bool {
		problems := ok[statusJSON](t, n, "status")[0].Problems
		return !slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, "damaged") })
	})
}
