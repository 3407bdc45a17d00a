import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { cp, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { test, type TestContext } from "node:test";
import { Client, type Future } from "../src/index.ts";
import { afterwards, directory, eventually, freePort, here, program, script } from "./start.ts";

const file = `
import { tool } from "toolfleet/tools";
import { z } from "zod";

const parameters = z.object({ id: z.string() });
const run = async (_, call) => {
  for (let i = 0; i < 40; i++) {
    await call.progress(i, 40, "attempt " + call.attempt + " fence " + call.fence);
    await new Promise((wake) => setTimeout(wake, 100));
  }
  return { attempt: call.attempt, fence: call.fence };
};
export const once = tool({ name: "once", description: "Takes a while.", parameters, resources: ["once/{id}"], delivery: "at_most_once" }, run);
export const again = tool({ name: "again", description: "Takes a while.", parameters, resources: ["again/{id}"], delivery: "idempotent" }, run);
`;

/** A coordinator and workers as processes of their own. */
class Fleet {
  readonly #running = new Map<string, ChildProcess>();

  constructor(private readonly tools: string, private readonly data: string, private readonly ports: [number, number], private readonly model: string) {}

  static async start(t: TestContext): Promise<Fleet> {
    const tools = join(await directory(t), "tools"); // which others may read: tools have no rights of root
    const my = join(tools, "my");
    const unused = /node_modules\/(@?openai|openapi-typescript|typescript|@redocly|ai|@ai-sdk|@?esbuild)(\/|$)/; // sandboxes of workers see the folder of the tools only
    await cp(join(here, "../node_modules"), join(my, "node_modules"), { recursive: true, filter: (from) => !unused.test(from) });
    await cp(join(here, "../dist"), join(my, "node_modules/toolfleet/dist"), { recursive: true });
    await cp(join(here, "../package.json"), join(my, "node_modules/toolfleet/package.json"));
    await writeFile(join(my, "my_tools.mjs"), file);
    const args = ["{tools}/my/node_modules/toolfleet/dist/cli.js", "serve", "{tools}/my/my_tools.mjs"];
    await writeFile(join(tools, "my.yaml"), JSON.stringify({ kind: "mcp", name: "my", command: "node", args }));
    const fleet = new Fleet(tools, await directory(t), [await freePort(), await freePort()], await script(t, { text: "Done." }));
    afterwards(t, () => fleet.kill(...fleet.#running.keys()));
    await fleet.serve();
    return fleet;
  }

  /** Starts the coordinator, with the server of the fleet in it. */
  async serve(): Promise<void> {
    this.#spawn("coordinator", program, "serve", "--listen", `127.0.0.1:${this.ports[0]}`, "--http", `127.0.0.1:${this.ports[1]}`, "--model", this.model, "--data", join(this.data, "fleet"), "--tools", this.tools);
    await eventually("the coordinator serves", async () => await fetch(`http://127.0.0.1:${this.ports[1]}/openapi.json`).then((answer) => answer.ok, () => false));
  }

  work(name: string): void {
    const creds = join(this.data, "fleet/nats/nats.token");
    this.#spawn(name, join(dirname(program), "worker"), "--nats", `nats://127.0.0.1:${this.ports[0]}`, "--creds", creds, "--tools", this.tools, "--data", join(this.data, name));
  }

  #spawn(name: string, command: string, ...args: string[]): void {
    let log = "";
    const child = spawn(command, args, { stdio: ["ignore", "ignore", "pipe"] });
    child.stderr.on("data", (text) => (log += text));
    child.once("exit", (code) => code && console.error(`${name} ended with ${code}:\n${log}`));
    this.#running.set(name, child);
  }

  async kill(...names: string[]): Promise<void> {
    for (const name of names) {
      const child = this.#running.get(name);
      if (child && child.exitCode === null && child.signalCode === null) {
        child.kill("SIGKILL");
        await once(child, "exit");
      }
    }
  }

  async client(): Promise<Client> {
    return new Client({ url: `http://127.0.0.1:${this.ports[1]}`, token: (await readFile(join(this.data, "fleet/http.token"), "utf8")).trim(), patience: 120_000 });
  }
}

/** Follows the attempts of a call, and does something when the first one runs. */
async function watched(future: Future, then: () => Promise<void>): Promise<{ attempts: Set<string>; fences: number[] }> {
  const [attempts, fences] = [new Set<string>(), [] as number[]];
  let done: Promise<void> | undefined;
  for await (const piece of future.output()) {
    for (const [, attempt = "", fence] of piece.text.matchAll(/attempt (\d+) fence (\d+)/g)) {
      attempts.add(attempt);
      fences.push(Number(fence));
      done ??= then();
    }
  }
  await done;
  return { attempts, fences };
}

test("kill -9 while a tool runs", { timeout: 600_000 }, async (t) => {
  const fleet = await Fleet.start(t);
  const client = await fleet.client();
  fleet.work("one");
  await eventually("the tools", async () => (await client.tools()).some((tool) => tool.name === "my__once"));

  await t.test("of the worker: at most once is never twice, at least once is again, and the fence grows", async () => {
    const [first, second] = [await client.submit("my__once", { id: "1" }), await client.submit("my__again", { id: "1" })];
    let killed: Promise<void> | undefined;
    const kill = async () => void (killed ??= new Promise((wake) => setTimeout(wake, 1000)).then(() => fleet.kill("one")).then(() => fleet.work("two")));
    const [of, again] = await Promise.all([watched(first, kill), watched(second, kill)]);
    await killed;
    assert.deepEqual([(await first.settled()).status, [...of.attempts]], ["outcome_unknown", ["1"]]);
    const { attempt, fence } = ((await second.result()).value as { structured: { attempt: number; fence: number } }).structured;
    assert.equal(attempt, 2);
    assert.ok(fence > (again.fences[0] ?? Infinity), `${fence} is not behind ${again.fences}`);
  });
  await t.test("of the server: what runs ends, and at most once is never twice", async () => {
    const [first, second] = [await client.submit("my__once", { id: "2" }), await client.submit("my__again", { id: "2" })];
    let killed: Promise<void> | undefined;
    const kill = async () => void (killed ??= fleet.kill("coordinator").then(() => fleet.serve()));
    const [of] = await Promise.all([watched(first, kill), watched(second, kill)]);
    await killed;
    const once = await first.settled();
    assert.ok(once.status === "ok" || once.status === "outcome_unknown", once.text);
    assert.equal(once.attempt, 1);
    assert.ok(!of.attempts.has("2"));
    assert.equal((await second.result()).status, "ok");
  });
});
