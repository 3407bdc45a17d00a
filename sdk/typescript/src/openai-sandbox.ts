import { applyDiff, type Editor } from "@openai/agents";
import {
  type Entry, type ExecCommandArgs, type Manifest, normalizeSandboxClientCreateArgs, type SandboxClient, type SandboxClientCreateArgs, type SandboxDirectoryEntry,
  type SandboxExecResult, type SandboxSession, type SandboxSessionState,
} from "@openai/agents/sandbox";
import type { AdapterOptions } from "./adapter.js";
import type { Client } from "./client.js";
import { CallError, ToolfleetError } from "./errors.js";
import type { Session } from "./session.js";
import type { CallResult } from "./types.js";

/** Where the workspace is in a sandbox of the fleet. */
const root = "/workspace";

/** Names the session of the fleet that has the files. */
export interface FleetSandboxState extends SandboxSessionState {
  sessionId: string;
}

/**
 * Sandboxes of a fleet for sandbox agents of the OpenAI Agents SDK:
 * `run(agent, "...", { sandbox: { client: new FleetSandboxClient(client) } })`.
 */
export class FleetSandboxClient implements SandboxClient<Record<string, unknown>, FleetSandboxState> {
  readonly backendId = "toolfleet";

  /** `call` has how the calls of a sandbox run, such as their `pool` or `min_level`. */
  constructor(readonly client: Client, readonly options: Pick<AdapterOptions, "call"> = {}) {}

  async create(args?: SandboxClientCreateArgs | Manifest): Promise<FleetSandbox> {
    const { manifest } = normalizeSandboxClientCreateArgs(args);
    if (manifest.root !== root) {
      throw new ToolfleetError("invalid", `manifest: root ${JSON.stringify(manifest.root)}: in a sandbox of the fleet it is ${root}`);
    }
    const made = new FleetSandbox(this.client, { manifest, sessionId: crypto.randomUUID() }, this.options);
    await made.applyManifest(manifest);
    return made;
  }

  async resume(state: FleetSandboxState): Promise<FleetSandbox> {
    return new FleetSandbox(this.client, state, this.options);
  }

  async delete(state: FleetSandboxState): Promise<void> {
    await this.client.session(state.sessionId).remove({ force: true });
  }
}

/** A sandbox is a session of the fleet: each command is a call, and the files are stored after it. */
export class FleetSandbox implements SandboxSession<FleetSandboxState> {
  constructor(private readonly client: Client, readonly state: FleetSandboxState, private readonly options: Pick<AdapterOptions, "call"> = {}) {}

  /** The session of the fleet. */
  get session(): Session {
    return this.client.session(this.state.sessionId);
  }

  async exec({ cmd, workdir, runAs }: ExecCommandArgs): Promise<SandboxExecResult> {
    const begun = Date.now();
    const result = await this.#bash(cmd, workdir, runAs);
    const { stdout, stderr, exit_code: exitCode } = result.value as { stdout: string; stderr: string; exit_code: number };
    return { output: result.text, stdout, stderr, exitCode, wallTimeSeconds: (Date.now() - begun) / 1000 };
  }

