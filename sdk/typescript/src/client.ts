import { start, type Embedded, type EmbeddedOptions } from "./embedded.js";
import { ofProblem, type ToolfleetError } from "./errors.js";
import { Transport, type TransportOptions } from "./http.js";
import { Future, keyed, Session, Turn } from "./session.js";
import type { Arguments, CallFilter, CallLog, CallOptions, CallRates, CallResult, Found, Limit, LoggedCall, NewSchedule, NewToken, NewWebhook, Question, Schedule, SessionInfo, ToolInfo, TurnOptions, Worker } from "./types.js";

/**
 * A client of a fleet over HTTP.
 *
 * ```ts
 * await using client = await Client.fromEmbedded({ workspace: "." });
 * console.log((await client.call("bash", { command: "echo hi" })).text);
 * ```
 */
export class Client implements AsyncDisposable {
  readonly transport: Transport;
  #embedded: Embedded | undefined;

  /** A client of the server at `url`, such as one of `coordinator serve --http`. */
  constructor(options: TransportOptions) {
    this.transport = new Transport(options);
  }

  /** Starts a coordinator with a fleet of its own, which serves one directory and ends with this program. */
  static async fromEmbedded(options: EmbeddedOptions = {}): Promise<Client> {
    const embedded = await start(options);
    const client = new Client({ url: embedded.url, token: embedded.token });
    client.#embedded = embedded;
    return client;
  }

