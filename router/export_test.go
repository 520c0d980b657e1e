package router

// APITimeout is when the router gives up on a request.
const APITimeout = apiTimeout

// Imported reports whether a reply subject is that of a service import.
func Imported(reply string) bool { return imported(reply) }
