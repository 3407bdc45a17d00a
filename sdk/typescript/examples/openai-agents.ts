// An agent of the OpenAI Agents SDK uses the tools of a fleet. The model of this example is scripted:
// leave it out to use one of OpenAI.
import { Agent, type Model, type ModelRequest, type ModelResponse, run, setTracingDisabled, Usage } from "@openai/agents";
import { Client } from "toolfleet";
import { fleetTools } from "toolfleet/openai-agents";

setTracingDisabled(true);
const model: Model = {
  async getResponse({ input }: ModelRequest): Promise<ModelResponse> {
    const last = Array.isArray(input) ? input.at(-1) : undefined;
    if (last?.type !== "function_call_result") {
      const call = JSON.stringify({ command: "echo hi from the fleet" });
      return { usage: new Usage(), output: [{ type: "function_call", callId: "c1", name: "bash", arguments: call, status: "completed" }] };
    }
    const text = `It says: ${JSON.stringify(last.output)}`;
    return { usage: new Usage(), output: [{ type: "message", role: "assistant", status: "completed", content: [{ type: "output_text", text }] }] };
  },
  async *getStreamedResponse() {
    throw new Error("this model does not stream");
  },
};

const client = await Client.fromEmbedded();
try {
  const agent = new Agent({ name: "Example", model, tools: await fleetTools(client, { only: ["bash", "read", "write"] }) });
  console.log((await run(agent, "Say hi.")).finalOutput);
} finally {
  await client.close();
}
