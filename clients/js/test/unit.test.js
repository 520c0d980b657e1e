// Tests that need no node of Belfry.
import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { once } from "node:events";
import http from "node:http";
import { describe, it } from "node:test";

import {
  Client, DeadLetterNow, InvalidError, LimitedError, NotNow, SignatureError, UnavailableError, fetchHandler, middleware, parse, verify,
} from "../src/index.js";
import { eventOf, fieldPointer } from "../src/events.js";
import { messages } from "../src/sse.js";

// The example of the Standard Webhooks specification.
const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const signed = {
  "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
  "webhook-timestamp": "1614265330",
  "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
};
const payload = '{"test": 2432232314}';
const now = new Date(1614265330_000);

describe("verify", { concurrency: true }, () => {
  it("accepts the signature of one of several secrets", async () => {
    await verify(secret, signed, payload, { now });
    await verify(["whsec_" + btoa("x".repeat(24)), secret], new Headers(signed), new TextEncoder().encode(payload), { now });
    await verify(secret, { ...signed, "webhook-signature": `v1,AAAA v2,x v1,??? ${signed["webhook-signature"]}` }, payload, { now });
  });
  for (const [name, headers, body, at] of [
    ["another body", signed, payload + " ", now],
    ["another id", { ...signed, "webhook-id": "other" }, payload, now],
    ["another time", { ...signed, "webhook-timestamp": "1614265331" }, payload, now],
    ["no signature", {}, payload, now],
    ["no valid version", { ...signed, "webhook-signature": "v1a,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" }, payload, now],
    ["an old signature", signed, payload, new Date(now.getTime() + 301_000)],
    ["a signature of the future", signed, payload, new Date(now.getTime() - 301_000)],
    ["a time that is no number", { ...signed, "webhook-timestamp": "NaN" }, payload, now],
  ]) {
    it(`refuses ${name}`, () => assert.rejects(verify(secret, headers, body, { now: at }), SignatureError));
  }
  it("says what is wrong with a secret, without the secret", async () => {
    for (const wrong of ["MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_short", "whsec_!!!!"]) {
      await assert.rejects(verify(wrong, signed, payload), (error) => error instanceof TypeError && !error.message.includes(wrong));
    }
    assert.throws(() => middleware(() => {}, {}), TypeError);
    assert.throws(() => middleware(() => {}, { secrets: [] }), TypeError);
  });
});

const attributes = {
  specversion: "1.0", id: "order-17", source: "/shop", type: "order.timeout", timerscheduled: "2033-12-24T17:00:00.000Z",
  timerfired: "2033-12-24T17:00:00.002Z", timerrun: "3", timerattempt: "2", timermissed: "4", timertrigger: "backfill",
};
const binary = Object.fromEntries([...Object.entries(attributes).map(([name, value]) => [`Ce-${name}`, value]), ["Idempotency-Key", "5ksvb40a32nafljsnlhqgvue5s.3"]]);

