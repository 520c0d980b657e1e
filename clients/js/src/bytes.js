// Bytes, base64 and WebCrypto, with what Node 18, Deno and browsers have in common.

/** @returns {Promise<Crypto>} */
export async function webCrypto() {
  return globalThis.crypto ?? (await import("node:crypto")).webcrypto; // Node 18 has no global one
}

/** @param {Uint8Array} bytes */
export function toBase64(bytes) {
  let text = "";
  const step = 0x8000; // arguments of one call
  for (let i = 0; i < bytes.length; i += step) text += String.fromCharCode(...bytes.subarray(i, i + step));
  return btoa(text);
}

/**
 * It throws for a text that is not base64.
 * @param {string} text
 */
export function fromBase64(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

/** Returns a name that is not used elsewhere, of 122 random bits. It keeps no secret. */
export function randomID() {
  const hex = () => Math.floor(Math.random() * 0x10000).toString(16).padStart(4, "0");
  if (globalThis.crypto?.getRandomValues) {
    const bytes = globalThis.crypto.getRandomValues(new Uint8Array(16));
    return uuid(Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join(""));
  }
  return uuid(Array.from({ length: 8 }, hex).join(""));
}

/** @param {string} hex 32 digits */
function uuid(hex) {
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-8${hex.slice(17, 20)}-${hex.slice(20)}`;
}
