import type { Client } from "./client.js";
import { CallError } from "./errors.js";
import { follow, type Message } from "./events.js";
import type { Arguments, CallOptions, CallResult, CallState, Event, FileInfo, OutputPiece, Place, SessionInfo, SessionMessage, TurnOptions, TurnTrace } from "./types.js";

/** How long one request waits for an end; the server allows up to a minute. */
const waitMs = 50_000;

/** What a wait may be given. */
export interface WaitOptions {
  /** Ends the wait, not the call. */
  signal?: AbortSignal;
}

/** A call that the fleet has accepted: it runs even if this program or the server ends. */
export class Future {
  constructor(protected readonly client: Client, readonly sessionId: string, readonly callId: string) {}

  /** The state of the call now. */
  async state(options: WaitOptions = {}): Promise<CallState> {
    return await this.#get(0, options.signal);
  }

  /** Waits for the end of the call, whatever it is. */
  async settled(options: WaitOptions = {}): Promise<CallResult> {
    for (;;) {
      const { result } = await this.#get(waitMs, options.signal);
      if (result) {
        return result;
      }
    }
  }

  /** Waits for the result. Throws a {@link CallError} if the call does not end `ok`. */
  async result(options: WaitOptions = {}): Promise<CallResult> {
    const result = await this.settled(options);
    if (result.status !== "ok") {
      throw new CallError(result);
    }
    return result;
  }

  /** Cancels the call, which then ends `cancelled` unless it ends otherwise before. */
  async cancel(options: WaitOptions = {}): Promise<void> {
    const path = { session: this.sessionId, call: this.callId };
    await this.client.transport.json("post", "/v1/calls/{session}/{call}/cancel", { path }, { ...options, repeatable: true });
  }

  /** What the call writes while it runs, in pieces; the result has all of it. */
  async *output(options: WaitOptions = {}): AsyncGenerator<OutputPiece & { text: string }, void, undefined> {
    const path = { session: this.sessionId, call: this.callId };
    const last = (m: Message) => m.kind === "state";
    for await (const m of follow(this.client.transport, "/v1/calls/{session}/{call}/events", path, {}, last, undefined, options.signal)) {
      if (m.kind === "output") {
        yield decoded(JSON.parse(m.data) as OutputPiece);
      }
    }
  }

  async #get(wait: number, signal: AbortSignal | undefined): Promise<CallState> {
    const path = { session: this.sessionId, call: this.callId };
    return await this.client.transport.json("get", "/v1/calls/{session}/{call}", { path, query: { wait_ms: wait } }, { signal });
  }
}

/** A turn of a session: its result is the model's answer. */
export class Turn extends Future {
  /** The session that the turn is of. */
  get session(): Session {
    return this.client.session(this.sessionId);
  }

  /** The events of the session until the end of this turn, from its beginning. */
  async *events(options: Omit<EventOptions, "untilTurnEnds" | "after"> = {}): AsyncGenerator<SessionMessage, void, undefined> {
    let own = false;
    for await (const message of this.session.events(options)) {
      const event = message.kind === "event" ? message.event : undefined;
      own ||= event?.type === "turn_started" && event.call_id === this.callId;
      if (own) {
        yield message;
      }
      if (own && event?.type === "turn_ended") {
        return;
      }
    }
  }
}

/** How the events of a session are followed. */
export interface EventOptions {
  /** Id of the event behind which the stream begins. Default: all events of the session. */
  after?: string;
  /** Also what running calls write. */
  output?: boolean;
  /** The stream ends with the next end of a turn. */
  untilTurnEnds?: boolean;
  signal?: AbortSignal;
}

/** A session of the fleet: a conversation, its calls, and the files of its workspace. */
export class Session {
  constructor(readonly client: Client, readonly id: string) {}