describe("parse", { concurrency: true }, () => {
  it("reads binary mode", () => {
    const run = parse({ ...binary, "Ce-subject": "K%C3%B6ln%20%22", "Content-Type": "application/json; charset=utf-8" }, '{"order":17}');
    assert.deepEqual(run, {
      key: "5ksvb40a32nafljsnlhqgvue5s.3", timer: "5ksvb40a32nafljsnlhqgvue5s", run: 3, attempt: 2, scheduled: new Date("2033-12-24T17:00:00Z"),
      fired: new Date("2033-12-24T17:00:00.002Z"), missed: 4, trigger: "backfill", data: { order: 17 },
      event: { ...attributes, subject: 'Köln "', datacontenttype: "application/json; charset=utf-8" },
    });
  });
  it("reads structured mode like binary mode", () => {
    const headers = { "idempotency-key": "t.3", "content-type": "application/cloudevents+json; charset=utf-8" };
    const run = parse(new Headers(headers), JSON.stringify({ ...attributes, data: { order: 17 } }));
    assert.deepEqual([run.data, run.event, run.attempt], [{ order: 17 }, attributes, 2]);
    const bytes = parse(headers, JSON.stringify({ ...attributes, datacontenttype: "image/png", data_base64: "AQID" }));
    assert.deepEqual(bytes.data, new Uint8Array([1, 2, 3]));
  });
  it("gives text as a string, other data as bytes, and nothing as undefined", () => {
    assert.equal(parse({ ...binary, "Content-Type": "text/plain" }, new TextEncoder().encode("hello")).data, "hello");
    assert.deepEqual(parse({ ...binary, "Content-Type": "image/png" }, new Uint8Array([1])).data, new Uint8Array([1]));
    assert.equal(parse(binary, "").data, undefined);
  });
  for (const [name, headers, body] of [
    ["an event without the header of Belfry", { ...binary, "Idempotency-Key": "" }, ""],
    ["no event", { "Idempotency-Key": "t.1" }, "{}"],
    ["broken JSON", { "Idempotency-Key": "t.1", "Content-Type": "application/cloudevents+json" }, "{"],
    ["no times", { ...binary, "Ce-timerfired": "" }, ""],
    ["data that is not of its type", { ...binary, "Content-Type": "application/json" }, "{"],
  ]) {
    it(`refuses ${name}`, () => assert.throws(() => parse(headers, body), TypeError));
  }
});

describe("receivers", { concurrency: true }, () => {
  const call = async (handler, options, headers = binary, body = "", method = "POST") => {
    const errors = [];
    const handle = fetchHandler(handler, { onError: (error) => errors.push(error), ...options });
    const response = await handle(new Request("http://callee/", { method, headers, body: method === "POST" ? body : undefined }));
    return { status: response.status, text: await response.text(), headers: response.headers, errors };
  };
  const open = { unsigned: true };
  it("answers by what the handler does", async () => {
    assert.equal((await call(() => {}, open)).status, 204);
    const ok = await call((run) => ({ run: run.run }), open);
    assert.deepEqual([ok.status, ok.text, ok.headers.get("Content-Type")], [200, '{"run":3}', "application/json"]);
    const later = await call(() => { throw new NotNow(1.2, "busy"); }, open);
    assert.deepEqual([later.status, later.text, later.headers.get("Retry-After"), later.errors.length], [503, "busy", "2", 0]);
    assert.equal((await call(() => { throw new DeadLetterNow("gone"); }, open)).status, 410);
    const failed = await call(() => { throw new RangeError("no"); }, open);
    assert.deepEqual([failed.status, failed.text, failed.errors.length], [500, "RangeError: no", 1]);
  });
  it("refuses what is no callback, without calling the handler", async () => {
    const never = () => assert.fail("the handler was called");
    assert.equal((await call(never, { secrets: secret })).status, 401);
    assert.equal((await call(never, open, {}, "{}")).status, 400);
    assert.equal((await call(never, open, {}, "", "GET")).status, 405);
    assert.equal((await call(never, { ...open, maxBody: 10 }, binary, "x".repeat(11))).status, 413);
  });
  it("reads no more of a body without Content-Length than maxBody and one chunk", async () => {
    let sent = 0;
    const body = new ReadableStream({ pull(controller) { controller.enqueue(new Uint8Array(4)); if ((sent += 4) >= 400) controller.close(); } }, { highWaterMark: 0 });
    const request = new Request("http://h.example/", { method: "POST", headers: binary, body, duplex: "half" });
    const response = await fetchHandler(() => assert.fail("the handler was called"), { ...open, onError() {}, maxBody: 10 })(request);
    assert.deepEqual([response.status, sent], [413, 12]);
  });
  it("accepts signed binary mode only with the option", async () => {
    const headers = { ...binary, ...signed, "webhook-id": "t.1", "webhook-timestamp": String(Math.floor(Date.now() / 1000)) };
    headers["webhook-signature"] = "v1," + sign(headers["webhook-id"], headers["webhook-timestamp"], "hello");
    headers["Content-Type"] = "text/plain";
    assert.equal((await call((run) => run.key, { secrets: secret }, headers, "hello")).status, 401);
    const ok = await call((run) => run.key, { secrets: secret, binary: true }, headers, "hello");
    assert.deepEqual([ok.status, ok.text], [200, "t.1"]);
  });
  it("answers the question of webhook-origin", async () => {
    const ask = (options) => call(() => {}, { ...open, ...options }, { "WebHook-Request-Origin": "belfry.example.com" }, "", "OPTIONS");
    assert.equal((await ask({})).status, 405);
    assert.equal((await ask({ origins: ["other.example"] })).status, 400);
    const ok = await ask({ origins: ["other.example", "Belfry.example.com"] });
    assert.deepEqual([ok.status, ok.headers.get("WebHook-Allowed-Origin")], [200, "belfry.example.com"]);
  });
  it("reads the request of Node, or the bytes that something has read", async () => {
    const reply = (req) => new Promise((resolve) => {
      const res = { statusCode: 0, setHeader() {}, end: (body) => resolve([res.statusCode, body]) };
      middleware((run) => String(run.data), { ...open, onError() {}, maxBody: 10 })({ method: "POST", headers: { ...binary, "content-type": "text/plain" }, ...req }, res);
    });
    const stream = (...chunks) => ({ [Symbol.asyncIterator]: async function* () { for (const chunk of chunks) yield Buffer.from(chunk); } });
    assert.deepEqual(await reply(stream("hel", "lo")), [200, "hello"]);
    assert.deepEqual(await reply({ body: Buffer.from("raw") }), [200, "raw"]);
    assert.deepEqual(await reply({ body: "text" }), [200, "text"]);
    assert.deepEqual(await reply({ body: {}, rawBody: Buffer.from("raw") }), [200, "raw"]);
    assert.equal((await reply({ body: { parsed: true }, readableEnded: true, ...stream() }))[0], 500);
    assert.equal((await reply(stream("123456", "123456")))[0], 413);
  });
});

