package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/quota"
	"github.com/belfryio/belfry/schemas"
)

// This file has the numbers of pending timers of services that have a limit; see package quota.

const (
	pendingPrefix = flowsPrefix + "pending."
	// pendingCountTTL is how long the numbers of a shard are kept after its owner wrote them last. It is longer
	// than an outage of all owners should last: without the numbers a limit holds only for adds since.
	pendingCountTTL = 7 * 24 * time.Hour
	// noPendingTTL is the TTL of a count without limits.
	noPendingTTL = time.Minute
	// maxCountedServices bounds the services of a PendingCount, about 100 bytes each. The ones with the fewest
	// timers are left out.
	maxCountedServices = 4096
)

// PendingCount is the value of the key pending.<shard>: what the owner of a shard has counted.
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
	Version   int              `json:"v"`
	Epoch     uint64           `json:"epoch"`
	Seq       uint64           `json:"seq"`
	Selection string           `json:"selection,omitempty"`
	Services  map[string]int64 `json:"services,omitempty"`
}

// PendingSelection identifies the services whose pending timers are limited: two copies with the same
// selection limit the same services, if with other numbers. It is "" if there is no such limit.
func (s *FlowSet) PendingSelection() string { return s.pending }

// pendingSelection returns PendingSelection of limits of adds, which are in order.
func pendingSelection(adds []FlowLimit) string {
	if !slices.ContainsFunc(adds, func(l FlowLimit) bool { return l.Limit.Pending > 0 }) {
		return ""
	}
	h := sha256.New()
	for _, l := range adds {
		// Patterns have no space. A limit without a number matters, because it stands before a pattern that has one.
		h.Write([]byte(l.Pattern + " " + strconv.FormatBool(l.Limit.Pending > 0) + " "))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// LimitsPending reports whether the pending timers of a service, or of its tenant, are limited.
func (s *FlowSet) LimitsPending(service string) bool {
	return s.pending != "" && slices.ContainsFunc(s.AddLimits(service), func(l AddLimit) bool { return l.Limit.Pending > 0 })
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
	return PendingCount{Count: quota.Count{Version: m.Sequence, Epoch: v.Epoch, Seq: v.Seq, Services: v.Services}, Shard: shard, Selection: v.Selection, Rev: m.Sequence}, true
}

// PutPendingCount replaces the numbers of a shard by compare-and-set and returns the new revision. Those
// without a Selection expire soon. Errors: ErrRevision, schemas.ErrStoreFull, schemas.ErrUnavailable.
func (f *Flows) PutPendingCount(ctx context.Context, c PendingCount) (uint64, error) {
	b, err := marshalSummed(storedPending{Version: flowVersion, Epoch: c.Epoch, Seq: c.Seq, Selection: c.Selection, Services: mostPending(c.Services)})
	if err != nil {
		return 0, err
	}
	ttl := pendingCountTTL
	if c.Selection == "" {
		ttl = noPendingTTL
	}
	return f.jet.Put(ctx, pendingSubject(c.Shard), b, c.Rev, ttl)
}

// mostPending returns the maxCountedServices services with the most pending timers.
func mostPending(services map[string]int64) map[string]int64 {
	if len(services) <= maxCountedServices {
		return services
	}
	names := make([]string, 0, len(services))
	for name := range services {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(services[b], services[a]), strings.Compare(a, b))
	})
	most := make(map[string]int64, maxCountedServices)
	for _, name := range names[:maxCountedServices] {
		most[name] = services[name]
	}
	return most
}

// EachPending reads the records of a shard once, in stream order, with the pauses of CountPending, and passes the waiting
// timers (schemas.State.Waits) with a revision up to through to fn, by CountKey. Errors:
// schemas.ErrUnavailable.
func (rd *Reader) EachPending(ctx context.Context, shard int, through uint64, fn func(key uint64, service string)) error {
	sh := &rd.shards.subjects[shard]
	n := 0
	return rd.jet.Scan(ctx, sh.stream, jet.Range{Filters: []string{sh.timer + "*"}}, func(m jet.Msg) (bool, error) {
		if n++; !pauseScan(ctx, n) {
			return false, rd.jet.Error("count timers", ctx.Err())
		}
		if m.Sequence > through {
			return false, nil
		}
		if t, ok := rd.dec.decode(&m); ok && t.Record.State.Waits() {
			fn(CountKey(t.ID), t.Record.Service)
		}
		return true, nil
	})
}
