import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFile, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { CallError, Client, Future, type SessionMessage, ToolfleetError } from "../src/index.ts";
import { afterwards, directory, embedded, eventually, here, program, script, Server } from "./start.ts";

const bash = (id: string, command: string) => ({ tool_calls: [{ id, name: "bash", arguments: { command } }] });

test("the shortest use", async (t) => {
  const client = await embedded(t);
  assert.equal((await client.call("bash", { command: "echo hi" })).text, "hi\n");
});

test("a call works in the directory that was given", async (t) => {
  const workspace = await directory(t);
  const client = await embedded(t, { workspace });
  await client.call("write", { path: "a.txt", content: "written" });
  assert.equal(await readFile(join(workspace, "a.txt"), "utf8"), "written");
});

test("errors have codes", async (t) => {
  const client = await embedded(t);
  await assert.rejects(client.call("nosuch"), { name: "ToolfleetError", code: "unknown_tool", status: 422 });
  await assert.rejects(client.call("bash", { command: "true" }, { delivery: "sometimes" as "rollback" }), { code: "invalid" });
  await assert.rejects(client.session("none").info(), { code: "not_found", status: 404 });
  await assert.rejects(client.call("read", { path: "none" }), (error) => {
    assert.ok(error instanceof CallError && error instanceof ToolfleetError);
    assert.equal(error.code, "not_found");
    assert.equal(error.result.status, "failed");
    return true;
  });
  const stranger = new Client({ url: client.transport.url, token: "0123456789abcdef" });
  await assert.rejects(stranger.sessions(), { code: "unauthorized", status: 401 });
  const nowhere = new Client({ url: "http://127.0.0.1:1", patience: 200 });
  await assert.rejects(nowhere.sessions(), { code: "unreachable", status: 0 });
  assert.throws(() => new Client({ url: "ftp://x" }), { code: "invalid" });
  await assert.rejects(client.session("..").info(), { code: "invalid" });
});

test("a call with the same key runs once", async (t) => {
  const client = await embedded(t);
  const command = "echo x >> runs";
  const [one, two] = [await client.submit("bash", { command }, { key: "mine" }), await client.submit("bash", { command }, { key: "mine" })];
  assert.equal(one.callId, "mine");
  await Promise.all([one.result(), two.result()]);
  assert.equal((await client.call("bash", { command: "cat runs" })).text, "x\n");
});

test("many calls are sent in order, each with its own answer", async (t) => {
  const client = await embedded(t);
  const sent = await client.submitAll([
    { tool: "bash", arguments: { command: "echo one >> all" } }, { tool: "nosuch" }, { tool: "bash", arguments: { command: "echo two >> all" } },
  ]);
  assert.ok(sent[0] instanceof Future && sent[1] instanceof ToolfleetError && sent[2] instanceof Future);
  assert.equal(sent[1].code, "unknown_tool");
  await Promise.all([sent[0].result(), sent[2].result()]);
  assert.equal((await client.call("bash", { command: "cat all" })).text, "one\ntwo\n");
});

test("the output of a call comes while it runs, and a call is cancelled", async (t) => {
  const client = await embedded(t);
  const future = await client.submit("bash", { command: "while sleep 0.2; do echo begun; done" });
  for await (const piece of future.output()) {
    assert.match(piece.text, /^begun\n/);
    await future.cancel();
  }
  const result = await client.future(future.sessionId, future.callId).settled();
  assert.equal(result.status, "cancelled");
  await assert.rejects(future.result(), { code: "cancelled" });
});