function sign(id, timestamp, body) {
  return createHmac("sha256", Buffer.from(secret.slice("whsec_".length), "base64")).update(`${id}.${timestamp}.${body}`).digest("base64");
}

// serve runs a server that gives the answers in turn, and then the last one again.
async function serve(t, ...answers) {
  const requests = [];
  const server = http.createServer((req, res) => {
    const answer = answers[Math.min(requests.length, answers.length - 1)];
    requests.push(req);
    if (answer === "hang") return;
    if (answer === "drop") return req.socket.destroy();
    res.writeHead(answer.status, { "Content-Type": answer.status < 300 ? "application/json" : "application/problem+json", ...answer.headers });
    res.end(JSON.stringify(answer.body));
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => { server.closeAllConnections(); server.close(); });
  return { url: `http://127.0.0.1:${server.address().port}`, requests };
}

const busy = { status: 503, headers: { "Retry-After": "0" }, body: { status: 503, code: "unavailable", detail: "busy" } };
const fine = { status: 200, body: { timer: "t" } };

describe("requests", { concurrency: true }, () => {
  it("are repeated after 429, 503 and no answer", async (t) => {
    const limited = { status: 429, headers: { "Retry-After": "0" }, body: { code: "limited", status: 429, detail: "slow" } };
    const s = await serve(t, busy, limited, "drop", fine);
    const added = await new Client({ url: s.url + "/", token: async () => "secret" }).add({ in: "1s" });
    assert.equal(added.timer, "t");
    assert.equal(s.requests.length, 4);
    assert.equal(s.requests[3].headers.authorization, "Bearer secret");
  });
  it("are repeated so often as allowed, and not for longer", async (t) => {
    const s = await serve(t, busy);
    await assert.rejects(new Client({ url: s.url, retries: 2 }).get("t"), (error) => error instanceof UnavailableError && error.retryAfter === 0 && error.code === "unavailable");
    assert.equal(s.requests.length, 3);
    await assert.rejects(new Client({ url: s.url }).get("t", { retries: 0 }), UnavailableError);
    assert.equal(s.requests.length, 4);
    const long = await serve(t, { ...busy, headers: { "Retry-After": "31" } });
    await assert.rejects(new Client({ url: long.url }).get("t"), (error) => error.retryAfter === 31);
    assert.equal(long.requests.length, 1);
  });
  it("with ifMatch are not repeated", async (t) => {
    const s = await serve(t, busy);
    await assert.rejects(new Client({ url: s.url }).cancel("t", { ifMatch: 7 }), UnavailableError);
    assert.deepEqual([s.requests.length, s.requests[0].headers["if-match"]], [1, '"7"']);
  });
  it("end at their time limit and with their signal", async (t) => {
    const s = await serve(t, "hang");
    const client = new Client({ url: s.url, timeout: 20, retries: 0 });
    await assert.rejects(client.get("t"), (error) => error instanceof UnavailableError && /no answer within 20 ms/.test(error.message));
    const controller = new AbortController();
    const call = client.get("t", { signal: controller.signal, timeout: 0 });
    controller.abort(new Error("enough"));
    await assert.rejects(call, /enough/);
    await assert.rejects(client.get("t", { signal: AbortSignal.abort() }), { name: "AbortError" });
  });
  it("end with their signal while they wait for a repetition", async (t) => {
    const s = await serve(t, { ...busy, headers: { "Retry-After": "25" } });
    const controller = new AbortController();
    const call = new Client({ url: s.url, fetch: async (...a) => { const r = await fetch(...a); setTimeout(() => controller.abort(new Error("enough")), 10); return r; } }).get("t", { signal: controller.signal });
    await assert.rejects(call, /enough/);
  });
  it("follow no redirect, and say what is no answer of Belfry", async (t) => {
    const s = await serve(t, { status: 302, headers: { Location: "/elsewhere", "Content-Type": "text/html" }, body: "" });
    await assert.rejects(new Client({ url: s.url }).get("t"), (error) => error.status === 302 && error.code === "unexpected");
    assert.equal(s.requests.length, 1);
  });
  it("about the empty timer id are refused", () => assert.rejects(new Client().cancel(""), TypeError));
});

describe("batches", { concurrency: true }, () => {
  it("repeat only what may be stored later", async (t) => {
    const problem = (status, code, pointer) => ({ status, code, detail: code, pointer });
    const s = await serve(t,
      { status: 503, headers: { "Retry-After": "0" }, body: { ...problem(503, "unavailable"), results: [{ status: 201, timer: "a" }, problem(503, "unavailable"), problem(422, "invalid_attribute", "#/timerafter")] } },
      { status: 200, body: { results: [{ status: 201, timer: "b" }] } });
    const results = await new Client({ url: s.url }).addBatch([{ in: "1s" }, { in: "2s" }, { in: "x" }]);
    assert.deepEqual([results[0].timer, results[1].timer, results[2].code, results[2].pointer], ["a", "b", "invalid_attribute", "#/in"]);
    assert.ok(results[2] instanceof InvalidError);
    assert.equal(s.requests.length, 2);
  });
  it("keep the verdicts when all attempts are used", async (t) => {
    const limited = { status: 429, code: "limited", detail: "slow" };
    const s = await serve(t, { status: 429, headers: { "Retry-After": "0" }, body: { ...limited, results: [{ status: 201, timer: "a" }, limited] } });
    const results = await new Client({ url: s.url, retries: 0 }).addBatch([{ in: "1s" }, { in: "1s" }]);
    assert.ok(results[0].timer === "a" && results[1] instanceof LimitedError && results[1].retryAfter === 0);
  });
  it("have the attributes of the fields", () => {
    const event = eventOf({ in: "1s", svc: "orders", limit: 3, data: new Uint8Array([1, 2, 3]), attributes: { customer: "17" }, group: undefined });
    assert.match(event.id, /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}$/);
    assert.deepEqual({ ...event, id: "" }, {
      specversion: "1.0", id: "", source: "/http", type: "belfry.timer", timerafter: "1s", timersvc: "orders", timerlimit: "3",
      datacontenttype: "application/octet-stream", data_base64: "AQID", customer: "17",
    });
    assert.throws(() => eventOf({ inn: "1s" }), (error) => error instanceof InvalidError && error.pointer === "#/inn");
    for (const name of ["id", "specversion", "timersvc", "timerafter"]) {
      assert.throws(() => eventOf({ in: "1s", attributes: { [name]: "1" } }), (error) => error.pointer === `#/attributes/${name}`);
    }
    assert.deepEqual(["#/timersvc", "#/customer", "#/source", undefined].map(fieldPointer), ["#/svc", "#/attributes/customer", "#/source", undefined]);
  });
});

