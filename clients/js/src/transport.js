import { BelfryError, LimitedError, UnavailableError, errorOfResponse } from "./errors.js";

/** @import { CallOptions, ClientOptions } from "../index.d.ts" */

/**
 * A request. query has parameters; body is sent as it is.
 * @typedef {{ query?: object, body?: string, headers?: Record<string, string>, signal?: AbortSignal, timeout?: number, retries?: number }} Sending
 */

const firstDelay = 200; // milliseconds before the first repetition, if the answer names no time; doubled each time
const longestDelay = 10_000; // milliseconds

/** Sends requests, and repeats those that may succeed later. */
export class Transport {
  #base;
  #token;
  #headers;
  #fetch;
  #timeout;
  #retries;
  #maxRetryDelay;

  /** @param {ClientOptions} o */
  constructor(o) {
    this.#base = new URL(o.url ?? "http://127.0.0.1:8420").href.replace(/\/+$/, "");
    this.#token = o.token;
    this.#headers = o.headers ?? {};
    this.#fetch = o.fetch ?? ((/** @type {string} */ url, /** @type {RequestInit} */ init) => fetch(url, init));
    this.#timeout = o.timeout ?? 10_000;
    this.#retries = o.retries ?? 4;
    this.#maxRetryDelay = o.maxRetryDelay ?? 30_000;
  }

  /**
   * Sends a request until it has an answer that a repetition would not change, and returns the JSON of the answer.
   * @param {string} method
   * @param {string} path
   * @param {Sending} o
   */
  send(method, path, o) {
    return this.repeat(() => this.once(method, path, o), o);
  }

  /**
   * Calls attempt until it returns, or throws an error that a repetition would not change.
   * @template T
   * @param {() => Promise<T>} attempt
   * @param {CallOptions} o
   */
  async repeat(attempt, o) {
    const retries = o.retries ?? this.#retries;
    for (let n = 0; ; n++) {
      try {
        return await attempt();
      } catch (error) {
        const wait = retryDelay(error, n);
        if (wait === undefined || n >= retries || wait > this.#maxRetryDelay) throw error;
        await sleep(Math.min(spread(wait), this.#maxRetryDelay), o.signal);
      }
    }
  }

  /**
   * Sends one request and returns the JSON of its answer.
   * @param {string} method
   * @param {string} path
   * @param {Sending} o
   */
  async once(method, path, o) {
    const timeout = o.timeout ?? this.#timeout;
    const limit = limited(o.signal, timeout);
    /** @type {Response} */
    let response;
    let text;
    try {
      response = await this.open(method, path, o, limit.signal);
      text = await response.text();
    } catch (error) {
      throw noAnswer(error, this.#base, o.signal, limit.expired() ? `no answer within ${timeout} ms` : undefined);
    } finally {
      limit.clear();
    }
    if (!response.ok) throw errorOfResponse(response, text);
    try {
      return JSON.parse(text);
    } catch (cause) {
      throw new BelfryError({ status: response.status, detail: `the answer of ${this.#base} is not JSON: is it a node of Belfry?` }, { cause });
    }
  }

  /**
   * Sends one request and returns its answer, whose body is not read.
   * @param {string} method
   * @param {string} path
   * @param {Sending} o
   * @param {AbortSignal} signal
   */
  async open(method, path, o, signal) {
    const token = typeof this.#token === "function" ? await this.#token() : this.#token;
    return this.#fetch(this.#base + path + queryOf(o.query), {
      method,
      headers: { ...this.#headers, ...o.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) },
      body: o.body,
      signal,
      redirect: "manual", // no node redirects, and a token must not go elsewhere
    });
  }

  /**
   * Returns the error of a request that got no answer.
   * @param {unknown} error
   * @param {AbortSignal} [signal] of the caller
   */
  lost(error, signal) {
    return noAnswer(error, this.#base, signal);
  }
}

/**
 * @param {unknown} error
 * @param {string} base
 * @param {AbortSignal} [signal] of the caller, whose reason it returns if it is aborted
 * @param {string} [why]
 */
function noAnswer(error, base, signal, why) {
  if (signal?.aborted) return signal.reason;
  if (error instanceof BelfryError) return error;
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  const text = why ?? `no answer: ${cause instanceof Error ? cause.message || cause.name : cause}`;
  return new UnavailableError({ code: "unavailable", status: 0, detail: `${new URL(base).host}: ${text}` }, { cause: error });
}

/**
 * Returns the milliseconds before repetition n, undefined if a repetition does not help.
 * @param {unknown} error
 * @param {number} n from 0
 */
export function retryDelay(error, n) {
  if (!(error instanceof UnavailableError || error instanceof LimitedError)) return undefined;
  return error.retryAfter === undefined ? Math.min(firstDelay * 2 ** n, longestDelay) : error.retryAfter * 1000;
}

/**
 * Returns a time that is longer by up to a fifth, so that many clients do not come at once.
 * @param {number} ms
 */
export function spread(ms) {
  return ms * (1 + Math.random() / 5);
}

/**
 * Waits, and throws the reason of the signal if it is aborted.
 * @param {number} ms
 * @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 */
export function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/**
 * Returns a signal that is aborted with the given one, or after a time; 0 for never. restart begins the time again. clear
 * must be called at the end.
 * @param {AbortSignal | undefined} signal
 * @param {number} ms
 */
export function limited(signal, ms) {
  const controller = new AbortController();
  let expired = false;
  const stop = () => controller.abort(signal?.reason);
  const expire = () => {
    expired = true;
    controller.abort();
  };
  const start = () => (ms > 0 ? setTimeout(expire, ms) : undefined);
  let timer = start();
  if (signal?.aborted) stop();
  signal?.addEventListener("abort", stop, { once: true });
  return {
    signal: controller.signal,
    expired: () => expired,
    restart() {
      clearTimeout(timer);
      timer = start();
    },
    clear() {
      clearTimeout(timer);
      signal?.removeEventListener("abort", stop);
    },
    abort: () => controller.abort(),
  };
}

/** @param {object | undefined} query */
function queryOf(query) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null) params.append(name, one instanceof Date ? one.toISOString() : String(one));
    }
  }
  const text = params.toString();
  return text && `?${text}`;
}
