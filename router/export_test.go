package router

// APITimeout is when the router gives up on a request.
const APITimeout = apiTimeout