describe("streams", { concurrency: true }, () => {
  // streamer runs a server whose streams have the texts in turn, and end; with open all have the last text and do not end.
  async function streamer(t, texts, open) {
    const asked = [];
    const server = http.createServer((req, res) => {
      const text = open ? texts.at(-1) : texts[asked.length];
      asked.push(req.headers["last-event-id"]);
      if (text === undefined) return res.writeHead(403, { "Content-Type": "application/problem+json" }).end('{"code":"forbidden"}');
      res.writeHead(200, { "Content-Type": "text/event-stream" }).write(text);
      if (!open) res.end();
    }).listen(0, "127.0.0.1");
    await once(server, "listening");
    t.after(() => { server.closeAllConnections(); server.close(); });
    return { client: new Client({ url: `http://127.0.0.1:${server.address().port}` }), asked };
  }
  const fired = (id) => `id: ${id}\nevent: fired\ndata: {"id":"event-${id}"}\n\n`;

  it("go on after the last event, until a repetition does not help", async (t) => {
    const { client, asked } = await streamer(t, [`id: 4\n\n${fired(5)}`, `id: 5\n\n`, `id: 5\n\n${fired(6)}${fired(7)}`]);
    const [ids, opened] = [[], []];
    await assert.rejects(async () => {
      for await (const item of client.stream("s", { onOpen: (id) => opened.push(id) })) ids.push([item.lastEventId, item.event.id]);
    }, { code: "forbidden", status: 403 });
    assert.deepEqual(ids, [["5", "event-5"], ["6", "event-6"], ["7", "event-7"]]);
    assert.deepEqual([asked, opened], [[undefined, "5", "5", "7"], ["4", "5", "5"]]);
  });
  it("reconnect if they are silent, and end with their signal", async (t) => {
    const { client, asked } = await streamer(t, ["id: 4\n\n"], true);
    const controller = new AbortController();
    let opened = 0;
    const onOpen = () => { if (++opened === 2) controller.abort(); };
    for await (const item of client.stream("s", { signal: controller.signal, idleTimeout: 250, onOpen })) assert.fail(item);
    assert.deepEqual([opened, asked[0], asked.at(-1)], [2, undefined, "4"]);
  });
});

it("messages are found wherever the chunks end", async () => {
  const text = ":\n\nid: 7\n\nid: 8\r\nevent: fired\r\ndata: {\"a\":\r\ndata: \"ö\"}\r\n\r\n: end\n";
  const bytes = new TextEncoder().encode(text);
  for (const size of [1, 2, 3, bytes.length]) {
    const chunks = [];
    for (let i = 0; i < bytes.length; i += size) chunks.push(bytes.subarray(i, i + size));
    const found = [];
    for await (const message of messages(new ReadableStream({ pull: (c) => (chunks.length ? c.enqueue(chunks.shift()) : c.close()) }), () => {})) found.push(message);
    assert.deepEqual(found, [{ id: "7", event: "message", data: "" }, { id: "8", event: "fired", data: '{"a":\n"ö"}' }], `chunks of ${size}`);
  }
});
