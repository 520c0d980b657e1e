// Entry of the package: index.d.ts declares and documents what it exports.

export { Client } from "./client.js";
export {
  AccessError, BelfryError, ConflictError, InvalidError, LimitedError, NotFoundError, TooLateError, UnavailableError, errorClasses,
} from "./errors.js";
export { DeadLetterNow, NotNow, fetchHandler, middleware } from "./receiver.js";
export { parse } from "./parse.js";
export { SignatureError, verify } from "./signature.js";
