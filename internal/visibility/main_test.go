package visibility

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
)

func TestMain(m *testing.M) {
	waittest.Parallel(8)
	goleak.VerifyTestMain(m, natstest.ServerLeaks()...)
}
