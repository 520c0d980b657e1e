import { headerOf, isStructured, parse } from "./parse.js";
import { SignatureError, keysOf, verify } from "./signature.js";

/** @import { Handler, HeadersLike, NodeRequest, NodeResponse, ReceiverOptions, Run } from "../index.d.ts" */

/**
 * An answer to a callback.
 * @typedef {{ status: number, headers: Record<string, string>, body?: string }} Reply
 */

export class NotNow extends Error {
  /**
   * @param {number} seconds
   * @param {string} [reason]
   */
  constructor(seconds, reason = "not now") {
    super(reason);
    this.name = "NotNow";
    this.seconds = seconds;
  }
}

export class DeadLetterNow extends Error {
  /** @param {string} reason */
  constructor(reason) {
    super(reason);
    this.name = "DeadLetterNow";
  }
}

class TooLarge extends Error {}

const defaultMaxBody = 2 << 20; // an event of 1 MiB as JSON with its data in base64

/**
 * @param {Handler} handler
 * @param {ReceiverOptions} options
 * @returns {(req: NodeRequest, res: NodeResponse) => Promise<void>}
 */
export function middleware(handler, options) {
  const receiver = new Receiver(handler, options);
  return async (req, res) => {
    const reply = await receiver.answer(req.method ?? "", req.headers, (max) => nodeBody(req, max));
    res.statusCode = reply.status;
    for (const [name, value] of Object.entries(reply.headers)) res.setHeader(name, value);
    res.end(reply.body);
  };
}

/**
 * @param {Handler} handler
 * @param {ReceiverOptions} options
 * @returns {(request: Request) => Promise<Response>}
 */
export function fetchHandler(handler, options) {
  const receiver = new Receiver(handler, options);
  return async (request) => {
    const reply = await receiver.answer(request.method, request.headers, (max) => webBody(request, max));
    return new Response(reply.body ?? null, { status: reply.status, headers: reply.headers });
  };
}

/** Answers callbacks, whatever server they come through. */
class Receiver {
  #handler;
  #secrets;
  #options;
  #onError;

