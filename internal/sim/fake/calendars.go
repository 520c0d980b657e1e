package fake

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// StreamCalendars is the stream under bucket calendars. Servers have it with Config.Calendars.
const StreamCalendars = "KV_calendars"

// LastCalendar implements store.CalendarKeys, as the methods below do.
func (c *Client) LastCalendar(ctx context.Context) (last uint64, err error) {
	err = c.leader(ctx, StreamCalendars, func() error {
		last = c.s.LastSeq(StreamCalendars)
		return nil
	})
	return last, err
}

// EachCalendar passes the changes after a sequence to fn.
func (c *Client) EachCalendar(ctx context.Context, after uint64, fn func(store.CalendarKey)) error {
	st := c.s.streams[StreamCalendars]
	var got []store.CalendarKey
	err := c.direct(ctx, StreamCalendars, func(upTo uint64) error {
		for _, m := range st.log[min(after, uint64(len(st.log))):] {
			if m.seq > upTo {
				break
			}
			value := m.data
			if b, ok := m.val.(foreign); ok {
				value = b
			}
			got = append(got, store.CalendarKey{Name: m.subject, Rev: m.seq, StoredMs: m.at / int64(time.Millisecond), Value: value})
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, k := range got {
		fn(k)
	}
	return nil
}

// HasCalendar reports whether a change is still there. The fake drops none.
func (c *Client) HasCalendar(ctx context.Context, seq uint64) (there bool, err error) {
	err = c.leader(ctx, StreamCalendars, func() error {
		there = c.s.streams[StreamCalendars].bySeq(seq) != nil
		return nil
	})
	return there, err
}

// PutCalendarKey writes a key by compare-and-set.
func (c *Client) PutCalendarKey(ctx context.Context, name string, value []byte, rev uint64) (next uint64, err error) {
	err = c.leader(ctx, StreamCalendars, func() (err error) {
		next, err = c.s.streams[StreamCalendars].put(&message{key: key{subject: name}, data: value}, &rev, 0)
		return err
	})
	if err != nil {
		return 0, err
	}
	return next, nil
}
