import { type FunctionTool, tool } from "@openai/agents";
import { type AdapterOptions, chosen, run } from "./adapter.js";
import type { Client } from "./client.js";
import type { Arguments } from "./types.js";

/** The tools of a fleet for the OpenAI Agents SDK: `new Agent({ tools: await fleetTools(client), ... })`. */
export async function fleetTools(client: Client, options: AdapterOptions = {}): Promise<FunctionTool[]> {
  return (await chosen(client, options)).map(({ name, description, parameters }) =>
    tool({
      name,
      description,
      strict: false,
      parameters: { additionalProperties: true, ...(parameters as { type: "object"; properties: object; required: string[] }) } as never,
      execute: (input: unknown, _context: unknown, details?: { signal?: AbortSignal }) => run(client, name, input as Arguments, options, details?.signal),
    } as Parameters<typeof tool>[0]) as FunctionTool,
  );
}
