import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { cp, mkdir, readFile, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test, type TestContext } from "node:test";
import { z } from "zod";
import type { Client } from "../src/index.ts";
import { definition, load, tool } from "../src/tools.ts";
import { afterwards, directory, embedded, eventually, freePort, here } from "./start.ts";

const file = `
import { writeFileSync, existsSync } from "node:fs";
import { tool } from "toolfleet/tools";
import { z } from "zod";

let running = 0;
const account = z.object({ id: z.string() });

export const refund = tool(
  { name: "refund", description: "Pay money back.", parameters: z.object({ id: z.string(), cents: z.number() }), resources: ["account/{id}"], delivery: "at_most_once", timeout: 60 },
  async ({ cents }) => {
    const most = ++running;
    await new Promise((wake) => setTimeout(wake, 100));
    running--;
    return { cents, most };
  },
);
export const slow = tool({ name: "slow", description: "Takes too long.", parameters: account, resources: ["account/{id}"], delivery: "at_most_once", timeout: 0.5 },
  () => new Promise((wake) => setTimeout(wake, 60_000)));
export const which = tool({ name: "which", description: "Says which call it is.", readOnly: true }, async (_, call) => {
  for (let i = 0; i < 20; i++) { // who follows the call may come a moment later
    await call.progress(1, 2, "half of it");
    await new Promise((wake) => setTimeout(wake, 100));
  }
  console.log("this is no message of the protocol");
  return { callId: call.callId, sessionId: call.sessionId, attempt: call.attempt, fence: call.fence };
});
export const write = tool({ name: "write", description: "Writes a file of the workspace." }, () => (writeFileSync("written", "by a tool"), "written"));
export const fail = tool({ name: "fail", description: "Fails." }, () => {
  throw new TypeError("no such account");
});
export const die = tool({ name: "die", description: "Is killed.", parameters: account, resources: ["account/{id}"], delivery: "at_most_once" },
  () => process.kill(process.pid, "SIGKILL"));
export const dieOnce = tool({ name: "die_once", description: "Is killed the first time.", parameters: account, resources: ["account/{id}"], delivery: "idempotent" }, () => {
  if (!existsSync("died")) {
    writeFileSync("died", "");
    process.kill(process.pid, "SIGKILL");
  }
  return "second life";
});
export const wait = tool({ name: "wait", description: "Waits until it is cancelled.", parameters: account, resources: ["account/{id}"] }, async (_, call) => {
  for (;;) {
    await call.progress(0, undefined, "waits");
    await new Promise((wake) => setTimeout(wake, 100));
  }
});
export const hold = tool({ name: "hold", description: "Waits until its call is cancelled.", parameters: account, resources: ["account/{id}"] }, async ({ id }, call) => {
  writeFileSync(new URL("held-" + id, import.meta.url), "");
  await new Promise((end) => call.signal.addEventListener("abort", end));
  writeFileSync(new URL("aborted-" + id, import.meta.url), "");
});
`;

/** A folder with the tools of the file, and the packages that they need. */
async function project(t: TestContext): Promise<{ at: string; packages: string; command: string[] }> {
  const at = await directory(t);
  await writeFile(join(at, "my_tools.ts"), file);
  await writeFile(join(at, "package.json"), `{"type": "module"}`);
  const packages = join(here, "../node_modules");
  await mkdir(join(at, "node_modules/toolfleet"), { recursive: true });
  await cp(join(here, "../dist"), join(at, "node_modules/toolfleet/dist"), { recursive: true });
  await cp(join(here, "../package.json"), join(at, "node_modules/toolfleet/package.json"));
  for (const name of ["@modelcontextprotocol", "tsx", "zod"]) {
    await symlink(join(packages, name), join(at, "node_modules", name));
  }
  await symlink(packages, join(at, "node_modules/toolfleet/node_modules"));
  return { at, packages, command: [join(at, "node_modules/toolfleet/dist/cli.js"), "serve", join(at, "my_tools.ts")] };
}

