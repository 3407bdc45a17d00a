import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import type { TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { Client } from "../src/index.ts";

/** The directory of the tests. */
export const here = fileURLToPath(new URL(".", import.meta.url));

/** The coordinator that the tests run against. */
export const program = process.env["TOOLFLEET_COORDINATOR"] ?? resolve(here, "../../../bin/coordinator");

const cleanups = new WeakMap<TestContext, (() => unknown)[]>();

/** Does something after the test: what was asked for last is done first. */
export function afterwards(t: TestContext, what: () => unknown): void {
  const all = cleanups.get(t) ?? [];
  if (!cleanups.has(t)) {
    cleanups.set(t, all);
    t.after(async () => {
      for (const one of all.reverse()) {
        await one();
      }
    });
  }
  all.push(what);
}

/** A directory that is removed after the test. */
export async function directory(t: TestContext): Promise<string> {
  const made = await mkdtemp(join(tmpdir(), "toolfleet-sdk-"));
  afterwards(t, () => rm(made, { recursive: true, force: true, maxRetries: 5 }));
  return made;
}

/** A file with what a scripted model replies. */
export async function script(t: TestContext, ...steps: object[]): Promise<string> {
  const name = join(await directory(t), "model.json");
  await writeFile(name, JSON.stringify({ steps }));
  return `script:${name}`;
}

/** A client with a coordinator of its own. */
export async function embedded(t: TestContext, options: Parameters<typeof Client.fromEmbedded>[0] = {}): Promise<Client> {
  const client = await Client.fromEmbedded({ workspace: await directory(t), data: await directory(t), program, ...options });
  afterwards(t, () => client.close());
  return client;
}

/** A coordinator at an address that stays, which can be killed and started again. */
export class Server {
  #child: ChildProcess | undefined;
  token = "";

  constructor(readonly port: number, readonly data: string, readonly args: string[]) {}

  static async start(t: TestContext, ...args: string[]): Promise<Server> {
    const server = new Server(await freePort(), await directory(t), args);
    afterwards(t, () => server.kill());
    await server.run();
    return server;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  async run(): Promise<void> {
    const args = ["http", "--http", `127.0.0.1:${this.port}`, "--data", this.data, "--until-stdin-closes", ...this.args];
    const child = spawn(program, args, { stdio: ["pipe", "pipe", "inherit"] });
    this.#child = child;
    const [line] = (await once(createInterface({ input: child.stdout }), "line")) as [string];
    this.token = (await readFile((JSON.parse(line) as { token_file: string }).token_file, "utf8")).trim();
  }

  /** Ends it as a crash does, or with SIGTERM as an operator does. */
  async kill(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    const child = this.#child;
    if (child && child.exitCode === null && child.signalCode === null) {
      child.kill(signal);
      await once(child, "exit");
    }
  }

  client(): Client {
    return new Client({ url: this.url, token: this.token });
  }
}

export async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as { port: number };
  server.close();
  await once(server, "close");
  return port;
}

/** Waits until something holds. */
export async function eventually<T>(what: string, look: () => Promise<T | undefined | false>): Promise<T> {
  for (const end = Date.now() + 60_000; ; ) {
    const seen = await look();
    if (seen !== undefined && seen !== false) {
      return seen;
    }
    if (Date.now() > end) {
      throw new Error(`${what}: not within a minute`);
    }
    await new Promise((wake) => setTimeout(wake, 50));
  }
}
