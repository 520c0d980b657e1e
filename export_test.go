package belfry

import "github.com/cloudevents/sdk-go/v2/event"

// Encode and Validate are AddAsync's steps before the publish.
func Encode(e event.Event, opts ...AddOption) error {
	_, _, err := encode(e, opts)
	return err
}

// Validate is Encode with validation.
func Validate(e event.Event, opts ...AddOption) error {
	_, _, err := validated(e, opts)
	return err
}

// GatherAlways has AddAsync gather whatever a publish takes.
func (c *Client) GatherAlways() {
	c.gather.from = 0
	c.gather.on.Store(true)
}

// GatherFrom has AddAsync gather if a publish is measured to take any time at all,
// and go on as if that were long.
func (c *Client) GatherFrom() { c.gather.from = 1 }

// Gathers reports whether AddAsync gathers now.
func (c *Client) Gathers() bool { return c.gather.on.Load() }

// GatherNever has every AddAsync publish by itself.
func (c *Client) GatherNever() { c.gather.from = 1 << 62 }
