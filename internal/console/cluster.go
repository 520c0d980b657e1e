package console

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/doctor"
	"github.com/belfryio/belfry/internal/status"
	"github.com/belfryio/belfry/schemas"
)

const (
	// maxOverviews bounds the requests for the status and the doctor at a time: each asks the
	// server about all streams and consumers.
	maxOverviews = 2
	// overviewTimeout bounds one of them. It must stay below the time-out of the HTTP server.
	overviewTimeout = 20 * time.Second
)

// overview calls f, unless maxOverviews requests are doing so.
func overview[T any](q *request, f func(context.Context) (T, error)) (v T, err error) {
	select {
	case q.console.overviews <- struct{}{}:
		defer func() { <-q.console.overviews }()
	default:
		return v, schemas.Errorf(schemas.CodeUnavailable, "%d pages of the cluster are being made, which is the limit: try again", maxOverviews)
	}
	ctx, cancel := context.WithTimeout(q.Context(), overviewTimeout)
	defer cancel()
	return f(ctx)
}

// showCluster is the page of nodes, shards and streams.
func showCluster(q *request) (view, error) {
	st, err := overview(q, q.console.o.Status)
	if err != nil {
		return view{}, err
	}
	shown := *st
	shown.Problems = nil
	for _, p := range st.Problems {
		shown.Problems = append(shown.Problems, q.id.ConcealText(p))
	}
	return view{name: "cluster", title: "Cluster", data: clusterPage{&shown}}, nil
}

// clusterPage is the page of the cluster.
type clusterPage struct{ *status.Status }

// showDoctor is the page of the doctor's findings, the gravest first.
func showDoctor(q *request) (view, error) {
	list, err := overview(q, q.console.o.Doctor)
	if err != nil {
		return view{}, err
	}
	rank := map[doctor.Level]int{doctor.Error: 0, doctor.Warning: 1, doctor.Unknown: 2, doctor.OK: 3}
	slices.SortStableFunc(list, func(a, b doctor.Finding) int { return cmp.Compare(rank[a.Level], rank[b.Level]) })
	for i := range list {
		list[i].Text = q.id.ConcealText(list[i].Text)
	}
	return view{name: "doctor", title: "Doctor", data: list}, nil
}
