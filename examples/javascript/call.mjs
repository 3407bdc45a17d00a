// Enqueues one call and prints its result as JSON, and what it writes while it runs on standard error.
//
//   node call.mjs --creds FILE sandbox/demo command_run '{"command":"echo hello"}'
//   node call.mjs --creds FILE --pool javascript notebook/demo note_add '{"arguments":{"notebook":"demo","text":"hello"}}'
import { randomUUID } from "node:crypto";
import { Fleet, escaped, flags, laneOf, sleep } from "./fleet.mjs";
import { Signer } from "./signing.mjs";

const given = flags({ nats: undefined, creds: undefined, "sign-key": undefined, fleet: undefined, pool: "default", delivery: "idempotent", session: randomUUID() });
const [key, type, fields = "{}"] = given.rest;
if (!type) {
  console.error("usage: node call.mjs [--nats URL] [--creds FILE] [--sign-key FILE] [--pool POOL] [--delivery DELIVERY] KEY TYPE [FIELDS]");
  process.exit(2);
}

const fleet = await Fleet.open(given), signer = Signer.find(given["sign-key"], given.creds);
const call = {
  type: "call", version: 1, id: randomUUID(), session_id: given.session, pool: given.pool,
  resources: [{ key, access: "exclusive" }], delivery: given.delivery, issued_at: new Date(),
  payload: { type, version: 1, ...JSON.parse(fields) },
};

const frames = fleet.nc.subscribe(`${fleet.name}.output.${call.session_id}.${call.id}`, {
  callback: (_, msg) => { const frame = msg.json(); if (frame.data) process.stderr.write(typeof frame.data === "string" ? frame.data : Buffer.from(frame.data.base64, "base64")); },
});
let told;
const done = new Promise((resolve) => { told = resolve; });
const results = fleet.nc.subscribe(`${fleet.name}.done.${call.session_id}.${call.id}`, { callback: (_, msg) => told(msg.json()) });
await fleet.nc.flush();

await put(call);
let result;
while (!(result = await Promise.race([done, sleep(1000)]))) {
  if ((result = await fleet.findResult(call))) break; // what is told may get lost; what is stored is the truth
}
console.log(JSON.stringify(result, null, 2));
if (result.error?.code === "not_signed" && !signer) console.error("no key: copy the fleet's calls.key next to the file of --creds, or name it with --sign-key");
process.exitCode = result.status === "ok" ? 0 : 1;
frames.unsubscribe();
results.unsubscribe();
await fleet.nc.close();

/** Enqueues a call: as its lane's ready message if the lane is idle, else into the mailbox. */
async function put(call) {
  const lane = laneOf(call), body = JSON.stringify(call);
  const header = { "Tf-Lane": escaped(lane), "Tf-Call": call.id, "Tf-Session": call.session_id };
  if (signer) header["Tf-Signed"] = signer.sign(fleet.name, body);
  if (await fleet.publish(fleet.ready(call.pool, lane), body, header)) return;
  await fleet.publish(`${fleet.mailbox(call.pool, lane)}.${call.id}`, body, header);
  await fleet.wake(call.pool, lane);
}
