// Runs the programs of docs/guides/javascript.md: the files of examples. It needs a node, as node.test.js does, and for those with
// Express and NATS the devDependencies: npm ci.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { createInterface } from "node:readline";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";

import { Client } from "@belfryio/client";

const url = process.env.BELFRY_URL;
const client = new Client({ url, token: process.env.BELFRY_HTTP_TOKEN, timeout: 60_000 });
const path = (name) => fileURLToPath(new URL(`../${name}`, import.meta.url));

// start runs an example. lines has the lines that it prints.
function start(t, name, env = {}) {
  const child = spawn(process.execPath, [path(`examples/${name}`)], { env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "pipe"] });
  const ended = once(child, "close");
  t.after(async () => { child.kill("SIGKILL"); await ended; });
  let errors = "";
  child.stderr.on("data", (text) => { errors += text; });
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  return { ended, lines, errors: () => errors, stop: () => child.kill("SIGTERM"), line: async () => (await lines.next()).value };
}

// run runs an example to its end and returns what it prints.
async function run(t, name) {
  const child = start(t, name);
  const printed = [];
  for await (const line of child.lines) printed.push(line);
  const [code] = await child.ended;
  assert.equal(code, 0, `${name}: ${child.errors()}`);
  return printed.join("\n");
}

async function success(timer) {
  for (let end = Date.now() + 60_000; Date.now() < end; await new Promise((resolve) => setTimeout(resolve, 20))) {
    const found = await client.get(timer);
    if (found.state === "success") return found;
  }
  assert.fail("the timer has had no success within a minute");
}

describe("examples", { skip: url === undefined && "BELFRY_URL names no node", concurrency: true }, () => {
  it("add.js, find.js, change.js", async (t) => {
    const id = await run(t, "add.js");
    assert.match(id, /^timer [0-9a-v]{26} is due at 20/);
    assert.match(await run(t, "find.js"), /^order-17 20/);
    assert.equal(await run(t, "change.js"), "paid in time");
  });
  it("batch.js", async (t) => assert.equal(await run(t, "batch.js"), "3 stored"));
  it("schedule.js", async (t) => { await run(t, "schedule.js"); });
  it("dead.js", async (t) => assert.match(await run(t, "dead.js"), /\d+ replayed$/));
  it("stream.js", async (t) => {
    const child = start(t, "stream.js");
    assert.equal(await child.line(), "open", child.errors());
    await client.add({ in: "0s", id: "streamed", svc: "orders", source: "/js/examples" });
    for (let line = await child.line(); !line.startsWith("streamed fired "); line = await child.line());
  });
  it("express.js", { skip: !existsSync(path("node_modules/express")) && "Express is not installed: npm ci" }, async (t) => {
    const child = start(t, "express.js", { PORT: "0" });
    const port = (await child.line())?.match(/^listening on port (\d+)$/)?.[1];
    assert.ok(port, child.errors());
    const { timer } = await client.add({ in: "0s", svc: "signed", callback: `http://127.0.0.1:${port}/expired`, data: { order: 17 } });
    assert.equal((await success(timer)).outcome.response, '{"expired":true}');
    const dead = await client.add({ in: "0s", svc: "signed", callback: `http://127.0.0.1:${port}/expired`, data: { order: 18 } });
    for (let state; state !== "fail"; { state } = await client.get(dead.timer));
    const forged = await fetch(`http://127.0.0.1:${port}/expired`, { method: "POST", body: "{}" });
    assert.equal(forged.status, 401);
  });
  it("nats.js", { skip: (!existsSync(path("node_modules/@nats-io/transport-node")) && "the client of NATS is not installed: npm ci") || (process.env.NATS_URL === undefined && "NATS_URL names no server") }, async (t) => {
    const child = start(t, "nats.js");
    assert.equal(await child.line(), "serving callbacks.orders.expire", child.errors());
    const add = (order) => client.add({ in: "0s", svc: "nats", flow: `nats-js-${order}`, callback: "nats:callbacks.orders.expire", data: { order } });
    assert.equal((await success((await add(17)).timer)).outcome.response, '{"expired":true}');
    for (const [order, notNow, error] of [[18, false, /there is no order 18/], [19, true, /the order is being changed/]]) {
      const { timer } = await add(order);
      let found = await client.get(timer);
      for (const end = Date.now() + 60_000; found.outcome?.error === undefined && Date.now() < end; found = await client.get(timer)) {
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
      assert.match(found.outcome?.error ?? "", error);
      assert.equal(found.maxattempts - 36, notNow ? found.attempts : 0); // "not now" uses no attempt
    }
    child.stop();
    assert.deepEqual(await child.ended, [0, null], child.errors());
  });
  it("fetch.js", async () => {
    const { default: worker } = await import("../examples/fetch.js");
    const response = await worker.fetch(new Request("http://callee/", { method: "POST", body: "{}" }));
    assert.equal(response.status, 401); // node.test.js has signed ones
  });
});