  /**
   * @param {Handler} handler
   * @param {ReceiverOptions} options
   */
  constructor(handler, options) {
    this.#handler = handler;
    this.#options = options;
    this.#secrets = typeof options.secrets === "string" ? [options.secrets] : (options.secrets ?? []);
    this.#onError = options.onError ?? ((/** @type {unknown} */ error, /** @type {Run | undefined} */ run) => console.error(`belfry: callback ${run?.key ?? ""}:`, error));
    if (this.#secrets.length > 0) keysOf(this.#secrets);
    else if (!options.unsigned) throw new TypeError("give the secrets of the service, or unsigned: true to accept callbacks of anybody");
  }

  /**
   * @param {string} method
   * @param {HeadersLike} headers
   * @param {(max: number) => Promise<Uint8Array>} read
   * @returns {Promise<Reply>}
   */
  async answer(method, headers, read) {
    if (method === "OPTIONS") return this.#handshake(headerOf(headers, "webhook-request-origin"));
    if (method !== "POST") return text(405, "callbacks are POST", { Allow: "POST, OPTIONS" });
    /** @type {Run | undefined} */
    let run;
    try {
      const body = await read(this.#options.maxBody ?? defaultMaxBody);
      await this.#verify(headers, body);
      run = parse(headers, body);
    } catch (error) {
      this.#onError(error);
      if (error instanceof SignatureError) return text(401, error.message);
      if (error instanceof TooLarge) return text(413, error.message);
      return text(error instanceof TypeError ? 400 : 500, messageOf(error));
    }
    try {
      return success(await this.#handler(run));
    } catch (error) {
      if (error instanceof NotNow) return text(503, error.message, { "Retry-After": String(Math.max(0, Math.ceil(error.seconds))) });
      if (error instanceof DeadLetterNow) return text(410, error.message);
      this.#onError(error, run);
      return text(500, messageOf(error));
    }
  }

  /**
   * @param {HeadersLike} headers
   * @param {Uint8Array} body
   */
  async #verify(headers, body) {
    if (this.#secrets.length === 0) return;
    await verify(this.#secrets, headers, body, { tolerance: this.#options.tolerance });
    if (!this.#options.binary && !isStructured(headers)) {
      throw new SignatureError("the callback is in binary mode, whose attributes are not signed: remove mode: binary from the service, or set the option binary");
    }
  }

  /**
   * Answers the question whether an origin may call (docs/flow.md, "Ask the target first"). Belfry takes 400 and 405 for a refusal.
   * @param {string} origin
   */
  #handshake(origin) {
    const origins = this.#options.origins ?? [];
    if (origins.length === 0) return text(405, "this target answers no OPTIONS", { Allow: "POST" });
    if (!origins.includes("*") && !origins.some((allowed) => allowed.toLowerCase() === origin.toLowerCase())) return text(400, "this origin may not call");
    return text(200, "", { Allow: "POST, OPTIONS", "WebHook-Allowed-Origin": origins.includes("*") ? "*" : origin, "WebHook-Allowed-Rate": "*" });
  }
}

/** @param {unknown} result */
function success(result) {
  if (result === undefined || result === null) return { status: 204, headers: {} };
  if (typeof result === "string") return text(200, result);
  return { status: 200, headers: { "Content-Type": "application/json" }, body: JSON.stringify(result) };
}

/**
 * @param {number} status
 * @param {string} body
 * @param {Record<string, string>} [headers]
 * @returns {Reply}
 */
function text(status, body, headers = {}) {
  return { status, headers: { "Content-Type": "text/plain; charset=utf-8", ...headers }, body };
}

/** @param {unknown} error */
function messageOf(error) {
  return error instanceof Error ? `${error.name}: ${error.message}` : String(error);
}

/**
 * Reads the body of a request of Node, unless something has read its bytes already.
 * @param {NodeRequest} req
 * @param {number} max
 */
async function nodeBody(req, max) {
  for (const kept of [req.rawBody, req.body]) {
    if (kept instanceof Uint8Array) return bounded([kept], max);
    if (typeof kept === "string") return bounded([new TextEncoder().encode(kept)], max);
  }
  if (req.readableEnded || !req[Symbol.asyncIterator]) {
    throw new Error("the body was parsed before the callback could be verified: put the middleware before express.json() and the like");
  }
  const chunks = [];
  let size = 0;
  for await (const chunk of /** @type {AsyncIterable<Uint8Array>} */ (req)) {
    size += chunk.length;
    if (size > max) chunks.length = 0; // read on, so that the answer arrives, but keep nothing
    else chunks.push(chunk);
  }
  if (size > max) throw new TooLarge(`the body has more than ${max} bytes`);
  return bounded(chunks, max);
}

/**
 * @param {Request} request
 * @param {number} max
 */
async function webBody(request, max) {
  if (Number(request.headers.get("Content-Length")) > max) throw new TooLarge(`the body has more than ${max} bytes`);
  if (!request.body) return bounded([new Uint8Array(await request.arrayBuffer())], max);
  const chunks = [];
  const reader = request.body.getReader();
  for (let size = 0; ;) {
    const { done, value } = await reader.read();
    if (done) return bounded(chunks, max);
    chunks.push(value);
    if ((size += value.length) > max) {
      reader.cancel().catch(() => {}); // the answer does not wait for it
      throw new TooLarge(`the body has more than ${max} bytes`);
    }
  }
}

/**
 * @param {Uint8Array[]} chunks
 * @param {number} max
 */
function bounded(chunks, max) {
  const size = chunks.reduce((sum, chunk) => sum + chunk.length, 0);
  if (size > max) throw new TooLarge(`the body has more than ${max} bytes`);
  const all = new Uint8Array(size);
  let at = 0;
  for (const chunk of chunks) {
    all.set(chunk, at);
    at += chunk.length;
  }
  return all;
}
