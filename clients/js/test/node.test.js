// Tests against a node of Belfry: BELFRY_URL, BELFRY_HTTP_TOKEN and BELFRY_SECRET, the secret of the services signed and
// signed-binary. test/clients starts it.
import assert from "node:assert/strict";
import { once } from "node:events";
import http from "node:http";
import { describe, it } from "node:test";

import {
  AccessError, BelfryError, Client, ConflictError, DeadLetterNow, InvalidError, LimitedError, NotFoundError, NotNow, TooLateError, middleware,
} from "@belfryio/client";

const url = process.env.BELFRY_URL;
const token = process.env.BELFRY_HTTP_TOKEN;
const secrets = process.env.BELFRY_SECRET;
const client = new Client({ url, token, timeout: 60_000 });
const source = "/js";

// callee runs a server that handles callbacks, and returns their URL. runs has each call.
async function callee(t, handler, options = { secrets }) {
  const runs = [];
  const handle = middleware((run) => { runs.push(run); return handler(run); }, { onError() {}, ...options });
  const server = http.createServer(handle).listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => { server.closeAllConnections(); server.close(); });
  return { url: `http://127.0.0.1:${server.address().port}/`, runs };
}

// until returns what find returns, once it is not undefined.
async function until(what, find) {
  const end = Date.now() + 60_000;
  for (;;) {
    const found = await find();
    if (found !== undefined) return found;
    if (Date.now() > end) assert.fail(`waited a minute in vain: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

const inState = (timer, state) => until(`${state} of ${timer}`, async () => {
  const t = await client.get(timer);
  return t.state === state ? t : undefined;
});

async function all(items) {
  const found = [];
  for await (const item of items) found.push(item);
  return found;
}

describe("a node", { skip: url === undefined && "BELFRY_URL names no node", concurrency: true }, () => {
  it("adds a timer once", async () => {
    const timer = { at: new Date("2033-12-24T17:00:00Z"), id: "once", source, svc: "js-add", group: "g", maxattempts: 3, data: { ö: [1, null] }, attributes: { customer: "17" } };
    const added = await client.add(timer);
    assert.deepEqual([added.id, added.source, added.due, added.state, added.duplicate], ["once", source, "2033-12-24T17:00:00.000Z", "pending", false]);
    assert.equal((await client.add(timer)).duplicate, true);
    const byName = await client.get({ source, id: "once" });
    assert.deepEqual(byName, await client.get(added.timer));
    assert.equal((await client.get(added.timer, { claim: true })).timer, added.timer);
    assert.deepEqual([byName.service, byName.group, byName.maxattempts], ["js-add", "g", 3]);
    await assert.rejects(client.add({ ...timer, data: 2 }), (error) => error instanceof ConflictError && error.code === "conflict" && error.status === 409);
  });

  it("takes an idempotency key", async () => {
    const [a, b] = [await client.add({ in: "1h", source, svc: "js-add" }, { idempotencyKey: "schlüssel" }), await client.add({ in: "1h", source, svc: "js-add" }, { idempotencyKey: "schlüssel" })];
    assert.deepEqual([a.timer, a.id, b.duplicate], [b.timer, "schlüssel", true]);
    await assert.rejects(client.add({ in: "2h", source, svc: "js-add" }, { idempotencyKey: "schlüssel" }), (error) => error instanceof ConflictError && error.status === 422);
  });

  it("has an error for each mistake", async () => {
    await assert.rejects(client.add({ in: "15" }), (error) => error instanceof InvalidError && error.code === "invalid_attribute" && error.pointer === "#/in");
    await assert.rejects(client.add({ in: "15m", attributes: { timerx: "1" } }), (error) => error.pointer === "#/attributes/timerx");
    await assert.rejects(client.add({ inn: "15m" }), (error) => error instanceof InvalidError && error.pointer === "#/inn");
    await assert.rejects(client.get("0".repeat(26)), NotFoundError);
    await assert.rejects(client.request("GET", "/v1/nothing"), (error) => error.code === "no_route");
    await assert.rejects(new Client({ url, token: "wrong" }).get("0".repeat(26)), AccessError);
  });

  it("says when a limit is used up", async () => {
    await client.request("PUT", "/v1/flows/adds:js-limited", { body: { rate: "1/h", burst: 1 } });
    await client.add({ in: "1h", svc: "js-limited" });
    await assert.rejects(client.add({ in: "1h", svc: "js-limited" }), (error) => error instanceof LimitedError && error.retryAfter > 30);
  });

  it("adds many", async () => {
    const timers = Array.from({ length: 501 }, (_, i) => ({ in: "1h", id: `batch-${i}`, source, svc: "js-batch" }));
    timers[500] = { cron: "0 3 * * *", tz: "Europe/Berlin", limit: 3, id: "batch-500", source, svc: "js-batch" };
    timers.splice(1, 1, { in: "15", id: "wrong", source }, { in: "1h", source, svc: "js-batch", attributes: { timerx: "1" } });
    const results = await client.addBatch(timers);
    assert.equal(results.length, 502);
    assert.deepEqual([results[1].pointer, results[2].pointer], ["#/in", "#/attributes/timerx"]);
    assert.deepEqual(results.filter((r) => r instanceof BelfryError).length, 2);
    assert.ok(results[0].timer && results[501].timer);
    const listed = await all(client.list({ service: "js-batch", state: ["pending"], limit: 200 }));
    assert.deepEqual(listed.length, 500);
    assert.deepEqual((await all(client.list({ service: "js-batch", schedule: true }))).map((t) => [t.id, t.schedule.limit]), [["batch-500", 3]]);
    const page = await client.listPage({ service: "js-batch", limit: 1 });
    assert.ok(page.from === "record" && page.cursor);
  });

  it("finds timers", async () => {
    const { timer } = await client.add({ in: "1h", id: "found", source, svc: "js-find", type: "js.found" });
    const found = await until("the search index has the timer", async () => (await all(client.search({ q: "found", type: "js.found", due_from: new Date() })))[0]);
    assert.equal(found.timer, timer);
    const page = await client.searchPage({ type: "js.found" });
    assert.ok(page.from === "history" && page.timers.length === 1 && typeof page.behind === "number");
  });

  it("moves and cancels", async () => {
    const { timer } = await client.add({ in: "1h", svc: "js-change" });
    const moved = await client.reschedule(timer, { at: new Date("2033-12-24T17:00:00Z") }, { by: "anna" });
    assert.deepEqual([moved.due, moved.history[0].op, moved.history[0].by], ["2033-12-24T17:00:00.000Z", "reschedule", "anna"]);
    await assert.rejects(client.reschedule(timer, { in: "1h" }, { ifMatch: moved.revision - 1 }), (error) => error instanceof ConflictError && error.code === "precondition_failed");
    const cancelled = await client.cancel({ source: moved.source, id: moved.id }, { ifMatch: moved.revision });
    assert.equal(cancelled.state, "cancelled");
    const fired = await client.add({ in: "0s", svc: "js-change" });
    await inState(fired.timer, "success");
    await assert.rejects(client.cancel(fired.timer), (error) => error instanceof TooLateError && error.code === "already_fired");
    assert.match((await client.why(fired.timer)).answers[0].text, /./);
  });

  it("operates schedules", async (t) => {
    const target = await callee(t, (run) => `run ${run.run}`);
    const schedule = { source, id: "nightly" };
    const fields = { cron: "30 2 * * *", tz: "Europe/Berlin", svc: "signed", callback: target.url };
    await client.add({ ...schedule, ...fields });
    assert.equal((await client.pause(schedule, { note: "stocktaking" })).pause_note, "stocktaking");
    assert.equal((await client.resume(schedule, { catchup: "skip" })).state, "pending");
    await client.trigger(schedule, { idempotencyKey: "1" });
    await client.trigger(schedule, { idempotencyKey: "1" });
    const run = await until("the run has a result", async () => (await all(client.runs(schedule))).find((r) => r.state === "success"));
    assert.deepEqual([run.run, run.trigger, run.outcome.response], [1, "manual", "run 1"]);
    assert.deepEqual([target.runs.length, target.runs[0].trigger, target.runs[0].key, target.runs[0].timer], [1, "manual", run.id, (await client.get(schedule)).timer]);
    const updated = await client.update(schedule, { ...fields, cron: "0 3 * * *" }, { by: "anna" });
    assert.ok(updated.timer.schedule.cron === "0 3 * * *" && updated.before.length > 0 && updated.before[0] !== updated.after[0]);
    assert.match((await client.why(schedule, "2033-12-24")).answers[0].text, /./);
  });

  for (const [service, options, data] of [
    ["signed", { secrets }, { order: 17, name: "Jürgen" }],
    ["signed-binary", { secrets, binary: true }, { order: 17, name: "Jürgen" }],
    ["js-unsigned", { unsigned: true }, { order: 17, name: "Jürgen" }],
    ["signed", { secrets }, new Uint8Array([0, 1, 255])],
    ["js-unsigned", { unsigned: true }, new Uint8Array([0, 1, 255])],
  ]) {
    it(`calls back: service ${service}, ${data.constructor.name}`, async (t) => {
      const target = await callee(t, (run) => ({ attempt: run.attempt }), options);
      const { timer, due } = await client.add({ in: "0s", svc: service, callback: target.url, subject: 'Köln "1" 100%', data, attributes: { customer: "Ä 17" } });
      const done = await inState(timer, "success");
      const [run] = target.runs;
      assert.deepEqual(run.data, data);
      assert.deepEqual([run.key, run.timer, run.run, run.attempt, run.missed, run.trigger], [`${timer}.1`, timer, 1, 1, 0, undefined]);
      assert.deepEqual([run.event.subject, run.event.customer, run.event.source, run.scheduled.toISOString()], ['Köln "1" 100%', "Ä 17", "/http", due]);
      assert.equal(done.outcome.response, '{"attempt":1}');
      assert.deepEqual([done.last_attempts.length, done.last_attempts[0].status], [1, 200]);
    });
  }

  it("calls back again after “not now” and after an error", async (t) => {
    const answers = [() => { throw new NotNow(1, "busy"); }, () => { throw new RangeError("no"); }, () => "done"];
    const target = await callee(t, () => answers.shift()());
    const { timer } = await client.add({ in: "0s", svc: "signed", callback: target.url, maxattempts: 2, backoff: "10ms" });
    const done = await inState(timer, "success");
    assert.deepEqual([target.runs.length, new Set(target.runs.map((run) => run.key)).size], [3, 1]);
    assert.equal(done.outcome.response, "done"); // of two attempts, because “not now” is none
  });

  it("keeps and replays dead letters", async (t) => {
    let gone = true;
    const target = await callee(t, () => { if (gone) throw new DeadLetterNow("there is no order 17"); }, { unsigned: true });
    const { timer, id } = await client.add({ in: "0s", svc: "js-dead", callback: target.url });
    const letter = await until("the dead letter", async () => (await all(client.deadLetters({ service: "js-dead" })))[0]);
    assert.deepEqual([letter.timer, letter.id, letter.attempts, target.runs.length], [timer, id, 1, 1]);
    gone = false;
    assert.deepEqual(await client.replay({ timer }, { by: "anna" }), { replayed: 1, timers: [timer], more: false });
    await inState(timer, "success");
    await client.add({ in: "0s", svc: "js-dead", callback: "http://127.0.0.1:9/", maxattempts: 1 });
    const other = await until("the other dead letter", async () => (await all(client.deadLetters({ service: "js-dead" })))[0]);
    assert.equal((await client.discard(other.sequence)).sequence, other.sequence);
    assert.deepEqual(await all(client.deadLetters({ service: "js-dead" })), []);
  });

  it("streams fired events, and goes on after the last one", async () => {
    let opened;
    const open = new Promise((resolve) => { opened = resolve; });
    const add = (id) => client.add({ in: "0s", id, source, svc: "js-stream", data: { n: 1 } });
    void open.then(() => add("first"));
    let last;
    for await (const item of client.stream("js-stream", { onOpen: opened })) {
      assert.deepEqual([item.event.id, item.event.event.data], ["first", { n: 1 }]);
      last = item.lastEventId;
      break;
    }
    await inState((await add("second")).timer, "success");
    const controller = new AbortController();
    const ids = [];
    for await (const item of client.stream("js-stream", { lastEventId: last, signal: controller.signal })) {
      ids.push(item.event.id);
      controller.abort();
    }
    assert.deepEqual(ids, ["second"]);
    await assert.rejects(client.stream("").next(), BelfryError);
  });
});
