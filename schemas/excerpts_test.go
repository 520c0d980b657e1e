package schemas_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/doctest"
	"github.com/belfryio/belfry/schemas"
)

// TestExcerpts: the excerpts of answers in docs/reference.md are members of a timer, and have only
// members that it has.
func TestExcerpts(t *testing.T) {
	t.Parallel()
	for _, b := range doctest.Blocks(t, "schemas.TestExcerpts") {
		d := json.NewDecoder(strings.NewReader("{" + b.Text() + "}"))
		d.DisallowUnknownFields()
		if err := d.Decode(new(schemas.TimerInfo)); err != nil {
			t.Errorf("%s:%d: %v", b.File, b.Line, err)
		}
	}
}
