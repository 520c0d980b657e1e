package jet

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/belfryio/belfry/internal/natstest"
)

func TestMain(m *testing.M) {
	natstest.MaybeServe()
	goleak.VerifyTestMain(m, natstest.ServerLeaks()...)
}