/** A fleet with the tools of the file, and their workspace. */
async function fleet(t: TestContext): Promise<{ client: Client; workspace: string }> {
  const [{ at, packages, command }, workspace] = [await project(t), await directory(t)];
  const config = join(at, "mcp.json");
  await writeFile(config, JSON.stringify({ mcpServers: { my: { command: "node", args: command } } }));
  const client = await embedded(t, { workspace, mcpConfig: config, args: ["--mount", at, "--mount", packages] });
  return { client, workspace };
}

test("tools of a TypeScript file run on a worker", async (t) => {
  const { client, workspace } = await fleet(t);
  const value = async (name: string, args: object, options = {}) => ((await client.call(name, args as Record<string, unknown>, options)).value as { structured: unknown }).structured;

  await t.test("calls on one resource run one after another", async () => {
    const sent = await Promise.all([1, 2, 3].map((cents) => value("my__refund", { id: "7", cents })));
    assert.deepEqual(sent, [1, 2, 3].map((cents) => ({ cents, most: 1 })));
  });
  await t.test("a tool knows its call, and shows its progress", async () => {
    const future = await client.submit("my__which", {}, { key: "my-key" });
    let output = "";
    for await (const piece of future.output()) {
      output += piece.text;
    }
    const said = ((await future.result()).value as { structured: { callId: string; sessionId: string; attempt: number; fence: number } }).structured;
    assert.deepEqual({ ...said, fence: said.fence > 0 }, { callId: "my-key", sessionId: future.sessionId, attempt: 1, fence: true });
    assert.match(output, /half of it/);
  });
  await t.test("a tool without resources has the workspace", async () => {
    assert.equal((await client.call("my__write")).text, "written");
    assert.equal(await readFile(join(workspace, "written"), "utf8"), "by a tool");
  });
  await t.test("failures and bounds", async () => {
    await assert.rejects(client.call("my__fail"), { code: "tool_failed", message: /TypeError: no such account/ });
    assert.equal((await (await client.submit("my__slow", { id: "slow" })).settled()).status, "timeout");
  });
  await t.test("kill -9 of the server of the tools", async () => {
    assert.equal((await (await client.submit("my__die", { id: "8" })).settled()).status, "outcome_unknown");
    assert.equal((await client.call("my__die_once", { id: "9" })).text, "second life");
    assert.deepEqual(await value("my__refund", { id: "8", cents: 1 }), { cents: 1, most: 1 });
  });
  await t.test("cancel", async () => {
    const future = await client.submit("my__wait", { id: "10" });
    for await (const piece of future.output()) {
      assert.match(piece.text, /waits/);
      await future.cancel();
    }
    assert.equal((await future.settled()).status, "cancelled");
  });
});

