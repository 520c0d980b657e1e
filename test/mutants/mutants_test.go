// Package mutants plants bugs outside the reach of the simulation, in shells, TTLs,
// pagination and settings, and checks that a test fails for each. internal/sim does the
// same for the code that it runs. Bugs that it finds only in one of thousands of seeds are
// here if a script of the scheduler's core shows them at once.
package mutants

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/mutate"
	"github.com/belfryio/belfry/internal/testsize"
)

const root = "../.."

// plant is a bug with the package and the -run pattern of the test that must fail.
type plant struct {
	mutate.Mutant
	pkg, run string
}

// planted are the bugs.
var planted = []plant{
	// Nine bugs that an earlier version of the tests did not notice.
	{m("an add is acknowledged after its fourth failed store", "router/natsapi/intake.go", "if o.Result == router.Delayed {", "if o.Result == router.Delayed && d.msg.Deliveries <= 3 {"), "./router", "TestAddIsKeptUntilStored"},
	{m("a rescheduled record gets the retention's TTL", "router/operations.go", "if t.Record.State.Final() {\n\t\t\t\tw.TTL", "if true {\n\t\t\t\tw.TTL"), "./test/e2e", "TestRetentionOfEveryEnding"},
	{m("dead letters have no message id", "functions/result.go", "d.claim.RunID().RetryMsgID(p.Record.Attempt) + \".dead\"", "\"\""), "./functions", "TestOneDeadLetterAcrossACrash"},
	{m("the message where an answer of 16 MiB ends is skipped", "internal/jet/get.go", "req.Seq = a.Msgs[len(a.Msgs)-1].Sequence + 1", "req.Seq = a.Msgs[len(a.Msgs)-1].Sequence + 2"), "./internal/store", "TestConformance$/LargeAnswers"},
	{m("an index entry's TTL forgets the time until its tick", "internal/store/index.go", "return time.Duration(max(due-now, 0))*time.Millisecond + ix.keep", "return ix.keep"), "./internal/store", "TestTTLsOnDisk"},
	{m("each of many equal adds repairs the record", "router/writer.go", "r.written(a.Spec.Timer) || t.Rev > lost", "t.Rev > lost"), "./router", "TestEqualAddsRepairOnce"},
	{m("router: an older answer of a former leader forgets the revision that a repair could not replace", "router/writer.go", "lost = max(lost, t.Rev)", "lost = t.Rev"), "./router", "TestEqualAddsRepairOnce"},
	{m("an add repairs a record that another add has repaired meanwhile", "router/writer.go", "t.Rev > lost && lost > 0 && repaired(&t.Record)", "t.Rev < lost && repaired(&t.Record)"), "./router", "TestEqualAddsRepairOnce"},
	{m("an add takes the record that it could not repair for repaired", "router/writer.go", "t.Rev > lost && lost > 0 && repaired", "lost > 0 && repaired"), "./router", "TestEqualAddsRepairOnce"},
	{m("an add takes any write for a repair", "router/writer.go", "return r.Pending() && r.Queued && r.Moves > 0 &&", "return"), "./router", "TestEqualAddsRepairOnce"},
	{m("a duplicate does not repair its index entry", "router/writer.go", "if _, err = repair(r.ctx, r.Records, r.Geometry, r.NowMs, t); err == nil {", "if err == nil {"), "./router", "TestDuplicateRepairsTheIndex"},
	{m("the real loop follows from what was seen", "scheduler/term.go", "after := clock.Tail", "after := clock.Seen"), "./scheduler", "TestTailFromItsOffset"},
	{m("the real loop ignores a clock jump", "scheduler/term.go", "t.core.Pause(expired || jumped)", "t.core.Pause(expired)"), "./scheduler", "TestNothingFiresAfterAJump"},
	{m("a release does not wait for its writes", "scheduler/term.go", "if !t.core.Idle() && now < t.until {", "if false {"), "./scheduler", "TestReleaseWaitsForWrites"},
	{m("a release with writes in flight keeps the count of pending timers", "scheduler/renew.go", "c.PendingUnknown = c.PendingUnknown || t.core.inflight > 0", "_ = t.core.inflight > 0"), "./scheduler", "TestReleaseWithClaimsInFlight"},
	{m("a count ignores the records after its beginning", "scheduler/recount.go", "change.rev < late.Rev {", "change.rev < late.Rev && late.Rev == 0 {"), "./scheduler", "TestCountKnowsLaterRevisions"},
	{m("a callback of a damaged record keeps its permit", "functions/delivery.go", "case errors.Is(err, schemas.ErrDamaged):", "case false:"), "./functions", "TestDamagedRecordHoldsNoPermit"},
	{m("an add of a damaged record is delivered for ever", "router/writer.go", "case errors.Is(err, schemas.ErrDamaged):", "case false:"), "./router", "TestDuplicateOfDamagedRecord"},
	{m("a clock passes a damaged record before it is reported", "internal/store/clock.go", "if err := k.report(ctx, shard); err != nil {", "if err := error(nil); err != nil {"), "./internal/store", "TestConformance$/DamageReport"},
	{m("a damage report is replaced without a compare-and-set", "internal/store/damage.go", "w.CAS(was.rev, 0)", "_ = was.rev"), "./internal/store", "TestReplaceDamageReport"},
	{m("an inspection fails at once if the damage report has changed", "internal/store/inspect.go", "onConflict(ctx, reportTries, reportPause", "onConflict(ctx, 1, reportPause"), "./internal/store", "TestInspectRepeats"},
	{m("an inspection that starts over forgets what is gone", "internal/store/inspect.go", "	in.Gone = gone\n", "	in.Gone = in.Gone[:len(in.Gone):len(in.Gone)]\n"), "./internal/store", "TestInspectRepeats"},
	{m("a change of the damage report is a conflict of the clock", "internal/store/damage.go", "case errors.Is(err, ErrRevision):", "case false:"), "./internal/store", "TestClockWaitsForReport"},
	{m("a record that is rebuilt from its event is a new claim", "internal/store/repair.go", "rec.Moves = max(rec.Moves, 1)", "_ = rec.Moves"), "./internal/store", "TestRepairFromEvent"},
	{m("the simulated store fails an inspection at once if the report has changed", "internal/sim/fake/damagedrecord.go", "|| try == reportTries {", "|| try == 1 {"), "./internal/sim/fake", "TestReportConflicts"},
	{m("the simulated store takes a change of the report for a conflict of the clock", "internal/sim/fake/damagedrecord.go", "	if errors.Is(err, store.ErrRevision) {\n", "	if false {\n"), "./internal/sim/fake", "TestReportConflicts"},
	{m("a count keeps claims that the tail has passed", "scheduler/recount.go", "return rev <= tailSeen })", "return false })"), "./scheduler", "TestCountForgetsClaimsBehindTheTail"},
	{m("a count forgets claims that the tail has yet to bring", "scheduler/recount.go", "return rev <= tailSeen })", "return rev > 0 })"), "./scheduler", "TestCountForgetsClaimsBehindTheTail"},
	{m("a repaired record is a new timer", "internal/store/repair.go", "rec.Moves = 1", "rec.Moves = 0"), "./internal/store", "TestRepair$"},
	{m("a repaired run is hidden from the sweeper", "internal/store/repair.go", "case rec.State == schemas.StateDelivered, rec.State == schemas.StateRetrying:", "case false:"), "./internal/store", "TestRepairDelivered"},
	{m("a revision that was just claimed is claimed again in the same millisecond", "scheduler/fire.go", "if k.justClaimed.has(e, k.now) {", "if false {"), "./scheduler", "TestCoreScripts"},
	{m("the event of a damaged claim is lost after its repair", "scheduler/core.go", "repaired := k.repairedClaim(&t, added)", "repaired := k.repairedClaim(&t, added) && false"), "./scheduler", "TestCoreScripts"},
	{m("tail leaves the consumer with which it finds its start", "cmd/belfry/tail.go", "	removeConsumer(ctx, js, cons) // otherwise the server keeps it for some 5 s", "	// the server keeps it for some 5 s"), "./cmd/belfry", "TestTailRemovesFirstConsumer"},
	{m("an older revision counts as the repair of a damaged claim", "scheduler/damaged.go", "t.Rev <= c.rev", "t.Rev <= 0"), "./scheduler", "TestCoreScripts$/^repaired_claim_tail_behind$"},
	{m("an inspection takes a revision that came after its request for gone", "internal/store/inspect.go", "good(r, r.Revision)", "good(r, 1<<64-1)"), "./internal/store", "TestInspectKeepsLaterRevisions"},
	{m("an audit forgets what another owner reported", "internal/store/audit.go", "i.dec.damaged[shard].note(r)", "_ = r"), "./internal/store", "TestAuditKeepsReport"},
	{m("a count that has read a timer before its damaged claim leaves it out", "scheduler/damaged.go", "c.counted = ended.includes(id)", "c.counted = ended.includes(id) && false"), "./scheduler", "TestCoreScripts"},
	{m("a claim reduces the count that has read its damaged record", "scheduler/recount.go", "max(k.tailSeen, ended.newest", "max(0, ended.newest"), "./scheduler", "TestCoreScripts"},
	{m("a count leaves out a claim whose add the tail has yet to bring", "scheduler/recount.go", "e.rev <= known && !ended", "known >= 0 && !ended"), "./scheduler", "TestCoreScripts"},
	{m("a timer whose damaged claim is repaired to its wait is not counted", "scheduler/damaged.go", "case !c.counted && waited:", "case false:"), "./scheduler", "TestCoreScripts"},
	{m("a timer that is added again after a damaged claim counts twice", "scheduler/damaged.go", "r.State.Waits() && !added ||", "r.State.Waits() ||"), "./scheduler", "TestCoreScripts"},
	{m("a cancelled timer leaves the count twice after a damaged claim", "scheduler/damaged.go", "|| r.State == schemas.StateCancelled && r.FiredMs == 0", "|| false"), "./scheduler", "TestCoreScripts"},
	{m("a repaired claim that a scan reads before the tail leaves the count twice", "scheduler/core.go", "k.repairedClaim(&t, false)", "_ = t"), "./scheduler", "TestCoreScripts"},
	{m("a late claim of an earlier owner stays in the count", "scheduler/core.go", "k.countEarlierClaim(&t)", "_ = t"), "./scheduler", "TestCoreScripts"},
	{m("a late last claim of a schedule stays in the count", "scheduler/recount.go", "case r.State == schemas.StateDelivered, r", "case r.State == schemas.StateDelivered && r.Schedule == nil, r"), "./scheduler", "TestCoreScripts"},
	{m("direct gets go through the first connection", "internal/jet/publisher.go", "if l == &p.line || !l.nc.IsConnected() {", "if l != nil {"), "./internal/jet", "TestDirectGets$"},
	{m("direct gets wait for a connection on which nothing answers", "internal/jet/publisher.go", "case now-silent > int64(getPatience):", "case now < silent:"), "./internal/jet", "TestDirectGetsUnanswered"},
	{m("direct gets never return to their own connection", "internal/jet/publisher.go", "case now-silent > int64(getAgain):", "case now < silent:"), "./internal/jet", "TestDirectGetsUnanswered"},
	{m("answers to direct gets are not noted", "internal/jet/get.go", "			l.answered()\n", ""), "./internal/jet", "TestDirectGetsUnanswered"},
	{m("direct gets in flight wait when their connection breaks", "internal/jet/publisher.go", "				p.fail(l, time.Since(p.start)+1, nats.ErrDisconnected)\n", "				if l == &p.line {\n					p.fail(l, time.Since(p.start)+1, nats.ErrDisconnected)\n				}\n"), "./internal/jet", "TestDirectGetsBreak"},
	{m("messages fail when the connection for direct gets breaks", "internal/jet/publisher.go", "p.fail(l, time.Since(p.start)+1,", "p.fail(nil, time.Since(p.start)+1,"), "./internal/jet", "TestDirectGetsBreak"},
	{m("a chunk voids records of a stream that has lost messages", "internal/store/void.go", "return e.Rev >= seq", "return e.Rev < 1"), "./internal/store", "TestRemoveVoid"},
	{m("a later revision that the tail has brought does not replace the answer of a reread", "scheduler/fire.go", "isGone(ev.Err) || ev.Err == nil && ev.Timer.Rev < n.Rev", "ev.Err == nil && ev.Timer.Rev > n.Rev"), "./scheduler", "TestCoreScripts$/^schedule_late_claim_known$"},
	{m("a reread that finds no record hides the claim that the tail has brought", "scheduler/fire.go", "(isGone(ev.Err) || ev.Err == nil && ev.Timer.Rev < n.Rev)", "ev.Err == nil && ev.Timer.Rev < n.Rev"), "./scheduler", "TestCoreScripts$/^schedule_late_claim_known$"},
	{m("an unclear claim of a schedule that is not due soon is forgotten", "scheduler/schedulerecovery.go", "woken || e.unclear()", "woken"), "./scheduler", "TestCoreScripts$/^schedule_late_claim_woken$"},
	{m("a late last claim stays in the count while the schedule waits for its last run", "scheduler/recount.go", " || e.rec.Schedule != nil\n", "\n"), "./scheduler", "TestCoreScripts"},
	{m("a schedule that an earlier owner completed late stays in the count", "scheduler/recount.go", "return r.Epoch != k.epoch && r.Epoch != 0 && r.FiredMs == 0", "return false"), "./scheduler", "TestCoreScripts"},
	{m("a late last claim of a schedule leaves the count again after another client has rewritten it", "scheduler/recount.go", "e.more().left = true", "e.more().left = false"), "./scheduler", "TestCoreScripts$/^pending_count_late_schedule$"},
	{m("a second reread forgets that the timer has left the count", "scheduler/recount.go", "if t.Rev <= k.tailSeen {", "if t.Rev > 0 {"), "./scheduler", "TestCoreScripts$/^pending_count_reread_twice$"},
	{m("the revisions ahead of the tail stay in memory", "scheduler/recount.go", "	if rev, left := p.ahead[t.ID]; left && t.Rev >= rev {", "	if rev, left := p.ahead[t.ID]; left && t.Rev >= rev && r.Epoch != k.epoch {"), "./scheduler", "TestRefusedClaimIsForgotten"},
	{m("a damaged schedule counts as a damaged claim", "scheduler/damaged.go", " && (e.rev != 0 || e.rec.Origin != nil)", ""), "./scheduler", "TestDamagedScheduleIsNoClaim"},
	{m("a late final record of a rejected claim stays in the count", "scheduler/recount.go", "case r.State == schemas.StateDelivered, r.State == schemas.StateFail:", "case r.State == schemas.StateDelivered:"), "./scheduler", "TestCoreScripts"},
	{m("a late final record stays in the count if a reread brings it first", "scheduler/fire.go", "k.countEarlierClaim(&ev.Timer)", "_ = ev.Timer"), "./scheduler", "TestCoreScripts"},
	{m("the final record of a rejected claim leaves the count again", "scheduler/undeliverable.go", "k.pending.leftAhead(e.id, rev, k.tailSeen)", "k.pending.left(e.id, rev)"), "./scheduler", "TestCoreScripts"},
	{m("a warm shard rolls up although a delete is in flight", "internal/store/records.go", "case r.gc.mayRollUp(&w) && !deletes:", "case r.gc.mayRollUp(&w):"), "./internal/store", "TestRollUpRemovesOne"},
	{m("a write that must roll up does not wait for a delete", "internal/store/records.go", "		if deletes {\n			r.gc.rem.call", "		if false {\n			r.gc.rem.call"), "./internal/store", "TestRollUpRemovesOne"},
	{m("writes that wait for a delete are forgotten when the store closes", "internal/store/supersede.go", "	r.after = nil\n", "	r.after, waiting = nil, nil\n"), "./internal/store", "TestRollUpWaitsUntilClose"},
	{m("what was queued before a power loss is deleted", "internal/store/supersede.go", "if now := r.jet.Reconnects(); now != v.reconnects {", "if now := r.jet.Reconnects(); false {"), "./internal/store", "TestDeletesAreCheckedAfterReconnect"},
	{m("a write waits for a delete that fails again and again", "internal/store/supersede.go", "	callAll(waiting)\n	// Retry", "	// Retry"), "./internal/store", "TestRollUpGoesOnWithoutServer"},
	{m("a write waits for a permit while the connection is down", "internal/store/supersede.go", "			if r.jet.Down() {", "			if false {"), "./internal/store", "TestReserveWhileDown"},
	{m("a cancel uses the record that another write of the process has replaced", "internal/store/records.go", "	r.cache.remove(w.ID)", "	_ = r.cache"), "./internal/store", "TestCached"},

	// TTLs.
	{m("a cancelled record expires after a second", "router/operations.go", "TTL: o.Retention}", "TTL: time.Minute}"), "./router", "TestManyCancels"},
	{m("a record that the scheduler concludes expires after an hour", "scheduler/perform.go", "case ActFinish:\n			t.cfg.Store.UpdateAsync(store.Write{ID: a.ID, Rev: a.Rev, Record: a.Record, TTL: t.cfg.Core.Retention}", "case ActFinish:\n			t.cfg.Store.UpdateAsync(store.Write{ID: a.ID, Rev: a.Rev, Record: a.Record, TTL: time.Hour}"), "./test/e2e", "TestRetentionOfEveryEnding"},
	{m("functions keep records for the default retention", "internal/app/roles.go", "Total: a.o.TotalConcurrency, Retention: a.store.Retention(),", "Total: a.o.TotalConcurrency,"), "./test/e2e", "TestRetentionOfEveryEnding"},
	{m("TTLs are rounded down", "internal/jet/write.go", "(max(ttl, time.Second)+time.Second-1)/time.Second", "max(ttl, time.Second)/time.Second"), "./internal/store", "TestTTLsOnDisk"},
	{m("an update writes no index entry", "internal/store/records.go", "	if w.Record.Queued {\n		if err", "	if false {\n		if err"), "./internal/store", "TestConformance$"},

	// Pagination.
	{m("a page of dead letters, or of rejections, skips one at its end", "internal/store/dead.go", "			if len(page) == q.limit {\n				return page, strconv.FormatUint(after, 10), nil", "			if len(page) == q.limit {\n				return page, strconv.FormatUint(m.Sequence, 10), nil"), "./internal/store", "TestConformance$/DeadLetters"},
	{m("a page of timers skips one at its end", "internal/store/list.go", "			if len(page.Timers) == limit {\n				page.Cursor = fmt.Sprintf(\"%d.%d\", shard, after)", "			if len(page.Timers) == limit {\n				page.Cursor = fmt.Sprintf(\"%d.%d\", shard, m.Sequence)"), "./internal/store", "TestConformance$/List"},
	{m("a list ends with the first shard", "internal/store/list.go", "shard, after, end = shard+1, 0, shardEnd{}", "shard, after = rd.shards.geo.Shards, 0"), "./internal/store", "TestConformance$/List"},
	{m("a scan skips a message between pages", "internal/store/shards.go", "jet.Get{Seq: after + 1, Batch: batch", "jet.Get{Seq: after + 2, Batch: batch"), "./internal/store", "TestConformance$"},
	{m("the client lists one page of rejections", "control.go", "return page.Rejected, page.Cursor, err", "return page.Rejected, \"\", err"), ".", "TestRejectionsOfManyPages"},

	// The start of tail.
	{m("each reconnect before the first event moves the start of tail", "cmd/belfry/tail.go", "DeliverPolicy: jetstream.DeliverByStartSequencePolicy}", "DeliverPolicy: jetstream.DeliverNewPolicy}"), "./cmd/belfry", "TestTailFromItsStart"},
	{m("tail begins with the last event before its start", "cmd/belfry/tail.go", "Delivered.Stream + 1", "Delivered.Stream"), "./cmd/belfry", "TestTailFromItsStart"},
	{m("an interrupt of tail waits for the library", "cmd/belfry/tail.go", "\t\tcase r = <-next:\n\t\tcase <-ctx.Done():\n", "\t\tcase r = <-next:\n"), "./cmd/belfry", "TestTailInterruptedWithoutStream"},

	// Journals of batches.
	{m("a batch goes without its journal", "internal/jet/batch.go", "	if q.journal != \"\" {\n		journal", "	if false {\n		journal"), "./internal/store", "TestGroupJournal"},
	{m("a batch that was stored is restored", "internal/jet/journal.go", "return j.Writes == 0 || last > seq+uint64(others)+uint64(j.Writes)", "return j.Writes == 0"), "./internal/store", "TestRestore$"},
	{m("the batch before a writer's last one is restored", "internal/store/journal.go", "newest := !handled[journal.Writer()]", "newest := true"), "./internal/store", "TestRestore$"},
	{m("messages of other writers pass for those of the batch", "internal/store/journal.go", "if !journal.IsOf(m) {", "if m == nil {"), "./internal/store", "TestRestore$"},
	{m("a batch at the end of its stream counts as stored", "internal/jet/journal.go", "last > seq+uint64(others)", "last >= seq+uint64(others)"), "./internal/store", "TestRestore$"},
	{m("the journal of a refused batch counts", "internal/jet/batch.go", "		b.q.unstored = b.unstored", "		_ = b.q"), "./internal/store", "TestRefusedBatchIsNotRestored"},
	{m("a single write goes before the empty journal", "internal/jet/batch.go", "!q.sending && q.unstored == \"\" && len(q.queue)", "!q.sending && len(q.queue)"), "./internal/jet", "TestEmptyJournal"},
	{m("the journal of a refused batch hides an older one", "internal/store/journal.go", "newer[w.Subject] || !refused[journal.Batch]", "true"), "./internal/store", "TestRestoreNothingExpired"},
	{m("an older journal restores a record that has ended", "internal/store/journal.go", "return newer[w.Subject] ||", "return"), "./internal/store", "TestRestoreNothingExpired"},
	{m("a record that would have expired is restored", "internal/store/journal.go", " || w.TTL > 0 && time.Since(m.Time) >= w.TTL", ""), "./internal/store", "TestRestoreNothingExpired"},
	{m("a journal has no bases", "internal/jet/journal.go", "binary.AppendUvarint(b, w.base())", "binary.AppendUvarint(b, 0)"), "./internal/store", "TestGroupJournal"},
	{m("a journal of the first format is read with bases", "internal/jet/journal.go", "if b[0] != journalFormat1 {", "if true {"), "./internal/jet", "TestParseJournal"},
	{m("a restore leaves an older revision than the replaced one", "internal/store/journal.go", "if errors.Is(err, ErrRevision) && w.Base > 0 {", "if false {"), "./internal/store", "TestRestore(OverReturned)?$"},
	{m("a restore takes any revision for the replaced one", "internal/store/journal.go", "stored[w.Subject] >= max(w.Base, 1)", "stored[w.Subject] > 0"), "./internal/store", "TestRestore(OverReturned)?$"},
	{m("a restore replaces a revision that the batch has not replaced", "internal/store/journal.go", "err == nil && m.Sequence >= w.Base {", "err == nil && m.Sequence > w.Base {"), "./internal/store", "TestRestoreWrites"},
	{m("a restore replaces a later revision", "internal/store/journal.go", "err == nil && m.Sequence >= w.Base {", "err == nil && m.Sequence == w.Base {"), "./internal/store", "TestRestoreWrites"},
	{m("a restored record leaves an older revision", "internal/jet/write.go", "	h[headerRollup] = []string{rollupSubject}\n	a, err := c.Publish(ctx, op, subject, h, data)\n	return a.Seq, err\n}\n\n// Purge", "	a, err := c.Publish(ctx, op, subject, h, data)\n	return a.Seq, err\n}\n\n// Purge"), "./internal/store", "TestRestore(OverReturned)?$"},
	{m("a count counts a revision that has returned", "internal/store/returned.go", "over[r.key] = err == nil &&", "over[0] = err == nil &&"), "./internal/store", "TestCountFindsReturned"},
	{m("a count leaves a revision that has returned", "internal/store/returned.go", "if rd.gc == nil || !rd.gc.replaces(newest) {", "if true {"), "./internal/store", "TestCountFindsReturned"},
	{m("a count has the revision deleted from which a record can be repaired", "internal/store/returned.go", "if rd.gc == nil || !rd.gc.replaces(newest) {", "if rd.gc == nil {"), "./internal/store", "TestCountFindsReturned"},
	{m("a count looks for returned revisions of waiting timers only", "internal/store/returned.go", "if waits || i > 0 && e[i-1].key == r.key {", "if waits {"), "./internal/store", "TestCountFindsReturned"},
	{m("a timer counts once for each revision", "internal/store/returned.go", "slices.Compact(waiting)", "waiting"), "./internal/store", "TestCountFindsReturned"},
	{m("a count leaves the earlier revision of a timer that was moved", "internal/store/returned.go", "missing[key] = true", "missing[0] = true"), "./internal/store", "TestCountFindsReturned"},
	{m("a count has the revision deleted from which a damaged record can be repaired", "internal/store/returned.go", "if errors.Is(err, schemas.ErrDamaged) {", "if false {"), "./internal/store", "TestCountFindsReturned"},
	{m("a count ignores a timer that was claimed after it", "internal/store/returned.go", "!t.Record.State.Waits() && newest.Sequence <= through", "!t.Record.State.Waits()"), "./internal/store", "TestCountFindsReturned"},
	{m("an owner does not look for void records after a take-over", "scheduler/ended.go", "e.suspect = true //", "e.suspect = false //"), "./scheduler", "TestRemovesVoid"},
	{m("an owner does not look for void records after a lost connection", "scheduler/ended.go", "e.suspect || !first", "e.suspect || !first && n == 0"), "./scheduler", "TestRemovesVoid"},
	{m("an owner looks for void records once", "scheduler/ended.go", "(e.suspect || now >= e.voidAt)", "e.suspect"), "./scheduler", "TestRemovesVoid"},
	{m("an owner that cannot look for void records gives up", "scheduler/ended.go", "false, e.suspect || err != nil", "false, e.suspect"), "./scheduler", "TestRemovesVoid"},
	{m("a core counts a void record that its tail has brought", "scheduler/void.go", "\tk.pending.void(ev.ID, ev.Rev)\n", ""), "./scheduler", "TestVoidIsForgotten"},
	{m("a shard is handed over with its count while the record of a refused claim may be stored", "scheduler/fire.go", "if e.unclear() || e.failing() && e.waits() {", "if e.unclear() {"), "./scheduler", "TestRefusedClaimWithALateRecord"},
	{m("the late record of a refused claim is not counted", "scheduler/fire.go", "case (e.isFailOf(&t.Record) || k.isLateClaim(e, &t.Record)) && e.waits():", "case k.isLateClaim(e, &t.Record) && e.waits():"), "./scheduler", "TestRefusedClaimWithALateRecord"},
	{m("an owner that has not read the stream forgets the claims of earlier owners", "scheduler/schedulerecovery.go", "	return k.epoch - 1, earlier\n", "	return 0, 0\n"), "./scheduler", "TestCoreScripts"},
	{m("the claims of earlier owners are looked for from the new offset", "internal/store/api.go", "if c.EarlierEpoch != 0 && l.Epoch <= c.EarlierEpoch &&", "if false &&"), "./scheduler", "TestCoreScripts"},
	{m("the offset of earlier owners is used for all claims", "internal/store/api.go", "c.EarlierEpoch != 0 && l.Epoch <= c.EarlierEpoch", "c.EarlierEpoch != 0"), "./scheduler", "TestCoreScripts"},
	{m("the offset of earlier owners is kept for ever", "scheduler/schedulerecovery.go", " || took >= mostEarlier", ""), "./scheduler", "TestCoreScripts"},
	{m("the offset of earlier owners is dropped while their writes may be stored", "scheduler/schedulerecovery.go", "read && took >= leastEarlier", "read"), "./scheduler", "TestCoreScripts"},
	{m("claims that the second owner has read are looked for again", "internal/store/api.go", " && rev > c.Tail {", " {"), "./scheduler", "TestCoreScripts"},
	{m("a refused claim is counted again after a reread of the revision before it", "scheduler/fire.go", "x.failedMs, x.left = before.extra.failedMs, x.left || before.left()", "x.failedMs = before.extra.failedMs"), "./scheduler", "TestRefusedClaimReadBefore"},
	{m("the first of two final records of a refused claim is not recognised", "scheduler/undeliverable.go", "x.failedMs == 0 || rec.DoneMs < x.failedMs {", "true {"), "./scheduler", "TestRefusedClaimTwice"},
	{m("the offset for earlier claims is dropped before they are completed", "scheduler/schedulerecovery.go", " && applied >= tail {", " {"), "./scheduler", "TestCoreScripts"},
	{m("a loaded retry of an earlier owner leaves the number", "scheduler/recount.go", "} else if p.known && !isFirstClaim(&t.Record) && (e == nil || !e.waits()) {", "} else if p.known && e != nil && e.rev > t.Rev {"), "./scheduler", "TestLoadedRetry"},
	{m("a loaded claim of an earlier owner is not counted", "scheduler/readahead.go", "		k.countLoadedClaim(&t)\n", ""), "./scheduler", "TestLoadedClaim"},
	{m("a loaded claim of an earlier owner is counted twice", "scheduler/recount.go", "	p.leftAhead(t.ID, t.Rev, k.tailSeen)\n	p.read(", "	p.left(t.ID, t.Rev)\n	p.read("), "./scheduler", "TestLoadedClaim"},
	{m("a look is delayed by the retries of a plan", "scheduler/schedule.go", "Delay: k.backoff(r.lookFails)}", "Delay: k.backoff(int(e.fails))}"), "./internal/sim", "TestSeeds$"},
	{m("a resume drops the overdue times before it", "internal/recurrence/expect.go", "last := max(nowMs, s.NextMs-1)", "last := min(nowMs, 0)"), "./internal/recurrence", "TestScripts"},
	{m("a backfill is stored again after a lost answer", "router/schedule.go", "if slices.Contains(rec.Schedule.Requests, q.Request) {", "if slices.Contains(rec.Schedule.Requests, 0) {"), "./router", "TestBackfillOnce"},
	{m("nominal times before a clock was set back have a second overdue event", "internal/recurrence/expect.go", "		if o.Kind == schemas.DecisionPaused {", "		if false {"), "./internal/recurrence", "TestScripts"},
	{m("a run after a clock was set back is overdue as one of a pause", "internal/recurrence/operations.go", "	p.resumeExpected(s, nowMs)\n", ""), "./internal/recurrence", "TestScripts"},
	{m("an update counts only the first nominal times before a resume", "internal/recurrence/expect.go", "	if times.first > afterMs {", "	if times.n == MaxBackfill {"), "./internal/recurrence", "TestScripts"},
	{m("a count forgets the changes of the failed one before", "scheduler/recount.go", "if p.kept = p.running.changed; p.running.tooMuch", "if p.running.tooMuch"), "./scheduler", "TestCountAfterAFailedCount"},
	{m("a void record is counted after its delete", "scheduler/void.go", "deleted := t.Rev <= v.revs[t.ID]", "deleted := t.Rev < v.revs[t.ID]"), "./scheduler", "TestVoidBeforeTheTail"},
	{m("a timer that is added again is taken for its void record", "scheduler/void.go", "deleted := t.Rev <= v.revs[t.ID]", "deleted := v.revs[t.ID] > 0"), "./scheduler", "TestVoidBeforeTheTail"},
	{m("an owner passes on a count while it deletes void records", "scheduler/renew.go", "	if t.ended.looking {", "	if false {"), "./scheduler", "TestReleaseDuringALook"},
	{m("a void record stays in the number of an earlier count", "scheduler/recount.go", "\t\tp.known, p.expected = false, -1\n\t\treturn", "\t\treturn"), "./scheduler", "TestVoidAfterTheCount"},
	{m("a void record of the previous owner's count is missed", "scheduler/recount.go", "p.expected = max(p.expected-1, -1)", "p.expected = max(p.expected, -1)"), "./scheduler", "TestVoidAfterTheCount"},
	{m("a core keeps a void record that it has loaded", "scheduler/void.go", "	if e := k.entries[ev.ID]; e != nil && e.rev <= ev.Rev && (e", "	if e := k.entries[ev.ID]; e != nil && e.rev == 0 && (e"), "./scheduler", "TestVoidIsForgotten"},
	{m("a core drops a timer that was added again with its void record", "scheduler/void.go", "e != nil && e.rev <= ev.Rev && (e", "e != nil && (e"), "./scheduler", "TestVoidIsForgotten"},
	{m("the list voids a timer that was added again", "internal/store/endedlist.go", "t.Rev < e.Rev &&", "e.Rev > 0 &&"), "./internal/store", "TestRemoveVoid"},
	{m("the list voids a record that a backup has restored", "internal/store/endedlist.go", "t.StoredMs <= e.StoredMs &&", "e.StoredMs > 0 &&"), "./internal/store", "TestRemoveVoid"},
	{m("the list voids another add with the same id", "internal/store/endedlist.go", " && t.Record.AddedMs == e.AddedMs", ""), "./internal/store", "TestRemoveVoid"},
	{m("the list voids a final record", "internal/store/endedlist.go", "return !t.Record.State.Final() &&", "return"), "./internal/store", "TestRemoveVoid"},
	{m("an owner deletes a void revision that another client wrote", "internal/store/void.go", "e.Voids(&t) && rd.gc.replaces(m)", "e.Voids(&t)"), "./internal/store", "TestRemoveVoid"},
	{m("the revision before a void one is left", "internal/store/void.go", "append(older, m) {", "append(older[:0], m) {"), "./internal/store", "TestRemoveVoid"},
	{m("a void revision is deleted although its sequence has another message", "internal/store/supersede.go", "return m.Time.UnixNano() == v.void, nil", "return true, nil"), "./internal/store", "TestVoidIsCheckedFirst"},
	{m("the list of ended timers forgets its open chunk", "internal/store/endedlist.go", "rev: m.Sequence, timers: timers}", "rev: m.Sequence, timers: timers[:0]}"), "./internal/store", "TestAddEnded$"},
	{m("the list of ended timers drops timers too early", "internal/store/endedlist.go", "return e.UntilMs <= passedMs", "return e.UntilMs > passedMs"), "./internal/store", "TestAddEnded$"},
	{m("a chunk expires with its last timer", "internal/store/endedlist.go", "l.retention) + endedKeep", "l.retention)"), "./internal/store", "TestAddEnded$"},
	{m("a chunk is written over what another node wrote", "internal/store/endedlist.go", "case errors.Is(err, ErrRevision) && tries < endedTries:", "case errors.Is(err, ErrRevision):\n			return nil\n		case errors.Is(err, ErrRevision) && tries < endedTries:"), "./internal/store", "TestAddEndedTogether"},
	{m("the list of ended timers goes on in a damaged chunk", "internal/store/endedlist.go", "l.logSkipped(m, err)\n		return endedChunk{class: class, n: n + 1 + taken}, nil", "l.logSkipped(m, err)\n		return endedChunk{class: class, n: n, rev: m.Sequence}, nil"), "./internal/store", "TestAddEndedAfterDamage"},
	{m("a chunk that is damaged ends the list", "internal/store/endedlist.go", "				l.logSkipped(m, err)\n				continue", "				return nil"), "./internal/store", "TestAddEndedAfterDamage"},
	{m("a clock is ahead of the list of ended timers", "scheduler/ended.go", "if len(e.noted) == 0 && !e.writing", "if !e.writing"), "./scheduler", "TestEndedTerm"},
	{m("a clock is ahead of a write of the list of ended timers", "scheduler/ended.go", "len(e.noted) == 0 && !e.writing && !e.scanning", "len(e.noted) == 0 && !e.scanning"), "./scheduler", "TestEndedTerm"},
	{m("a new owner does not list what the last one had noted", "scheduler/ended.go", "e.forgot = e.complete < clock.Tail", "e.forgot = false"), "./scheduler", "TestEndedTakeOver"},
	{m("a new owner trusts a list beyond its tail", "scheduler/ended.go", "min(clock.Ended, clock.Tail)", "clock.Ended"), "./scheduler", "TestEndedTakeOver"},
	{m("a failed write of the list is forgotten", "scheduler/ended.go", "e.noted, timers = timers, e.noted", "timers = e.noted"), "./scheduler", "TestEndedTerm"},
	{m("an owner keeps noting ended timers that it cannot write", "scheduler/ended.go", "> endedBound {", "> 2*endedBound {"), "./scheduler", "TestEndedBound"},
	{m("timers that were moved to an earlier time are not listed", "scheduler/ended.go", "rec.LastWaitMs()-rec.DoneMs <= r.keepMs", "rec.DueMs-rec.DoneMs <= r.keepMs"), "./scheduler", "TestEndedRule"},
	{m("every timer of a short retention is listed", "scheduler/ended.go", "min(late, keep/2)", "late"), "./scheduler", "TestEndedRule"},
	{m("the tail of an owner passes ended timers by", "scheduler/term.go", "t.ended.note(&tail.Timer, t.nowMs)", "_ = t.ended"), "./scheduler", "TestListOfEndedTimers"},
	{m("a timer that is moved earlier forgets its latest due time", "schemas/transition.go", "	r.MovedFrom(was)\n", "	_ = was\n"), "./schemas", "TestLatestDue"},
	{m("a stranded add stays", "internal/store/inbox.go", "stranded.Go(func() { in.readStranded(ctx, most, handle) })", ""), "./internal/store", "TestStrandedAdds"},
	{m("a stranded add counts as new", "internal/store/strandedadds.go", "addOf(m, 2, ", "addOf(m, 1, "), "./internal/store", "TestStrandedAdds"},
	{m("an add that is under way counts as stranded", "internal/store/strandedadds.go", "if m.Sequence > c.AckFloor.Stream {", "if false {"), "./internal/store", "TestStrandedAdds"},
	{m("a stranded add makes a timer whose record has expired", "internal/store/strandedadds.go", "info.TimeStamp.Sub(m.Time) > a.retention/2", "m.Sequence == 0"), "./internal/store", "TestOldStrandedAdds"},
	{m("a router does not know that a stranded add is old", "router/natsapi/intake.go", "d.Returned, d.Old = m.Deliveries > 1, m.Old", "d.Returned = m.Deliveries > 1"), "./internal/store", "TestOldStrandedAdds"},
	{m("an old stranded add without a record is delayed", "router/writer.go", "		reason = errOld\n", "		reason = nil\n"), "./internal/store", "TestOldStrandedAdds"},
	{m("an old stranded add is stored", "router/writer.go", "		return a.Old\n", "		return false\n"), "./router", "TestOldAdds"},
	{m("an old stranded add is rejected by a former leader", "router/writer.go", "GetNewest(ctx, a.Spec.Timer)", "Get(ctx, a.Spec.Timer)"), "./router", "TestOldAdds"},
	{m("an old stranded add waits for a limit of adds", "router/limiter.go", "a.Old || len(set.AddLimits", "len(set.AddLimits"), "./router", "TestOldAddIsNotLimited"},
	{m("a stranded add is read again before it is settled", "internal/store/strandedadds.go", "if !again || last != nil && !last.arrival.settled.Load() {", "if !again {"), "./internal/store", "TestStrandedSet"},
	{m("a stranded add is read again after it was removed", "internal/store/strandedadds.go", "a.Seq); err == nil {", "a.Seq); err == nil || true {"), "./internal/store", "TestStrandedSet"},
	{m("a stranded add is not removed", "internal/store/strandedadds.go", "schemas.StreamAdd, d.seq, func", "schemas.StreamAdd, 1<<60, func"), "./internal/store", "TestStrandedAdds"},
	{m("journals fill what is kept for claims", "internal/store/journal.go", "most = min(most, limit/journalParts)", "most = min(most, limit)"), "./internal/store", "TestJournalsFit"},
	{m("a store writes to a shard before its records are restored", "internal/jet/batch.go", "if reconnects != q.restored {", "if reconnects == 1<<63 {"), "./internal/jet", "TestWritesWaitForRestore"},

	// Writes that the tail takes from memory.
	{m("the tail passes over a gap in the memory", "internal/jet/followown.go", "		r.progress(len(took) > 0, gap, now)\n", "		if gap > 0 {\n			f.own.advance(gap - 1)\n			gap = 0\n		}\n		r.progress(len(took) > 0, gap, now)\n"), "./internal/jet", "TestFollowOwn$"},
	{m("the tail looks into the stream only at a gap", "internal/jet/followown.go", "return r.looked.Add(foreignPace)", "return r.looked.Add(time.Hour)"), "./internal/jet", "TestFollowOwnSoon"},
	{m("the tail takes the server's word that a gap has no message", "internal/jet/followown.go", "		return gap > *f.after, nil\n", "		*f.after = max(*f.after, gap)\n		f.own.advance(gap)\n		return false, nil\n"), "./internal/jet", "TestLookAnswers"},
	{m("a late answer of the stream repeats a message", "internal/jet/followown.go", "case a.msg.Sequence > *f.after:", "default:"), "./internal/jet", "TestLookAnswers"},
	{m("kept writes share the caller's buffer", "internal/jet/ownwrites.go", "w.data = bytes.Clone(data)", "w.data = bytes.TrimSpace(data)"), "./internal/jet", "TestOwnWrites$"},
	{m("a write that has no place in the memory is dropped", "internal/jet/ownwrites.go", "	if w.seq-o.next >= uint64(len(o.ring)) {\n		o.stop()\n", "	if w.seq-o.next >= uint64(len(o.ring)) {\n"), "./internal/jet", "TestOwnWritesBounds"},
	{m("a larger memory forgets its writes", "internal/jet/ownwrites.go", "if w.seq >= o.next {\n			*o.at(w.seq) = w", "if w.seq > o.last {\n			*o.at(w.seq) = w"), "./internal/jet", "TestOwnWritesBounds"},
	{m("a stream with replicas is read from memory", "internal/jet/followown.go", "if info.Config.Replicas <= 1 {", "if info.Config.Replicas <= 3 {"), "./internal/jet", "TestFollowOwnReplicas"},
	{m("the memory is used whatever others write", "internal/jet/followown.go", "return r.foreign > manyForeign && r.windows > 0", "return r.foreign > 1<<20"), "./internal/jet", "TestFollowOwnOfOthers"},
	{m("the memory is used however slow looks are", "internal/jet/followown.go", "return blocked.Seconds() > longBlocked*", "return blocked.Seconds() > 100*longBlocked*"), "./internal/jet", "TestOwnReadingSlow"},
	{m("the memory is tried again at once however often it does not pay", "internal/jet/followown.go", "f.notBefore = now.Add(f.pause)", "f.notBefore = now"), "./internal/jet", "TestOwnPause"},
	{m("the stream is asked while a write has no acknowledgement", "internal/jet/followown.go", "r.f.own.open.Load() > 0:", "r.f.own.open.Load() > 99:"), "./internal/jet", "TestNextLook"},
	{m("a write that closes a gap does not wake the tail", "internal/jet/ownwrites.go", "(first || w.seq == o.next)", "first"), "./internal/jet", "TestOwnWritesWake"},
	{m("a stored header stands for the sequence of a message", "internal/jet/get.go", "return v[len(v)-1]", "return v[0]"), "./internal/jet", "TestSpoofedHeaders"},

	// Format levels and far entries.
	{m("far entries that were written later are not read", "internal/store/far.go", "return e.as == mark })", "return e.as.Period == mark.Period })"), "./internal/store", "TestConformance$/FarTimers"},
	{m("far entries are written beside an older node", "internal/store/index.go", "ix.levels.Writes() < LevelFarIndex", "false"), "./internal/store", "TestFarEntries"},
	{m("a store opens before the levels of the live nodes are known", "internal/store/open.go", "err := s.learn(ctx, cfg.ReadyWithin); err != nil", "err := ctx.Err(); err != nil"), "./internal/store", "TestLevelAtOpen"},
	{m("an older node gets shards with far entries", "internal/store/clock.go", "c.Needs = max(c.Needs, k.needs())", "_ = k.needs()"), "./internal/store", "TestFarEntries"},

	// Settings.
	{m("rejected-max-age is not passed on", "internal/app/roles.go", "RejectedMaxAge: o.RejectedMaxAge,", ""), "./internal/app", "TestSettingsReachTheParts"},
	{m("dead-max-age is not passed on", "internal/app/roles.go", "DeadMaxAge: o.DeadMaxAge,", ""), "./internal/app", "TestSettingsReachTheParts"},
	{m("the lease is not passed on", "internal/app/roles.go", "Lease:         a.o.Lease,", ""), "./internal/app", "TestSettingsReachTheParts"},

	// Pending timers of limited services.
	{m("quota: a scan restores records that have changed since", "internal/quota/tally.go", "if _, later := t.touched[f.Key]; !later {", "if true {"), "./internal/quota", "TestSimulation"},
	{m("quota: a router forgets its stored adds", "internal/quota/ledger.go", "	own.adds = append(own.adds, ownAdd{seq, a})\n		return", "	l.remove(service, a)\n		return"), "./internal/quota", "TestSimulation"},
	{m("quota: a replica that is behind brings old numbers back", "internal/quota/ledger.go", "c.Version <= s.count.Version", "false"), "./internal/quota", "TestLedger"},
	{m("quota: a repeated add at the limit is refused", "router/pending.go", "case err == nil, errors.Is(err, schemas.ErrDamaged):", "case false:"), "./router", "TestPendingTimers"},
	{m("quota: a new owner counts only what changes", "scheduler/limited.go", "found = append(found, timer)", "_ = found"), "./router", "TestPendingTimers"},

	// Flow control.
	{m("flow: the validity of an admission is not paid for", "internal/flow/limit.go", "*l.Rate.Interval() - l.tolerance()", "*l.Rate.Interval()"), "./internal/flow", "TestSimulation"},
	{m("flow: a changed limit gives a second burst", "internal/flow/decide.go", "s.GateNs = next + int64(l.tau())", "s.GateNs = min(next, nowNs)"), "./internal/flow", "TestSimulation"},
	{m("flow: an admission does not move the gate", "internal/flow/decide.go", "d.s.GateNs = max(d.s.GateNs, at) + d.interval", "_ = at"), "./internal/flow", "TestSimulation"},
	{m("flow: the gate forgets admissions that are ahead", "internal/flow/decide.go", "max(d.s.GateNs, at) + d.interval", "d.now + d.interval"), "./internal/flow", "TestSimulation"},
	{m("flow: a new event passes events with reserved times", "internal/flow/decide.go", "max(d.s.PlanNs, d.s.LateNs) > d.now:", "false:"), "./internal/flow", "TestSimulation"},
	{m("flow: an outdated limit decides", "internal/flow/decide.go", "if s.Generation > generation {\n\t\tfor", "if false {\n\t\tfor"), "./internal/flow", "TestGenerations"},
	{m("flow: a new call does not count for its node", "internal/flow/decide.go", "out[i].Kind == Go {\n\t\t\trunning++", "out[i].Kind == Go {\n\t\t\trunning += 0"), "./internal/flow", "TestSimulation"},
	{m("flow: the slots of other nodes are free", "internal/flow/decide.go", "if l.UntilNs > nowNs {", "if l.UntilNs > nowNs+2*int64(LeaseFor) {"), "./internal/flow", "TestSimulation"},
	{m("flow: calls that ended keep their slots", "internal/flow/decide.go", "	s.Hold(node, running, nowNs)\n\t} else {", "	} else {"), "./internal/flow", "TestParallel"},
	{m("flow: a pause without an end", "internal/flow/decide.go", "min(leastPause<<min(deferrals, 10), mostPause)", "MaxDefer"), "./internal/flow", "TestSimulation"},
	{m("flow: a pause of a service holds only its own flow key", "functions/flowdelivery.go", "ok && by != key {", "ok && by != key && false {"), "./functions", "TestFlowHold"},
	{m("flow: held events get slots of the service's key", "functions/flowreplan.go", "case !limited || e.held:", "case !limited:"), "./functions", "TestFlowHoldWithRate"},

	{m("flow: the clocks of the nodes agree", "internal/flow/decide.go", "s.running(nowNs-int64(LeaseMargin))", "s.running(nowNs)"), "./internal/flow", "TestSimulation"},
	{m("flow: a step of the clock ends the leases of others", "internal/flow/decide.go", "= max(s.Leases[i].UntilNs, nowNs)", "= s.Leases[i].UntilNs"), "./internal/flow", "TestSimulation"},
	{m("flow: a step back of the clock shortens a lease", "internal/flow/decide.go", "untilNs = max(untilNs, l.UntilNs)", "untilNs = max(untilNs, nowNs)"), "./internal/flow", "TestSimulation"},
	{m("flow: a raised burst is there at once", "internal/flow/decide.go", "s.GateNs = next + int64(l.tau())", "s.GateNs = next + min(s.TauNs, int64(l.tau()))"), "./internal/flow", "TestSimulation"},
	{m("flow: decisions go on after a step of the clock", "functions/flow.go", "case g.c.steadyFor() < flow.StepSettle:", "case false:"), "./functions", "TestFlowClockStep"},
	{m("flow: a node keeps no leases after a step of the clock", "functions/flow.go", "if g.c.steadyFor() < flow.StepDoubt {", "if false {"), "./functions", "TestFlowClockStep"},
	{m("flow: a hanging request keeps the calls of a lost lease", "functions/lease.go", "func() { l.cancel(lost) })", "func() {})"), "./functions", "TestFlowSlotsLost"},

	{m("flow: a slot stays unused", "internal/flow/decide.go", "max(0, l.Parallel-s.running(", "max(0, l.Parallel-l.Parallel/2-s.running("), "./internal/flow", "TestSimulation"},
	{m("flow: a decision of any node renews the leases of dead nodes", "internal/flow/decide.go", "min(s.Leases[i].UntilNs, nowNs+int64(LeaseFor+LeaseMargin))", "nowNs + int64(LeaseFor+LeaseMargin)"), "./internal/flow", "TestSimulation"},
	{m("flow: a node that waits decides by an old state", "functions/flow.go", "if cached && g.state.Rev == rev &&", "if cached = false; cached && g.state.Rev == rev &&"), "./functions", "TestFlowSlotsReturned"},

	{m("flow: no slot is reserved for a node whose turn it is", "internal/flow/turns.go", "if nowNs-t.SinceNs >= int64(TurnFor) {", "if false {"), "./internal/flow", "TestSimulation"},
	{m("flow: functions reserves no slot for another node", "internal/flow/decide.go", "max(0, s.free(l, nowNs)-s.reserved(node, nowNs))", "s.free(l, nowNs)"), "./functions", "TestFlowTurns"},
	{m("flow: a node that was admitted keeps its turn", "internal/flow/turns.go", "case admitted:", "case false:"), "./internal/flow", "TestSimulation"},
	{m("flow: a slot is reserved from a node itself", "internal/flow/turns.go", "if t.Node == node {\n\t\t\tbreak", "if false {\n\t\t\tbreak"), "./internal/flow", "TestSimulation"},
	{m("flow: the turn of a dead node does not end", "internal/flow/turns.go", "func(t Turn) bool { return t.UntilNs <= nowNs }", "func(Turn) bool { return false }"), "./internal/flow", "TestSimulation"},
	{m("flow: a node does not renew its turn", "internal/flow/turns.go", "case s.Turns[i].UntilNs < nowNs+int64(turnKept/2):", "case false:"), "./internal/flow", "TestSimulation"},
	{m("flow: a node with a reserved slot asks as rarely as others", "internal/flow/turns.go", "ahead > 0 {\n\t\treturn nowNs +", "true {\n\t\treturn nowNs + 4*int64(Ahead) +"), "./internal/flow", "TestSimulation"},

	{m("flow hold: the pause of a target does not stop calls", "internal/flow/hold.go", "return nowNs < h.UntilNs && h", "return false && h"), "./internal/flow", "TestHoldSimulation"},
	{m("flow hold: a pause has no bound", "internal/flow/hold.go", "d = min(d, MaxHold)", "_ = MaxHold"), "./internal/flow", "TestRetryAfter"},
	{m("flow hold: an open circuit admits every event", "internal/flow/hold.go", "case nowNs < h.ProbeNs:", "case false:"), "./internal/flow", "TestHoldSimulation"},
	{m("flow hold: a probe does not delay the next", "internal/flow/hold.go", "h.ProbeNs = nowNs + int64(min(", "_ = nowNs + int64(min("), "./internal/flow", "TestHoldSimulation"},
	{m("flow hold: a circuit does not open", "internal/flow/hold.go", "c == Unreachable && circuit > 0 && int(*s) >= circuit", "false"), "./internal/flow", "TestHoldSimulation"},
	{m("flow hold: a node does not obey a hold", "functions/flowdelivery.go", "p == flow.Held {", "p > flow.Probe {"), "./functions", "TestRetryAfter"},
	{m("flow hold: an answered probe leaves the circuit open", "functions/flowholds.go", "case d.probe != 0 && contact == flow.Answered:", "case false:"), "./functions", "TestCircuit"},
	{m("flow hold: events of a closed circuit are not moved", "functions/flowreplan.go", "case l.hold && d.Flow == l.key", "case false && d.Flow == l.key"), "./functions", "TestHoldReset"},
	{m("flow hold: all held events are due at once", "functions/flowholds.go", "* int64(holdGap)", "* 0"), "./functions", "TestRetryAfterPausesKey"},

	{m("flow: tenants share flow keys", "schemas/flow.go", "return TenantService(TenantOf(service), flow)", "return flow"), "./schemas", "TestFlowKeyOfTenant"},
	{m("flow: a pause of a group holds that of every tenant", "internal/store/flows.go", "schemas.TenantService(tenant, group))", "group)"), "./internal/store", "TestHold"},
	{m("flow: targets of a tenant are not asked", "functions/settings.go", "return ServiceConfig{WebhookOrigin: s.Tenants[tenant].WebhookOrigin}", "return ServiceConfig{}"), "./functions", "TestWebhookOfTenant"},
	{m("flow: the sweeper does not know the events of deferred timers", "scheduler/sweep.go", "deferrals := rec.Deferrals()", "deferrals := uint32(0)"), "./scheduler", "TestSweeperKnowsDeferredEvents"},

	// Order within a key.
	{m("order: a call that runs on another node does not count", "internal/order/order.go", "case head && d.calling() && !d.mine():\n\t\t\treturn Answer{Busy", "case false:\n\t\t\treturn Answer{Busy"), "./internal/order", "TestSimulation"},
	{m("order: the turn passes on while another node calls the event", "internal/order/order.go", "if head && d.calling() && !d.mine() {\n\t\t\treturn", "if false {\n\t\t\treturn"), "./internal/order", "TestLease"},
	{m("order: the next event is not woken", "internal/order/order.go", "d.wakes = append(d.wakes, Wake{d.Head, d.now})\n\tcase len", "_ = d.wakes\n\tcase len"), "./internal/order", "TestSimulation"},
	{m("order: an event whose turn came before its record waited sleeps", "internal/order/order.go", "if head {\n\t\t\td.wakes", "if false {\n\t\t\td.wakes"), "./internal/order", "TestSimulation"},
	{m("order: nobody looks at a head whose node died", "internal/order/order.go", "if d.Head.IsZero() || d.calling() ||", "if true || d.Head.IsZero() || d.calling() ||"), "./internal/order", "TestSimulation"},
	{m("order: events wait in the order in which they came", "internal/order/order.go", "i, _ := slices.BinarySearchFunc(d.Waiting, e, Event.Compare)", "i := len(d.Waiting)"), "./internal/order", "TestSimulation"},
	{m("order: a failed attempt passes the turn on", "internal/order/order.go", "if head && d.mine() {\n\t\t\td.end()", "if head && d.mine() {\n\t\t\td.remove(a.Event)"), "./internal/order", "TestSimulation"},
	{m("order: an event without a place is overtaken", "internal/order/order.go", "(d.Bound.IsZero() || d.Waiting[0].Compare(d.Bound) < 0)", "true"), "./internal/order", "TestSimulation"},
	{m("order: a collection forgets the events without a place", "internal/order/order.go", "d.Bound, d.NextBound, d.ReopenMs = d.NextBound, Event{}, 0", "d.Bound, d.NextBound, d.ReopenMs = Event{}, Event{}, 0"), "./internal/order", "TestSimulation"},
	{m("order: a renewal renews nothing", "internal/order/order.go", "d.UntilMs = d.now + LeaseFor.Milliseconds()\n\t\t}", "_ = d.now\n\t\t}"), "./internal/order", "TestSimulation"},
	{m("a cancel of an old timer is not followed by a touch", "internal/store/records.go", "if r.gc.mayTouch(&w) {", "if false {"), "./internal/store", "TestTouch"},
	{m("a request names more records than the limit of a page", "internal/store/load.go", "for some := range slices.Chunk(ids, limit) {", "for some := range slices.Chunk(ids, 1000) {"), "./internal/store", "TestPages"},
	{m("a tick after a large one is not read in pages from the start", "internal/store/load.go", "l.sizes[shard].Load() <= int64(limit))", "true)"), "./internal/store", "TestPages"},
	{m("pages do not follow the size of the last tick", "scheduler/tickpages.go", "max(p.last, p.now)/pagesOfTick", "p.now/pagesOfTick"), "./scheduler", "TestTickPages"},
	{m("timers without a record do not count for the size of pages", "scheduler/sweep.go", "s.pages.read(load.Named, ", "s.pages.read(len(load.Timers), "), "./scheduler", "TestSweepWidth"},
	{m("the sweeper does not remember that ticks are busy", "scheduler/sweep.go", "s.width, last, ticks = 1, first, ticks[:1]", "last, ticks = first, ticks[:1]"), "./scheduler", "TestSweepWidth"},
	{m("a purge of adds has no filter", "internal/store/adds.go", "return from.filter\n", "return \"\"\n"), "./internal/store", "TestRemoveAddsInAnyOrder"},
	{m("a purge of the adds of tenants names the subject of the others", "internal/store/inbox.go", "return a.removeAdds(ctx, from, seqs)", "return a.removeAdds(ctx, defaultDoor, seqs)"), "./internal/store", "TestRemoveAddsOfTenants"},
	// Adds on their way.
	{m("an operation does not look again after adds were on their way", "router/operations.go", "&& o.AwaitAdds(ctx, o.Scope.Tenant) {", "&& !o.AwaitAdds(ctx, o.Scope.Tenant) {"), "./router", "TestFindsAddsOnTheirWay"},
	{m("an update does not wait for adds on their way", "router/schedule.go", "t, err := afterAdds(ctx, &s.ops, func() (t store.Timer, err error) {", "t, err := afterAdds(ctx, &Operations{}, func() (t store.Timer, err error) {"), "./router", "TestFindsAddsOnTheirWay"},
	{m("an operation on a run does not wait for adds on their way", "router/operations.go", "t, err := afterAdds(ctx, o, func() (store.Timer, error) { return parent.get(ctx) })", "t, err := parent.get(ctx)"), "./router", "TestFindsAddsOnTheirWay"},
	{m("all operations may wait for adds on their way", "router/service.go", "if !s.awaiting.take(tenant) {", "if s.awaiting.take(tenant); false {"), "./router", "TestAwaitingIsBounded"},
	{m("the flood of a tenant delays the answers of others", "router/service.go", "if len(s.o.Accounts) > 0 {\n\t\tmost = awaitTenants", "if false {\n\t\tmost = awaitTenants"), "./router", "TestAwaitingIsBounded"},
	{m("an open add counts as settled", "internal/store/arrivals.go", "a.seq <= through && !a.settled.Load()", "a.seq < through && !a.settled.Load()"), "./internal/store", "TestArrivals$"},
	{m("adds that others have read count as settled", "internal/store/arrivals.go", "if s.first <= first && s.last >= through {", "if s.last >= through {"), "./internal/store", "TestArrivals$"},
	{m("spans of adds do not grow together", "internal/store/arrivals.go", "case before && after:", "case false:"), "./internal/store", "TestArrivalsExtend"},
	{m("settled adds are kept behind an open one", "internal/store/arrivals.go", "r.groups = slices.DeleteFunc(r.groups, isSettled)", "_ = slices.IndexFunc(r.groups, isSettled)"), "./internal/store", "TestArrivalsSweep"},
	{m("an add that is put off is not settled", "internal/store/readadds.go", "a.settle()\n\t_ = a.d.Nak(after)", "_ = a.d.Nak(after)"), "./internal/store", "TestAwaitAdds$"},
	{m("the wait for adds of other routers has no bound", "internal/store/arrivals.go", "case at == addsComing && now.Sub(quiet) >= awaitComing:", "case false:"), "./internal/store", "TestAwaitAddsOfOthers"},
	{m("a new stream has the settled adds of the old one", "internal/store/arrivals.go", "if last < newest || !created.Equal(r.created) {", "if false {"), "./internal/store", "TestAwaitAddsOfNewStream"},
	{m("the wait for missing adds has no bound", "internal/store/arrivals.go", "case at == addsMissing && now.Sub(quiet) >= awaitMissing:", "case false:"), "./internal/store", "TestAwaitAddsOfOthers"},
	{m("later adds prolong the wait", "internal/store/arrivals.go", "if a.Seq <= w.through && a.Deliveries <= 1 {", "if a.Deliveries <= 1 {"), "./internal/store", "TestArrivalsThrough"},
	{m("adds that come again prolong the wait", "internal/store/arrivals.go", "if a.Seq <= w.through && a.Deliveries <= 1 {", "if a.Seq <= w.through {"), "./internal/store", "TestArrivalsThrough"},
	{m("a wait whose time is up before the stream's state is known finds nothing", "internal/store/arrivals.go", "return within.Err() != nil && ctx.Err() == nil // whether", "return false // whether"), "./internal/store", "TestAwaitAdds$"},
	{m("a wait counts on after its end", "internal/store/arrivals.go", "	defer a.arrivals.leave(wait)\n", ""), "./internal/store", "TestAwaitAdds$"},
	{m("a call gives up in a backlog", "internal/store/arrivals.go", "if at == addsOpen || n != delivered {", "if at == addsOpen || n < delivered {"), "./internal/store", "TestAwaitAddsInBacklog"},
	{m("each call waits for adds that others have read", "internal/store/arrivals.go", "through <= r.gaveUp || ", ""), "./internal/store", "TestArrivals$"},
	{m("an add is delayed although it is due soon", "router/linger.go", "return busy && a.Record.DueMs >= nowMs+lingerLead.Milliseconds()", "return busy && nowMs > 0"), "./router", "TestLingerer"},
	{m("an add is delayed although its caller waits", "router/linger.go", "case a.Seq == 0:", "case a.Seq == 0 && nowMs == 0:"), "./router", "TestLingerer"},
	{m("an add is written before an earlier one of its timer that is delayed", "router/linger.go", "case l.kept[a.Spec.Timer] > 0:", "case l.kept[a.Spec.Timer] > 1<<20:"), "./router", "TestLingerer"},
	{m("functions: an event is acknowledged by a record from before its claim", "functions/delivery.go", "d.f.o.Store.GetAsOf(d.f.recording, d.claim.Timer, rev)", "d.f.o.Store.GetAsOf(d.f.recording, d.claim.Timer, 0*rev)"), "./functions", "TestDeposedLeader"},
	{m("a replay deletes a letter by a record from before its claim", "router/dead.go", "if older && !t.Record.State.Final() {", "if false {"), "./router", "TestReplayFromDeposedLeader"},
	{m("a read of the newest record joins a barrier that was sent before", "internal/store/barrier.go", "\tw := s.next\n", "\tw := s.next\n\tif s.sent != nil {\n\t\tw = s.sent\n\t}\n"), "./internal/store", "TestBarriersShare"},
	{m("an error of one message ends a barrier with another message", "internal/store/barrier.go", "if w.ended || err != nil && w.open > 0 {", "if w.ended {"), "./internal/store", "TestBarrierAnswers"},
	{m("an operation that is refused does not read the newest record", "router/operations.go", "again := r.Confirm && !r.newest", "again := false"), "./router", "TestConfirm"},
	{m("a router stops before it has written the delayed adds", "router/linger.go", "		l.tasks.Wait()", "		_ = l"), "./router", "TestLingerer"},
	{m("client: AddBatch returns with the first error, while other adds are on their way", "internal/client/publish/batch.go", "			failed, err = i, answer\n", "			return i, answer\n"), "./internal/client/publish", "TestAddAllWaits"},
	{m("time: a node without the embedded server assumes SameClockPPM", "internal/app/app.go", "if a.own != nil {\n\t\ta.time.SameClock()", "if true {\n\t\ta.time.SameClock()"), "./internal/app", "TestSameClock"},
	{m("time: the embedded server's clock gets DriftPPM", "internal/clustertime/estimator.go", "return e.PPM\n", "return DriftPPM\n"), "./internal/clustertime", "TestSameClock"},
	{m("time: the embedded server's clock is read by a heartbeat only", "internal/clustertime/service.go", "if s.same {\n", "if false {\n"), "./internal/clustertime", "TestSameClockReadings"},
	{m("hrtimer: an earlier instant does not count", "internal/hrtimer/hrtimer.go", "at.Sub(t.at).Abs() <= Tolerance", "at.Sub(t.at) <= Tolerance"), "./internal/hrtimer", "TestEarlier"},
	{m("hrtimer: a later instant does not count", "internal/hrtimer/hrtimer.go", "at.Sub(t.at).Abs() <= Tolerance", "at.After(t.at)"), "./internal/hrtimer", "TestLater"},
	{m("scheduler: the precision of waits never becomes low", "scheduler/wait.go", "p.low.Store(true)", "p.low.Store(false)"), "./scheduler", "TestPrecision"},
	{m("scheduler: a wait of low precision has no timer", "scheduler/wait.go", "\tw.coarse.Reset(d)\n}", "\t_ = d\n}"), "./scheduler", "TestWaiter"},
	{m("scheduler: a wait of high precision has only its backstop", "scheduler/wait.go", "		w.exact.Set(d)\n", ""), "./scheduler", "TestWaiter"},
	{m("time: a step of the host's clock counts with the next reading only", "internal/clustertime/service.go", "if s.same && s.est.Known() {", "if false {"), "./internal/clustertime", "TestSameClockReadings"},
	{m("hrtimer: each Set is a system call", "internal/hrtimer/hrtimer.go", "at.Sub(t.at).Abs() <= Tolerance", "false"), "./internal/hrtimer", "TestTolerance"},
	{m("store: a heartbeat that nobody waits for leaves its presence", "internal/store/nodes.go", "			if err == nil {\n				n.lastBeat", "			if err == nil && ctx.Err() == nil {\n				n.lastBeat"), "./internal/store", "TestLeaveAmidBeat"},
	{m("search index: changes that were missed on a busy machine are counted first", "internal/visibility/follower.go", "case l == free && m == following && f.yielded", "case false && f.yielded"), "./internal/visibility", "TestCatchesUpAfterYield"},
	{m("search index: a catch-up on a machine that stays busy never counts", "internal/visibility/follower.go", "if f.yielded = false; f.catchesUp {", "if f.yielded = false; false {"), "./internal/visibility", "TestFollow"},
	{m("search index: a batch is written without pauses", "internal/visibility/follower.go", "			f.pauseBetween(ctx, f.pace.slice(rows, ended.Sub(sliceBegun)))\n", "			_ = f.pace.slice(rows, ended.Sub(sliceBegun))\n"), "./internal/visibility", "TestWritePauses"},
	{m("search index: the queue fills while it is written", "internal/visibility/queue.go", "len(q.changes)+q.writing >= q.limit && !q.closed", "len(q.changes) >= q.limit && !q.closed"), "./internal/visibility", "TestQueueWhileWriting"},
	{m("search index: the offset of a part of the queue goes too far", "internal/visibility/queue.go", "all[taken].Revision - 1", "all[taken].Revision"), "./internal/visibility", "TestTakeLowest"},
	{m("search index: a batch has no slices", "internal/visibility/sqlstore.go", "				b.Between(len(slice))\n", "				_ = b\n"), "./internal/visibility", "TestWriteBetween"},
	{m("search index: a pause outlives the load", "internal/visibility/pacer.go", "next.Before(p.next) {\n\t\tp.next = next", "false {\n\t\tp.next = next"), "./internal/visibility", "TestPacerPauseFollowsDuty"},
	{m("search index: a busy machine does not throttle the queue", "internal/visibility/follower.go", "		f.queue.throttle()\n", ""), "./internal/visibility", "TestFollow"},
	{m("search index: a throttled queue stays small", "internal/visibility/queue.go", "	if limit := min(q.limit+rows, q.most); limit != q.limit {\n", "	if limit := min(q.limit+rows, q.most); limit < q.limit {\n"), "./internal/visibility", "TestQueueThrottled"},
	{m("search index: a throttled queue is large again at once", "internal/visibility/follower.go", "f.queue.widen(f.pace.readable(time.Now()))", "f.queue.widen(f.queue.most)"), "./internal/visibility", "TestWidens"},
	{m("search index: a queue that is being widened counts as full", "internal/visibility/queue.go", "q.limit == q.most && q.full()", "q.full()"), "./internal/visibility", "TestQueueThrottled"},
	{m("search index: frequent looks do not widen the queue", "internal/visibility/pacer.go", "	if changes == 0 {\n", "	if p.widened = now; changes == 0 {\n"), "./internal/visibility", "TestWidens"},
	{m("search index: a queue that is often throttled never has its whole bound", "internal/visibility/pacer.go", "p.widening >= widenMost {", "false {"), "./internal/visibility", "TestWidensAtLast"},
	{m("search index: after a decision the queue is whole after each busy time", "internal/visibility/pacer.go", "func (p *pacer) recovered() { p.widening = 0 }", "func (p *pacer) recovered() {}"), "./internal/visibility", "TestWidensAtLast"},
	{m("search index: a follower that has recovered reads without a pace", "internal/visibility/follower.go", "f.queue.isWhole() && !f.waited {", "false {"), "./internal/visibility", "TestWidensAtLast"},
	{m("search index: a follower that is far behind counts as recovered", "internal/visibility/follower.go", "f.queue.isWhole() && !f.waited {", "true {"), "./internal/visibility", "TestWidensAtLast"},
	{m("search index: as_of stands still while timers change", "internal/visibility/asof.go", "a.ms = max(a.ms, a.endMs)", "a.ms = max(a.ms, 0)"), "./internal/visibility", "TestAsOf$"},
	{m("search index: as_of is ahead of what is written", "internal/visibility/asof.go", "offset < a.end:", "false:"), "./internal/visibility", "TestAsOf$"},
	{m("search index: the time without a look counts in full", "internal/visibility/pacer.go", "min(now.Sub(p.widened), lookPace)", "now.Sub(p.widened)"), "./internal/visibility", "TestWidens"},
	{m("search index: a queue that was throttled does not count", "internal/visibility/follower.go", "	case pressed: // follow", "	default:\n\t\tf.queue.widen(f.queue.most) // follow"), "./internal/visibility", "TestFollow"},
	{m("search index: changes missed within a transaction are counted first", "internal/visibility/follower.go", "		f.yielded, f.waited = true, true\n", ""), "./internal/visibility", "TestFollow"},
	{m("search index: a tail that waits while a transaction is written is not noted", "internal/visibility/queue.go", "q.waited || q.mode == following && q.limit < q.most", "q.waited || q.mode == following && q.limit < q.most && q.writing == 0"), "./internal/visibility", "TestFollow"},
	{m("search index: a peak from before the machine was not known counts", "internal/visibility/pacer.go", "p.since, p.peak = maxDuty, free, time.Time{}, 0", "p.since, _ = maxDuty, free, time.Time{}, 0"), "./internal/visibility", "TestPacerLoad"},
	{m("search index: a pause that lasted too long counts only as long as planned", "internal/visibility/pacer.go", "max(p.debt-d, -mostCredit)", "max(p.debt-d, 0)"), "./internal/visibility", "TestPacerSlice"},
	{m("search index: a pause counts for as long as it lasted, without a bound", "internal/visibility/pacer.go", "max(p.debt-d, -mostCredit)", "p.debt - d"), "./internal/visibility", "TestPacerCredit"},
	{m("search index: a pause between slices is not noted", "internal/visibility/follower.go", "f.pace.rested(time.Since(begun))", "f.pace.rested(0 * time.Since(begun))"), "./internal/visibility", "TestWritePauses"},
	{m("search index: a long pause is not split", "internal/visibility/follower.go", "part := min(d, lookPace)", "part := d"), "./internal/visibility", "TestPauseBetween"},
	{m("search index: a short peak makes it yield", "internal/visibility/pacer.go", "p.peak < peakPeriod", "false"), "./internal/visibility", "TestPacerLoad"},
	{m("search index: two peaks with idle time between them make it yield", "internal/visibility/pacer.go", "			p.peak = 0\n			return p.loadWith", "			return p.loadWith"), "./internal/visibility", "TestPacerLoad"},
	{m("search index: one look without a peak ends the yielding", "internal/visibility/pacer.go", "p.measured < loadPeriod", "false"), "./internal/visibility", "TestPacerLoad"},
	{m("search index: the load is that of the last look", "internal/visibility/pacer.go", "mean := p.left.Seconds() / p.measured.Seconds()", "mean := cores"), "./internal/visibility", "TestPacerLoad"},
	{m("search index: a follower that waits does not throttle its queue", "internal/visibility/follower.go", "			f.apply(f.pace.look(now))\n		}\n		until", "			f.pace.look(now)\n		}\n		until"), "./internal/visibility", "TestThrottledSoon"},
	{m("search index: a question does not wait for the opening of the file", "internal/visibility/visibility.go", "	v.awaitOpening(ctx)\n", ""), "./internal/visibility", "TestWaitsForOpening"},
	{m("search index: a failed opening does not end the wait", "internal/visibility/visibility.go", "p.Problem = err.Error() })\n\t\tv.firstTried()\n", "p.Problem = err.Error() })\n"), "./internal/visibility", "TestOpens"},
	{m("search index: an opening does not end the wait", "internal/visibility/visibility.go", "v.replace(st)\n\t\tv.firstTried()\n", "v.replace(st)\n"), "./internal/visibility", "TestOpens"},
	{m("search index: timers that have a row count again", "internal/visibility/writing.go", "old.n > last-inserted && inserted > 0", "old.n > last-inserted"), "./internal/visibility", "TestInsertAll"},
	{m("search index: the row before the inserted ones counts again", "internal/visibility/writing.go", "old.n > last-inserted && inserted > 0", "old.n >= last-inserted && inserted > 0"), "./internal/visibility", "TestInsertAll"},
	{m("search index: a row is not replaced if others of its statement are new", "internal/visibility/writing.go", "		if err := w.replace(c, &old, found, &rows[i], records[i]); err != nil {", "		if err := error(nil); err != nil {"), "./internal/visibility", "TestInsertAll"},
	{m("order: a redelivery trusts the record that was read before its turn", "functions/order.go", "\tif d.complete {\n\t\t// The record was read", "\tif false {\n\t\t// The record was read"), "./functions", "TestOrderEndsBeforeTurn"},
	{m("order: a waiting record does not ask once more", "functions/order.go", "d.askTurn(order.Ask{Kind: order.Confirm, Event: d.orderEvent()}, false)", "_ = order.Confirm"), "./functions", "TestOrderConfirms"},

	// Shells. Two guards keep an owner without a lease from publishing, so the simulation
	// does not notice if one of them is missing.
	{m("a paused core publishes", "scheduler/fire.go", "\tif k.paused {\n\t\tk.repeat", "\tif false {\n\t\tk.repeat"), "./scheduler", "TestCoreScripts"},
	{m("an event is published after the lease has run out", "scheduler/perform.go", "if t.core.Paused() || !t.lease.Trusted(now) {\n\t\t\t\t// The lease", "if false {\n\t\t\t\t// The lease"), "./scheduler", "TestHaltAmidRound"},
	{m("a shard is dropped where it should be released", "scheduler/shard.go", "		case <-release:\n			l.Release()\n			release = nil", "		case <-release:\n			return"), "./scheduler", "TestReleaseWaitsForWrites|Handover|TestNodesShare"},
	{m("a delivery that is handed back is acknowledged", "functions/delivery.go", `return d.msg.Nak(after) })`, `_ = after; return d.msg.Ack() })`), "./functions", "Stop"},
	{m("running callbacks are not kept alive", "functions/inflight.go", "_ = m.InProgress()", "_ = m"), "./functions", "TestLongCallIsKeptAlive"},
	{m("an unfinished add is purged with finished ones", "internal/store/adds.go", "seqs[n]-info.State.FirstSeq == uint64(n-i)", "true"), "./internal/store", "RemoveAdds|Adds"},
	{m("a conflict is answered as a duplicate", "router/writer.go", "err == nil && t.Record.Hash != a.Record.Hash:", "false:"), "./router", "Conflict|TestRepeatedAdds"},

	// The scheduler's core. The simulation found these bugs in Belfry, but few of its seeds have the
	// order of events that they need.
	{m("a ready entry is replaced by two revisions", "scheduler/core.go", "if n := e.newer(); n != nil && n.Rev <= rev {", "if n := e.newer(); n != nil && rev == 0 {"), "./scheduler", "TestCoreScripts$/^schedule_updates$"},
	{m("a newer record does not hold the tail", "scheduler/core.go", "if e.pin == 0 && rev != 0 {\n\t\tk.pins.add(e, rev)", "if e.pin == 0 && rev == 0 {\n\t\tk.pins.add(e, rev)"), "./scheduler", "TestCoreScripts$/^reschedule_sooner$"},
	{m("what holds the tail is out of order", "scheduler/entry.go", "p.entries[i-1].pin > seq", "p.entries[i-1].pin < 0"), "./scheduler", "TestCoreScripts$/^reread_ahead$"},
	{m("a scan does not hold the tail", "scheduler/readahead.go", "pin = t.Rev\n\t}\n\tk.onRecord", "pin = 0\n\t}\n\tk.onRecord"), "./scheduler", "TestCoreScripts$/^scan_late_add$"},
	{m("a reread record moves the tail", "scheduler/core.go", "return min(first.pin-1, k.tailSeen)", "return first.pin - 1"), "./scheduler", "TestCoreScripts$/^reread_ahead$"},
	{m("the record of a run is not taken up while the event of its first attempt is looked for", "scheduler/schedulerecovery.go", "e.phase != phaseDedupCheck && e.phase != phaseIndexing", "e.phase != phaseDone"), "./scheduler", "TestCoreScripts$/^schedule_fail_over_retry$"},
	{m("an old claim of an earlier owner is completed by its due time only", "schemas/schedule.go", "(g.Tick(l.DueMs) >= tick || l.Before > applied)", "g.Tick(l.DueMs) >= tick"), "./scheduler", "TestCoreScripts$/^schedule_fail_over_twice$"},
	{m("a claim that two owners did not finish is lost", "scheduler/schedulerecovery.go", "unread := rev > k.from.Tail &&", "unread := rev == 0 &&"), "./scheduler", "TestCoreScripts$/^schedule_fail_over_twice$"},
	{m("a timer that is refused twice leaves the pending timers twice", "scheduler/undeliverable.go", " && r.DoneMs >= e.extra.failedMs", ""), "./scheduler", "TestCoreScripts$/^too_large_twice$"},
	{m("a running count does not know of a rejected timer", "scheduler/undeliverable.go", "k.pending.leftAhead(e.id, rev, k.tailSeen)", "k.pending.left(e.id, e.rev+1)"), "./scheduler", "TestCoreScripts$/^pending_count_refused$"},
	{m("results of claims move due timers", "scheduler/fire.go", "if tick || !k.due.left {", "if tick || !k.due.left || k.now > 0 {"), "./scheduler", "TestCoreScripts$/^fire_doubles$"},
	{m("final records do not wait for due timers in the wheel", "scheduler/completion.go", "(k.ready.n > 0 || k.due.left)", "(k.ready.n > 0)"), "./scheduler", "TestCoreScripts$/^fire_doubles$"},
	{m("final records do not wait for due timers of other shards", "scheduler/completion.go", "others && age >= 0 &&", "others && age < 0 &&"), "./scheduler", "TestFinalRecordsWaitForTheBacklog"},
	{m("final records wait for other shards without end", "scheduler/completion.go", " && age < c.patienceMs, young", " && age < 100*c.patienceMs, young"), "./scheduler", "TestPatienceOfFinalRecords"},
	{m("a core that waits for other shards does not look again", "scheduler/core.go", "if k.completions.held && (", "if k.paused && ("), "./scheduler", "TestFinalRecordsWaitForTheBacklog"},
	{m("a term that ends leaves its shard in the node's backlog", "scheduler/core.go", "{ k.backlog.set(false) }", "{ k.backlog.set(k.backlog.counted) }"), "./scheduler", "TestFinalRecordsWaitForTheBacklog"},
	{m("a paused shard holds the final records of others", "scheduler/completion.go", "k.backlog.note(k.now, due && !k.paused)", "k.backlog.note(k.now, due)"), "./scheduler", "TestFinalRecordsWaitForTheBacklog"},
	{m("a core stays in the backlog after its term", "scheduler/term.go", "\tt.core.End()\n", ""), "./scheduler", "TestEndOfTerm"},
	{m("a shard whose store is silent holds the final records of others", "scheduler/backlog.go", "due && nowMs-m.progressMs < backlogStallMs", "due"), "./scheduler", "TestFinalRecordsWaitForTheBacklog|TestStalledShard"},
	{m("a stored claim does not reset the stall time", "scheduler/backlog.go", "{ m.progressMs = nowMs }", "{ m.progressMs += 0 * nowMs }"), "./scheduler", "TestStalledShard"},
	{m("a claim that waits for its index entry is taken for an unclear one", "scheduler/schedulerecovery.go", " || e.phase != phaseClaiming && e.phase != phaseRereading {", " {"), "./scheduler", "TestCoreScripts$/^schedule_late_claim_preparing$"},
	{m("final records do not wait while claims are slow", "scheduler/completion.go", "young && (f.slow ||", "young && (f.slow && f.others ||"), "./scheduler", "TestFinalRecordsBesideClaims|TestCoreScripts$/^finish_slow$"},
	{m("no claim is slow", "scheduler/fire.go", "		k.claims = claimTime{tookMs: k.now - e.rec.FiredMs, atMs: k.now}\n", ""), "./scheduler", "TestCoreScripts$/^finish_slow$"},
	{m("final records wait long after a slow claim", "scheduler/completion.go", " && ago < claimTimeMs", ""), "./scheduler", "TestClaimTime"},
	{m("final records wait for slow claims without end", "scheduler/completion.go", "age >= 0 && age < c.slowMs", "age >= 0"), "./scheduler", "TestFinalRecordsBesideClaims|TestCoreScripts$/^finish_slow$"},
	{m("final records wait after the last slow claim", "scheduler/completion.go", "f.slow = f.writes && k.claims.slow(k.now)", "f.slow = k.claims.slow(k.now)"), "./scheduler", "TestCoreScripts$/^finish_slow$"},
	{m("a shard that is handed over waits because claims were slow", "scheduler/completion.go", "writes: k.inflight > 0 && !k.draining}", "writes: k.inflight > 0}"), "./scheduler", "TestDrainWithSlowClaims"},
	{m("many final records are in flight beside claims", "scheduler/completion.go", "(f.slow || f.writes && c.writing >= maxCompletingBeside)", "f.slow"), "./scheduler", "TestFinalRecordsBesideClaims"},
	{m("final records wait until the sweeper comes", "scheduler/completion.go", "min(completionPatienceMs, sweepMs/2)", "max(completionPatienceMs, sweepMs/2)"), "./scheduler", "TestPatienceOfFinalRecords"},
	{m("each shard has a backlog of its own", "scheduler/scheduler.go", "newShard(n, &s.o, p, b, m)", "newShard(n, &s.o, p, map[bool]*Backlog{true: {}, false: b}[true], m)"), "./scheduler", "TestShardsShareABacklog"},
	{m("a repeated add takes the final record away", "scheduler/completion.go", "r.State == schemas.StateDelivered && sameClaim(r, a.Record)", "r.State == schemas.StateDelivered && a.Rev == 0"), "./scheduler", "TestCoreScripts$/^finish_replaced$"},
	{m("a final record ends a later claim", "scheduler/completion.go", "r.State == schemas.StateDelivered && sameClaim(r, a.Record)", "r.State == schemas.StateDelivered"), "./scheduler", "TestCoreScripts$/^finish_replaced$"},
	{m("a former leader's answer ends the attempts of a final record", "scheduler/completion.go", "|| ev.Timer.Rev <= a.Rev:", "&& ev.Timer.Rev <= a.Rev:"), "./scheduler", "TestCoreScripts$/^finish_replaced$"},
	{m("two conflicts of the final records of one timer leave a write in flight", "scheduler/completion.go", "; !twice {", "; !twice || twice {"), "./scheduler", "TestFinishedTwice"},
	{m("final records that others replace are written without end", "scheduler/completion.go", "Record: &rec, Fails: a.Fails + 1})", "Record: &rec})"), "./scheduler", "TestFinishConflictsEnd"},
	{m("an event that was published gets a dead letter", "scheduler/fire.go", "store.Permanent(ev.Err) && e.published()", "store.Permanent(ev.Err) && e.id.IsZero()"), "./scheduler", "TestCoreScripts$/^too_large_published$"},
	{m("an update does not record excluded times that the old recurrence has passed", "internal/recurrence/operations.go", "min(s.PassedMs, max(nowMs, reached(s)))", "max(s.PassedMs, 0)"), "./internal/recurrence", "TestScripts"},
	{m("an old publish is repeated without a look", "scheduler/dedup.go", "if k.claimedLongAgo(e) {\n\t\te.phase", "if k.now < 0 {\n\t\te.phase"), "./scheduler", "TestCoreScripts$/^lease_in_doubt$"},

	// Schedules.
	{m("calendar: a repeated local time runs in both passes", "internal/calendar/search.go", "			from = max(from, g.seenMs)\n", ""), "./internal/calendar", "TestEveryChangeOfEveryZone"},
	{m("calendar: overlap=last runs in the first pass too", "internal/calendar/search.go", "			to = min(to, g.laterMs)\n", ""), "./internal/calendar", "TestEveryChangeOfEveryZone"},
	{m("calendar: a gap of an hour loses its run", "internal/calendar/dst.go", "d.shift && lengthMs <= maxGapMs", "d.shift && lengthMs < hourMs"), "./internal/calendar", "TestKnownIncidents"},
	{m("calendar: a missing day runs on the next", "internal/calendar/dst.go", "d.shift && lengthMs <= maxGapMs", "d.shift"), "./internal/calendar", "TestKnownIncidents"},
	{m("calendar: an hour field with * is not a wildcard", "internal/calendar/parse.go", "words[minute][0] == '*' || words[minute+1][0] == '*'", "words[minute][0] == '*'"), "./internal/calendar", "TestEveryChangeOfEveryZone"},
	{m("calendar: the walk over a zone has no progress guard", "internal/calendar/zone.go", "end = sameOffsetUntil(loc, t)", "end = bound.Unix()"), "./internal/calendar", "TestProgressGuard|TestEveryZoneLoads"},
	{m("calendar: 1W on a Saturday leaves the month", "internal/calendar/cron.go", "		if day == 1 {\n			return 3\n		}\n", ""), "./internal/calendar", "TestDaysOfMonth"},
	{m("calendar: L-3 counts from the 31st", "internal/calendar/cron.go", "day := length - bits.TrailingZeros32(rest)", "day := 31 - bits.TrailingZeros32(rest)"), "./internal/calendar", "TestDaysOfMonth"},
	{m("calendar: the fifth Monday is the fourth", "internal/calendar/cron.go", "+ 7*(n%5))", "+ 7*min(n%5, 3))"), "./internal/calendar", "TestDaysOfMonth"},
	{m("calendar: a range that wraps lacks its last value", "internal/calendar/parse.go", "		to += f.size()\n", "		to += f.size() - 1\n"), "./internal/calendar", "TestFieldValues"},
	{m("calendar: 2100 is a leap year", "internal/calendar/date.go", "year%4 == 0 && (year%100 != 0 || year%400 == 0)", "year%4 == 0"), "./internal/calendar", "TestKnownIncidents"},
	{m("calendar: an elapsed period counts from the last run", "internal/calendar/every.go", "e.startMs + max(0, ceilDiv(ms-e.startMs, e.count))*e.count", "max(e.startMs, ms-1+e.count)"), "./internal/calendar", "TestElapsedPeriods"},
	{m("calendar: the 31st of a short month is in the next", "internal/calendar/every.go", "min(e.day, daysIn(y, m))", "e.day"), "./internal/calendar", "TestWallClockPeriods"},
	{m("calendar: a period that starts in an overlap runs twice", "internal/calendar/search.go", "for ok && !excluded && f.wantedMs == q.every.localMs {", "for false {"), "./internal/calendar", "TestPeriodStartsInAnOverlap"},
	{m("calendar: only one of two excluded dates moves back", "internal/calendar/exclude.go", "return day, x.onOrAfter(day+1) - 1", "return day, min(day+1, x.onOrAfter(day+1)-1)"), "./internal/calendar", "TestExcludedDates"},
	{m("calendar: jitter passes the next run", "internal/calendar/calendar.go", "window = min(window, next.atMs-nominalMs)", "_ = next"), "./internal/calendar", "TestJitter"},
	{m("calendar: the end is exclusive", "internal/calendar/calendar.go", "ok && f.atMs <= s.endMs", "ok && f.atMs < s.endMs"), "./internal/calendar", "TestBounds"},
	{m("calendar: Prev returns the first run that it finds", "internal/calendar/calendar.go", "last < high; { // the answer", "false && last < high; { // the answer"), "./internal/calendar", "TestPrevVisitsTheSameInstants"},
	{m("recurrence: a run is early by its jitter", "internal/recurrence/turn.go", "if s.NextMs == 0 || s.NextDueMs > t.now {", "if s.NextMs == 0 || s.NextMs > t.now {"), "./internal/recurrence", "TestAgainstOracle"},
	{m("recurrence: runs do not count towards the limit while one waits", "internal/recurrence/turn.go", "\t\tt.s.Fired = sum(t.s.Fired, 1)\n", "\t\tif t.s.Overlap != schemas.OverlapQueue {\n\t\t\tt.s.Fired = sum(t.s.Fired, 1)\n\t\t}\n"), "./internal/recurrence", "TestScripts"},
	{m("recurrence: one run more than the limit fires", "schemas/schedule.go", "s.Limit > 0 && s.Fired >= s.Limit", "s.Limit > 0 && s.Fired > s.Limit"), "./internal/recurrence", "TestScripts"},
	{m("recurrence: a turn that only counts forgets the times before it", "internal/recurrence/turn.go", "s.Counted, s.CountedMs = due.n, due.last", "s.Counted, s.CountedMs = 1, due.last"), "./internal/recurrence", "TestScripts"},
	{m("recurrence: a turn looks at all that is due", "internal/recurrence/turn.go", "looked < maxLook &&", "looked < 1_000*maxLook &&"), "./internal/recurrence", "TestAgainstOracle"},
	{m("recurrence: a resume's catchup also decides the times after the pause", "internal/recurrence/turn.go", "untilMs: min(t.now, s.PausedUntilMs)}", "untilMs: t.now}"), "./internal/recurrence", "TestScripts"},
	{m("recurrence: a run that waits is never too late", "internal/recurrence/turn.go", "\tcase t.late(w.DueMs):", "\tcase false:"), "./internal/recurrence", "TestScripts"},
	{m("recurrence: a run that lost its place to a later one is not recorded", "internal/recurrence/turn.go", "\t\tt.skip(schemas.DecisionQueue, span{first: old.NominalMs, last: old.NominalMs, n: 1}, t.last)\n", ""), "./internal/recurrence", "TestScripts"},
	{m("recurrence: coalesced times include the run that fired", "internal/recurrence/turn.go", "return span{first: s.first, last: s.before, n: s.n - 1}", "return span{first: s.first, last: s.last, n: s.n - 1}"), "./internal/recurrence", "TestScripts"},
	{m("recurrence: nobody ends the run that a later one replaces after a crash", "internal/recurrence/turn.go", "\tif held && t.blocked &&", "\tif held && t.blocked && len(t.Skipped) > 0 &&"), "./internal/recurrence", "TestScripts"},
	{m("recurrence: runs that somebody asks for wait for the end of a pause", "internal/recurrence/turn.go", "\tcase t.manual():", "\tcase active && t.manual():"), "./internal/recurrence", "TestScripts"},
	{m("recurrence: a blocked schedule looks again in a year", "internal/recurrence/turn.go", "return max(at, t.now+recheckMs)", "return max(at, t.now+525_600*recheckMs)"), "./internal/recurrence", "TestScripts"},
	{m("recurrence: a backfill fires what the schedule has yet to decide", "internal/recurrence/operations.go", "undecidedMs != 0 && nominalMs >= undecidedMs,", "undecidedMs < 0,"), "./internal/recurrence", "TestScripts"},
	{m("recurrence: a backfill fires the times that it leaves out", "internal/recurrence/turn.go", "if e.FromMs <= nextMs && nextMs <= e.ToMs {", "if e.ToMs < nextMs && nextMs < e.FromMs {"), "./internal/recurrence", "TestScripts"},
	{m("recurrence: an update forgets the times that have passed", "internal/recurrence/operations.go", "\t\tif passed.n > 0 {", "\t\tif passed.n < 0 {"), "./internal/recurrence", "TestScripts"},
	{m("recurrence: an update decides times twice if its clock is behind", "internal/recurrence/operations.go", "to.after(max(nowMs, reached(s)))\n\t}", "to.after(nowMs)\n\t}"), "./internal/recurrence", "TestScripts"},
	{m("recurrence: an update skips a run that is due at that moment", "internal/recurrence/operations.go", "s.NextMs <= nowMs && p.agrees(to, s.NextMs, nowMs)", "s.NextMs < 0 && p.agrees(to, s.NextMs, nowMs)"), "./internal/recurrence", "TestScripts"},
	{m("recurrence: a resume keeps a run that waited", "internal/recurrence/operations.go", "\t\tif catchUp == schemas.MisfireSkip {", "\t\tif catchUp > schemas.MisfireSkip {"), "./internal/recurrence", "TestScripts"},
	{m("recurrence: a range of fired times swallows a skipped one", "schemas/schedule.go", "return last.ToMs == p.DecidedMs() &&", "return last.ToMs <= p.DecidedMs() &&"), "./internal/recurrence", "TestScripts"},
	{m("recurrence: a range of skipped times swallows the run that waits", "schemas/schedule.go", "case p.Waiting != nil && last.ToMs < p.Waiting.NominalMs", "case p.Waiting != nil && last.ToMs > p.Waiting.NominalMs"), "./internal/recurrence", "TestScripts"},
	{m("recurrence: a range crosses an update", "schemas/schedule.go", "last.ToMs == p.DecidedMs() && last.ToMs >= p.ChangedMs", "last.ToMs == p.DecidedMs()"), "./schemas", "TestDecideAfterUpdates"},
	{m("recurrence: a dropped range counts as not fired", "schemas/schedule.go", "p.KnownFromMs = max(p.KnownFromMs, d.ToMs+1)", "p.KnownFromMs = max(p.KnownFromMs, d.FromMs)"), "./internal/recurrence", "TestAgainstOracle"},
}

