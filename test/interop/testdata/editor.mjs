// An editor by the protocol's own library, which checks each message against the schema. It drives
// one session: editor.mjs SDK COORDINATOR DIRECTORY ARGUMENT... prints what came of it as JSON.
import { spawn } from "node:child_process";
import { fileURLToPath, pathToFileURL } from "node:url";
import { Readable, Writable } from "node:stream";

const [sdk, coordinator, cwd, ...args] = process.argv.slice(2);
const acp = await import(pathToFileURL(sdk));
const { agent: call, client: callback } = acp.methods;
const pixel = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7";
const child = spawn(coordinator, ["acp", ...args], { stdio: ["pipe", "pipe", "inherit"] });
const ended = new Promise((resolve) => child.on("exit", (code, signal) => resolve(code ?? signal)));

const got = { kinds: {}, asked: [], text: "", thought: "", user: [], diffs: [], statuses: {}, read: [], tools: {}, shown: "" };
let running = () => {};
const app = acp
  .client({ name: "editor" })
  .onRequest(callback.session.requestPermission, ({ params }) => {
    got.asked.push(params.toolCall.title);
    return { outcome: { outcome: "selected", optionId: params.options.find((o) => o.kind === "allow_once").optionId } };
  })
  .onRequest(callback.fs.readTextFile, ({ params }) => {
    got.read.push(params.path);
    return { content: "one\ntwo, not saved\n" };
  })
  .onRequest(callback.elicitation.create, ({ params }) => {
    got.form = { mode: params.mode, message: params.message, choices: params.requestedSchema.properties.answer.enum };
    return { action: "accept", content: { answer: "y" } };
  })
  .onNotification(callback.session.update, ({ params: { update } }) => {
    got.kinds[update.sessionUpdate] = (got.kinds[update.sessionUpdate] ?? 0) + 1;
    if (update.sessionUpdate === "agent_message_chunk") got.text += update.content.text;
    if (update.sessionUpdate === "agent_thought_chunk") got.thought += update.content.text;
    if (update.sessionUpdate === "user_message_chunk") got.user.push(update.content.text);
    if (update.sessionUpdate === "plan") got.plan = update.entries.map((entry) => `${entry.status}: ${entry.content}`);
    for (const content of update.content?.length ? update.content : []) {
      if (content.type === "diff") got.diffs.push(content);
      else if (JSON.stringify(content).includes("waiting")) running();
      else if (content.content?.type === "text") got.shown += content.content.text;
    }
    if (update.toolCallId) got.tools[update.toolCallId] = { ...got.tools[update.toolCallId], ...update };
    if (update.status) got.statuses[update.toolCallId] = update.status;
  });

await app.connectWith(acp.ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout)), async (ctx) => {
  const initialized = await ctx.request(call.initialize, {
    protocolVersion: acp.PROTOCOL_VERSION,
    clientCapabilities: { fs: { readTextFile: true, writeTextFile: true }, terminal: true, elicitation: { form: {} } },
    clientInfo: { name: "editor", version: "1" },
  });
  got.version = initialized.protocolVersion;
  got.capabilities = initialized.agentCapabilities;
  const mcpServers = [{ name: "own", command: process.execPath, args: [fileURLToPath(new URL("greeter.mjs", import.meta.url))], env: [] }];
  const { sessionId, modes } = await ctx.request(call.session.new, { cwd, mcpServers });
  got.modes = modes.availableModes.map((mode) => mode.id);
  const prompt = (text, more = [], _meta = {}) => ctx.request(call.session.prompt, { sessionId, prompt: [{ type: "text", text }, ...more], _meta });
  got.stopped = (
    await prompt("go", [
      { type: "resource_link", name: "a.txt", uri: pathToFileURL(`${cwd}/a.txt`).href },
      { type: "resource", resource: { uri: "file:///elsewhere/b.txt", text: "embedded" } },
      { type: "image", data: pixel, mimeType: "image/gif" },
    ])
  ).stopReason;
  got.answered = await prompt("how many", [], { "toolfleet/answerSchema": { type: "object", required: ["n"] } });
  await ctx.request(call.session.setMode, { sessionId, modeId: "auto" });
  const begun = new Promise((resolve) => (running = resolve));
  const second = prompt("once more");
  await begun;
  await ctx.notify(call.session.cancel, { sessionId });
  got.cancelled = (await second).stopReason;
  got.listed = (await ctx.request(call.session.list, { cwd })).sessions.length;
  await ctx.request(call.session.close, { sessionId });
  got.first = got.text;
  got.text = "";
  got.used = Object.values(got.tools).map(({ kind, locations, title }) => ({ kind, locations, title }));
  got.user = [];
  await ctx.request(call.session.load, { sessionId, cwd, mcpServers: [] });
  got.loaded = got.text;
  await ctx.request(call.session.close, { sessionId });
  got.text = "";
  got.shown = "";
  await ctx.request(call.session.resume, { sessionId, cwd, mcpServers });
  got.resumed = got.text;
  await prompt("greet");
  await prompt("/clear");
  await ctx.request(call.session.delete, { sessionId });
  got.left = (await ctx.request(call.session.list, { cwd })).sessions.length;
  try {
    await ctx.request(call.session.new, { cwd: "relative", mcpServers: [] });
  } catch (error) {
    got.error = { code: error.code, message: error.message, data: error.data };
  }
});
child.stdin.end();
got.exit = await ended;
console.log(JSON.stringify(got));
process.exit(0);
