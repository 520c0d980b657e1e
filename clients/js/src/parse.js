import { fromBase64 } from "./bytes.js";

/** @import { CloudEvent, HeadersLike, Run } from "../index.d.ts" */

/**
 * Returns the value of a header, whatever its case; "" without one.
 * @param {HeadersLike} headers
 * @param {string} name in lower case
 */
export function headerOf(headers, name) {
  if (typeof (/** @type {Headers} */ (headers).get) === "function") return /** @type {Headers} */ (headers).get(name) ?? "";
  for (const [key, value] of entriesOf(headers)) {
    if (key.toLowerCase() === name) return value;
  }
  return "";
}

/**
 * @param {HeadersLike} headers
 * @returns {Array<[string, string]>}
 */
function entriesOf(headers) {
  const entries = typeof (/** @type {Headers} */ (headers).entries) === "function" ? [.../** @type {Headers} */ (headers).entries()] : Object.entries(headers);
  return entries.map(([name, value]) => [name, Array.isArray(value) ? value.join(", ") : (value ?? "")]);
}

/**
 * Reports whether a callback has the whole event in its body.
 * @param {HeadersLike} headers
 */
export function isStructured(headers) {
  return /^application\/cloudevents\+json\s*(;|$)/i.test(headerOf(headers, "content-type"));
}

/**
 * It throws a TypeError for what is not a callback of Belfry.
 * @template [T=unknown]
 * @param {HeadersLike} headers
 * @param {Uint8Array | string} body
 * @returns {Run<T>}
 */
export function parse(headers, body) {
  const { event, data } = isStructured(headers) ? structured(textOf(body)) : binary(headers, body);
  // webhook-id, which the signature covers, if there is one.
  const key = headerOf(headers, "webhook-id") || headerOf(headers, "idempotency-key");
  const dot = key.lastIndexOf(".");
  const run = Number(key.slice(dot + 1));
  if (dot < 1 || !Number.isInteger(run)) throw new TypeError("not a callback of Belfry: the header Idempotency-Key is not <timer id>.<run>");
  const trigger = event.timertrigger;
  return {
    key,
    timer: key.slice(0, dot),
    run,
    attempt: Number(event.timerattempt ?? 1),
    scheduled: timeOf(event, "timerscheduled"),
    fired: timeOf(event, "timerfired"),
    missed: Number(event.timermissed ?? 0),
    trigger: trigger === "manual" || trigger === "backfill" ? trigger : undefined,
    event,
    data: /** @type {T} */ (data),
  };
}

/**
 * @param {CloudEvent} event
 * @param {string} name
 */
function timeOf(event, name) {
  const time = new Date(String(event[name]));
  if (Number.isNaN(time.getTime())) throw new TypeError(`not a callback of Belfry: the attribute ${name} is not a time`);
  return time;
}

/**
 * @param {string} text
 * @returns {{ event: CloudEvent, data: unknown }}
 */
function structured(text) {
  let all;
  try {
    all = JSON.parse(text);
  } catch (cause) {
    throw new TypeError("the body is not JSON", { cause });
  }
  if (typeof all !== "object" || all === null || all.specversion !== "1.0") throw new TypeError("the body is not a CloudEvent 1.0");
  const { data, data_base64: base64, ...event } = all;
  return { event, data: base64 === undefined ? data : decoded(event.datacontenttype, fromBase64(base64)) };
}

/**
 * @param {HeadersLike} headers
 * @param {Uint8Array | string} body
 * @returns {{ event: CloudEvent, data: unknown }}
 */
function binary(headers, body) {
  /** @type {Record<string, string>} */
  const event = {};
  for (const [name, value] of entriesOf(headers)) {
    const lower = name.toLowerCase();
    if (lower.startsWith("ce-")) event[lower.slice("ce-".length)] = percentDecode(value);
  }
  const { specversion, id, source, type } = event;
  if (specversion !== "1.0" || id === undefined || source === undefined || type === undefined) {
    throw new TypeError("not a CloudEvent 1.0: neither the content type application/cloudevents+json nor the headers ce-…");
  }
  const kind = headerOf(headers, "content-type");
  if (kind) event.datacontenttype = kind;
  return { event: { ...event, specversion, id, source, type }, data: decoded(kind, body) };
}

/**
 * Returns data by its content type.
 * @param {string | undefined} kind
 * @param {Uint8Array | string} body
 */
function decoded(kind, body) {
  if (body.length === 0) return undefined;
  const media = (kind ?? "").split(";")[0]?.trim().toLowerCase() ?? "";
  if (media === "" || media === "application/json" || media.endsWith("+json")) {
    try {
      return JSON.parse(textOf(body));
    } catch (cause) {
      if (media !== "") throw new TypeError(`the data is not JSON, but its type is ${media}`, { cause });
      return body;
    }
  }
  return media.startsWith("text/") ? textOf(body) : body;
}

/** @param {Uint8Array | string} body */
function textOf(body) {
  return typeof body === "string" ? body : new TextDecoder().decode(body);
}

/**
 * Decodes a value of a header ce-… (CloudEvents HTTP binding, 3.1.3.2).
 * @param {string} value
 */
function percentDecode(value) {
  try {
    return decodeURIComponent(value);
  } catch {
    return value; // a lone percent sign
  }
}