func m(name, file, from, to string) mutate.Mutant {
	return mutate.Mutant{Name: name, File: file, From: from, To: to}
}

// TestMutantsFollowTheCode: each bug changes exactly one place of its file.
func TestMutantsFollowTheCode(t *testing.T) {
	t.Parallel()
	for _, p := range planted {
		if err := p.Check(root); err != nil {
			t.Error(err)
		}
	}
}

// quick names the package of a bug that is noticed within a second of CPU.
const quick = "./internal/quota"

// TestMutantsAreNoticed plants each bug and runs the test that must fail. It builds a
// test binary for each bug. Therefore a plain run plants only one in a small package, and BELFRY_TESTS=all
// the first as well, whose test waits a minute in vain; BELFRY_MUTANTS=all plants all.
func TestMutantsAreNoticed(t *testing.T) {
	testsize.NotShort(t, "this test builds a test binary")
	run := planted
	if os.Getenv("BELFRY_MUTANTS") != "all" {
		n := testsize.Choose(t, "bugs", 1, 1, 2)
		small := slices.IndexFunc(planted, func(p plant) bool { return p.pkg == quick })
		run = []plant{planted[small], planted[0]}[:n]
	}
	abs, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range run {
		t.Run(p.Name, func(t *testing.T) {
			out, err := p.Test(t.Context(), abs, t.TempDir(), nil, "-timeout", "5m", "-run", p.run, p.pkg)
			if strings.Contains(string(out), "[build failed]") {
				t.Errorf("the code with the bug does not compile:\n%s", out)
			}
			if err == nil {
				t.Errorf("go test -run %q %s passes with the bug:\n%s", p.run, p.pkg, out)
			}
		})
	}
}
