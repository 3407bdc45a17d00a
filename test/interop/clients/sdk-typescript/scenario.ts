import assert from "node:assert/strict";
import { Client } from "toolfleet";

const client = new Client({ url: process.env["TOOLFLEET_URL"]!, token: process.env["TOOLFLEET_TOKEN"]! });
const session = "sdk-typescript";

const turn = await client.start("Work.", { session_id: session });
assert.equal(turn.session.id, session);

const events = [];
for await (const message of turn.session.events({ untilTurnEnds: true })) {
  if (message.kind === "event") events.push(message.event);
}
assert.equal(events.at(-1)?.type, "turn_ended");
assert.ok(events.some((event) => event.type === "tool_result" && event.status === "ok"));

assert.equal((await turn.result()).text, "Done.");

const ended = await (await client.submit("bash", { command: "echo more >>made.txt; echo hi" }, { session_id: session })).settled();
assert.equal(ended.status, "ok");
assert.equal(ended.text, "hi\n");

assert.equal(await turn.session.readText("made.txt"), "by the modelmore\n");

const copy = await client.importSession(`${session}-copy`, await turn.session.export());
assert.equal((await copy.info()).session_id, `${session}-copy`);

assert.ok(Array.isArray((await client.lanes()).lanes));

await assert.rejects(client.session("none").info(), { code: "not_found" });
await assert.rejects(client.call("nosuch"), { code: "unknown_tool" });
console.log("sdk/typescript: the scenario ran");
