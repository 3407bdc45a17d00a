import { errorOf, ToolfleetError } from "./errors.js";
import type { paths } from "./openapi.js";

type Method = "get" | "put" | "post" | "delete";
type PathsOf<M extends Method> = { [P in keyof paths]: paths[P] extends Record<M, { responses: unknown }> ? P : never }[keyof paths];
type Operation<M extends Method, P extends keyof paths> = paths[P][M];

type Parameter<X, K extends string> = K extends keyof X
  ? [Exclude<X[K], undefined>] extends [never] ? object : undefined extends X[K] ? { [_ in K]?: X[K] | undefined } : { [_ in K]: X[K] }
  : object;
type Given<O> = O extends { parameters: infer X } ? Parameter<X, "path"> & Parameter<X, "query"> : object;
type Body<O> = O extends { requestBody: { content: infer C } } ? { body: C[keyof C] } : object;
type Answer<O> = O extends { responses: infer R }
  ? { [S in keyof R]: S extends 200 | 201 | 202 ? (R[S] extends { content: { "application/json": infer J } } ? J : never) : never }[keyof R]
  : never;

/** What a request has besides its parameters. */
export interface RequestOptions {
  headers?: Record<string, string> | undefined;
  signal?: AbortSignal | undefined;
  /** Whether the same request may be sent again after a break, because it has no second effect. */
  repeatable?: boolean;
}

/** Where the server is, and how requests are sent. */
export interface TransportOptions {
  /** Address of the server, such as `http://127.0.0.1:7070`. */
  url: string;
  /** Bearer token. */
  token?: string;
  /** For how long a request is repeated while the server cannot be reached, in milliseconds. Default: 30,000. */
  patience?: number;
  /** Sends requests; by default the platform's `fetch`. */
  fetch?: typeof globalThis.fetch;
}

/** The parameters and the body of a request. */
interface Sent {
  path?: object | undefined;
  query?: object | undefined;
  body?: unknown;
}

/** Sends requests to the API, and repeats those that may be repeated. */
export class Transport {
  readonly url: string;
  readonly #token: string | undefined;
  readonly patience: number;
  readonly #fetch: typeof globalThis.fetch;

  constructor(options: TransportOptions) {
    this.url = options.url.replace(/\/+$/, "");
    if (!/^https?:\/\//.test(this.url)) {
      throw new ToolfleetError("invalid", `url ${JSON.stringify(options.url)}: must begin with http:// or https://`);
    }
    this.#token = options.token;
    this.patience = options.patience ?? 30_000;
    this.#fetch = options.fetch ?? globalThis.fetch;
  }

  /** Sends a request of the API and returns the JSON of its answer. */
  async json<M extends Method, P extends PathsOf<M>>(
    method: M, path: P, given: Given<Operation<M, P>> & Body<Operation<M, P>>, options: RequestOptions = {},
  ): Promise<Answer<Operation<M, P>>> {
    const text = await this.read(method, path, given, options, (response) => response.text());
    return (text === "" ? undefined : JSON.parse(text)) as Answer<Operation<M, P>>;
  }

  /** Sends a request of the API and returns the bytes of its answer. */
  async bytes(method: string, path: string, given: Sent, options: RequestOptions = {}): Promise<Uint8Array> {
    return await this.read(method, path, given, options, async (response) => new Uint8Array(await response.arrayBuffer()));
  }

  /** Sends a request of the API and returns its answer, which is one of success, before its body was read. */
  async send(method: string, path: string, given: Sent, options: RequestOptions = {}): Promise<Response> {
    return await this.read(method, path, given, options, (response) => response);
  }

  /** Sends a request of the API and returns what is read of its answer. One that is cut off is no answer. */
  async read<T>(method: string, path: string, given: Sent, options: RequestOptions, read: (answer: Response) => T | Promise<T>): Promise<T> {
    const headers: Record<string, string> = { ...options.headers };
    const init: RequestInit = { method: method.toUpperCase(), headers };
    if (this.#token !== undefined) {
      headers["Authorization"] = `Bearer ${this.#token}`;
    }
    if (given.body !== undefined) {
      const raw = typeof given.body === "string" || given.body instanceof Uint8Array;
      headers["Content-Type"] ??= raw ? "application/octet-stream" : "application/json";
      init.body = raw ? (given.body as string) : JSON.stringify(given.body);
    }
    if (options.signal) {
      init.signal = options.signal;
    }
    const address = this.url + filled(path, given.path) + query(given.query);
    const end = Date.now() + this.patience;
    for (let pause = 100; ; pause = Math.min(pause * 2, 2000)) {
      const tried = await this.#once(address, init, read);
      if ("value" in tried) {
        return tried.value;
      }
      const { error, wait } = tried;
      const delay = wait ?? pause * (0.5 + Math.random() / 2);
      if (!(options.repeatable ?? method === "get") || !mayRepeat(error) || Date.now() + delay > end) {
        throw error;
      }
      await sleep(delay, options.signal);
    }
  }

  async #once<T>(address: string, init: RequestInit, read: (answer: Response) => T | Promise<T>): Promise<{ value: T } | { error: ToolfleetError; wait?: number }> {
    try {
      const response = await (0, this.#fetch)(address, init);
      if (response.ok) {
        return { value: await read(response) };
      }
      const after = Number(response.headers.get("Retry-After"));
      return { error: await errorOf(response), ...(after > 0 && { wait: after * 1000 }) };
    } catch (error) {
      if (init.signal?.aborted) {
        throw init.signal.reason;
      }
      const cause = (error as Error).cause as Error | undefined;
      return { error: new ToolfleetError("unreachable", `${this.url}: ${cause?.message ?? (error as Error).message}`, 0, [], { cause: error }) };
    }
  }
}

/** Whether the same request may succeed later. */
export function mayRepeat(error: ToolfleetError): boolean {
  return error.code === "unreachable" || error.code === "draining" || error.status === 429 || error.status === 502 || error.status === 504;
}

/** Waits, or rejects with the reason of the signal. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const abort = () => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, ms);
    signal?.addEventListener("abort", abort, { once: true });
  });
}

/** The path with its placeholders filled. "." and ".." would be taken for steps in the path. */
function filled(path: string, given: object = {}): string {
  return path.replace(/\{(\w+)\}/g, (_, name: string) => {
    const value = String((given as Record<string, unknown>)[name]);
    if (value === "" || value === "." || value === "..") {
      throw new ToolfleetError("invalid", `${name} ${JSON.stringify(value)}: is not an id`);
    }
    return encodeURIComponent(value);
  });
}

function query(given: object = {}): string {
  const made = new URLSearchParams();
  for (const [name, value] of Object.entries(given) as [string, unknown][]) {
    if (value !== undefined) {
      made.set(name, String(value));
    }
  }
  return made.size > 0 ? `?${made}` : "";
}
