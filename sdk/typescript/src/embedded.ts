import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import type { Socket } from "node:net";
import { createInterface } from "node:readline";
import { ToolfleetError } from "./errors.js";

/** How the embedded coordinator is started. */
export interface EmbeddedOptions {
  /** Working directory of all sessions and calls, used in place. Default: an empty workspace for each session. */
  workspace?: string;
  /** Where the state is kept. Default: a directory of the user for each workspace. */
  data?: string;
  /** Models of sessions, such as `openai:gpt-5`; the first one is the default. Without any there are only calls. */
  model?: string | string[];
  /** File of MCP servers whose tools calls may name. */
  mcpConfig?: string;
  /** More flags of `coordinator http`. */
  args?: string[];
  /** The program. Default: the variable TOOLFLEET_COORDINATOR, else `coordinator` of the PATH. */
  program?: string;
  /** Environment of the program. Default: that of this process. */
  env?: Record<string, string | undefined>;
  /** Gets the lines that the coordinator logs. */
  log?: (line: string) => void;
  /** In which time the coordinator must have started, in milliseconds. Default: 60,000. */
  startTimeout?: number;
}

/** A coordinator that runs as a child of this process. */
export interface Embedded {
  url: string;
  token: string;
  close(): Promise<void>;
}

/** For how long the coordinator may end by itself. */
const grace = 15_000;

/** The last lines of the log say why a start failed. */
const keptLines = 20;

/**
 * Starts `coordinator http --until-stdin-closes`. Its standard input is a pipe of this process: so it
 * ends with this process, also if that is killed.
 */
export async function start(options: EmbeddedOptions): Promise<Embedded> {
  const program = options.program ?? process.env["TOOLFLEET_COORDINATOR"] ?? "coordinator";
  const args = ["http", "--until-stdin-closes"];
  const flag = (name: string, value: string | undefined) => value !== undefined && args.push(name, value);
  flag("--workspace", options.workspace);
  flag("--data", options.data);
  for (const model of [options.model ?? []].flat()) {
    flag("--model", model);
  }
  flag("--mcp-config", options.mcpConfig);
  args.push(...(options.args ?? []));
  const detached = process.platform !== "win32"; // ^C of a terminal is for this program, which then ends the child
  const child = spawn(program, args, { stdio: ["pipe", "pipe", "pipe"], env: options.env ?? process.env, detached });
  const ended = new Promise<string>((resolve) => {
    child.once("error", (error) => resolve(error.message));
    child.once("exit", (code, signal) => resolve(`it ended with ${signal ?? `exit code ${code}`}`));
  });
  child.stdin.on("error", () => {}); // it has ended
  const lines: string[] = [];
  createInterface({ input: child.stderr }).on("line", (line) => {
    lines.push(line);
    lines.splice(0, lines.length - keptLines);
    options.log?.(line);
  });
  const timeout = options.startTimeout ?? 60_000;
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<string>((resolve) => (timer = setTimeout(resolve, timeout, `it did not start within ${timeout} ms`)));
  try {
    const first = await Promise.race([firstLine(child), ended, late]);
    if (typeof first === "string") {
      throw new ToolfleetError("unreachable", [`${program} ${args.join(" ")}: ${first}`, ...lines].join("\n"));
    }
    const token = first.token_file === undefined ? "" : (await readFile(first.token_file, "utf8")).trim();
    loose(child);
    return { url: first.url, token, close: () => close(child, ended) };
  } catch (error) {
    child.kill("SIGKILL");
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

/** The line in which the coordinator says where it is. It never comes from one that ends before. */
function firstLine(child: ChildProcess): Promise<{ url: string; token_file?: string }> {
  return new Promise((resolve, reject) => {
    createInterface({ input: child.stdout! }).once("line", (line) => {
      try {
        resolve(JSON.parse(line) as { url: string });
      } catch {
        reject(new ToolfleetError("invalid", `the coordinator printed ${JSON.stringify(line.slice(0, 200))}, which is not the address of an API`));
      }
    });
  });
}

/** Lets this process end while the child runs. */
function loose(child: ChildProcess): void {
  child.unref();
  for (const pipe of [child.stdin, child.stdout, child.stderr]) {
    (pipe as Socket | null)?.unref?.();
  }
}

async function close(child: ChildProcess, ended: Promise<string>): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) {
    return;
  }
  child.ref();
  const timer = setTimeout(() => child.kill("SIGKILL"), grace);
  child.stdin?.end();
  await ended;
  clearTimeout(timer);
  if (child.exitCode === null && child.signalCode === null) {
    await once(child, "exit");
  }
}
