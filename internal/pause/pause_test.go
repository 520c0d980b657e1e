package pause

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if !For(t.Context(), time.Hour) || time.Since(begin) != time.Hour {
			t.Errorf("waited for %s", time.Since(begin))
		}
		begin = time.Now()
		if !For(t.Context(), 0) || !For(t.Context(), -1) || time.Since(begin) != 0 {
			t.Error("a pause of nothing waits")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if For(ctx, time.Hour) || time.Since(begin) != time.Minute {
			t.Errorf("the end of the context ended the pause after %s", time.Since(begin))
		}
		if For(ctx, 0) {
			t.Error("true although the context has ended")
		}
	})
}
