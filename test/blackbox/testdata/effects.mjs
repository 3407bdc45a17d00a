// A tool in JavaScript that writes down when a call begins and ends; see package blackbox.
import { randomUUID } from "node:crypto";
import { appendFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { tool } from "toolfleet/tools";

export const effect = tool({ name: "effect", description: "Writes down when it begins and ends.", parameters: { type: "object" } }, async ({ id, during, sleep_ms }) => {
  const run = randomUUID();
  const say = (what) => appendFileSync("effects", `${what} ${id} ${run}\n`);
  say("begin");
  for (let i = 0; i < during; i++) {
    await sleep(30);
    say("during");
  }
  await sleep(sleep_ms);
  say("end");
  return "done";
});