  /** Ends the embedded coordinator, if there is one. Calls that run end; what is stored stays. */
  async close(): Promise<void> {
    await this.#embedded?.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /**
   * Sends a call of a tool, waits, and returns its result. Throws a {@link CallError} if it does not
   * end `ok`.
   */
  async call(tool: string, args: Arguments = {}, options: CallOptions = {}): Promise<CallResult> {
    const future = await this.submit(tool, args, options);
    return await future.result(options.signal ? { signal: options.signal } : {});
  }

  /** Sends a call of a tool. When it returns, the fleet has stored the call. */
  async submit(tool: string, args: Arguments = {}, options: CallOptions = {}): Promise<Future> {
    const { key = crypto.randomUUID(), signal, ...more } = options;
    const state = await this.transport.json("post", "/v1/calls", { body: { ...more, tool, arguments: args } }, keyed(key, signal));
    return new Future(this, state.session_id, state.call_id);
  }

  /** Sends many calls, in order. Each has a future, or the reason why it was not sent. */
  async submitAll(calls: ({ tool: string; arguments?: Arguments } & Omit<CallOptions, "signal">)[]): Promise<(Future | ToolfleetError)[]> {
    const body = { calls: calls.map(({ key = crypto.randomUUID(), ...call }) => ({ ...call, call_id: key })) };
    const answer = await this.transport.json("post", "/v1/calls/batch", { body }, { repeatable: true });
    return answer.calls.map((sent) => (sent.problem ? ofProblem(sent.problem) : new Future(this, sent.session_id ?? "", sent.call_id ?? "")));
  }

  /** A call that was sent before, also by another program. */
  future(sessionId: string, callId: string): Future {
    return new Future(this, sessionId, callId);
  }

  /** A page of the log of calls that ended, the last one first. With `after`, the `next` of a page, it is the page behind that. With the `position` of a page it has the calls that the log took in since then, the first one first. */
  async calls(filter: CallFilter = {}): Promise<CallLog> {
    return this.transport.json("get", "/v1/calls", { query: filter });
  }

  /** A call of the log, with its input and output. */
  async loggedCall(sessionId: string, callId: string): Promise<LoggedCall> {
    return this.transport.json("get", "/v1/calls/{session}/{call}/log", { path: { session: sessionId, call: callId } });
  }

  /** How many calls ended in each step of a time, and how long they took. Without a time it is the last hour. */
  async callRates(filter: Omit<CallFilter, "text" | "after" | "position" | "limit"> & { step_ms?: number } = {}): Promise<CallRates> {
    return this.transport.json("get", "/v1/calls/rates", { query: filter });
  }

  /** The tools that calls may name. */
  async tools(): Promise<ToolInfo[]> {
    return (await this.transport.json("get", "/v1/tools", {})).tools;
  }

  /** Begins a session with a turn. */
  async start(prompt: string, options: TurnOptions & { session_id?: string } = {}): Promise<Turn> {
    const { key = crypto.randomUUID(), signal, session_id = crypto.randomUUID(), ...more } = options;
    const state = await this.transport.json("post", "/v1/sessions", { body: { ...more, session_id, prompt } }, keyed(key, signal));
    return new Turn(this, state.session_id, state.call_id);
  }

  /** A session by its id; it need not exist yet. */
  session(id: string): Session {
    return new Session(this, id);
  }

  /** The sessions that changed last. */
  async sessions(options: { limit?: number } = {}): Promise<SessionInfo[]> {
    return (await this.transport.json("get", "/v1/sessions", { query: options })).sessions;
  }

  /** Makes a session of events that were exported. */
  async importSession(id: string, events: string): Promise<Session> {
    await this.transport.json("post", "/v1/sessions/{session}/import", { path: { session: id }, body: events }, { headers: { "Content-Type": "application/x-ndjson" } });
    return this.session(id);
  }

  /** Searches the conversations and calls of all sessions for words, "phrases in quotes" and beginnings of words (word*). The best passage is first. */
  async search(words: string, options: { since?: string; limit?: number } = {}): Promise<Found> {
    return this.transport.json("get", "/v1/search", { query: { words, ...options } });
  }

  /** What waits for a person: approvals, and questions of running calls. */
  async questions(): Promise<Question[]> {
    return (await this.transport.json("get", "/v1/questions", {})).questions;
  }

  /** The workers of a pool. */
  async workers(options: { pool?: string } = {}): Promise<Worker[]> {
    return (await this.transport.json("get", "/v1/workers", { query: options })).workers;
  }

  /** The pools. */
  async pools(): Promise<string[]> {
    return (await this.transport.json("get", "/v1/pools", {})).pools;
  }

  /** The lanes of a pool that have calls, are held or paused. */
  async lanes(options: { pool?: string; limit?: number } = {}) {
    return await this.transport.json("get", "/v1/lanes", { query: options });
  }

  /** A lane with its calls. */
  async lane(lane: string, options: { pool?: string; limit?: number } = {}) {
    return await this.transport.json("get", "/v1/lane", { query: { ...options, lane } });
  }

  /** Pauses a lane: it starts no calls until it is resumed. */
  async pauseLane(lane: string, options: { pool?: string } = {}): Promise<{ paused: boolean; confirmed: boolean }> {
    return await this.transport.json("post", "/v1/lane/pause", { query: { ...options, lane } }, { repeatable: true });
  }

  async resumeLane(lane: string, options: { pool?: string } = {}): Promise<void> {
    await this.transport.json("post", "/v1/lane/resume", { query: { ...options, lane } }, { repeatable: true });
  }

  /** Offers a lane to the workers again, and says whether its offer was missing. */
  async wakeLane(lane: string, options: { pool?: string } = {}): Promise<boolean> {
    return (await this.transport.json("post", "/v1/lane/wake", { query: { ...options, lane } }, { repeatable: true })).missing;
  }

  /** Cancels a call of a lane: it does not start, or is killed. */
  async skipCall(lane: string, call: string, options: { pool?: string } = {}): Promise<void> {
    await this.transport.json("post", "/v1/lane/skip", { query: { ...options, lane, call } }, { repeatable: true });
  }

  /** Cancels the running calls of a lane, and returns them. */
  async killLane(lane: string, options: { pool?: string } = {}) {
    return (await this.transport.json("post", "/v1/lane/kill", { query: { ...options, lane } })).calls;
  }

  async limits(): Promise<Limit[]> {
    return (await this.transport.json("get", "/v1/limits", {})).limits;
  }

  async setLimit(limit: Limit): Promise<void> {
    await this.transport.json("put", "/v1/limits", { body: limit }, { repeatable: true });
  }

  /** Removes the limit of a lane, a tenant or a pool. */
  async removeLimit(of: { lane?: string; tenant?: string; pool?: string }): Promise<void> {
    await this.transport.json("delete", "/v1/limits", { query: of });
  }

  async schedules(options: { limit?: number; after?: string } = {}): Promise<Schedule[]> {
    return (await this.transport.json("get", "/v1/schedules", { query: options })).schedules;
  }

  /** Adds a schedule of a turn or a call. */
  async addSchedule(schedule: NewSchedule): Promise<Schedule> {
    return await this.transport.json("post", "/v1/schedules", { body: schedule });
  }

  async removeSchedule(name: string): Promise<void> {
    await this.transport.json("delete", "/v1/schedules/{name}", { path: { name } });
  }

  async pauseSchedule(name: string): Promise<Schedule> {
    return await this.transport.json("post", "/v1/schedules/{name}/pause", { path: { name } }, { repeatable: true });
  }

  async resumeSchedule(name: string): Promise<Schedule> {
    return await this.transport.json("post", "/v1/schedules/{name}/resume", { path: { name } }, { repeatable: true });
  }

  /** The templates of workspaces. */
  async templates() {
    return (await this.transport.json("get", "/v1/templates", {})).templates;
  }

  /** Makes a template of the files of a session. */
  async addTemplate(name: string, sessionId: string): Promise<void> {
    await this.transport.json("post", "/v1/templates", { body: { name, session_id: sessionId } });
  }

  async removeTemplate(name: string): Promise<void> {
    await this.transport.json("delete", "/v1/templates/{name}", { path: { name } });
  }

  /** The tokens of clients, without their secrets. */
  async tokens() {
    return (await this.transport.json("get", "/v1/tokens", {})).tokens;
  }

  /** Makes a token of a client. Its `secret` is in this answer only. */
  async addToken(token: NewToken) {
    return await this.transport.json("post", "/v1/tokens", { body: token });
  }

  /** Removes a token: its requests and streams end. */
  async removeToken(id: string): Promise<void> {
    await this.transport.json("delete", "/v1/tokens/{token}", { path: { token: id } }, { repeatable: true });
  }

  /** The webhooks, without their secrets, and what became of their deliveries. */
  async webhooks() {
    return (await this.transport.json("get", "/v1/webhooks", {})).webhooks;
  }

  /** Adds a webhook. Its `secret` is in this answer only. */
  async addWebhook(webhook: NewWebhook) {
    return await this.transport.json("post", "/v1/webhooks", { body: webhook });
  }

  /** Sends a test event, and says what became of it within a time in milliseconds. */
  async testWebhook(id: string, wait_ms = 30_000) {
    return await this.transport.json("post", "/v1/webhooks/{webhook}/test", { path: { webhook: id }, query: { wait_ms } });
  }

  /** The events whose last try has failed. */
  async failedEvents(id: string) {
    return (await this.transport.json("get", "/v1/webhooks/{webhook}/failed", { path: { webhook: id } })).failed;
  }

  /** Continues a paused webhook, and sends its failed events again. */
  async resumeWebhook(id: string) {
    return await this.transport.json("post", "/v1/webhooks/{webhook}/resume", { path: { webhook: id } });
  }

  /** Removes a webhook. */
  async removeWebhook(id: string): Promise<void> {
    await this.transport.json("delete", "/v1/webhooks/{webhook}", { path: { webhook: id } }, { repeatable: true });
  }
}
