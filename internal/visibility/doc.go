// Package visibility indexes the records of all shards for search, history and charts.
//
//	buckets timers_0 … timers_<n>          the truth
//	       │ one Reader.Tail a shard (consumers without acknowledgement)
//	       ▼
//	   Follower: newest state of each changed timer, at most maxQueued of them (fewer while it yields)
//	       │ one transaction a second: rows, counters, offset of each shard
//	       ▼
//	     Store: a SQL file                  ◀─ Search, Get, Counts (router, HTTP, console)
//
// # Guarantees
//
// It is never on the firing path: nothing waits for it, it writes nothing to JetStream, and it
// spends at most the share maxDuty of one CPU on writing, and less on a busy machine, where it falls
// behind (pacer.go). Each timer that has not changed since Progress.AsOf is in the store in its current
// state. A timer that has changed since may be absent or outdated. So a caller must read the record
// before it decides by an Entry.
//
// The offset of a shard is in the same transaction as the rows up to it. A process that is killed
// therefore continues where the rows end. Timers that are done stay for the setting history, within
// history-bytes, the oldest go first; timers that are open stay as long as their record does.
// Payloads are not stored: an entry has the attributes, attempts and control operations of a timer,
// but not the event's data.
//
// # Failures
//
// The file can be deleted at any time while the node is down. A file of another schema, of another
// Belfry, or that SQLite calls damaged is deleted and rebuilt from the buckets. A rebuilt store lacks
// the timers whose records had expired.
//
// When timers change faster than they can be written, the Follower stops writing rows and counts
// outcomes only (Progress.CountsOnly). When the load falls it reads the shards again from the stored
// offsets. Streams of buckets keep the last state of every key, so this misses only timers that were
// done and expired in the meantime. If a Follower was stopped, without a connection, or behind for longer than half the time
// for which a record is kept, then once it is up to date it compares its open timers with the buckets, and removes those
// whose record is gone. Progress.AsOf moves after that. If records are kept for less than 20 s, it does so once a minute.
//
// The node answers requests before the file is open. Until the first attempt to open it has ended, Search,
// Get and Counts wait, for openWait at most.
//
// Without disk space, or when the file cannot be written, the Follower keeps its offsets, retries,
// and sets Progress.Problem. Search then answers from the entries that it has.
package visibility
