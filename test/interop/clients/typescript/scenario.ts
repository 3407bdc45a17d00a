import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./openapi.ts";

const client = createClient<paths>({ baseUrl: process.env["TOOLFLEET_URL"]!, headers: { Authorization: `Bearer ${process.env["TOOLFLEET_TOKEN"]}` } });
const session = "typescript";

const begun = await client.POST("/v1/sessions", { body: { prompt: "Work.", session_id: session } });
assert.equal(begun.response.status, 202);
assert.equal(begun.data?.session_id, session);

const stream = await client.GET("/v1/sessions/{session}/events", { params: { path: { session }, query: { until_turn_ended: true } }, parseAs: "stream" });
let text = "";
for await (const piece of stream.data!) {
  text += Buffer.from(piece).toString();
}
const events = text.split("\n").flatMap((line) => (line.startsWith("data: ") ? [JSON.parse(line.slice(6)) as components["schemas"]["Event"]] : []));
assert.deepEqual(events.at(-1)?.type, "turn_ended");
assert.ok(events.some((event) => event.type === "tool_result" && event.status === "ok"));

const turn = await client.GET("/v1/calls/{session}/{call}", { params: { path: { session, call: begun.data!.call_id }, query: { wait_ms: 30_000 } } });
assert.equal(turn.data?.result?.text, "Done.");

const sent = await client.POST("/v1/calls", { body: { tool: "bash", arguments: { command: "echo more >>made.txt; echo hi" }, session_id: session } });
const ended = await client.GET("/v1/calls/{session}/{call}", { params: { path: { session, call: sent.data!.call_id }, query: { wait_ms: 30_000 } } });
assert.equal(ended.data?.state, "ended");
assert.equal(ended.data?.result?.text, "hi\n");

const file = await client.GET("/v1/sessions/{session}/file", { params: { path: { session }, query: { path: "made.txt" } }, parseAs: "text" });
assert.equal(file.data as unknown, "by the modelmore\n");

const exported = await client.GET("/v1/sessions/{session}/export", { params: { path: { session } }, parseAs: "text" });
const copy = `${session}-copy`;
const imported = await client.POST("/v1/sessions/{session}/import", {
  params: { path: { session: copy } }, body: exported.data!, bodySerializer: (body) => body, headers: { "Content-Type": "application/x-ndjson" },
});
assert.equal(imported.response.status, 201);
assert.equal((await client.GET("/v1/sessions/{session}", { params: { path: { session: copy } } })).data?.session_id, copy);

const lanes = await client.GET("/v1/lanes");
assert.ok(Array.isArray(lanes.data?.lanes));

const none = await client.GET("/v1/sessions/{session}", { params: { path: { session: "none" } } });
assert.equal(none.error?.code, "not_found");
const unknown = await client.POST("/v1/calls", { body: { tool: "nosuch" } });
assert.equal(unknown.error?.code, "unknown_tool");
console.log("openapi-fetch: the scenario ran");
