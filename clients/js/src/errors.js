/** @import { Problem } from "../index.d.ts" */

export class BelfryError extends Error {
  /**
   * @param {Partial<Problem>} problem
   * @param {{ retryAfter?: number, cause?: unknown }} [options]
   */
  constructor(problem, options = {}) {
    const detail = problem.detail ?? problem.title ?? `HTTP status ${problem.status}`;
    super(detail, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = new.target.name;
    this.detail = detail;
    this.code = problem.code ?? "unexpected";
    this.status = problem.status ?? 0;
    this.pointer = problem.pointer;
    this.retryAfter = options.retryAfter;
    this.problem = problem;
  }
}

export class InvalidError extends BelfryError {}
export class NotFoundError extends BelfryError {}
export class ConflictError extends BelfryError {}
export class TooLateError extends BelfryError {}
export class AccessError extends BelfryError {}
export class LimitedError extends BelfryError {}
export class UnavailableError extends BelfryError {}

/** @type {Readonly<Record<string, typeof BelfryError>>} */
export const errorClasses = Object.freeze({
  invalid_event: InvalidError,
  invalid_attribute: InvalidError,
  too_many_services: InvalidError,
  too_large: InvalidError,
  invalid_timer_id: InvalidError,
  bad_request: InvalidError,
  no_route: InvalidError,
  method_not_allowed: InvalidError,
  unsupported_media_type: InvalidError,
  not_found: NotFoundError,
  conflict: ConflictError,
  precondition_failed: ConflictError,
  already_fired: TooLateError,
  already_done: TooLateError,
  unauthenticated: AccessError,
  forbidden: AccessError,
  limited: LimitedError,
  store_full: UnavailableError,
  unavailable: UnavailableError,
  config: BelfryError,
  unknown_format: BelfryError,
  damaged: BelfryError,
});

/**
 * Returns the error of a problem.
 * @param {Partial<Problem>} problem
 * @param {number} [retryAfter] seconds
 */
export function errorOf(problem, retryAfter) {
  const known = problem.code === undefined ? undefined : errorClasses[problem.code];
  return new (known ?? BelfryError)(problem, { retryAfter });
}

/**
 * Returns the error of an answer that is no success. An answer without a problem is not Belfry's, but that of a proxy
 * on the way: 429, 502, 503 and 504 then mean what they mean from Belfry.
 * @param {Response} response
 * @param {string} text its body
 */
export function errorOfResponse(response, text) {
  const after = response.headers.get("Retry-After");
  const retryAfter = after !== null && /^\d+$/.test(after) ? Number(after) : undefined;
  if (response.headers.get("Content-Type")?.startsWith("application/problem+json")) {
    try {
      return errorOf({ status: response.status, ...JSON.parse(text) }, retryAfter);
    } catch {
      // cut off on the way
    }
  }
  const { status } = response;
  const code = status === 429 ? "limited" : status >= 502 && status <= 504 ? "unavailable" : "unexpected";
  return errorOf({ code, status, detail: `HTTP status ${status} without a problem of Belfry: ${text.slice(0, 200)}` }, retryAfter);
}