test("a wait ends with its signal, and the call runs on", async (t) => {
  const client = await embedded(t);
  const future = await client.submit("bash", { command: "sleep 1; echo done" });
  await assert.rejects(future.result({ signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
  assert.equal((await future.result()).text, "done\n");
});

test("a session answers, continues, and has files", async (t) => {
  const client = await embedded(t, { model: await script(t, { text: "I write.", ...bash("c1", "echo text > made.txt") }, { text: "Hello." }, { text: "Again." }) });
  const turn = await client.start("Say hello");
  const seen: SessionMessage[] = [];
  for await (const message of turn.events()) {
    seen.push(message);
  }
  const types = seen.flatMap((m) => (m.kind === "event" && m.id !== undefined ? [m.event.type] : []));
  assert.deepEqual(types, ["turn_started", "model_reply", "tool_call", "tool_result", "model_reply", "turn_ended"]);
  assert.equal((await turn.result()).text, "Hello.");
  const next = await turn.session.send("And again");
  assert.equal((await next.result()).text, "Again.");
  for await (const message of next.events()) {
    assert.ok(message.kind !== "event" || message.event.turn === 2, "only events of the second turn");
  }
  assert.equal((await turn.session.info()).turns, 2);
  assert.equal((await turn.session.trace()).turn, 2);
  assert.deepEqual((await turn.session.trace(1)).spans.flatMap((s) => (s.kind === "call" ? [s.name] : [])), ["bash"]);
  assert.deepEqual((await client.sessions()).map((s) => s.session_id), [turn.sessionId]);
  assert.equal((await turn.session.export()).trim().split("\n").length > 6, true);
});

test("an answer is valid by a schema, or the turn fails", async (t) => {
  const client = await embedded(t, { model: await script(t, { text: "seven" }, { text: '{"n": 7}' }, { text: "no" }, { text: "no" }, { text: "no" }) });
  const answer_schema = { type: "object", required: ["n"], properties: { n: { type: "integer" } } };
  const turn = await client.start("How many?", { answer_schema });
  assert.deepEqual(((await turn.result()).value as { answer: unknown }).answer, { n: 7 });
  const failed = await (await turn.session.send("Again", { answer_schema })).settled();
  assert.equal(failed.error?.code, "answer_invalid");
});

test("files of a workspace of the fleet are read as they were after a call", async (t) => {
  const client = await Client.fromEmbedded({ data: await directory(t), program });
  afterwards(t, () => client.close());
  const session = client.session("s1");
  const first = await session.call("write", { path: "a.txt", content: "one" });
  await session.call("write", { path: "a.txt", content: "two" });
  assert.deepEqual((await session.files()).map((f) => f.path), ["a.txt"]);
  assert.equal(await session.readText("a.txt"), "two");
  assert.equal(await session.readText("a.txt", { at: first.call_id }), "one");
  assert.match(await session.diff(), /\+two/);
  assert.equal((await session.changes()).length, 2);
});

test("files are written and removed as calls, and archives go in and out", async (t) => {
  const client = await Client.fromEmbedded({ data: await directory(t), program });
  afterwards(t, () => client.close());
  const session = client.session("s1");
  await session.writeFile("dir/a.bin", Uint8Array.from([0, 255]), { create: true });
  await assert.rejects(session.writeFile("dir/a.bin", "text", { create: true }), CallError);
  assert.deepEqual([...(await session.readFile("dir/a.bin"))], [0, 255]);
  await client.session("s2").unpack(await session.archive({ format: "tar.gz" }), { path: "copy" });
  assert.deepEqual([...(await client.session("s2").readFile("copy/dir/a.bin"))], [0, 255]);
  await session.removeFile("dir/a.bin");
  assert.deepEqual((await session.files()).map((f) => f.path), ["dir"]);
});

test("what a session may not do without a person waits for an answer", async (t) => {
  const model = await script(t, { text: "I ask.", ...bash("c1", "echo allowed") }, { text: "Done." });
  const client = await embedded(t, { model, args: ["--ask-for", "bash"] });
  const turn = await client.start("Work");
  const question = await eventually("a question", async () => (await client.questions())[0]);
  assert.deepEqual([question.tool, question.session_id], ["bash", turn.sessionId]);
  await turn.session.approve(question.call_id, true);
  assert.equal((await turn.result()).text, "Done.");
  assert.deepEqual(await client.questions(), []);
});

test("a question of a running call is answered", async (t) => {
  const file = join(await directory(t), "asking.mjs");
  const sdk = (path: string) => JSON.stringify(join(here, "../node_modules/@modelcontextprotocol/sdk/dist/esm", path));
  await writeFile(file, `
    import { McpServer } from ${sdk("server/mcp.js")};
    import { StdioServerTransport } from ${sdk("server/stdio.js")};
    const server = new McpServer({ name: "asking", version: "1" });
    server.registerTool("hello", { description: "Asks for a name." }, async () => {
      const requestedSchema = { type: "object", properties: { name: { type: "string" } }, required: ["name"] };
      const { action, content } = await server.server.elicitInput({ message: "Your name?", requestedSchema });
      return { content: [{ type: "text", text: action + " " + content?.name }] };
    });
    await server.connect(new StdioServerTransport());`);
  const config = join(await directory(t), "mcp.json");
  await writeFile(config, JSON.stringify({ mcpServers: { asking: { command: "node", args: [file] } } }));
  const model = await script(t, { text: "I ask.", tool_calls: [{ id: "c1", name: "asking__hello", arguments: {} }] }, { text: "Done." });
  const client = await embedded(t, { model, mcpConfig: config, args: ["--mount", join(file, ".."), "--mount", join(here, "../node_modules")] });
  const turn = await client.start("Work");
  const { call_id, question } = await eventually("a question", async () => (await client.questions())[0]);
  assert.equal(question?.message, "Your name?");
  await assert.rejects(turn.session.answer(call_id, { action: "accept", content: { name: 7 } }), { code: "invalid", status: 422 });
  await turn.session.answer(call_id, { action: "accept", content: { name: "Ann" }, question: question.id });
  assert.equal((await turn.result()).text, "Done.");
  assert.match(await turn.session.export(), /accept Ann/);
  assert.deepEqual(await client.questions(), []);
});

test("a single call that needs an approval is refused", async (t) => {
  const client = await embedded(t, { args: ["--ask-for", "bash"] });
  await assert.rejects(client.call("bash", { command: "echo allowed" }), { code: "policy_denied", status: 403 });
});

test("the calls of a lane are skipped and killed", async (t) => {
  const client = await embedded(t);
  const session = client.session("s1");
  const [runs, waits] = [await session.submit("bash", { command: "sleep 600" }), await session.submit("bash", { command: "sleep 600" })];
  const busy = await eventually("a lane that runs a call", async () => (await client.lanes()).lanes.find((lane) => lane.running.length === 1 && lane.waiting > 0));
  assert.equal(await client.wakeLane(busy.lane), false);
  await client.skipCall(busy.lane, waits.callId);
  assert.deepEqual((await client.killLane(busy.lane)).map((call) => call.call_id), [runs.callId]);
  assert.deepEqual(await Promise.all([runs, waits].map(async (one) => (await one.settled()).status)), ["cancelled", "cancelled"]);
  await assert.rejects(client.skipCall(busy.lane, "none"), { code: "not_found" });
});

test("a session is exported, imported and compacted", async (t) => {
  const client = await embedded(t, { model: await script(t, { text: "Hello." }, { text: "Again." }) });
  const turn = await client.start("Say hello");
  await turn.result();
  const events = await turn.session.export();
  const copy = await client.importSession("copy", events);
  assert.equal((await copy.info()).turns, 1);
  assert.equal((await (await copy.send("And again")).result()).text, "Again.");
  await assert.rejects(client.importSession("copy", events), { code: "exists", status: 409 });
  await assert.rejects(client.importSession("other", "nonsense"), { code: "invalid", status: 422 });
  assert.equal(await copy.compact(), true);
});

test("the state of the fleet is listed", async (t) => {
  const client = await embedded(t);
  assert.ok((await client.tools()).some((tool) => tool.name === "bash"));
  assert.equal((await client.workers()).length, 1);
  assert.deepEqual(await client.pools(), ["default"]);
  await client.setLimit({ tenant: "acme", concurrent: 2 });
  assert.equal((await client.limits())[0]?.tenant, "acme");
  await client.removeLimit({ tenant: "acme" });
  assert.deepEqual(await client.limits(), []);
  assert.ok(Array.isArray((await client.lanes()).lanes));
  await client.addSchedule({ name: "nightly", cron: "0 3 * * *", call: { tool: "bash", arguments: { command: "true" } } });
  assert.equal((await client.pauseSchedule("nightly")).paused, true);
  await client.removeSchedule("nightly");
  assert.deepEqual(await client.schedules(), []);
  assert.deepEqual(await client.templates(), []);
});

for (const signal of ["SIGKILL", "SIGTERM"] as const) {
  test(`a stream continues after the server ended by ${signal}, without a gap and without a repeat`, async (t) => {
    const model = await script(t, { text: "1", ...bash("c1", "echo 1") }, { text: "2", ...bash("c2", "sleep 2; echo 2") }, { text: "3", ...bash("c3", "echo 3") }, { text: "Done." });
    const server = await Server.start(t, "--workspace", await directory(t), "--model", model);
    const client = server.client();
    const turn = await client.start("Work");
    const headers = { Authorization: `Bearer ${server.token}` };
    const plain = fetch(`${server.url}/v1/sessions/${turn.sessionId}/events`, { headers }).then((answer) => answer.text()).catch(String);
    const ids: string[] = [];
    let ended: Promise<void> | undefined;
    for await (const message of turn.events()) {
      if (message.kind !== "event" || message.id === undefined) {
        continue;
      }
      ids.push(message.id);
      if (message.event.type === "tool_result") {
        ended ??= server.kill(signal).then(() => server.run());
      }
    }
    await ended;
    assert.equal(/event: end\ndata: .*"code":"draining"/.test(await plain), signal === "SIGTERM", "who drains says so");
    const stored: string[] = [];
    for await (const message of turn.events()) {
      if (message.kind === "event" && message.id !== undefined) {
        stored.push(message.id);
      }
    }
    assert.deepEqual(ids, stored);
    assert.equal((await turn.result()).text, "Done.");
  });
}

test("the output of a call continues, and its end comes, although the server was drained", async (t) => {
  const server = await Server.start(t, "--workspace", await directory(t));
  const future = await server.client().submit("read", { path: "none" }, { not_before: new Date(Date.now() + 3000).toISOString() });
  const ended = (async () => {
    for await (const piece of future.output()) {
      assert.fail(piece.text);
    }
  })();
  await server.kill("SIGTERM");
  await server.run();
  await ended;
  assert.equal((await future.settled()).error?.code, "not_found");
});

test("a call that was accepted ends, and is waited for, although the server was killed", async (t) => {
  const server = await Server.start(t, "--workspace", await directory(t));
  const future = await server.client().submit("read", { path: "none" }, { not_before: new Date(Date.now() + 3000).toISOString() });
  const ended = future.settled();
  await server.kill();
  await server.run();
  assert.equal((await ended).error?.code, "not_found");
});

test("the coordinator ends with the program that started it, also if that is killed", async (t) => {
  const code = `import { Client } from ${JSON.stringify(join(here, "../src/index.ts"))};
    const client = await Client.fromEmbedded(${JSON.stringify({ workspace: await directory(t), data: await directory(t), program })});
    console.log(client.transport.url); setInterval(() => {}, 1000);`;
  const child = spawn(process.execPath, ["--import", "tsx", "--input-type=module", "-e", code], { stdio: ["ignore", "pipe", "inherit"] });
  afterwards(t, () => child.kill("SIGKILL"));
  const [url] = (await once(createInterface({ input: child.stdout }), "line")) as [string];
  assert.equal((await fetch(`${url}/openapi.json`)).status, 200);
  child.kill("SIGKILL");
  await eventually("the coordinator has ended", async () => await fetch(`${url}/openapi.json`).then(() => false, () => true));
});

test("^C of a terminal is for the program, and not for the coordinator that it started", { skip: process.platform === "win32" }, async (t) => {
  const code = `import { Client } from ${JSON.stringify(join(here, "../src/index.ts"))};
    const client = await Client.fromEmbedded(${JSON.stringify({ workspace: await directory(t), data: await directory(t), program })});
    process.once("SIGINT", async () => {
      for (let i = 0; i < 50; i++) await client.call("bash", { command: "true" });
      await client.close();
      console.log("saved");
      process.exit();
    });
    console.log("begun"); setInterval(() => {}, 1000);`;
  const child = spawn(process.execPath, ["--import", "tsx", "--input-type=module", "-e", code], { stdio: ["ignore", "pipe", "inherit"], detached: true });
  afterwards(t, () => child.kill("SIGKILL"));
  const lines = createInterface({ input: child.stdout });
  assert.deepEqual(await once(lines, "line"), ["begun"]);
  process.kill(-child.pid!, "SIGINT"); // as a terminal does: to all of its group
  assert.deepEqual(await Promise.race([once(lines, "line"), once(child, "exit")]), ["saved"]);
});

test("an answer that is cut off is asked for again", async (t) => {
  let asked = 0;
  const server = createServer((_, response) => {
    response.writeHead(200, { "Content-Type": "application/json", "Content-Length": "12" });
    if (++asked % 2 === 1) {
      response.write('{"too', () => response.destroy());
    } else {
      response.end('{"tools":[]}');
    }
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  afterwards(t, () => server.close());
  const client = new Client({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` });
  assert.deepEqual(await client.tools(), []);
  assert.equal((await client.session("s").readFile("f")).length, 12);
  assert.equal(asked, 4);
  await assert.rejects(client.session("s").approve("c", true), { name: "ToolfleetError", code: "unreachable" }); // it may have happened
});

test("a program that forgets to close its client ends nevertheless", async (t) => {
  const code = `import { Client } from ${JSON.stringify(join(here, "../src/index.ts"))};
    const client = await Client.fromEmbedded(${JSON.stringify({ workspace: await directory(t), data: await directory(t), program })});
    console.log((await client.call("bash", { command: "echo hi" })).text);`;
  const child = spawn(process.execPath, ["--import", "tsx", "--input-type=module", "-e", code], { stdio: ["ignore", "inherit", "inherit"] });
  assert.deepEqual(await once(child, "exit"), [0, null]);
});

test("a coordinator that does not start says why", async (t) => {
  await assert.rejects(embedded(t, { args: ["--nonsense"] }), /--nonsense/);
  await assert.rejects(embedded(t, { program: "/nonexistent" }), { code: "unreachable" });
});

test("a webhook is notified of a call that ends", async (t) => {
  const took: string[] = [];
  const receiver = createServer(async (request, response) => {
    for await (const piece of request) took.push(String(piece));
    response.writeHead(204).end();
  }).listen(0, "127.0.0.1");
  await once(receiver, "listening");
  afterwards(t, () => receiver.close());
  const at = `127.0.0.1:${(receiver.address() as AddressInfo).port}`;
  const client = await embedded(t, { args: ["--webhook-host", at, "--webhook-plain"] });
  const made = await client.addWebhook({ url: `http://${at}/`, events: ["call.ended"] });
  assert.ok(made.secret && (await client.testWebhook(made.webhook_id)).delivered);
  const call = await client.submit("bash", { command: "true" });
  await call.result();
  while (!took.some((body) => body.includes(call.callId))) await new Promise((soon) => setTimeout(soon, 20));
  assert.deepEqual((await client.webhooks()).map((webhook) => webhook.webhook_id), [made.webhook_id]);
  assert.deepEqual(await client.failedEvents(made.webhook_id), []);
  assert.equal((await client.resumeWebhook(made.webhook_id)).again, 0);
  await client.removeWebhook(made.webhook_id);
  assert.deepEqual(await client.webhooks(), []);
});

test("the files of two sessions are compared, and effects are listed", async (t) => {
  const client = await embedded(t);
  await client.session("a").writeFile("f", "one\n");
  await client.session("b").writeFile("f", "two\n");
  assert.match(await client.session("a").compare("b"), /f/);
  assert.deepEqual(await client.session("a").effects(), []);
});
