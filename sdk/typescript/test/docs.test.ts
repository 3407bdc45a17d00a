import assert from "node:assert/strict";
import { execFile, spawnSync } from "node:child_process";
import { chmod, mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { directory, freePort, here, program } from "./start.ts";

/** The script of the first part of the page: files are written, and commands run, in their order. */
function scriptOf(page: string): string {
  const part = page.slice(0, page.indexOf("\n## Calls\n"));
  const blocks = [...part.matchAll(/^```(\w+)\n(.*?)^```$/gms)];
  return blocks.map(([, kind, text = ""]) => {
    const file = /^(?:\/\/|#) (\S+)\n/.exec(text);
    if (kind === "sh") {
      return text;
    }
    assert.ok(file, text);
    return `cat >${file[1]} <<'END_OF_FILE'\n${text}END_OF_FILE\n`;
  }).join("\n");
}

test("the page works word for word: from an empty folder to a tool on a worker", { timeout: 600_000 }, async (t) => {
  const [at, bin] = [await directory(t), await directory(t)];
  const packed = spawnSync("npm", ["pack", "--silent", "--pack-destination", bin], { cwd: join(here, ".."), encoding: "utf8" });
  assert.equal(packed.status, 0, packed.stderr);
  const tarball = join(bin, packed.stdout.trim().split("\n").at(-1) ?? "");
  const npm = spawnSync("sh", ["-c", "command -v npm"], { encoding: "utf8" }).stdout.trim();
  // The package is not in the registry: npm gets the one of this repository under its name.
  await writeFile(join(bin, "npm"), `#!/usr/bin/env bash\nargs=()\nfor a; do [ "$a" = toolfleet ] && a=${tarball}; args+=("$a"); done\nexec ${npm} "\${args[@]}"\n`);
  await chmod(join(bin, "npm"), 0o755);
  await mkdir(join(at, "home"));
  let page = scriptOf(await readFile(join(here, "../../../docs/typescript.md"), "utf8"));
  for (const port of ["4222", "7070"]) { // others may use them on this machine
    page = page.replaceAll(`127.0.0.1:${port}`, `127.0.0.1:${await freePort()}`);
  }
  const script = `set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null && wait || true' EXIT\nset -m\n${page}`;
  const env = { ...process.env, PATH: `${bin}:${dirname(program)}:${process.env["PATH"]}`, XDG_STATE_HOME: join(at, "state"), npm_config_audit: "false", npm_config_fund: "false" };
  const { stdout } = await promisify(execFile)("bash", ["-c", script], { cwd: at, env, timeout: 580_000, maxBuffer: 1 << 24 }).catch((error: { stdout: string; stderr: string }) => {
    throw new Error(`${error.stdout}\n${error.stderr}`);
  });
  assert.match(stdout, /"content":"250 cents paid back to account 7"/);
  for (const line of ["hi", "100 cents paid back to account 7", "a call ended: ok", "The money is paid back."]) {
    assert.ok(stdout.split("\n").includes(line), `${JSON.stringify(line)} is missing in:\n${stdout}`);
  }
});
