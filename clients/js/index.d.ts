/**
 * Client of Belfry's HTTP API, and receiver of its callbacks.
 *
 * This file declares the whole package. Times in answers are RFC 3339 in UTC with milliseconds.
 * docs/http.md describes each operation, docs/reference.md each attribute of a timer.
 */

// ---------------------------------------------------------------------------------------------
// Timers and schedules

/** The state of a timer or schedule. */
export type State = "pending" | "delivered" | "retrying" | "success" | "fail" | "cancelled" | "paused" | "completed";

/** A time: a Date, or a text in RFC 3339. */
export type Instant = Date | string;

/** A JSON value. */
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** A timer: its timer id, or the source and id of its event. */
export type TimerRef = string | { source: string; id: string };

/** A timer or schedule to add. One of in, at, cron and every is required. */
export interface NewTimer {
  /** Due after this duration: 15m, PT10S. */
  in?: string;
  /** Due at this time. */
  at?: Instant;
  /** A schedule: a cron expression. */
  cron?: string;
  /** A schedule: a period, such as 15m or P1D. */
  every?: string;
  /** The time zone of a schedule; default UTC. */
  tz?: string;
  /** The service; the event fires on timers.fired.<svc>. Default: default. */
  svc?: string;
  /** URL or nats:<subject> to call when due. Without it the event is only published. */
  callback?: string;
  /** A label to filter lists by. */
  group?: string;
  /** The flow key, whose limits apply to the callback. */
  flow?: string;
  /** The ordering key: callbacks of one key are made one at a time, in due order. */
  key?: string;
  /** Attempts before the timer becomes a dead letter; default 36. */
  maxattempts?: number | string;
  /** Delays between attempts: 200ms, 1s..10m. */
  backoff?: string;
  /** The time-out of one attempt; default 30s. */
  timeout?: string;
  /** First possible run of a schedule. */
  start?: Instant;
  /** Last possible run of a schedule. */
  end?: Instant;
  /** Number of runs of a schedule. */
  limit?: number | string;
  /** The maximum random delay of a run. */
  jitter?: string;
  /** Rules of a schedule for daylight saving. */
  dst?: string;
  /** How a cron expression combines its day of month and its day of week. */
  days?: "and" | "or";
  /** Which missed runs fire: the latest for all, each, or none. */
  misfire?: "one" | "all" | "skip";
  /** A run that is later than this is skipped. */
  grace?: string;
  /** The rule for a run that is due while the previous run has no result. */
  overlap?: "skip" | "queue" | "allow" | "replace";
  /** A nominal time without a success after this duration is overdue. */
  expect?: string;
  /** Calendars without runs, with commas between them. */
  exclude?: string;
  /** The rule for a run on an excluded date. */
  excludeshift?: "skip" | "next" | "previous";
  /** The id of the event; default: the idempotency key, or a random id. */
  id?: string;
  /** The source of the event; default /http. */
  source?: string;
  /** The type of the event; default belfry.timer. */
  type?: string;
  /** The subject of the event. */
  subject?: string;
  /** The time of the event. */
  time?: Instant;
  /** The schema of the data, a URI. */
  dataschema?: string;
  /** The content type of the data; default application/json. */
  datacontenttype?: string;
  /** The data of the event, any JSON value. */
  data?: unknown;
  /** Binary data in base64, instead of data. */
  data_base64?: string;
  /** Attributes of your own. */
  attributes?: Record<string, string | number | boolean>;
}

/** The answer to an add. */
export interface Added {
  /** The HTTP status of the event; only in a batch. */
  status?: 200 | 201;
  /** The timer id. */
  timer: string;
  /** The id of the event; absent in a batch. */
  id?: string;
  /** The source of the event; absent in a batch. */
  source?: string;
  due: string;
  state: State;
  /** The timer existed already; due and state are those of the existing timer. */
  duplicate: boolean;
  /** A hint, such as: due 3h ago: fires now. */
  remark?: string;
}

