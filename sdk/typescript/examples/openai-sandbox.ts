// A sandbox agent of the OpenAI Agents SDK works in a sandbox of a fleet. The model of this example is
// scripted: leave it out to use one of OpenAI.
import { type Model, type ModelRequest, type ModelResponse, run, setTracingDisabled, Usage } from "@openai/agents";
import { SandboxAgent, shell } from "@openai/agents/sandbox";
import { Client } from "toolfleet";
import { FleetSandboxClient } from "toolfleet/openai-sandbox";

setTracingDisabled(true);
const model: Model = {
  async getResponse({ input }: ModelRequest): Promise<ModelResponse> {
    const last = Array.isArray(input) ? input.at(-1) : undefined;
    if (last?.type !== "function_call_result") {
      const call = JSON.stringify({ cmd: "cat notes/hello.txt" });
      return { usage: new Usage(), output: [{ type: "function_call", callId: "c1", name: "exec_command", arguments: call, status: "completed" }] };
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
  const manifest = { entries: { notes: { type: "dir" as const, children: { "hello.txt": { type: "file" as const, content: "hi from the fleet" } } } } };
  const agent = new SandboxAgent({ name: "Example", model, defaultManifest: manifest, capabilities: [shell()] });
  const { finalOutput } = await run(agent, "Read the notes.", { sandbox: { client: new FleetSandboxClient(client) } });
  console.log(finalOutput);
} finally {
  await client.close();
}