  /** What a model reads of a command: also that it failed, or took too long. */
  async execCommand({ cmd, workdir, runAs }: ExecCommandArgs): Promise<string> {
    return await this.#bash(cmd, workdir, runAs).then((result) => result.text, (error: unknown) => {
      if (error instanceof CallError) {
        return error.result.text;
      }
      throw error;
    });
  }

  createEditor(): Editor {
    return {
      createFile: async ({ path, diff }) => await this.#write(path, applyDiff("", diff, "create")),
      updateFile: async ({ path, diff, moveTo }) => {
        await this.#write(moveTo ?? path, applyDiff(await this.session.readText(inside(path)), diff));
        if (moveTo !== undefined && moveTo !== path) {
          await this.#must(`rm -- ${quoted(path)}`);
        }
      },
      deleteFile: async ({ path }) => await this.#must(`rm -- ${quoted(path)}`),
    };
  }

  async readFile({ path, maxBytes }: { path: string; maxBytes?: number }): Promise<Uint8Array> {
    const read = await this.session.readFile(inside(path));
    return maxBytes === undefined ? read : read.subarray(0, maxBytes);
  }

  async listDir({ path }: { path: string }): Promise<SandboxDirectoryEntry[]> {
    const { stdout } = await this.exec({ cmd: `find ${quoted(path)} -mindepth 1 -maxdepth 1 -printf '%y %f\\n'` });
    const type = (letter: string | undefined) => (letter === "f" ? "file" : letter === "d" ? "dir" : "other");
    return stdout.split("\n").filter((line) => line !== "").map((line) => ({ name: line.slice(2), path: `${path.replace(/\/+$/, "")}/${line.slice(2)}`, type: type(line[0]) }));
  }

  async pathExists(path: string): Promise<boolean> {
    return (await this.exec({ cmd: `test -e ${quoted(path)}` })).exitCode === 0;
  }

  async directoryExists(path: string): Promise<boolean> {
    return (await this.exec({ cmd: `test -d ${quoted(path)}` })).exitCode === 0;
  }

  async materializeEntry({ path, entry }: { path: string; entry: Entry }): Promise<void> {
    if (entry.type === "dir") {
      await this.#must(`mkdir -p -- ${quoted(path)}`);
      for (const [name, child] of Object.entries(entry.children ?? {})) {
        await this.materializeEntry({ path: `${path}/${name}`, entry: child });
      }
    } else if (entry.type === "file") {
      await this.#write(path, entry.content);
    } else {
      throw new ToolfleetError("invalid", `manifest: ${path}: an entry of type ${entry.type}: a sandbox of the fleet takes file and dir`);
    }
  }

  async applyManifest(manifest: Manifest): Promise<void> {
    for (const [path, entry] of Object.entries(manifest.entries)) {
      await this.materializeEntry({ path, entry });
    }
  }

  /** The files stay in the fleet, until the session is removed. */
  async close(): Promise<void> {}

  async #bash(command: string, workdir?: string, runAs?: string): Promise<CallResult> {
    if (runAs !== undefined) {
      throw new ToolfleetError("invalid", `runAs ${JSON.stringify(runAs)}: a sandbox of the fleet has one user`);
    }
    const env: Record<string, string> = { ...this.state.environment };
    for (const [name, value] of Object.entries(this.state.manifest.environment)) {
      env[name] = await value.resolve();
    }
    const cwd = workdir === undefined ? {} : { cwd: inside(workdir) };
    return await this.session.call("bash", { command, ...cwd, ...(Object.keys(env).length > 0 && { env }) }, this.options.call ?? {});
  }

  async #must(command: string): Promise<void> {
    const { exitCode, output } = await this.exec({ cmd: command });
    if (exitCode !== 0) {
      throw new ToolfleetError("failed", output);
    }
  }

  async #write(path: string, content: string | Uint8Array): Promise<void> {
    if (typeof content === "string") {
      await this.session.call("write", { path: inside(path), content }, this.options.call ?? {});
      return;
    }
    const part = `${path}.${crypto.randomUUID()}.part`; // others see the whole file or the old one
    await this.#must(`mkdir -p -- "$(dirname -- ${quoted(path)})" && : >${quoted(part)}`);
    for (let at = 0; at < content.length; at += 65_536) { // what fits into an argument
      const text = btoa(String.fromCharCode(...content.subarray(at, at + 65_536)));
      await this.#must(`base64 -d >>${quoted(part)} <<'END'\n${text}\nEND`);
    }
    await this.#must(`mv -T -- ${quoted(part)} ${quoted(path)}`);
  }
}

/** A path of the workspace, relative to it. */
function inside(path: string): string {
  const relative = path === root ? "." : path.startsWith(`${root}/`) ? path.slice(root.length + 1) : path;
  if (relative.startsWith("/") || relative.split("/").includes("..")) {
    throw new ToolfleetError("invalid", `${JSON.stringify(path)}: is outside of ${root}`);
  }
  return relative || ".";
}

function quoted(path: string): string {
  return `'./${inside(path).replaceAll("'", "'\\''")}'`;
}
