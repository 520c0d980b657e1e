package visibility

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/belfryio/belfry/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.ServerLeaks()...) }
