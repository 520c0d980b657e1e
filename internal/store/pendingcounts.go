package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/quota"
	"github.com/belfryio/belfry/schemas"
)

// This file has the numbers of pending timers of services that have a limit; see package quota.

const (
	pendingPrefix = flowsPrefix + "pending."
	// PendingCountTTL is the TTL of the numbers of a shard. The owner of the shard publishes unchanged numbers
	// again when half of it has passed. The other half must exceed every outage of all owners: without the
	// numbers, a limit counts only the adds since the outage.
	PendingCountTTL = 7 * 24 * time.Hour
	// noPendingTTL is the TTL of a count without limits.
	noPendingTTL = time.Minute
	// maxCountedServices bounds the services of a PendingCount, about 100 bytes each, or 220 with names
	// of maximum length. The services of a tenant with the fewest timers are left out, and counted in
	// the sums of the tenant.
	maxCountedServices = flow.MaxServices
)

// PendingCount is the value of the key pending.<shard>: the numbers that the owner of a shard has
// counted.
type PendingCount struct {
	quota.Count
	Shard int
	// Selection is FlowSet.PendingSelection of the limits for which the owner has counted.
	Selection string
	// Rev is the revision of the key; 0 if there is none.
	Rev uint64
}

// storedPending is the value of a PendingCount's key: JSON with a checksum.
type storedPending struct {
	Version   int    `json:"v"`
	Epoch     uint64 `json:"epoch"`
	Seq       uint64 `json:"seq"`
	Selection string `json:"selection,omitempty"`
	// Services has the pending timers of each service. Nodes before LevelQuota write and read no more.
	Services map[string]int64 `json:"services,omitempty"`
	// More has the schedules and the bytes of each service.
	More map[string][2]int64 `json:"more,omitempty"`
	// Rest has the timers, schedules and bytes of each tenant that Services leaves out.
	Rest map[string][3]int64 `json:"rest,omitempty"`
}

// storedCount returns the value of a count.
func storedCount(c PendingCount) storedPending {
	v := storedPending{Version: flowVersion, Epoch: c.Epoch, Seq: c.Seq, Selection: c.Selection, Services: map[string]int64{}, More: map[string][2]int64{}, Rest: map[string][3]int64{}}
	services, rest := mostPending(c.Services)
	for name, a := range services {
		v.Services[name] = a.Timers
		if a.Schedules != 0 || a.Bytes != 0 {
			v.More[name] = [2]int64{a.Schedules, a.Bytes}
		}
	}
	for tenant, a := range rest {
		v.Rest[tenant] = [3]int64{a.Timers, a.Schedules, a.Bytes}
	}
	return v
}

// count returns the count of a value.
func (v *storedPending) count(version uint64) quota.Count {
	c := quota.Count{Version: version, Epoch: v.Epoch, Seq: v.Seq, Services: make(map[string]quota.Amount, len(v.Services)), Rest: make(map[string]quota.Amount, len(v.Rest))}
	for name, n := range v.Services {
		c.Services[name] = quota.Amount{Timers: n, Schedules: v.More[name][0], Bytes: v.More[name][1]}
	}
	for tenant, a := range v.Rest {
		c.Rest[tenant] = quota.Amount{Timers: a[0], Schedules: a[1], Bytes: a[2]}
	}
	return c
}

// PendingSelection identifies the services whose pending timers are counted for a limit. Two copies with
// the same selection count the same services; the values of their limits may differ. It is "" if there
// is no such limit.
func (s *FlowSet) PendingSelection() string { return s.pending }

