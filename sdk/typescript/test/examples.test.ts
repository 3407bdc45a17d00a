import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { generateText } from "ai";
import { MockLanguageModelV3 } from "ai/test";
import { fleetTools } from "../src/ai.ts";
import { embedded, here, program } from "./start.ts";

for (const name of ["vercel-ai", "openai-agents", "openai-sandbox"]) {
  test(`the example ${name} calls a tool of a fleet`, async () => {
    const example = join(here, `../examples/${name}.ts`);
    const { stdout } = await promisify(execFile)(process.execPath, ["--import", "tsx", example], { env: { ...process.env, TOOLFLEET_COORDINATOR: program } });
    assert.match(stdout, /^It says: .*hi from the fleet/);
    if (name === "vercel-ai") {
      const code = await readFile(example, "utf8");
      const page = await readFile(join(here, "../../../docs/adapters/vercel-ai.md"), "utf8");
      assert.ok(page.includes(code.slice(code.indexOf("const client"))), "the page has the example, with another model");
    }
  });
}

test("a model reads failures, and an end of the request cancels the call", async (t) => {
  const client = await embedded(t);
  await assert.rejects(fleetTools(client, { only: ["nosuch"] }), /the fleet has no tool nosuch/);
  const tools = await fleetTools(client, { only: ["bash", "read"], call: { session_id: "http" } });
  const given = { toolCallId: "c", messages: [] };
  assert.match(String(await tools["read"]?.execute?.({ path: "none" }, given)), /"none" does not exist/);
  const end = new AbortController();
  const model = new MockLanguageModelV3({
    doGenerate: async () => {
      setTimeout(() => end.abort(), 500);
      const usage = { inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 }, outputTokens: { total: 1, text: 1, reasoning: 0 } };
      const input = JSON.stringify({ command: "sleep 600" });
      return { content: [{ type: "tool-call", toolCallId: "c1", toolName: "bash", input }], finishReason: { unified: "tool-calls", raw: undefined }, usage, warnings: [] };
    },
  });
  await generateText({ model, tools, prompt: "Work.", abortSignal: end.signal }).catch(() => {});
  const after = await client.call("bash", { command: "echo free" }); // which would wait for ten minutes
  assert.equal(after.text, "free\n");
});
