// A worker for payloads of kind note_add: it adds a line to a notebook, which is a file.
//
//   node worker.mjs --creds FILE --call-keys FILE --notes DIR
//
// A notebook is a resource, so its notes come in the order in which the calls were accepted, whoever made them and
// however many workers there are.
import { appendFile, mkdir, readFile } from "node:fs/promises";
import { hostname } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { jetstream } from "@nats-io/jetstream";
import { Fleet, flags, laneHash, laneNamed, sleep } from "./fleet.mjs";
import { Cause, Lane } from "./lane.mjs";
import { Life, Peers, careForLanes } from "./life.mjs";
import { Keys } from "./signing.mjs";

const given = flags({ nats: undefined, creds: undefined, "call-keys": undefined, fleet: undefined, pool: "javascript", slots: "4", lease: "10", notes: "notes" });

/** The payloads that this worker knows. A handler stops when the signal is aborted; id is the same in every attempt. */
const handlers = {
  async note_add({ notebook, text, pause_ms = 0 }, { id, signal }) {
    if (!/^[\w-]{1,64}$/.test(notebook ?? "")) throw new Error(`notebook ${JSON.stringify(notebook)}: must be 1 to 64 letters, digits, "_" and "-"`);
    const file = join(given.notes, `${notebook}.txt`);
    const lines = (await readFile(file, "utf8").catch(() => "")).split("\n").slice(0, -1);
    await pause(pause_ms, null, { signal }); // it takes as long as it takes, and ends when it has to
    if (!lines.some((line) => line.startsWith(`${id} `))) { // else a worker that was lost has done it
      lines.push(text);
      await appendFile(file, `${id} ${text}\n`);
    }
    return { notes: lines.length };
  },
};

const fleet = await Fleet.open(given);
if (fleet.nc.info.cluster) throw new Error("this example keeps its promises with one server; docs/wire.md tells what several need");
await mkdir(given.notes, { recursive: true });

// The pool's consumer hands out ready lanes. Its ack_wait is also the length of a lease.
const durable = `ready_${given.pool}`;
await fleet.jsm.consumers.info(fleet.calls, durable).catch(() => fleet.jsm.consumers.add(fleet.calls, {
  durable_name: durable, filter_subject: `${fleet.name}.ready.${given.pool}.*`, ack_policy: "explicit",
  ack_wait: Number(given.lease) * 1e9, max_deliver: -1, max_ack_pending: 2 ** 20, max_waiting: 65_536,
}));
const consumer = await jetstream(fleet.nc).consumers.get(fleet.calls, durable);
const { config, ts } = await consumer.info();

const worker = {
  fleet, handlers, keys: given["call-keys"] ? new Keys(given["call-keys"]) : null, pool: given.pool, slots: Number(given.slots), id: `${hostname()}-${process.pid}`,
  lease: config.ack_wait / 1e6, ahead: Date.parse(ts) - Date.now(), stopping: false, held: new Map(), // lanes by hash
};
worker.peers = new Peers(worker);
for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, () => { worker.stopping = true; });

answer(`${fleet.name}.who.${worker.pool}`, () => ({
  type: "worker_info", version: 1, worker_id: worker.id, pool: worker.pool, slots: worker.slots, held_lanes: worker.held.size,
  driver: "javascript", level: "none", network: "all", read_only: false, languages: [], kinds: Object.keys(handlers),
}));
const held = (hash) => {
  const lanes = [...worker.held.values()].filter((lane) => lane.held && (!hash || lane.hash === hash));
  return lanes.length > 0 && { type: "lanes_held", version: 1, worker_id: worker.id, lanes: lanes.map((lane) => lane.describe()) };
};
answer(`${fleet.name}.ask.${worker.pool}`, () => held());
answer(`${fleet.name}.ask.${worker.pool}.*`, (hash) => {
  if (worker.held.has(hash)) return held(hash);
  disown(hash).catch((fault) => console.error(`claim: ${fault.message}`));
});

console.error(`worker ${worker.id} takes ${Object.keys(handlers)} calls of pool ${worker.pool}`);
const beside = [
  every(worker.lease / 6, "heartbeats", () => worker.peers.round()),
  every(1000, "waiting lanes", () => careForLanes(worker)),
];
while (!worker.stopping) {
  worker.life = await Life.begin(worker, () => worker.held.forEach((lane) => lane.running?.abort.abort(Cause.lost)));
  await Promise.all(Array.from({ length: worker.slots }, () => takeLanes(worker.life)));
  await worker.life?.end();
}
await Promise.all(beside);
await fleet.nc.close();

/** One slot in one life: takes the next ready lane, whichever it is, and serves it. */
async function takeLanes(life) {
  const expires = 2 * Math.ceil(Math.max(1000, worker.lease / 3) / 2); // even: the client's heartbeat is half of it, in whole milliseconds
  let told = "";
  const wait = (fault) => { // no connection, or a request that the server does not take
    if (fault.message !== told) console.error(`pull: ${told = fault.message}`);
    return sleep(500);
  };
  while (!worker.stopping && life.trusted) {
    const msg = await consumer.next({ expires }).catch(wait);
    if (msg) await take(life, msg);
  }
}

/** Serves a ready lane. */
async function take(life, msg) {
  const lane = laneNamed(msg), hash = msg.subject.split(".").at(-1), here = worker.held.get(hash);
  if (!lane) return fleet.remove(fleet.calls, msg.seq).catch((fault) => console.error(`ready message: ${fault.message}`)); // no worker can read it
  if (worker.stopping || !life.trusted) return fleet.park(msg, 0);
  if (here) return fleet.park(msg, here.held && here.msg.seq === msg.seq ? 3600_000 : 20); // delivered again, or just being let go
  const mine = new Lane(worker, life, msg, lane);
  worker.held.set(hash, mine);
  await mine.serve();
  worker.held.delete(hash);
}

/** Removes a claim that this process has forgotten to remove, or could not. */
async function disown(hash) {
  const subject = fleet.claim(worker.pool, hash), found = await fleet.next(fleet.claims, subject), claim = found?.json();
  if (!claim || claim.life !== worker.life?.id || worker.held.has(hash)) return;
  if (claim.interrupted) await fleet.replace(subject, { ...claim, life: "" }, found.seq);
  else await fleet.remove(fleet.claims, found.seq);
}

/** Does something again and again until the worker stops. */
async function every(ms, what, act) {
  for (; !worker.stopping; await sleep(ms)) await act().catch((fault) => console.error(`${what}: ${fault.message}`));
}

/** Answers requests with JSON; a body that is false is no answer. */
function answer(subject, body) {
  fleet.nc.subscribe(subject, {
    callback: (_, msg) => { const said = body(msg.subject.split(".").at(-1)); if (said) msg.respond(JSON.stringify(said)); },
  });
}
