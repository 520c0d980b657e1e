import { randomID } from "./bytes.js";
import { BelfryError, UnavailableError, errorOf, errorOfResponse } from "./errors.js";
import { eventOf, fieldPointer, sendable } from "./events.js";
import { messages } from "./sse.js";
import { Transport, limited, retryDelay, sleep, spread } from "./transport.js";

/**
 * @import {
 *   Added, AddOptions, Answer, CallOptions, ChangeOptions, ClientOptions, DeadLetter, DeadLetterQuery, Instant, ListQuery, NewTimer,
 *   PauseOptions, Problem, Replayed, ReplayQuery, RequestOptions, ResumeOptions, ScheduleRun, SearchPage, SearchQuery, StreamItem, StreamOptions,
 *   Timer, TimerPage, TimerRef, TriggerOptions,
 * } from "../index.d.ts"
 */

// Bounds of one request of addBatch: those of the API, with room for the brackets.
const batchEvents = 500;
const batchBytes = 7 << 20;

export class Client {
  #transport;

  /** @param {ClientOptions} [options] */
  constructor(options = {}) {
    this.#transport = new Transport(options);
  }

  /**
   * @template [T=unknown]
   * @param {string} method
   * @param {string} path
   * @param {RequestOptions} [options]
   * @returns {Promise<T>}
   */
  request(method, path, options = {}) {
    const { query, body, headers, ...call } = options;
    if (body === undefined) return this.#transport.send(method, path, { ...call, query, headers });
    return this.#transport.send(method, path, { ...call, query, headers: { "Content-Type": "application/json", ...headers }, body: JSON.stringify(body) });
  }

  /**
   * @param {NewTimer} timer
   * @param {AddOptions} [options]
   * @returns {Promise<Added>}
   */
  async add(timer, options = {}) {
    const { idempotencyKey, ...call } = options;
    const id = idempotencyKey === undefined ? { id: randomID() } : {};
    return this.request("POST", "/v1/timers", {
      ...call,
      headers: idempotencyKey === undefined ? {} : { "Idempotency-Key": headerText(idempotencyKey) },
      body: { ...id, ...present(sendable(timer)) },
    });
  }

  /**
   * @param {Iterable<NewTimer>} timers
   * @param {CallOptions} [options]
   * @returns {Promise<Array<Added | BelfryError>>}
   */
  async addBatch(timers, options = {}) {
    const events = Array.from(timers, (timer) => JSON.stringify(eventOf(timer)));
    /** @type {Array<Added | BelfryError>} */
    const results = [];
    for (const batch of batches(events)) results.push(...(await this.#addEvents(batch, options)));
    return results;
  }

  /**
   * Adds one batch, and repeats those of its events that may succeed later.
   * @param {string[]} events
   * @param {CallOptions} options
   */
  async #addEvents(events, options) {
    /** @type {Array<Added | BelfryError>} */
    const results = Array(events.length);
    let open = events.map((_, i) => i);
    const attempt = async () => {
      const { verdicts, failure } = await this.#addOnce(open.map((i) => events[i]), options);
      const sent = open;
      open = [];
      for (const [n, index] of sent.entries()) {
        const verdict = verdicts[n];
        if (verdict === undefined) throw new BelfryError({ detail: "the answer lacks the verdict of an event" });
        if ("timer" in verdict) {
          results[index] = verdict;
          continue;
        }
        results[index] = errorOf({ ...verdict, pointer: fieldPointer(verdict.pointer) }, failure?.retryAfter);
        if (verdict.status === 429 || verdict.status === 503) open.push(index);
      }
      if (open.length > 0 && failure) throw failure;
    };
    try {
      await this.#transport.repeat(attempt, options);
    } catch (error) {
      if (!(error instanceof BelfryError && error.problem.results)) throw error;
    }
    return results;
  }

  /**
   * @param {Array<string | undefined>} events
   * @param {CallOptions} options
   * @returns {Promise<{ verdicts: Array<Added | Problem>, failure?: BelfryError }>} failure is the error of the request if not all are stored
   */
  async #addOnce(events, options) {
    const body = `[${events.join(",")}]`;
    try {
      const answer = await this.#transport.once("POST", "/v1/events", { ...options, body, headers: { "Content-Type": "application/cloudevents-batch+json" } });
      return { verdicts: answer.results };
    } catch (error) {
      if (!(error instanceof BelfryError && error.problem.results)) throw error;
      return { verdicts: error.problem.results, failure: error };
    }
  }

  /**
   * @param {TimerRef} timer
   * @param {CallOptions & { claim?: boolean }} [options]
   * @returns {Promise<Timer>}
   */
  async get(timer, { claim, ...options } = {}) {
    const { path, query } = place(timer);
    return this.request("GET", path, { ...options, query: claim ? { ...query, claim } : query });
  }

  /**
   * @param {ListQuery} [query]
   * @param {CallOptions} [options]
   * @returns {AsyncGenerator<Timer, void, undefined>}
   */
  list(query = {}, options = {}) {
    return pages(query.cursor, async (cursor) => {
      const page = await this.listPage({ ...query, cursor }, options);
      return { items: page.timers, cursor: page.cursor };
    });
  }