/** A timer or schedule. */
export interface Timer {
  /** The timer id. */
  timer: string;
  /** The id of the event. */
  id: string;
  /** The source of the event. */
  source: string;
  /** The type of the event. */
  type: string;
  service: string;
  /** Absent for the default tenant. */
  tenant?: string;
  group?: string;
  /** Credentials are redacted. */
  callback?: string;
  state: State;
  /** The nominal time. */
  scheduled: string;
  /** The time of Belfry's next action on the timer, or of its last one. */
  due: string;
  added?: string;
  fired?: string;
  done?: string;
  /** While retrying: the earliest time of the last attempt. */
  until?: string;
  /** While retrying: the time of the next attempt. */
  next?: string;
  run: number;
  attempts: number;
  maxattempts: number;
  /** The record has expired, and the answer comes from the search index. */
  from?: "history";
  /** With from: each timer that has not changed since this time is in the search index in its current state. */
  as_of?: string;
  /** Which node claimed the timer, and where its event is; only from get with claim. */
  claim?: Claim;
  /** The last attempts, oldest first; lists leave them out. */
  last_attempts?: Attempt[];
  outcome?: Outcome;
  /** The last operations on the timer, oldest first. */
  history?: Operation[];
  /** The timer waits for a slot of its flow key; the state is retrying. */
  flow?: FlowWait;
  /** The timer has an ordering key. */
  order?: OrderWait;
  /** The note of the pause. */
  pause_note?: string;
  /** Only a schedule has it. */
  schedule?: Schedule;
  /** Only a run of a schedule has it. */
  origin?: Origin;
  /** The revision of the record, for ifMatch. */
  revision: number;
}

/** One call of a callback. */
export interface Attempt {
  attempt: number;
  at: string;
  took_ms: number;
  /** The HTTP status, or the error code of a reply over NATS, if there was one. */
  status?: number;
  error?: string;
  /** The start of the answer. */
  response?: string;
}

/** The result of the last attempt. */
export interface Outcome {
  code?: number;
  error?: string;
  response?: string;
}

/** An operation in the history of a timer. */
export interface Operation {
  op: string;
  at: string;
  /** The name that the caller gave; not verified. */
  by?: string;
  account?: string;
  user?: string;
}

/** The slot of a timer that waits because of the limit of its flow key. */
export interface FlowWait {
  key: string;
  slot: string;
  deferrals?: number;
}

/** The node that claimed a timer, and the position of its event; only get with claim returns it. */
export interface Claim {
  /** The term of the owner of its shard. */
  epoch: number;
  /** The owner, while its term lasts. */
  node?: string;
  /** The message id of the event. */
  message: string;
  /** The sequence of the event in TIMERS_FIRED, while the stream has it. */
  sequence?: number;
}

/** The place of a timer with an ordering key. */
export interface OrderWait {
  key: string;
  waits?: boolean;
  head?: string;
  deferrals?: number;
}

/** The part of a Timer that only schedules have. */
export interface Schedule {
  cron?: string;
  every?: string;
  tz: string;
  start?: string;
  end?: string;
  limit?: number;
  jitter_ms?: number;
  dst?: string;
  days?: "and" | "or";
  exclude?: string[];
  excludeshift?: string;
  misfire: "one" | "all" | "skip";
  grace_ms?: number;
  overlap: "skip" | "queue" | "allow" | "replace";
  expect_ms?: number;
  /** The next deadline for a success. */
  deadline?: string;
  /** The reason why no run fires although the schedule has not ended. */
  problem?: string;
  overdue?: Overdue[];
  /** The next nominal time; absent if none is left. */
  next?: string;
  /** Runs of nominal times that have fired. */
  fired: number;
  last?: LastRun;
  /** The nominal time whose run waits until the previous one has concluded. */
  waiting?: string;
  /** The number of triggered runs that have not fired. */
  triggered?: number;
  backfill?: Backfill;
}

/** Nominal times without a success by their deadline. */
export interface Overdue {
  from: string;
  to: string;
  count: number;
  deadline: string;
  at: string;
  run?: number;
}

/** The last run of a schedule. */
export interface LastRun {
  run: number;
  scheduled: string;
  fired: string;
  missed?: number;
  trigger?: "manual" | "backfill";
}

/** A backfill under way. */
export interface Backfill {
  next: string;
  to: string;
  fired: number;
}

/** The schedule and the trigger of a run. */
export interface Origin {
  /** The timer id of the schedule. */
  schedule: string;
  missed?: number;
  trigger?: "manual" | "backfill";
}

/** A filter of lists. All fields are optional, and all must match. */
export interface ListQuery {
  service?: string;
  group?: string;
  state?: State | State[];
  /** Only schedules (true), or only other timers (false). */
  schedule?: boolean;
  /** Timers of a page, 1 to 1000; default 100. */
  limit?: number;
  /** Begin at this page. */
  cursor?: string;
}

