import { dynamicTool, jsonSchema, type ToolSet } from "ai";
import { type AdapterOptions, chosen, run } from "./adapter.js";
import type { Client } from "./client.js";
import type { Arguments } from "./types.js";

/** The tools of a fleet for the Vercel AI SDK: `generateText({ tools: await fleetTools(client), ... })`. */
export async function fleetTools(client: Client, options: AdapterOptions = {}): Promise<ToolSet> {
  const tools: ToolSet = {};
  for (const { name, description, parameters } of await chosen(client, options)) {
    tools[name] = dynamicTool({
      description,
      inputSchema: jsonSchema(parameters as Parameters<typeof jsonSchema>[0]),
      execute: (input, { abortSignal }) => run(client, name, input as Arguments, options, abortSignal),
    });
  }
  return tools;
}