  /** The session with its turns. */
  async info(): Promise<SessionInfo> {
    return await this.client.transport.json("get", "/v1/sessions/{session}", this.#path());
  }

  /** Where the time of a turn went, also of one that runs. */
  async trace(turn: number | "last" = "last"): Promise<TurnTrace> {
    return await this.client.transport.json("get", "/v1/sessions/{session}/turns/{turn}/trace", { path: { session: this.id, turn: String(turn) } });
  }

  /** Continues the session with a turn. */
  async send(prompt: string, options: TurnOptions = {}): Promise<Turn> {
    const { key = crypto.randomUUID(), signal, ...more } = options;
    const state = await this.client.transport.json("post", "/v1/sessions/{session}/turns", { ...this.#path(), body: { ...more, prompt } }, keyed(key, signal));
    return new Turn(this.client, state.session_id, state.call_id);
  }

  /** Sends a call of this session, waits, and returns its result: see {@link Client.call}. */
  async call(tool: string, args: Arguments = {}, options: CallOptions = {}): Promise<CallResult> {
    return await this.client.call(tool, args, { ...options, session_id: this.id });
  }

  /** Sends a call of this session: see {@link Client.submit}. */
  async submit(tool: string, args: Arguments = {}, options: CallOptions = {}): Promise<Future> {
    return await this.client.submit(tool, args, { ...options, session_id: this.id });
  }

  /**
   * Follows the events. After a break it continues by itself, without a gap and without a repeat: only
   * what is live (`output`) can be lost.
   */
  async *events(options: EventOptions = {}): AsyncGenerator<SessionMessage, void, undefined> {
    const query = { output: options.output };
    const last = (m: Message) => options.untilTurnEnds === true && m.kind === "event" && (JSON.parse(m.data) as Event).type === "turn_ended";
    const messages = follow(this.client.transport, "/v1/sessions/{session}/events", { session: this.id }, query, last, options.after, options.signal);
    for await (const m of messages) {
      if (m.kind === "event") {
        yield { kind: "event", event: JSON.parse(m.data) as Event, ...(m.id !== undefined && { id: m.id }) };
      } else if (m.kind === "output") {
        yield { kind: "output", output: decoded(JSON.parse(m.data) as OutputPiece) };
      } else if (m.kind === "lost") {
        yield { kind: "lost", reason: (JSON.parse(m.data) as { reason: string }).reason };
      }
    }
  }

  /** Cancels the running and waiting calls. */
  async cancel(): Promise<string[]> {
    return (await this.client.transport.json("post", "/v1/sessions/{session}/cancel", this.#path(), { repeatable: true })).calls;
  }

  /** Removes the session with all that is stored of it; with `force` also its unfinished calls. */
  async remove(options: { force?: boolean } = {}): Promise<void> {
    await this.client.transport.json("delete", "/v1/sessions/{session}", { ...this.#path(), query: options });
  }

  /** Forks the session, with its files, at a call or the end of a turn. */
  async fork(to: string, at: Place = {}): Promise<Session> {
    await this.client.transport.json("post", "/v1/sessions/{session}/fork", { ...this.#path(), body: { ...at, session_id: to } });
    return this.client.session(to);
  }

  /** Merges the files and the answer of a fork into this session. */
  async merge(fork: string) {
    return await this.client.transport.json("post", "/v1/sessions/{session}/merge", { ...this.#path(), body: { fork } });
  }

  /** Restores the files as they were after a call. */
  async restore(callId: string) {
    return await this.client.transport.json("post", "/v1/sessions/{session}/restore", { ...this.#path(), body: { call_id: callId } });
  }

  /** Undoes effects outside of the workspace, behind a call or a turn. */
  async revert(at: Place) {
    return (await this.client.transport.json("post", "/v1/sessions/{session}/revert", { ...this.#path(), body: at })).effects;
  }

  /** The effects of the whole session outside of the workspace. */
  async effects() {
    return (await this.client.transport.json("get", "/v1/sessions/{session}/effects", this.#path())).effects;
  }

  /** What differs between the files of this session and of another one. */
  async compare(other: string): Promise<string> {
    return (await this.client.transport.json("get", "/v1/sessions/{session}/compare", { ...this.#path(), query: { other } })).diff;
  }

  /** Replaces older replies by a summary; says whether there was something to replace. */
  async compact(options: { model?: string } = {}): Promise<boolean> {
    return (await this.client.transport.json("post", "/v1/sessions/{session}/compact", { ...this.#path(), query: options })).compacted;
  }

  /** Approves a call that waits for it, or refuses it. */
  async approve(callId: string, granted: boolean, note?: string): Promise<void> {
    const body = { call_id: callId, granted, ...(note !== undefined && { note }) };
    await this.client.transport.json("post", "/v1/sessions/{session}/approve", { ...this.#path(), body });
  }

  /** Answers a question of a running call. */
  async answer(callId: string, answer: { action: "accept" | "decline" | "cancel"; content?: unknown; question?: string }): Promise<void> {
    await this.client.transport.json("post", "/v1/sessions/{session}/answer", { ...this.#path(), body: { ...answer, call_id: callId } });
  }

  /** Says what became of a call of unknown outcome. */
  async resolve(callId: string, happened: boolean): Promise<void> {
    await this.client.transport.json("post", "/v1/sessions/{session}/resolve", { ...this.#path(), body: { call_id: callId, happened } });
  }

  /** The calls that run or wait. */
  async unfinished() {
    return (await this.client.transport.json("get", "/v1/sessions/{session}/calls", this.#path())).calls;
  }

  /** The files of the workspace, after a call or now. */
  async files(options: { at?: string } = {}): Promise<FileInfo[]> {
    return (await this.client.transport.json("get", "/v1/sessions/{session}/files", { ...this.#path(), query: options })).files;
  }

  /** The content of a file of the workspace, after a call or now. */
  async readFile(path: string, options: { at?: string } = {}): Promise<Uint8Array> {
    return await this.client.transport.bytes("get", "/v1/sessions/{session}/file", { ...this.#path(), query: { ...options, path } });
  }

  /** The same as text. */
  async readText(path: string, options: { at?: string } = {}): Promise<string> {
    return new TextDecoder().decode(await this.readFile(path, options));
  }

  /**
   * Writes a file, whole or not at all, as a call of the session. It fails if the file has not the SHA-256
   * `replaces`, or if it exists, with `create`.
   */
  async writeFile(path: string, content: string | Uint8Array, options: { mode?: string; replaces?: string; create?: boolean; key?: string } = {}): Promise<CallResult> {
    const { key = crypto.randomUUID(), mode, replaces, create } = options;
    const headers = { "Content-Type": "application/octet-stream", ...(replaces !== undefined && { "If-Match": `"${replaces}"` }), ...(create && { "If-None-Match": "*" }) };
    return await this.#changed(await this.client.transport.json("put", "/v1/sessions/{session}/file", { ...this.#path(), query: { path, ...(mode !== undefined && { mode }) }, body: content as never }, keyed(key, undefined, headers)));
  }

  /** Removes a file, as a call of the session; only if it has the SHA-256 `replaces`. */
  async removeFile(path: string, options: { replaces?: string; key?: string } = {}): Promise<CallResult> {
    const { key = crypto.randomUUID(), replaces } = options;
    const headers = replaces === undefined ? {} : { "If-Match": `"${replaces}"` };
    return await this.#changed(await this.client.transport.json("delete", "/v1/sessions/{session}/file", { ...this.#path(), query: { path } }, keyed(key, undefined, headers)));
  }

  /** The files of the workspace as an archive, after a call or now. */
  async archive(options: { at?: string; format?: "tar" | "tar.gz" | "tar.zst" } = {}): Promise<Uint8Array> {
    return await this.client.transport.bytes("get", "/v1/sessions/{session}/archive", { ...this.#path(), query: options });
  }

  /** Lays the files of a tar archive over the workspace or a directory of it, all or none, as a call. */
  async unpack(archive: Uint8Array, options: { path?: string; key?: string } = {}): Promise<CallResult> {
    const { key = crypto.randomUUID(), path } = options;
    const type = archive[0] === 0x1f ? "application/gzip" : archive[0] === 0x28 && archive[1] === 0xb5 ? "application/zstd" : "application/x-tar";
    return await this.#changed(await this.client.transport.json("put", "/v1/sessions/{session}/archive", { ...this.#path(), query: path === undefined ? {} : { path }, body: archive as never }, keyed(key, undefined, { "Content-Type": type })));
  }

  async #changed(state: CallState): Promise<CallResult> {
    return await this.client.future(state.session_id, state.call_id).result();
  }

  /** Which calls changed which files. */
  async changes() {
    return (await this.client.transport.json("get", "/v1/sessions/{session}/changes", this.#path())).changes;
  }

  /** What a call changed, or the whole session, as a unified diff. */
  async diff(options: { call?: string } = {}): Promise<string> {
    return (await this.client.transport.json("get", "/v1/sessions/{session}/diff", { ...this.#path(), query: options })).diff;
  }

  /** All events, one JSON object a line. */
  async export(): Promise<string> {
    return await this.client.transport.read("get", "/v1/sessions/{session}/export", this.#path(), {}, (answer) => answer.text());
  }

  #path(): { path: { session: string } } {
    return { path: { session: this.id } };
  }
}

/** A request that may be repeated: the server knows what it makes by the key. */
export function keyed(key: string, signal?: AbortSignal, headers: Record<string, string> = {}) {
  return { headers: { ...headers, "Idempotency-Key": key }, signal, repeatable: true };
}

function decoded(piece: OutputPiece): OutputPiece & { text: string } {
  return { ...piece, text: new TextDecoder().decode(Uint8Array.from(atob(piece.data), (c) => c.charCodeAt(0))) };
}