/** A filter of searches. A search needs at least one field that ListQuery does not have. */
export interface SearchQuery extends ListQuery {
  /** An event id, a source or a type; with a * at its end the start of an event id. */
  q?: string;
  id?: string;
  source?: string;
  type?: string;
  /** The timer id of a schedule: only its runs. */
  runs_of?: string;
  /** From inclusive, to exclusive. */
  due_from?: Instant;
  due_to?: Instant;
  done_from?: Instant;
  done_to?: Instant;
  /** The host of the callback with its port if it has one, or nats:<subject>. */
  host?: string;
  /** A part of the error of the last attempt. */
  error?: string;
  /** <name>:<value> of an attribute that the setting history-attributes names. */
  attribute?: string;
  sort?: "due" | "done";
  order?: "asc" | "desc";
}

/** A page of a list. */
export interface TimerPage {
  from: "record";
  timers: Timer[];
  /** For the next page; absent on the last page. */
  cursor?: string;
}

/** A page of a search. */
export interface SearchPage {
  from: "history";
  /** Each timer that has not changed since this time is in the search index in its current state. */
  as_of?: string;
  /** An upper bound of the changes that the search index lacks. */
  behind: number;
  /** Timers change faster than the search index can be written. */
  counts_only: boolean;
  timers: Timer[];
  cursor?: string;
}

/** One run of a schedule. */
export interface ScheduleRun {
  run: number;
  /** <timer id>.<run>, the idempotency key of the run. */
  id: string;
  /** The id of the record of the run. */
  timer?: string;
  scheduled?: string;
  missed?: number;
  trigger?: "manual" | "backfill";
  state?: State;
  fired?: string;
  done?: string;
  attempts?: number;
  outcome?: Outcome;
  /** The run had no success by its deadline. */
  overdue?: boolean;
}

/** The explanation of a timer, or of a time of a schedule: fired, planned, skipped, and the reason. */
export interface Answer {
  at: string;
  /** at in the zone of the schedule. */
  local: string;
  fate: "fired" | "skipped" | "waiting" | "planned" | "none" | "unknown";
  reason?: string;
  run?: number;
  due?: string;
  decided?: string;
  overdue?: string;
  before?: string;
  after?: string;
  /** Sentences for people. */
  text: string;
  notes?: string[];
}

/** An event whose callback has failed for good. */
export interface DeadLetter {
  sequence: number;
  /** The id of the record. */
  timer: string;
  /** The schedule of a run. */
  schedule?: string;
  run?: number;
  id: string;
  source: string;
  type: string;
  service: string;
  tenant?: string;
  scheduled?: string;
  died: string;
  attempts: number;
  error_code: string;
  error_data?: string;
  /** The host of an HTTP callback. */
  host?: string;
  /** The consumer of fired events that gave up; such a dead letter cannot be replayed. */
  consumer?: string;
}

/** A filter of dead letters. */
export interface DeadLetterQuery {
  service?: string;
  /** A timer id, a schedule's timer id, or <timer id>.<run>. */
  timer?: string;
  /** The id of the event, with source. */
  id?: string;
  source?: string;
  /** Dead letters of a page, 1 to 1000; default 100. */
  limit?: number;
  cursor?: string;
}

/** The answer to a replay. */
export interface Replayed {
  replayed: number;
  /** The timers that were replayed. */
  timers: string[];
  /** There are others; repeat the request. */
  more: boolean;
}

/** A fired event of Client.stream. */
export interface FiredEvent {
  /** The timer or schedule. */
  timer: string;
  run: number;
  id: string;
  source: string;
  type: string;
  service: string;
  tenant?: string;
  scheduled: string;
  fired: string;
  /** The time of the stream. */
  stored: string;
  /** From the due time, or the add if that was later, to stored. */
  lateness_ms: number;
  missed?: number;
  trigger?: "manual" | "backfill";
  /** The CloudEvent; only with a token that has scope payload. */
  event?: CloudEvent;
}

// ---------------------------------------------------------------------------------------------
// The client