test("tools next to a worker are served to those who have the token", async (t) => {
  const { at, command } = await project(t);
  const [port, token, tokenFile, config] = [await freePort(), "a token of the tools", join(at, "token"), join(at, "mcp.json")];
  const url = `http://127.0.0.1:${port}/mcp`;
  await writeFile(tokenFile, token + "\n");
  const serve = async () => {
    const child = spawn(process.execPath, [...command, "--listen", `127.0.0.1:${port}`, "--token-file", tokenFile], { cwd: at, stdio: ["ignore", "pipe", "inherit"] });
    afterwards(t, () => child.kill("SIGKILL"));
    assert.deepEqual(await once(createInterface(child.stdout), "line"), [url]);
    return child;
  };
  let child = await serve();
  const status = async (to: string, headers: Record<string, string>) => (await fetch(to, { method: "POST", headers, body: "{}" })).status;
  const own = { Authorization: `Bearer ${token}` };
  assert.deepEqual([await status(url, {}), await status(url, { Authorization: "Bearer another token of them" }), await status(url, { Authorization: token })], [401, 401, 401]);
  assert.deepEqual([await status(`http://127.0.0.1:${port}/`, own), await status(url, { ...own, "Mcp-Session-Id": "none" })], [404, 404]);
  assert.ok((await status(url, own)) >= 400, "it is no message of the protocol");

  await writeFile(config, JSON.stringify({ mcpServers: { my: { url, headers: { Authorization: "Bearer ${TOOLS_TOKEN}" } } } }));
  process.env["TOOLS_TOKEN"] = token;
  const client = await embedded(t, { mcpConfig: config, args: ["--mcp-env", "TOOLS_TOKEN", "--allow-net", `127.0.0.1:${port}`, "--allow-net-private", "127.0.0.0/8"] });
  const future = await client.submit("my__which", {}, { key: "my-key" });
  let output = "";
  for await (const piece of future.output()) {
    output += piece.text;
  }
  const said = ((await future.result()).value as { structured: { callId: string; attempt: number; fence: number } }).structured;
  assert.deepEqual([said.callId, said.attempt, said.fence > 0], ["my-key", 1, true]);
  assert.match(output, /half of it/);

  const held = await client.submit("my__hold", { id: "1" });
  await eventually("the call runs", async () => existsSync(join(at, "held-1")));
  await held.cancel();
  await eventually("its signal is aborted", async () => existsSync(join(at, "aborted-1")));
  assert.equal((await held.settled()).status, "cancelled");

  const lost = await client.submit("my__die", { id: "8" });
  await once(child, "exit");
  child = await serve();
  assert.equal((await lost.settled()).status, "outcome_unknown", JSON.stringify(await lost.settled()));
  assert.equal(((await client.call("my__refund", { id: "8", cents: 1 })).value as { structured: { cents: number } }).structured.cents, 1);

  for (const [args, want] of [
    [["--listen", "nowhere", "--token-file", tokenFile], /must be HOST:PORT/], [["--listen", "127.0.0.1:0"], /needs --token-file/], [["--token-file", tokenFile], /needs --listen/],
    [["--listen", `127.0.0.1:${port}`, "--token-file", tokenFile], /EADDRINUSE/], [["--listen", "127.0.0.1:0", "--token-file", join(at, "none")], /ENOENT/], [["--nosuch"], /nosuch/],
  ] as [string[], RegExp][]) {
    const refused = spawnSync(process.execPath, [...command, ...args], { encoding: "utf8" });
    assert.equal(refused.status, 2);
    assert.match(refused.stderr, want);
  }
});

test("the definition of a tool says how the fleet uses it", () => {
  const made = tool(
    {
      name: "refund", description: "Pays.", parameters: z.object({ id: z.string() }), resources: ["account/{id}", { key: "account/{id}/b", access: "shared" }],
      delivery: "at_most_once", timeout: 1.5, revert: { tool: "pay", arguments: { id: "{id}" } }, idempotent: true,
    },
    ({ id }) => id,
  );
  const { inputSchema, ...more } = definition(made as never);
  assert.deepEqual(more, {
    name: "refund", description: "Pays.", annotations: { idempotentHint: true },
    _meta: {
      "toolfleet/tool": {
        resources: [{ key: "account/{id}" }, { key: "account/{id}/b", access: "shared" }], delivery: "at_most_once", timeout: "1.5s",
        revert: { tool: "pay", arguments: { id: "{id}" } },
      },
    },
  });
  assert.equal(inputSchema.type, "object");
  assert.throws(() => tool({ name: "a b", description: "x" }, () => ""), { code: "invalid" });
  assert.throws(() => tool({ name: "a", description: " " }, () => ""), /needs one/);
  assert.throws(() => tool({ name: "a", description: "x", timeout: 0 }, () => ""), /more than 0/);
});

test("a file without tools, or none, is refused", async (t) => {
  const name = join(await directory(t), "empty.mjs");
  await writeFile(name, "export const x = 1;");
  await assert.rejects(load(name), /exports no tool/);
  const command = [join(here, "../dist/cli.js")];
  assert.equal(spawnSync(process.execPath, [...command, "serve", `${name}.none`]).status, 2);
  assert.equal(spawnSync(process.execPath, command).status, 2);
  assert.equal(spawnSync(process.execPath, [...command, "--help"]).status, 0);
});
