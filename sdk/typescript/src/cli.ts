#!/usr/bin/env node
import { readFile } from "node:fs/promises";
import { parseArgs } from "node:util";
import { ToolfleetError } from "./errors.js";
import { serve, serveHttp } from "./tools.js";

const usage = `Usage: toolfleet serve FILE [--listen HOST:PORT --token-file FILE]

Serves the exported tools of a TypeScript or JavaScript file by the Model Context Protocol: on stdin and stdout, or
over HTTP with --listen, for workers next to it. Requests over HTTP need the token of the file.`;

function given() {
  const options = { listen: { type: "string" }, "token-file": { type: "string" }, help: { type: "boolean", short: "h" } } as const;
  try {
    return parseArgs({ options, allowPositionals: true });
  } catch (error) {
    console.error("toolfleet:", (error as Error).message);
    return undefined;
  }
}

const said = given();
const [command, file, ...more] = said?.positionals ?? [];
if (said?.values.help) {
  console.log(usage);
} else if (command !== "serve" || file === undefined || more.length > 0) {
  console.error(usage);
  process.exitCode = 2;
} else {
  try {
    const { listen, "token-file": tokenFile } = said?.values ?? {};
    if (listen === undefined && tokenFile !== undefined) {
      throw new ToolfleetError("invalid", "--token-file: needs --listen");
    }
    if (listen === undefined) {
      await serve(file);
    } else {
      console.log(await serveHttp(file, listen, tokenFile === undefined ? "" : (await readFile(tokenFile, "utf8")).trim()));
    }
  } catch (error) {
    const code = (error as { code?: string }).code ?? "";
    const known = error instanceof ToolfleetError || ["ERR_MODULE_NOT_FOUND", "ENOENT", "EACCES", "EADDRINUSE", "EADDRNOTAVAIL", "ENOTFOUND"].includes(code);
    console.error("toolfleet:", known ? (error as Error).message : error);
    process.exitCode = 2;
  }
}
