package store

import (
	"time"
)

// Names and bounds of the durable consumers.
const (
	RouterConsumer = "router"
	// TenantConsumer is the routers' consumer of the adds of tenants. It is not RouterConsumer,
	// so that a flood of them does not hold up other adds, and because a router of an older
	// version would take them for adds of the default tenant.
	TenantConsumer = "router_tenants"
	// RouterAckWait is the time after which the server redelivers an add that no router
	// has acknowledged.
	RouterAckWait = 3 * time.Second
	// RouterMaxAckPending bounds the unacknowledged adds of all routers together.
	// recencyFilter relies on it: while nodes of an older version run, it must not exceed
	// theirs.
	RouterMaxAckPending = 20_000
	// serviceConsumerPrefix begins the names of the consumers of functions.
	serviceConsumerPrefix = "belfry_"
)

// Kind is one of the two streams that functions consume.
type Kind int

// The kinds, with the subjects of a service.
const (
	KindFired Kind = iota // timers.fired.<svc>
	KindRetry             // timers.retry.<svc>
)
