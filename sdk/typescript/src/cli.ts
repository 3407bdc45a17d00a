#!/usr/bin/env node
import { ToolfleetError } from "./errors.js";
import { serve } from "./tools.js";

const usage = `Usage: toolfleet serve FILE

Serves the exported tools of a TypeScript or JavaScript file on stdin and stdout, by the Model Context Protocol.`;

const [command, file, ...more] = process.argv.slice(2);
if (command === "--help" || command === "-h") {
  console.log(usage);
} else if (command !== "serve" || file === undefined || more.length > 0) {
  console.error(usage);
  process.exitCode = 2;
} else {
  try {
    await serve(file);
  } catch (error) {
    const known = error instanceof ToolfleetError || (error as { code?: string }).code === "ERR_MODULE_NOT_FOUND";
    console.error("toolfleet:", known ? (error as Error).message : error);
    process.exitCode = 2;
  }
}