export interface ClientOptions {
  /** The address of a node; default http://127.0.0.1:8420. */
  url?: string | URL;
  /** A token, or a function that returns the current one. */
  token?: string | (() => string | Promise<string>);
  /** Headers of every request. */
  headers?: Record<string, string>;
  /** Time limit of one request in milliseconds; 0 for none. Default 10000. */
  timeout?: number;
  /** How often a request is repeated that got 429, 503 or no answer; 0 for never. Default 4. */
  retries?: number;
  /**
   * The longest wait before a repetition, in milliseconds. If Retry-After asks for more, the call fails at
   * once. Default 30000.
   */
  maxRetryDelay?: number;
  /** Default: the global fetch. */
  fetch?: typeof fetch;
}

/** Options of one call. */
export interface CallOptions {
  /** Ends the call; it then throws the reason of the signal. */
  signal?: AbortSignal;
  /** In place of ClientOptions.timeout. */
  timeout?: number;
  /** In place of ClientOptions.retries. */
  retries?: number;
}

export interface AddOptions extends CallOptions {
  /** Becomes the id of an event that has none. The same key for another timer is a ConflictError. */
  idempotencyKey?: string;
}

/** Options of a change. */
export interface ChangeOptions extends CallOptions {
  /** The caller's name, for the history of the timer; nobody verifies it. */
  by?: string;
  /** The revision that the timer must have; with another one the call throws a ConflictError. */
  ifMatch?: number;
}

export interface PauseOptions extends ChangeOptions {
  /** Why. */
  note?: string;
}

export interface ResumeOptions extends ChangeOptions {
  /** Which missed nominal times of a schedule run; default none. */
  catchup?: "skip" | "one" | "all";
}

export interface TriggerOptions extends ChangeOptions {
  /** Run it also while the previous run has no result. */
  allow?: boolean;
  /** Names the request, so that a repeated one asks for no second run; default: a random name. */
  idempotencyKey?: string;
}

export interface ReplayQuery {
  /** A timer id, or a run as <timer id>.<run>. */
  timer?: string;
  id?: string;
  source?: string;
  service?: string;
  /** Dead letters to replay, 1 to 500. */
  limit?: number;
}

export interface StreamOptions {
  signal?: AbortSignal;
  /** The id after which to begin, such as StreamItem.lastEventId; without it with the events that fire from now on. */
  lastEventId?: string;
  /** Called when the stream has begun, and again after each reconnection. */
  onOpen?: (lastEventId: string) => void;
  /** The stream reconnects if it gets no byte for so many milliseconds; default 45000. The node sends a comment each 15 s. */
  idleTimeout?: number;
}

export interface StreamItem {
  /** Keep it to continue after this event: StreamOptions.lastEventId. */
  lastEventId: string;
  event: FiredEvent;
}

export interface RequestOptions extends CallOptions {
  /** Parameters; those that are undefined are left out, and an array occurs several times. */
  query?: object;
  /** Sent as JSON. */
  body?: unknown;
  headers?: Record<string, string>;
}

/**
 * A client of one Belfry. It has no connection of its own, and may be used by any number of callers at once.
 * Every call throws a BelfryError if the node refuses it or does not answer.
 */
export class Client {
  constructor(options?: ClientOptions);

  /**
   * Adds a timer or schedule; it is stored when the call returns. An event without an id and without an
   * idempotency key gets a random id before the first request, so that the repetition of a request adds no
   * second timer.
   */
  add(timer: NewTimer, options?: AddOptions): Promise<Added>;

  /**
   * Adds many timers, up to 500 with one request. The result has for each timer, in their order, what became
   * of it. It throws only if a whole request was refused or got no answer.
   */
  addBatch(timers: Iterable<NewTimer>, options?: CallOptions): Promise<Array<Added | BelfryError>>;

  /** Returns a timer, with claim also who claimed it. It throws a NotFoundError if there is none, or if its record has expired. */
  get(timer: TimerRef, options?: CallOptions & { claim?: boolean }): Promise<Timer>;

  /** Lists timers by their records, page after page. */
  list(query?: ListQuery, options?: CallOptions): AsyncGenerator<Timer, void, undefined>;
  listPage(query?: ListQuery, options?: CallOptions): Promise<TimerPage>;

  /** Searches the index of the node, which also has timers whose records have expired, page after page. */
  search(query: SearchQuery, options?: CallOptions): AsyncGenerator<Timer, void, undefined>;
  searchPage(query: SearchQuery, options?: CallOptions): Promise<SearchPage>;

