package httpapi

// Routes returns the routes as in the document: a method and a path.
func Routes() []string {
	out := []string{"GET " + documentPath}
	for i := range routes {
		out = append(out, routes[i].String())
	}
	return out
}

// Fields returns the attributes of the fields of POST /v1/timers.
func Fields() []string {
	var out []string
	for _, f := range fields {
		out = append(out, f.attribute)
	}
	return out
}

// Codes returns all codes of errors, with their statuses.
func Codes() map[string]int {
	out := map[string]int{}
	for code, t := range titles {
		out[code] = t.status
	}
	return out
}

// Limits of requests.
const (
	MaxRequests   = maxRequests
	MaxBatch      = maxBatch
	MaxBatchBytes = maxBatchBytes
	MaxHeldBytes  = maxHeldBytes
	MaxHeldShare  = maxHeldShare

	MaxOverviews = maxOverviews
	FeedEvents   = feedEvents
	MaxFeeds     = maxFeeds
)

// ConcealText is a text as a caller without scope payload sees it.
func ConcealText(text string) string { return (&request{}).concealText(text) }

// OpenStreams returns the number of open streams.
func OpenStreams(a *API) int {
	a.streams.mu.Lock()
	defer a.streams.mu.Unlock()
	return a.streams.open
}

// ReadAll reads a body of a length, -1 for unknown.
var ReadAll = readAll

// FirstBuffer is the size of the first buffer of a body.
const FirstBuffer = firstBuffer
