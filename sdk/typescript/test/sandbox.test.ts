import assert from "node:assert/strict";
import { test } from "node:test";
import { Manifest } from "@openai/agents/sandbox";
import { Client } from "../src/index.ts";
import { FleetSandboxClient } from "../src/openai-sandbox.ts";
import { afterwards, directory, program } from "./start.ts";

test("a file of a sandbox is written whole, or it is the old one", async (t) => {
  const client = await Client.fromEmbedded({ data: await directory(t), program });
  afterwards(t, () => client.close());
  const sandbox = await new FleetSandboxClient(client).create(new Manifest({ root: "/workspace", entries: { "dir/f": { type: "file", content: "old" } } }));
  const content = new Uint8Array(200_000).fill(255);
  let written = false;
  const writing = sandbox.materializeEntry({ path: "dir/f", entry: { type: "file", content } }).finally(() => (written = true));
  const sizes = new Set<string>();
  while (!written) {
    sizes.add((await sandbox.exec({ cmd: "wc -c <dir/f" })).stdout.trim());
  }
  await writing;
  assert.deepEqual([...sizes].filter((size) => size !== "3" && size !== "200000"), []);
  assert.deepEqual((await sandbox.listDir({ path: "dir" })).map((entry) => entry.name), ["f"]);
  assert.deepEqual(await sandbox.readFile({ path: "dir/f" }), content);
});