  /** Cancels a timer, or ends a schedule. Once it returns, the timer does not fire. A fired timer is a TooLateError. */
  cancel(timer: TimerRef, options?: ChangeOptions): Promise<Timer>;

  /** Gives a timer another due time. */
  reschedule(timer: TimerRef, when: { in: string } | { at: Instant }, options?: ChangeOptions): Promise<Timer>;

  /** Lets a timer or schedule wait until it is resumed. */
  pause(timer: TimerRef, options?: PauseOptions): Promise<Timer>;
  resume(timer: TimerRef, options?: ResumeOptions): Promise<Timer>;

  /** Runs a schedule now. */
  trigger(schedule: TimerRef, options?: TriggerOptions): Promise<Timer>;

  /** Replaces a schedule by another one of the same id and source. before and after are the next nominal times. */
  update(schedule: TimerRef, timer: NewTimer, options?: ChangeOptions): Promise<{ timer: Timer; before?: string[]; after?: string[] }>;

  /** Lists the runs of a schedule, newest first. */
  runs(schedule: TimerRef, query?: { limit?: number }, options?: CallOptions): AsyncGenerator<ScheduleRun, void, undefined>;

  /** Says what became, or will become, of a timer, or of a time of a schedule. */
  why(timer: TimerRef, at?: Instant, options?: CallOptions): Promise<{ answers: Answer[]; more?: boolean }>;

  /** Lists dead letters, oldest first. */
  deadLetters(query?: DeadLetterQuery, options?: CallOptions): AsyncGenerator<DeadLetter, void, undefined>;

  /** Calls back again, with all attempts, the dead letters of a timer or up to 500 of a service. */
  replay(query: ReplayQuery, options?: Pick<ChangeOptions, "by" | keyof CallOptions>): Promise<Replayed>;

  /** Discards a dead letter for good, and returns it. */
  discard(sequence: number, options?: Pick<ChangeOptions, "by" | keyof CallOptions>): Promise<DeadLetter>;

  /**
   * Follows the events of a service as they fire. It reconnects by itself and misses nothing that TIMERS_FIRED
   * still has. It ends when the signal is aborted, or when the loop that reads it is left.
   */
  stream(service: string, options?: StreamOptions): AsyncGenerator<StreamItem, void, undefined>;

  /** Makes any request of the API, such as ("GET", "/v1/services"), and returns the JSON of its answer. */
  request<T = unknown>(method: string, path: string, options?: RequestOptions): Promise<T>;
}

// ---------------------------------------------------------------------------------------------
// Errors

/** A problem as the API sends it (RFC 9457). */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  code: string;
  pointer?: string;
  /** Of a batch: what became of each event. */
  results?: Array<Added | Problem>;
}

/** An error of the API, or of the way to it. Its message is the detail of the problem. */
export class BelfryError extends Error {
  constructor(problem: Partial<Problem>, options?: { retryAfter?: number; cause?: unknown });
  /** The stable name of the error: the table in docs/http.md. */
  readonly code: string;
  /** The HTTP status; 0 without an answer. */
  readonly status: number;
  /** What is wrong, and what to do. */
  readonly detail: string;
  /** The field, parameter or attribute that is wrong, such as #/attributes/orderid. */
  readonly pointer?: string;
  /** Seconds after which to try again, of 429 and 503. */
  readonly retryAfter?: number;
  /** The whole problem. */
  readonly problem: Partial<Problem>;
}

/** The request is wrong, or an event, field or attribute of it. Repeating it does not help. */
export class InvalidError extends BelfryError {}
/** No such timer, or its record has expired. */
export class NotFoundError extends BelfryError {}
/** A different timer has this name (code conflict), or the timer has another revision (precondition_failed). */
export class ConflictError extends BelfryError {}
/** The timer has fired (already_fired) or ended (already_done). */
export class TooLateError extends BelfryError {}
/** The token is missing or unknown (unauthenticated), or may not do this (forbidden). */
export class AccessError extends BelfryError {}
/** A limit of adds is used up; nothing was stored. */
export class LimitedError extends BelfryError {}
/** Belfry did not answer, in time or at all. The request may have taken effect. */
export class UnavailableError extends BelfryError {}

/** The classes of errors by code. Other codes are a BelfryError. */
export const errorClasses: Readonly<Record<string, typeof BelfryError>>;

