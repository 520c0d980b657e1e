// Package clustertime keeps Belfry's time: that of the JetStream leader, carried
// between readings by this process's monotonic clock. The host's wall clock is
// never consulted for it, so a host that is an hour wrong, or jumps, changes
// nothing.
//
// A reading (Observe) says that the leader stamped a message somewhere between
// its sending and its answer. That bounds the leader's clock from both sides:
// Earliest never runs ahead of it, Latest never behind it (but for drift between
// readings, which DriftPPM allows for). Whoever must not be early uses Earliest.
//
// If the leader's clock is set forward, Earliest follows with the next reading;
// if it is set back, so does it: time here can go backwards, as the cluster's
// did. What must never go backwards (a shard's mark) is the caller's to hold.
package clustertime
