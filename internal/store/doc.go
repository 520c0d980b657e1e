// Package store keeps timers in JetStream. It is the only package that knows Belfry's
// streams, buckets and keys; package jet, below it, knows JetStream itself. Everything
// above store speaks of timers, records, revisions, ticks and clocks.
//
// # Layout
//
//	TIMERS_ADD     timers.add                     work queue, discard new
//	TIMERS_FIRED   timers.fired.*                 limits, max age, discard old, dedup window
//	TIMERS_TENANT_FIRED timers.t.*.fired.*        limits, max age, discard old, dedup window;
//	                                              only with Config.TenantFired (tenantfired.go)
//	TIMERS_RETRY   timers.retry.*                 work queue, discard new, dedup window
//	TIMERS_DEAD    timers.dead.*                  limits, max age, discard old, dedup window
//	TIMERS_REJECTED timers.rejected               limits, max age, discard old, dedup window
//	TIMERS_OVERDUE timers.overdue.*               limits, max age, discard old, dedup window
//	KV clock       clock.<shard>  node.<node>  meta  count.dead
//	               copy.<shard>  copy.meta       earlier states of clocks, and of meta (clock.go)
//	               term.<shard>.<n>              the owners of the last terms of a shard (clock.go)
//	               damage.<shard>                the known damage of a shard (damage.go)
//	               trimmed.<svc>                 events removed from TIMERS_FIRED (firedshare.go)
//	               key.callback                  the key of sealed callbacks (seal.go)
//	KV services    <svc>  <svc>.retry            the state of a service's two feeds (feed.go)
//	KV calendars   <name>                        dates that schedules exclude (calendars.go)
//	KV timers_<n>  timer.<timerid>              the record (schemas.Record), the one authority
//	               slot.<slot>.<a>.<b>.<c>.<d>  an index entry: "look at that record when slot
//	                                            is due"; a to d are the timer id in parts, or a
//	                                            random id where timers share an entry (index.go)
//	               far.<hour>.<a>.<b>.<c>.<d>   an index entry of timers that are due in that hour, with
//	                                            their ticks; far.<hour> is the hour's mark (far.go)
//	               meta                         one key that always exists; see LoadTicks
//	               journal                      the records of the last batches (journal.go)
//	               ended.<class>.<n>            ended timers that could fire again (endedlist.go)
//
// The buckets of timers allow per-message TTLs and direct gets, and discard new: a
// full bucket refuses writes. New timers are refused earlier, so that a part of the
// bucket is left for claims and results of the timers in it (room.go).
//
// It needs nats-server 2.11 or later, for per-message TTLs and multi-subject direct
// gets; it is tested against 2.15.2.
//
// # Parts
//
// Store is the sum of small types, one for each concern. A part refers only to parts above it
// in the table. Consumers state the methods that they need in interfaces of their own
// (scheduler, router, functions). "inside" means that only other parts use it; "all three"
// means router, scheduler and functions.
//
//	type           concern                                  files                         used by
//	Nodes          heartbeats, presences, leader's time     nodes.go                      app, scheduler
//	layoutRecord   the recorded layout and its copy         meta.go                       inside
//	streamMaker    makes and checks streams, at Open        streams.go streamconfig.go    Open
//	Levels         the format level that may be written     formats.go                    app
//	Seal           encrypts callbacks in fired events       seal.go                       all three
//	FiredShare     trims large services in TIMERS_FIRED     firedshare.go                 app, View
//	ServiceKeys    the keys of services                     feed.go feedwatch.go          functions
//	FeedActivator  wakes feeds, puts them to rest           feedpublish.go feedwaker.go   scheduler, functions
//	Services       registers, bounds and lists services     services.go servicelist.go    router
//	Calendars      the calendars of excluded dates          calendars.go                  router, scheduler
//	FeedConsumers  the consumers of feeds                   feedconsumer.go feedreader.go functions
//	tenantFired    copies fired events for accounts         tenantfired.go                inside
//	Events         publishes and finds events               publish.go fired.go           scheduler
//	LetterCounts   counts of letters                        deadcount.go                  app, View
//	Letters        dead letters and rejections              letter.go dead.go             all three
//	DedupCheck     finds adds whose timer is done and gone  dedup.go recency.go           router
//	                                                        firedlookup.go
//	Adds           reads, finds and removes adds            adds.go readadds.go inbox.go  router
//	                                                        bulkack.go arrivals.go
//	                                                        strandedadds.go
//	Shards         names and sequences of shards' streams   shards.go                     all three
//	decoder        decodes records, remembers damaged ones  decode.go damagedset.go       inside
//	DamageReports  the recorded damage                      damage.go                     View
//	Clocks         the clocks of shards, and their copies   clock.go                      scheduler
//	Index          writes index entries                     index.go far.go               scheduler, router
//	Reader         reads, lists and follows records         read.go list.go scan.go       all three
//	                                                        count.go returned.go tail.go
//	                                                        cancel.go
//	Loader         reads the records of due ticks           load.go loaddamaged.go far.go scheduler
//	Near           the timers of a shard that are due soon  near.go                       scheduler
//	revisionGC     removes replaced revisions               supersede.go leftover.go      inside
//	                                                        unanswered.go
//	EndedLists     lists ended timers that could fire again endedlist.go                  scheduler
//	journals       restore records after a power loss       journal.go                    Open
//	admission      refuses new timers in a full shard       room.go                       inside
//	recordCache    the last records created here            recordcache.go                inside
//	Records        writes records                           records.go message.go         all three
//	Inspector      looks for damage, audits a shard         inspect.go audit.go           scheduler
//	Health         state of streams and consumers           health.go overtaken.go        app, functions, View
//	View           all of this read-only, and Repair        view.go repair.go             status, doctor, backup, repair
//
// # Guarantees
//
// A call that returns nil was acknowledged by JetStream. A call that returns
// schemas.ErrUnavailable may or may not have taken effect; every write is a
// compare-and-set (or idempotent), so the caller may read and try again. Other errors are a
// conflict (ErrRevision) and a full stream (schemas.ErrStoreFull). When the connection
// breaks, calls in progress fail at once, and calls made while it is down fail before they
// send anything: the client buffers nothing, so no failed call takes effect later.
//
// The index is written before the record that needs it. After a crash between the two, a
// record with Queued set has its index entry, and an entry without a matching record is
// removed by its TTL. If the write of an entry fails and that of its record succeeds, the
// add is not acknowledged, and its next delivery writes the entry (package router). An
// entry's TTL ends IndexKeep after its tick is due, by the clock of the store, also if the add
// was stamped by a server whose clock is ahead; a scheduler whose low watermark is
// older than IndexKeep/2 loads by ScanQueued, which does not need the index.
//
// Reads of many records are direct gets, which any replica may answer: they are hints, and
// only a compare-and-set decides. LoadTicks refuses the answer of a replica that has not
// reached the sequence that the caller gives. The same holds for Records.Cached, which returns
// the record that this process has created, whatever became of it since. What LoadTicks takes from a Near is as of the tail's
// last revision.
//
// # What never returns
//
// A record whose last state has expired is gone, also after SIGKILL. A revision that a KV
// bucket drops for its history limit leaves no trace in the file: nats-server 2.15.2, killed
// after the newest revision expired, rebuilt the older ones in 2,000 of 2,000 cases, with
// and without sync_interval: always. So revisionGC removes every replaced revision by a
// roll-up or a delete, which the file does record; supersede.go says which and when.
//
// There is one exception (work-around 23): the server may forget the removal of messages at the start of a block. After
// a SIGKILL they exist again. If a record still has a later revision, the next count of the shard removes the older one
// (returned.go). If the later one expires before that count, the older one is the record again.
package store
