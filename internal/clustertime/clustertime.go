// Package clustertime provides Belfry's time: the time of the JetStream leader, which this
// process's monotonic clock extrapolates between readings. Without Service.SameClock it does not use the
// host's wall clock, which may be wrong, to tell the time. If that clock jumps, JumpDetected tells callers to wait for
// the next reading.
//
// In a reading the leader stamps a message at some time between its sending and its answer.
// That gives a lower bound (earliest) and an upper bound (latest) of the leader's clock. The
// bounds include the drift of the clocks between readings: at most DriftPPM, or SameClockPPM
// after Service.SameClock on Linux. A caller that must not act early uses the lower bound.
//
// If the leader's clock is stepped forward or back, both bounds follow with the next
// reading, so this time can go backwards. Callers must themselves protect values that must
// not go backwards, such as a shard's low watermark.
package clustertime
