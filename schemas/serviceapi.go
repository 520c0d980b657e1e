package schemas

// ServiceListRequest is the body of timers.api.service.list. Limit and Cursor are as in ListRequest.
type ServiceListRequest struct {
	Limit  int    `json:"limit,omitempty"`
	Cursor string `json:"cursor,omitempty"`
}

// ServiceListReply is one page of services, by name. Cursor is empty on the last page.
type ServiceListReply struct {
	Services []ServiceInfo `json:"services"`
	Cursor   string        `json:"cursor,omitempty"`
}

// ServiceInfo describes a service that has callbacks, or messages in a stream.
type ServiceInfo struct {
	Service string `json:"service"`
	Tenant  string `json:"tenant,omitempty"`
	// Callbacks is true if a timer of the service has had a callback within the last days: then it
	// is one of the setting max-services.
	Callbacks bool `json:"callbacks"`
	// Fired is the number of events in TIMERS_FIRED, with or without a result.
	Fired uint64 `json:"fired"`
	// Waiting events of callbacks wait for their first call, or for the delivery of a retry, and
	// InFlight ones for the result of a call.
	Waiting  uint64 `json:"waiting"`
	InFlight uint64 `json:"in_flight"`
	Dead     uint64 `json:"dead"` // dead letters
}
