package functions

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/pause"
)

// overtakenInterval is the interval between two checks of the consumers of
// TIMERS_FIRED. It bounds the time until a consumer that loses events is reported.
const overtakenInterval = 30 * time.Second

// watchOvertaken reports consumers whose unread events leave the stream, until ctx is done.
// Every node reports all of them.
func (f *Functions) watchOvertaken(ctx context.Context) {
	for wait := time.Duration(random() * float64(time.Second)); pause.For(ctx, wait); wait = overtakenInterval {
		all, err := f.o.Store.OvertakenConsumers(ctx)
		if err != nil {
			f.complain("look for overtaken consumers", err)
			continue
		}
		f.metrics.overtaken.Set(float64(len(all)))
		for _, o := range all {
			if f.complaints.Allow("overtaken "+o.Stream+" "+o.Consumer, time.Now()) {
				f.o.Log.Warn().Str("consumer", o.Consumer).Str("stream", o.Stream).Str("subject", o.Subject).Uint64("lost_at_least", o.Lost).Uint64("pending", o.Pending).
					Str("limit", o.Why).Msg("a consumer of fired events is overtaken: events left the stream before it read them")
			}
		}
	}
}