// ---------------------------------------------------------------------------------------------
// Callbacks

/** A CloudEvent 1.0 as JSON. Extension attributes are members of their own. */
export interface CloudEvent {
  specversion: string;
  id: string;
  source: string;
  type: string;
  subject?: string;
  time?: string;
  dataschema?: string;
  datacontenttype?: string;
  data?: unknown;
  data_base64?: string;
  [attribute: string]: unknown;
}

/** One call of a callback. */
export interface Run<T = unknown> {
  /** <timer id>.<run>: the same for each attempt. A handler that must not act twice remembers it. */
  key: string;
  /** The timer id. */
  timer: string;
  run: number;
  /** From 1. */
  attempt: number;
  /** The due time; of a run of a schedule the nominal time. */
  scheduled: Date;
  fired: Date;
  /** Missed nominal times for which the run fired, in addition to its own. */
  missed: number;
  /** Set if somebody asked for the run. */
  trigger?: "manual" | "backfill";
  /** The event without its data. */
  event: CloudEvent;
  /** Parsed JSON; a string for text; a Uint8Array for other data; undefined without data. */
  data: T;
}

/**
 * Handles a run. When it returns, the run is a success; a value becomes the body of the answer, which the record
 * keeps (1 KiB). Throw NotNow or DeadLetter to answer otherwise. After any other error Belfry tries again.
 */
export type Handler<T = any> = (run: Run<T>) => unknown | Promise<unknown>;

/** Thrown by a handler: call again after so many seconds, without using up an attempt. */
export class NotNow extends Error {
  constructor(seconds: number, reason?: string);
  readonly seconds: number;
}

/** Thrown by a handler: no attempt can succeed, so the event becomes a dead letter at once. */
export class DeadLetterNow extends Error {
  constructor(reason: string);
}

/** A callback with a wrong, old or missing signature. */
export class SignatureError extends Error {
  constructor(message: string);
}

export interface ReceiverOptions {
  /** The secrets of the service (whsec_…). One of them must have signed; give several while you replace one. */
  secrets?: string | string[];
  /** Accept callbacks without a signature. Required if there are no secrets. */
  unsigned?: boolean;
  /**
   * With secrets, accept binary mode, too, in which the signature covers the data but not the attributes.
   * Needed only for a service with the settings secret and mode: binary.
   */
  binary?: boolean;
  /** How much older or newer than now a signature may be, in seconds; default 300. */
  tolerance?: number;
  /** The largest body in bytes; default 2 MiB. */
  maxBody?: number;
  /** Gets each error but NotNow and DeadLetterNow; default: console.error. */
  onError?: (error: unknown, run?: Run) => void;
  /** The origins that may call, such as belfry.example.com or *: the answer to the question of webhook-origin. */
  origins?: string[];
}

/** A request of a middleware: that of Node, Express, Connect or Fastify (raw). */
export interface NodeRequest {
  method?: string;
  headers: Record<string, string | string[] | undefined>;
  body?: unknown;
  rawBody?: unknown;
  readableEnded?: boolean;
  [Symbol.asyncIterator]?(): AsyncIterator<any>;
}

export interface NodeResponse {
  statusCode: number;
  setHeader(name: string, value: string): unknown;
  end(body?: string): unknown;
}

/** Returns a handler of requests for Express, Connect or node:http. It must run before a body parser such as express.json(). */
export function middleware(handler: Handler, options: ReceiverOptions): (req: NodeRequest, res: NodeResponse) => Promise<void>;

/** Returns a handler of requests for Deno, Bun, workers, and frameworks with the Request and Response of the web. */
export function fetchHandler(handler: Handler, options: ReceiverOptions): (request: Request) => Promise<Response>;

/** Headers: those of the web, or an object. */
export type HeadersLike = Headers | Record<string, string | string[] | undefined>;

/**
 * Checks the signature of a callback in constant time, as Standard Webhooks defines it. It throws a SignatureError
 * if no secret has signed the body, or if the signature is too old.
 */
export function verify(secrets: string | string[], headers: HeadersLike, body: Uint8Array | string, options?: { tolerance?: number; now?: Date }): Promise<void>;

/** Reads a callback in structured or binary mode. It does not check the signature. */
export function parse<T = unknown>(headers: HeadersLike, body: Uint8Array | string): Run<T>;