  /**
   * @param {ListQuery} [query]
   * @param {CallOptions} [options]
   * @returns {Promise<TimerPage>}
   */
  listPage(query = {}, options = {}) {
    return this.request("GET", "/v1/timers", { ...options, query });
  }

  /**
   * @param {SearchQuery} query
   * @param {CallOptions} [options]
   * @returns {AsyncGenerator<Timer, void, undefined>}
   */
  search(query, options = {}) {
    return pages(query.cursor, async (cursor) => {
      const page = await this.searchPage({ ...query, cursor }, options);
      return { items: page.timers, cursor: page.cursor };
    });
  }

  /**
   * @param {SearchQuery} query
   * @param {CallOptions} [options]
   * @returns {Promise<SearchPage>}
   */
  searchPage(query, options = {}) {
    return this.request("GET", "/v1/timers", { ...options, query });
  }

  /**
   * @param {TimerRef} timer
   * @param {ChangeOptions} [options]
   * @returns {Promise<Timer>}
   */
  async cancel(timer, options = {}) {
    const { path, query } = place(timer);
    return this.#change("DELETE", path, options, { query: { ...query, by: options.by } });
  }

  /**
   * @param {TimerRef} timer
   * @param {{ in: string } | { at: Instant }} when
   * @param {ChangeOptions} [options]
   * @returns {Promise<Timer>}
   */
  async reschedule(timer, when, options = {}) {
    const { path, query } = place(timer);
    return this.#change("PATCH", path, options, { query, body: { ...when, by: options.by } });
  }

  /**
   * @param {TimerRef} timer
   * @param {PauseOptions} [options]
   * @returns {Promise<Timer>}
   */
  async pause(timer, options = {}) {
    return this.#operate(timer, "pause", options, { note: options.note });
  }

  /**
   * @param {TimerRef} timer
   * @param {ResumeOptions} [options]
   * @returns {Promise<Timer>}
   */
  async resume(timer, options = {}) {
    return this.#operate(timer, "resume", options, { catchup: options.catchup });
  }

  /**
   * @param {TimerRef} schedule
   * @param {TriggerOptions} [options]
   * @returns {Promise<Timer>}
   */
  async trigger(schedule, options = {}) {
    const headers = { "Idempotency-Key": headerText(options.idempotencyKey ?? randomID()) };
    return this.#operate(schedule, "trigger", options, { allow: options.allow }, headers);
  }

  /**
   * @param {TimerRef} schedule
   * @param {NewTimer} timer
   * @param {ChangeOptions} [options]
   * @returns {Promise<{ timer: Timer, before?: string[], after?: string[] }>}
   */
  async update(schedule, timer, options = {}) {
    const path = await this.#pathOf(schedule, options);
    return this.#change("PUT", path, options, { query: { by: options.by }, body: present(sendable(timer)) });
  }

  /**
   * @param {TimerRef} schedule
   * @param {{ limit?: number }} [query]
   * @param {CallOptions} [options]
   * @returns {AsyncGenerator<ScheduleRun, void, undefined>}
   */
  async *runs(schedule, query = {}, options = {}) {
    const path = await this.#pathOf(schedule, options);
    yield* pages(undefined, async (cursor) => {
      /** @type {{ runs: ScheduleRun[], cursor?: string }} */
      const page = await this.request("GET", `${path}/runs`, { ...options, query: { ...query, cursor } });
      return { items: page.runs, cursor: page.cursor };
    });
  }

  /**
   * @param {TimerRef} timer
   * @param {Instant} [at]
   * @param {CallOptions} [options]
   * @returns {Promise<{ answers: Answer[], more?: boolean }>}
   */
  async why(timer, at, options = {}) {
    return this.request("GET", `${await this.#pathOf(timer, options)}/why`, { ...options, query: { at } });
  }

  /**
   * @param {DeadLetterQuery} [query]
   * @param {CallOptions} [options]
   * @returns {AsyncGenerator<DeadLetter, void, undefined>}
   */
  deadLetters(query = {}, options = {}) {
    return pages(query.cursor, async (cursor) => {
      /** @type {{ dead: DeadLetter[], cursor?: string }} */
      const page = await this.request("GET", "/v1/dead-letters", { ...options, query: { ...query, cursor } });
      return { items: page.dead, cursor: page.cursor };
    });
  }

  /**
   * @param {ReplayQuery} query
   * @param {Pick<ChangeOptions, "by" | keyof CallOptions>} [options]
   * @returns {Promise<Replayed>}
   */
  async replay(query, options = {}) {
    const { by, ...call } = options;
    return this.request("POST", "/v1/dead-letters/replay", { ...call, body: { ...query, by } });
  }

  /**
   * @param {number} sequence
   * @param {Pick<ChangeOptions, "by" | keyof CallOptions>} [options]
   * @returns {Promise<DeadLetter>}
   */
  async discard(sequence, options = {}) {
    const { by, ...call } = options;
    return this.request("DELETE", `/v1/dead-letters/${sequence}`, { ...call, query: { by } });
  }

