import type { Client } from "./client.js";
import type { Arguments, CallOptions, ToolInfo } from "./types.js";

/** Which tools of a fleet another library gets, and how their calls run. */
export interface AdapterOptions {
  /** Names of the tools. Default: all. */
  only?: string[];
  /** How each call runs, such as its `session_id` or `timeout_ms`. */
  call?: Omit<CallOptions, "key" | "signal">;
}

/** The tools of a fleet that another library gets. */
export async function chosen(client: Client, options: AdapterOptions): Promise<ToolInfo[]> {
  const all = await client.tools();
  const unknown = options.only?.find((name) => !all.some((tool) => tool.name === name));
  if (unknown !== undefined) {
    throw new Error(`only: the fleet has no tool ${unknown}; it has ${all.map((tool) => tool.name).join(", ")}`);
  }
  return options.only ? all.filter((tool) => options.only?.includes(tool.name)) : all;
}

/** Runs a call for a model, which reads failures, too. A signal cancels the call. */
export async function run(client: Client, tool: string, args: Arguments, options: AdapterOptions, signal?: AbortSignal): Promise<string> {
  signal?.throwIfAborted();
  const future = await client.submit(tool, args, options.call ?? {});
  const cancel = () => void future.cancel().catch(() => {}); // it has ended
  signal?.addEventListener("abort", cancel, { once: true });
  try {
    return (await future.settled()).text;
  } finally {
    signal?.removeEventListener("abort", cancel);
  }
}
