import { ofProblem, ToolfleetError } from "./errors.js";
import { mayRepeat, sleep, type Transport } from "./http.js";
import type { Problem } from "./types.js";

/** A message of Server-Sent Events. */
export interface Message {
  kind: string;
  id?: string;
  data: string;
}

/** A server sends a comment after 15 s without an event: a connection that is silent for longer is dead. */
const silence = 45_000;

/** The longest pause between two connections. */
const longestPause = 5_000;

/**
 * Follows a stream and continues it after a break behind the last event that had an id. It ends when
 * `last` says so of a message, and throws what the server says of the end of the stream.
 */
export async function* follow(
  transport: Transport, path: string, params: object, query: object, last: (m: Message) => boolean, from?: string, signal?: AbortSignal,
): AsyncGenerator<Message, void, undefined> {
  let id = from;
  let progress = Date.now();
  for (let pause = 0; ; pause = Math.min(Math.max(pause * 2, 100), longestPause)) {
    if (pause > 0) {
      await sleep(pause * (0.5 + Math.random() / 2), signal);
    }
    signal?.throwIfAborted();
    const connection = new AbortController();
    const abort = () => connection.abort(signal?.reason);
    signal?.addEventListener("abort", abort, { once: true });
    let connected = Infinity;
    try {
      const headers = { Accept: "text/event-stream", ...(id !== undefined && { "Last-Event-ID": id }) };
      const response = await transport.send("get", path, { path: params, query }, { headers, signal: connection.signal });
      connected = Date.now();
      for await (const message of parse(alive(response, connection))) {
        if (message.kind === "end") {
          throw new Broken(ofProblem(JSON.parse(message.data) as Problem));
        }
        pause = 0;
        progress = Date.now();
        id = message.id ?? id;
        yield message;
        if (last(message)) {
          return;
        }
      }
    } catch (error) {
      signal?.throwIfAborted();
      if (!(error instanceof Broken)) {
        throw error;
      }
      if (Date.now() - connected > longestPause) {
        progress = Date.now(); // nothing happened, and the connection lasted
      }
      const why = error.cause;
      if (why instanceof ToolfleetError && (!mayRepeat(why) || Date.now() - progress > transport.patience)) {
        throw why;
      }
    } finally {
      signal?.removeEventListener("abort", abort);
      connection.abort();
    }
  }
}

/** The connection is broken, or the server ended the stream. */
class Broken extends Error {
  constructor(cause: unknown) {
    super("the stream is broken", { cause });
  }
}

/** The texts of a body, until the connection breaks or is silent for too long. */
async function* alive(response: Response, connection: AbortController): AsyncGenerator<string> {
  if (!response.body) {
    return;
  }
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  for (;;) {
    const timer = setTimeout(() => connection.abort(), silence);
    try {
      const { done, value } = await reader.read();
      if (done) {
        return;
      }
      yield decoder.decode(value, { stream: true });
    } catch (error) {
      throw new Broken(error);
    } finally {
      clearTimeout(timer);
    }
  }
}

/** The messages of Server-Sent Events. One that is cut off is left out. */
export async function* parse(texts: AsyncIterable<string>): AsyncGenerator<Message> {
  let rest = "";
  let message: { kind?: string; id?: string; data?: string } = {};
  for await (const text of texts) {
    const lines = (rest + text).split("\n");
    rest = lines.pop() ?? "";
    for (const whole of lines) {
      const line = whole.endsWith("\r") ? whole.slice(0, -1) : whole;
      if (line === "") {
        if (message.data !== undefined) {
          yield { kind: message.kind ?? "message", data: message.data, ...(message.id !== undefined && { id: message.id }) };
        }
        message = {};
        continue;
      }
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "event") {
        message.kind = value;
      } else if (field === "id" && !value.includes("\0")) {
        message.id = value;
      } else if (field === "data") {
        message.data = message.data === undefined ? value : `${message.data}\n${value}`;
      }
    }
  }
}
