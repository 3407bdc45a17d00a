import type { AddressInfo } from "node:net";
import { basename, extname, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { ToolfleetError } from "./errors.js";

/** What calls of a tool touch: a key, or a key with how it is used. */
export type ResourceTemplate = string | { key: string; access?: "shared" | "exclusive" };

/** A schema that checks and describes, such as one of zod 4 (Standard Schema with JSON Schema). */
export interface CheckedSchema<Args> {
  "~standard": {
    validate: (value: unknown) => Checked<Args> | Promise<Checked<Args>>;
    jsonSchema: { input: (options: { target: "draft-2020-12" }) => Record<string, unknown> };
  };
}
type Checked<Args> = { value: Args; issues?: undefined } | { issues: readonly { message: string; path?: readonly unknown[] | undefined }[] };

/** How a tool is offered and run: see docs/tools-of-your-own.md. */
export interface ToolOptions<Args> {
  name: string;
  /** What the tool does and returns; a model reads it. */
  description: string;
  /** The arguments: JSON Schema of type object, or a schema such as one of zod 4. Default: no arguments. */
  parameters?: CheckedSchema<Args> | { type: "object"; [keyword: string]: unknown };
  /** Calls whose resources conflict run one after another, in the whole fleet. Default: the session's workspace. */
  resources?: ResourceTemplate[];
  /** What happens after a lost worker. */
  delivery?: "rollback" | "idempotent" | "at_most_once";
  /** Bound of an attempt, in seconds. */
  timeout?: number;
  /** The tool that undoes the effect of a call, and its arguments. */
  revert?: { tool: string; arguments?: Record<string, unknown> };
  /** The tool changes nothing. */
  readOnly?: boolean;
  /** A call that runs twice has the effect of one. */
  idempotent?: boolean;
}

/** The call that a function runs for. */
export interface ToolCall {
  /** The same in every attempt, so it is an idempotency key; "" outside of a fleet, as the others. */
  callId: string;
  sessionId: string;
  /** From 1. */
  attempt: number;
  /** Grows with each holder of the call's lane: a resource that stores the greatest can refuse a late write. */
  fence: number;
  /** Is aborted when the call is cancelled. */
  signal: AbortSignal;
  /** Shows those who follow the call how far it is. */
  progress(done: number, total?: number, message?: string): Promise<void>;
}

/** A tool that `toolfleet serve` offers. */
export interface Tool<Args = Record<string, unknown>> {
  readonly [mark]: true;
  readonly options: ToolOptions<Args>;
  /** What the function returns is the result: a text as it is, any other value as JSON. */
  readonly run: (args: Args, call: ToolCall) => unknown;
}

/** Marks tools also of another copy of this module. */
const mark = Symbol.for("toolfleet.tool");

/** Makes a tool of a function. Export it from a file that `toolfleet serve` is given. */
export function tool<Args = Record<string, unknown>>(options: ToolOptions<Args>, run: (args: Args, call: ToolCall) => unknown): Tool<Args> {
  if (!/^[A-Za-z0-9_-]{1,64}$/.test(options.name)) {
    throw new ToolfleetError("invalid", `name ${JSON.stringify(options.name)}: must be 1 to 64 letters, digits, "_" and "-"`);
  }
  if (options.description.trim() === "") {
    throw new ToolfleetError("invalid", `tool ${options.name}: description: a model needs one`);
  }
  if (options.timeout !== undefined && !(options.timeout > 0)) {
    throw new ToolfleetError("invalid", `tool ${options.name}: timeout ${options.timeout}: must be more than 0 seconds`);
  }
  return { [mark]: true, options, run };
}

function isChecked<Args>(parameters: ToolOptions<Args>["parameters"]): parameters is CheckedSchema<Args> {
  return parameters !== undefined && "~standard" in parameters;
}

/** How the fleet uses a tool, in the `_meta` of its definition. */
function rule(o: ToolOptions<never>): Record<string, unknown> | undefined {
  const made = {
    ...(o.resources && { resources: o.resources.map((r) => (typeof r === "string" ? { key: r } : r)) }),
    ...(o.delivery && { delivery: o.delivery }),
    ...(o.timeout !== undefined && { timeout: `${o.timeout}s` }),
    ...(o.revert && { revert: o.revert }),
  };
  return Object.keys(made).length > 0 ? made : undefined;
}

/** The definition of a tool as a server of the Model Context Protocol has it. */
export function definition(of: Tool<never>) {
  const { name, description, parameters, readOnly, idempotent } = of.options;
  const schema = isChecked(parameters) ? parameters["~standard"].jsonSchema.input({ target: "draft-2020-12" }) : parameters;
  const meta = rule(of.options);
  return {
    name,
    description,
    inputSchema: { type: "object" as const, ...schema },
    annotations: { ...(readOnly !== undefined && { readOnlyHint: readOnly }), ...(idempotent !== undefined && { idempotentHint: idempotent }) },
    ...(meta && { _meta: { "toolfleet/tool": meta } }),
  };
}

/** The exported tools of a file. On Node before 22.18 a TypeScript file needs the package tsx. */
export async function load(file: string): Promise<Tool<never>[]> {
  const typed = /^\.[cm]?ts$/.test(extname(file));
  const native = "bun" in process.versions || "deno" in process.versions || Boolean((process.features as { typescript?: unknown }).typescript);
  if (typed && !native) {
    const tsx = await import("tsx/esm/api").catch(() => {
      throw new ToolfleetError("invalid", `${file}: Node ${process.versions.node} runs no TypeScript: npm install tsx, or use Node 22.18 or later`);
    });
    tsx.register();
  }
  const loaded = (await import(pathToFileURL(resolve(file)).href)) as Record<string, unknown>;
  const found = [...new Set(Object.values(loaded).flat())].filter((value): value is Tool<never> => typeof value === "object" && value !== null && mark in value);
  if (found.length === 0) {
    throw new ToolfleetError("invalid", `${file}: exports no tool, as in: export const greet = tool({ name: "greet", ... }, ...)`);
  }
  return found;
}

/** A server of the Model Context Protocol, of the official SDK, that offers tools. */
export async function server(name: string, tools: Tool<never>[]) {
  const [{ Server }, types] = await Promise.all([import("@modelcontextprotocol/sdk/server/index.js"), import("@modelcontextprotocol/sdk/types.js")]).catch((cause: unknown) => {
    throw new ToolfleetError("invalid", "tools need the package @modelcontextprotocol/sdk: npm install @modelcontextprotocol/sdk", 0, [], { cause });
  });
  const byName = new Map(tools.map((one) => [one.options.name, one]));
  if (byName.size < tools.length) {
    throw new ToolfleetError("invalid", `two tools have the same name: ${tools.map((one) => one.options.name).join(", ")}`);
  }
  const made = new Server({ name, version: "0" }, { capabilities: { tools: {} } });
  made.setRequestHandler(types.ListToolsRequestSchema, () => ({ tools: tools.map(definition) }));
  made.setRequestHandler(types.CallToolRequestSchema, async ({ params }, extra) => {
    const one = byName.get(params.name);
    if (!one) {
      throw new types.McpError(types.ErrorCode.InvalidParams, `there is no tool ${params.name}`);
    }
    const running = (params._meta?.["toolfleet/call"] ?? {}) as { session_id?: string; call_id?: string; attempt?: number; fence?: number };
    const token = params._meta?.progressToken;
    const call: ToolCall = {
      callId: running.call_id ?? "", sessionId: running.session_id ?? "", attempt: running.attempt ?? 1, fence: running.fence ?? 0, signal: extra.signal,
      async progress(progress, total, message) {
        if (token !== undefined) {
          await extra.sendNotification({
            method: "notifications/progress",
            params: { progressToken: token, progress, ...(total !== undefined && { total }), ...(message !== undefined && { message }) },
          });
        }
      },
    };
    try {
      return answer(await one.run(await checked(one.options, params.arguments ?? {}), call));
    } catch (error) {
      return { isError: true, content: [{ type: "text" as const, text: String(error) }] };
    }
  });
  return made;
}

/** The arguments as the schema of the tool has them. The fleet itself checks those of a JSON Schema. */
async function checked<Args>(of: ToolOptions<Args>, args: unknown): Promise<Args> {
  if (!isChecked(of.parameters)) {
    return args as Args;
  }
  const result = await of.parameters["~standard"].validate(args);
  if (result.issues) {
    throw new ToolfleetError("invalid", result.issues.map((i) => `${i.path?.join(".") ?? ""}: ${i.message}`).join("; "));
  }
  return result.value;
}

/** The result as the protocol has it; one with `content` is passed on as it is. */
function answer(value: unknown) {
  if (typeof value === "object" && value !== null && Array.isArray((value as { content?: unknown }).content)) {
    return value as { content: [] };
  }
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  const structured = typeof value === "object" && value !== null && !Array.isArray(value) ? { structuredContent: value as Record<string, unknown> } : {};
  return { content: [{ type: "text" as const, text }], ...structured };
}

/** Serves the tools of a file on stdin and stdout, until stdin is closed. */
export async function serve(file: string): Promise<void> {
  console.log = console.info = console.debug = console.error; // stdout has the protocol
  const made = await server(basename(file, extname(file)), await load(file));
  const { StdioServerTransport } = await import("@modelcontextprotocol/sdk/server/stdio.js");
  process.stdin.once("end", () => process.exit(0));
  process.stdin.once("close", () => process.exit(0));
  await made.connect(new StdioServerTransport());
}

/** How many sessions with workers a server of tools has. The one that was used longest ago makes room for a new one. */
const maxSessions = 1000;

/**
 * Serves the tools of a file over HTTP at an address, HOST:PORT, for workers next to it. Requests need the token. Returns the URL when
 * it listens.
 */
export async function serveHttp(file: string, listen: string, token: string): Promise<string> {
  const [, host = "", port = ""] = /^\[?(.+?)\]?:(\d+)$/.exec(listen) ?? [];
  if (host === "" || Number(port) > 65535) {
    throw new ToolfleetError("invalid", `--listen ${listen}: must be HOST:PORT`);
  }
  if (token.length < 16) {
    throw new ToolfleetError("invalid", "--listen: needs --token-file, a file with a token of 16 characters or more");
  }
  const tools = await load(file);
  await server(basename(file, extname(file)), tools); // what is wrong with them is said now
  const [{ createHash, randomUUID, timingSafeEqual }, { createServer }, { StreamableHTTPServerTransport }] = await Promise.all([
    import("node:crypto"), import("node:http"), import("@modelcontextprotocol/sdk/server/streamableHttp.js"),
  ]);
  const digest = (text: string) => createHash("sha256").update(text).digest();
  const wanted = digest(`Bearer ${token}`);
  type Open = InstanceType<typeof StreamableHTTPServerTransport>;
  const sessions = new Map<string, Open>();

  async function opened(): Promise<Open> {
    const made: Open = new StreamableHTTPServerTransport({
      sessionIdGenerator: () => randomUUID(),
      onsessioninitialized: (id) => {
        sessions.set(id, made);
        if (sessions.size > maxSessions) {
          const [oldest] = sessions.values();
          void oldest?.close();
        }
      },
    });
    made.onclose = () => void sessions.delete(made.sessionId ?? "");
    await (await server(basename(file, extname(file)), tools)).connect(made as Parameters<Awaited<ReturnType<typeof server>>["connect"]>[0]);
    return made;
  }

  const http = createServer((request, response) => {
    const answer = async () => {
      if (!timingSafeEqual(digest(request.headers.authorization ?? ""), wanted)) {
        response.writeHead(401, { "WWW-Authenticate": "Bearer" }).end();
        return;
      }
      const id = String(request.headers["mcp-session-id"] ?? "");
      const known = sessions.get(id);
      if (request.url !== "/mcp" || (id !== "" && !known)) {
        response.writeHead(404).end();
        return;
      }
      if (known) {
        sessions.delete(id);
        sessions.set(id, known); // the last one used
      }
      await (known ?? (await opened())).handleRequest(request, response);
    };
    answer().catch((error: unknown) => {
      console.error("toolfleet:", error);
      response.destroy();
    });
  });
  await new Promise<void>((listens, fails) => http.once("error", fails).listen(Number(port), host, listens));
  const { port: chosen } = http.address() as AddressInfo;
  return `http://${host.includes(":") ? `[${host}]` : host}:${chosen}/mcp`;
}