  /**
   * @param {string} service
   * @param {StreamOptions} [options]
   * @returns {AsyncGenerator<StreamItem, void, undefined>}
   */
  async *stream(service, options = {}) {
    const { signal, onOpen, idleTimeout = 45_000 } = options;
    let last = options.lastEventId;
    for (let failures = 0; !signal?.aborted; failures++) {
      const limit = limited(signal, idleTimeout);
      /** @type {unknown} */
      let failure = new UnavailableError({ code: "unavailable", detail: "the node has ended the stream" });
      try {
        const headers = { Accept: "text/event-stream", ...(last === undefined ? {} : { "Last-Event-ID": last }) };
        const response = await this.#transport.open("GET", "/v1/stream", { query: { service }, headers }, limit.signal);
        if (!response.ok || response.body === null) throw errorOfResponse(response, await response.text());
        let open = false;
        for await (const message of messages(response.body, limit.restart)) {
          failures = 0;
          last = message.id ?? last;
          if (!open && last !== undefined) {
            open = true;
            onOpen?.(last);
          }
          if (message.event === "fired" && last !== undefined) yield { lastEventId: last, event: JSON.parse(message.data) };
        }
      } catch (error) {
        if (signal?.aborted) return;
        failure = this.#transport.lost(error);
      } finally {
        limit.clear();
        limit.abort();
      }
      const wait = retryDelay(failure, failures);
      if (wait === undefined) throw failure;
      await sleep(spread(wait), signal).catch(() => {}); // the loop ends if the signal is aborted
    }
  }

  /**
   * An operation whose path is below that of the timer.
   * @param {TimerRef} timer
   * @param {string} operation
   * @param {ChangeOptions} options
   * @param {object} body
   * @param {Record<string, string>} [headers]
   * @returns {Promise<Timer>}
   */
  async #operate(timer, operation, options, body, headers) {
    const path = await this.#pathOf(timer, options);
    return this.#change("POST", `${path}/${operation}`, options, { body: { ...body, by: options.by }, headers });
  }

  /**
   * A change of a timer, with If-Match. Such a change is not repeated after 503: if it has taken effect, the revision is
   * another one, and the answer to the repetition would be precondition_failed.
   * @template T
   * @param {string} method
   * @param {string} path
   * @param {ChangeOptions} options
   * @param {RequestOptions} request
   * @returns {Promise<T>}
   */
  #change(method, path, options, request) {
    const { signal, timeout, retries, ifMatch } = options;
    if (ifMatch === undefined) return this.request(method, path, { ...request, signal, timeout, retries });
    return this.request(method, path, { ...request, signal, timeout, retries: 0, headers: { ...request.headers, "If-Match": `"${ifMatch}"` } });
  }

  /**
   * Returns the path of a timer. If only its source and id are known, it asks the node for the timer id.
   * @param {TimerRef} timer
   * @param {CallOptions} options
   */
  async #pathOf(timer, { signal, timeout, retries }) {
    return place(typeof timer === "string" ? timer : (await this.get(timer, { signal, timeout, retries })).timer).path;
  }
}

/**
 * Returns where a timer is: below its timer id, or by source and id.
 * @param {TimerRef} timer
 * @returns {{ path: string, query?: { source: string, id: string } }}
 */
function place(timer) {
  if (typeof timer !== "string") return { path: "/v1/timers", query: { source: timer.source, id: timer.id } };
  if (timer === "") throw new TypeError("the timer id is empty"); // the path would be that of all timers
  return { path: `/v1/timers/${encodeURIComponent(timer)}` };
}

/**
 * Yields the items of all pages.
 * @template T
 * @param {string | undefined} cursor of the first page
 * @param {(cursor: string | undefined) => Promise<{ items: T[], cursor?: string }>} read
 * @returns {AsyncGenerator<T, void, undefined>}
 */
async function* pages(cursor, read) {
  do {
    const page = await read(cursor);
    yield* page.items;
    cursor = page.cursor;
  } while (cursor);
}

/**
 * Returns the members of an object that are not undefined, so that an explicit undefined hides no default.
 * @param {object} o
 */
function present(o) {
  return Object.fromEntries(Object.entries(o).filter(([, value]) => value !== undefined));
}

/**
 * Returns a text as a value of a header, in which fetch allows only bytes: those of its UTF-8.
 * @param {string} text
 */
function headerText(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

/**
 * Yields the events in batches within the bounds of a request.
 * @param {string[]} events
 */
function* batches(events) {
  /** @type {string[]} */
  let batch = [];
  let bytes = 0;
  for (const event of events) {
    const size = 3 * event.length; // UTF-8 has at most three bytes for a code unit
    if (batch.length === batchEvents || (batch.length > 0 && bytes + size > batchBytes)) {
      yield batch;
      batch = [];
      bytes = 0;
    }
    batch.push(event);
    bytes += size;
  }
  if (batch.length > 0) yield batch;
}
