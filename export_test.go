package belfry

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