// pendingSelection returns PendingSelection of limits of adds, which are in order.
func pendingSelection(adds []FlowLimit) string {
	if !slices.ContainsFunc(adds, func(l FlowLimit) bool { return l.Limit.Counts() }) {
		return ""
	}
	h := sha256.New()
	for _, l := range adds {
		// Patterns have no space. A limit that counts nothing matters, because it has precedence over a
		// shorter pattern that counts.
		h.Write([]byte(l.Pattern + " " + strconv.FormatBool(l.Limit.Counts()) + " "))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// LimitsPending reports whether the pending timers of a service are counted for its limit, or for that of its
// tenant.
func (s *FlowSet) LimitsPending(service string) bool {
	return s.pending != "" && slices.ContainsFunc(s.AddLimits(service), func(l AddLimit) bool { return l.Limit.Counts() })
}

func pendingSubject(shard int) string { return pendingPrefix + strconv.Itoa(shard) }

// PendingCount reads the numbers of a shard from the leader; the zero Count for a shard without one, or with
// a damaged one. Errors: schemas.ErrUnavailable.
func (f *Flows) PendingCount(ctx context.Context, shard int) (PendingCount, error) {
	m, err := f.jet.Last(ctx, flowsStream, pendingSubject(shard))
	switch {
	case errors.Is(err, schemas.ErrNotFound):
		return PendingCount{Shard: shard}, nil
	case err != nil:
		return PendingCount{}, err
	}
	c, ok := decodePending(m)
	if !ok {
		return PendingCount{Shard: shard, Rev: m.Sequence}, nil
	}
	return c, nil
}

// PendingCounts reads the numbers of all shards that have some, by shard. Any replica may answer. Errors:
// schemas.ErrUnavailable.
func (f *Flows) PendingCounts(ctx context.Context) ([]PendingCount, error) {
	var all []PendingCount
	req := jet.Get{MultiLast: []string{pendingPrefix + "*"}, MaxBytes: jet.MaxAnswerBytes}
	for {
		a, err := f.jet.Direct(ctx, flowsStream, req)
		if err != nil {
			return nil, err
		}
		for _, m := range a.Msgs {
			if c, ok := decodePending(m); ok {
				all = append(all, c)
			}
		}
		if a.More == 0 || len(a.Msgs) == 0 {
			slices.SortFunc(all, func(a, b PendingCount) int { return cmp.Compare(a.Shard, b.Shard) })
			return all, nil
		}
		req.Seq = a.Msgs[len(a.Msgs)-1].Sequence + 1
	}
}

// decodePending decodes a PendingCount. ok is false if it cannot be read, or is deleted: then the shard counts
// as not counted yet.
func decodePending(m *jet.Msg) (c PendingCount, ok bool) {
	var v struct {
		storedPending
		Sum uint32 `json:"sum"`
	}
	shard, err := strconv.Atoi(strings.TrimPrefix(m.Subject, pendingPrefix))
	if err != nil || jet.HasOperation(m) || unmarshalFlow("number of pending timers", m.Data, &v, &v.Version, &v.Sum) != nil {
		return c, false
	}
	return PendingCount{Count: v.count(m.Sequence), Shard: shard, Selection: v.Selection, Rev: m.Sequence}, true
}

// PutPendingCount replaces the numbers of a shard by compare-and-set and returns the new revision. Those
// without a Selection expire soon. Errors: ErrRevision, schemas.ErrStoreFull, schemas.ErrUnavailable.
func (f *Flows) PutPendingCount(ctx context.Context, c PendingCount) (uint64, error) {
	b, err := marshalSummed(storedCount(c))
	if err != nil {
		return 0, err
	}
	ttl := PendingCountTTL
	if c.Selection == "" {
		ttl = noPendingTTL
	}
	return f.jet.Put(ctx, pendingSubject(c.Shard), b, c.Rev, ttl)
}

// mostPending returns at most maxCountedServices services, and the sums of the others by tenant. Each
// tenant gets the same number of places, for its services with the most pending timers; the default
// tenant counts as one. So a tenant with many services takes no place from a tenant with few.
func mostPending(services map[string]quota.Amount) (most, rest map[string]quota.Amount) {
	if len(services) <= maxCountedServices {
		return services, nil
	}
	names := slices.SortedFunc(maps.Keys(services), func(a, b string) int {
		return cmp.Or(cmp.Compare(services[b].Timers, services[a].Timers), strings.Compare(a, b))
	})
	rank, of := make(map[string]int, len(names)), map[string]int{} // the rank of a service in its tenant
	for _, name := range names {
		tenant := schemas.TenantOf(name)
		rank[name] = of[tenant]
		of[tenant]++
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(rank[a], rank[b]) })
	most, rest = make(map[string]quota.Amount, maxCountedServices), map[string]quota.Amount{}
	for i, name := range names {
		if i < maxCountedServices {
			most[name] = services[name]
		} else if tenant := schemas.TenantOf(name); tenant != "" {
			rest[tenant+schemas.TenantEnd] = rest[tenant+schemas.TenantEnd].Plus(services[name])
		}
	}
	return most, rest
}

// EachPending reads the records of a shard once, in stream order, with the pauses of CountPending, and passes the waiting
// timers (schemas.State.Waits) with a revision up to through to fn. last is the revision of the newest record at the end, 0 for
// none. Errors: schemas.ErrUnavailable.
func (rd *Reader) EachPending(ctx context.Context, shard int, through uint64, fn func(quota.Timer)) (last uint64, err error) {
	err = rd.scanPaced(ctx, "count timers", shard, jet.Range{}, func(m jet.Msg) (bool, error) {
		if m.Sequence > through {
			return false, nil
		}
		if t, ok := rd.dec.decode(&m); ok && t.Record.State.Waits() {
			fn(t.Use())
		}
		return true, nil
	})
	if err != nil {
		return 0, err
	}
	return rd.lastRecord(ctx, shard)
}

// Use returns the use of the limits of its service by a timer.
func (t *Timer) Use() quota.Timer {
	return quota.Timer{Key: CountKey(t.ID), Service: t.Record.Service, Schedule: t.Record.Schedule != nil, Bytes: int64(t.Record.Body.Size())}
}
