package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/belfryio/belfry/internal/doctor"
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
func (q *request) overview(f func(context.Context) error) error {
	select {
	case q.api.overviews <- struct{}{}:
		defer func() { <-q.api.overviews }()
	default:
		return schemas.Errorf(schemas.CodeUnavailable, "%d requests for the status or the doctor are being served, which is the limit: try again", maxOverviews)
	}
	ctx, cancel := context.WithTimeout(q.Context(), overviewTimeout)
	defer cancel()
	return f(ctx)
}

// showStatus is GET /v1/status.
func showStatus(q *request) (ans answer, err error) {
	return ans, q.overview(func(ctx context.Context) error {
		st, err := q.api.o.Status(ctx)
		if err != nil {
			return err
		}
		for i := range st.Problems {
			st.Problems[i] = q.concealText(st.Problems[i])
		}
		ans = answer{status: http.StatusOK, body: st}
		return nil
	})
}

// findings is the answer of GET /v1/doctor.
type findings struct {
	Findings []doctor.Finding `json:"findings"`
	// Errors is the number of findings of level error.
	Errors int `json:"errors"`
}

// showDoctor is GET /v1/doctor.
func showDoctor(q *request) (ans answer, err error) {
	return ans, q.overview(func(ctx context.Context) error {
		list, err := q.api.o.Doctor(ctx)
		if err != nil {
			return err
		}
		out := findings{Findings: list}
		for i := range list {
			f := &list[i]
			f.Text = q.concealText(f.Text)
			if f.Level == doctor.Error {
				out.Errors++
			}
		}
		ans = answer{status: http.StatusOK, body: out}
		return nil
	})
}
