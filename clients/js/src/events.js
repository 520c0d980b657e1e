import { InvalidError } from "./errors.js";
import { toBase64, randomID } from "./bytes.js";

/** @import { CloudEvent, NewTimer } from "../index.d.ts" */

/** The fields of a new timer whose attribute of the event is timer<field>. The attribute of in is timerafter. */
const timerFields = new Set([
  "at", "cron", "every", "tz", "svc", "callback", "group", "flow", "key", "maxattempts", "backoff", "timeout", "start", "end", "limit",
  "jitter", "dst", "days", "misfire", "grace", "overlap", "expect", "exclude", "excludeshift",
]);

/** The fields that are attributes of the event, or its data. */
const eventFields = new Set(["id", "source", "type", "subject", "time", "dataschema", "datacontenttype", "data", "data_base64"]);

/**
 * Returns the timer with bytes as data_base64, as JSON can have it.
 * @param {NewTimer} timer
 * @returns {NewTimer}
 */
export function sendable(timer) {
  if (!(timer.data instanceof Uint8Array)) return timer;
  const { data, ...rest } = timer;
  return { datacontenttype: "application/octet-stream", ...rest, data_base64: toBase64(data) };
}

/**
 * Returns the CloudEvent of a timer, for POST /v1/events, which takes no fields. The defaults are those of POST /v1/timers.
 * @param {NewTimer} timer
 */
export function eventOf(timer) {
  /** @type {CloudEvent} */
  const event = { specversion: "1.0", id: randomID(), source: "/http", type: "belfry.timer" };
  for (const [name, value] of Object.entries(sendable(timer))) {
    if (value === undefined || value === null) continue;
    if (name === "attributes") Object.assign(event, own(value));
    else if (name === "in") event.timerafter = value;
    else if (timerFields.has(name)) event[`timer${name}`] = name === "limit" ? String(value) : value;
    else if (eventFields.has(name)) event[name] = value;
    else throw new InvalidError({ code: "bad_request", detail: `unknown field ${JSON.stringify(name)}`, pointer: `#/${name}` });
  }
  return event;
}

/**
 * Returns the attributes of a user, which must not have the names of fields.
 * @param {object} attributes
 */
function own(attributes) {
  for (const name of Object.keys(attributes)) {
    const pointer = fieldPointer(`#/${name}`);
    if (pointer !== `#/attributes/${name}`) {
      throw new InvalidError({ code: "bad_request", detail: `${name} is not an attribute of your own: use the field of the timer`, pointer: `#/attributes/${name}` });
    }
  }
  return attributes;
}

/**
 * Returns the pointer to a field of a timer from the pointer to its attribute, #/timerafter for example.
 * @param {string | undefined} pointer
 */
export function fieldPointer(pointer) {
  const name = pointer?.slice("#/".length);
  if (!name) return pointer;
  if (name === "timerafter") return "#/in";
  if (name.startsWith("timer") && timerFields.has(name.slice("timer".length))) return `#/${name.slice("timer".length)}`;
  return eventFields.has(name) || name === "specversion" ? pointer : `#/attributes/${name}`;
}
