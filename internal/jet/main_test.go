package jet

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
)

func TestMain(m *testing.M) {
	natstest.MaybeServe()
	waittest.Parallel(6)
	goleak.VerifyTestMain(m, natstest.ServerLeaks()...)
}
