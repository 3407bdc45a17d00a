// A model of the Vercel AI SDK uses the tools of a fleet. The model of this example is scripted: put
// one of a provider in its place, such as openai("gpt-5") of @ai-sdk/openai.
import { generateText, stepCountIs } from "ai";
import { MockLanguageModelV3 } from "ai/test";
import { Client } from "toolfleet";
import { fleetTools } from "toolfleet/ai";

const usage = { inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 }, outputTokens: { total: 1, text: 1, reasoning: 0 } };
const model = new MockLanguageModelV3({
  doGenerate: async ({ prompt }) => {
    const last = prompt.at(-1);
    if (last?.role !== "tool") {
      const input = JSON.stringify({ command: "echo hi from the fleet" });
      return { content: [{ type: "tool-call", toolCallId: "c1", toolName: "bash", input }], finishReason: { unified: "tool-calls", raw: undefined }, usage, warnings: [] };
    }
    return { content: [{ type: "text", text: `It says: ${JSON.stringify(last.content)}` }], finishReason: { unified: "stop", raw: undefined }, usage, warnings: [] };
  },
});

const client = await Client.fromEmbedded();
try {
  const tools = await fleetTools(client, { only: ["bash", "read", "write"] });
  const { text } = await generateText({ model, tools, prompt: "Say hi.", stopWhen: stepCountIs(5) });
  console.log(text);
} finally {
  await client.close();
}
