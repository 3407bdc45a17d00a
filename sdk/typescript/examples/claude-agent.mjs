// An agent of the Claude Agent SDK uses the tools of a fleet by MCP. The model of this example is scripted:
// leave ANTHROPIC_BASE_URL out to use one of Anthropic.
import { createServer } from "node:http";
import { query } from "@anthropic-ai/claude-agent-sdk";

const model = createServer(async (request, response) => {
  let text = "";
  for await (const piece of request) text += piece;
  const { tools = [], messages = [], stream } = text ? JSON.parse(text) : {};
  const result = messages.at(-1)?.content?.find?.((block) => block.type === "tool_result");
  const block = tools.some((tool) => tool.name === "mcp__toolfleet__bash") && !result
    ? { type: "tool_use", id: "toolu_1", name: "mcp__toolfleet__bash", input: { command: "echo hi from the fleet" } }
    : { type: "text", text: result ? `It says: ${JSON.stringify(result.content)}` : "ok" };
  const stop_reason = block.type === "tool_use" ? "tool_use" : "end_turn";
  const message = { id: "msg_1", type: "message", role: "assistant", model: "claude-scripted", content: [block], stop_reason, stop_sequence: null, usage: { input_tokens: 1, output_tokens: 1 } };
  if (!stream) {
    response.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify(message));
    return;
  }
  const delta = block.type === "tool_use" ? { type: "input_json_delta", partial_json: JSON.stringify(block.input) } : { type: "text_delta", text: block.text };
  response.writeHead(200, { "Content-Type": "text/event-stream" });
  for (const event of [
    { type: "message_start", message: { ...message, content: [], stop_reason: null } },
    { type: "content_block_start", index: 0, content_block: block.type === "tool_use" ? { ...block, input: {} } : { type: "text", text: "" } },
    { type: "content_block_delta", index: 0, delta },
    { type: "content_block_stop", index: 0 },
    { type: "message_delta", delta: { stop_reason, stop_sequence: null }, usage: { output_tokens: 1 } },
    { type: "message_stop" },
  ]) {
    response.write(`event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`);
  }
  response.end();
}).listen(0, "127.0.0.1");
await new Promise((listening) => model.once("listening", listening));

const env = { ...process.env, ANTHROPIC_BASE_URL: `http://127.0.0.1:${model.address().port}`, ANTHROPIC_API_KEY: "scripted", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1", MCP_CONNECT_TIMEOUT_MS: "60000" };
const toolfleet = { command: process.env.TOOLFLEET_COORDINATOR ?? "coordinator", args: ["mcp", "--workspace", "."], alwaysLoad: true }; // the first request has the tools
for await (const message of query({ prompt: "Say hi.", options: { env, mcpServers: { toolfleet }, allowedTools: ["mcp__toolfleet__*"], tools: [], settingSources: [], maxTurns: 4 } })) {
  if (message.type === "result") console.log(message.result ?? message.subtype);
}
model.close();
