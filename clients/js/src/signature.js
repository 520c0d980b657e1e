import { fromBase64, webCrypto } from "./bytes.js";
import { headerOf } from "./parse.js";

/** @import { HeadersLike } from "../index.d.ts" */

export class SignatureError extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = "SignatureError";
  }
}

export const defaultTolerance = 300; // seconds
const maxSignatures = 16; // Belfry sends one for each secret of the service

/**
 * @param {string | string[]} secrets
 * @param {HeadersLike} headers
 * @param {Uint8Array | string} body
 * @param {{ tolerance?: number, now?: Date }} [options]
 * @returns {Promise<void>}
 */
export async function verify(secrets, headers, body, options = {}) {
  const keys = keysOf(secrets);
  const id = headerOf(headers, "webhook-id");
  const timestamp = headerOf(headers, "webhook-timestamp");
  const signature = headerOf(headers, "webhook-signature");
  if (!id || !timestamp || !signature) throw new SignatureError("the callback has no signature: set a secret for the service of the timer");
  const age = (options.now ?? new Date()).getTime() / 1000 - Number(timestamp);
  if (!/^\d{1,12}$/.test(timestamp) || Math.abs(age) > (options.tolerance ?? defaultTolerance)) {
    throw new SignatureError(`the signature is of ${timestamp} (Unix time), which is too far from now`);
  }
  const content = join(new TextEncoder().encode(`${id}.${timestamp}.`), bytesOf(body));
  const { subtle } = await webCrypto();
  let valid = false;
  for (const key of keys) {
    const hmac = await subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, ["verify"]);
    for (const given of signaturesOf(signature)) {
      // verify compares in constant time, and all are compared.
      valid = (await subtle.verify("HMAC", hmac, given, content)) || valid;
    }
  }
  if (!valid) throw new SignatureError("no secret has signed this callback");
}

/**
 * Returns the keys of secrets. It throws a TypeError that does not have the secret.
 * @param {string | string[]} secrets
 */
export function keysOf(secrets) {
  const list = typeof secrets === "string" ? [secrets] : secrets;
  if (list.length === 0) throw new TypeError("there is no secret to verify with");
  return list.map((secret, i) => {
    try {
      if (!secret.startsWith("whsec_")) throw new TypeError();
      const key = fromBase64(secret.slice("whsec_".length));
      if (key.length < 24) throw new TypeError();
      return key;
    } catch {
      throw new TypeError(`secret ${i + 1} must be whsec_ followed by 24 to 64 bytes in base64`);
    }
  });
}

/** @param {string} header v1,<base64> for each secret, with blanks between them */
function signaturesOf(header) {
  const out = [];
  for (const part of header.split(" ").slice(0, maxSignatures)) {
    if (!part.startsWith("v1,")) continue;
    try {
      out.push(fromBase64(part.slice("v1,".length)));
    } catch {
      // not base64, so not a signature
    }
  }
  return out;
}

/** @param {Uint8Array | string} body */
export function bytesOf(body) {
  return typeof body === "string" ? new TextEncoder().encode(body) : body;
}

/**
 * @param {Uint8Array} a
 * @param {Uint8Array} b
 */
function join(a, b) {
  const out = new Uint8Array(a.length + b.length);
  out.set(a);
  out.set(b, a.length);
  return out;
}
