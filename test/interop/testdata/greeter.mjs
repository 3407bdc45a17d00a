// A server of the Model Context Protocol that an editor brings: it has one tool.
import { createInterface } from "node:readline";

for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line);
  const answers = {
    initialize: () => ({ protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: "greeter", version: "1" } }),
    "tools/list": () => ({ tools: [{ name: "greet", description: "Greets.", inputSchema: { type: "object" } }] }),
    "tools/call": () => ({ content: [{ type: "text", text: "hello from the editor" }] }),
    ping: () => ({}),
  };
  if (id !== undefined) {
    const answer = answers[method] ? { result: answers[method]() } : { error: { code: -32601, message: method } };
    console.log(JSON.stringify({ jsonrpc: "2.0", id, ...answer }));
  }
}
