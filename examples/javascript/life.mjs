// A worker's life: one heartbeat, on which all its claims depend. And what a worker does about lives of others.
import { randomUUID } from "node:crypto";
import { escaped, laneNamed, sleep } from "./fleet.mjs";

/** Two clocks: the first one stands still while the machine sleeps, the second one may be set. */
const now = () => [performance.now(), Date.now()];
const since = ([steady, wall]) => Math.max(performance.now() - steady, Date.now() - wall);

export class Life {
  /** Stores the first heartbeat of a life. lost is called when the life is over before it was to end. */
  static async begin(worker, lost) {
    for (; !worker.stopping; await sleep(500)) {
      const life = new Life(worker, lost);
      await life.renew();
      if (life.trusted) {
        life.keeper = setInterval(() => life.keep(), worker.lease / 12);
        return life;
      }
    }
  }

  constructor(worker, lost) {
    Object.assign(this, { worker, lost, id: randomUUID(), seq: 0, beat: 0, renewed: null, over: false });
    this.subject = worker.fleet.heartbeat(worker.pool, this.id);
  }

  /** The last fifth of a lease is for messages on their way, and for stopping. */
  get trusted() { return this.trustedFor(0.8); }
  /** Reports whether that stays so for long enough that a removal arrives before. */
  get fresh() { return this.trustedFor(0.6); }
  trustedFor(part) { return !this.over && this.renewed !== null && since(this.renewed) < this.worker.lease * part; }

  keep() {
    if (!this.trusted) return this.close();
    if (!this.renewing && since(this.renewed) >= this.worker.lease / 4) return this.renew();
  }

  /** Renews the heartbeat. An answer counts from when its request was sent. */
  async renew() {
    const { fleet, id, lease } = this.worker, sent = now();
    const record = { type: "heartbeat", version: 1, worker_id: id, lease_ms: lease, beat: ++this.beat };
    this.renewing = true;
    try {
      const seq = await fleet.replace(this.subject, record, this.seq, lease / 6);
      if (seq) return Object.assign(this, { seq, renewed: sent });
      const stored = await fleet.next(fleet.claims, this.subject);
      if (!stored || stored.json().expired) this.close(); // somebody saw it stand still
      else this.seq = stored.seq; // of a renewal whose answer was lost; when it was sent is not known, so it renews nothing
    } catch (fault) {
      console.error(`heartbeat: ${fault.message}`); // tried again in a moment
    } finally {
      this.renewing = false;
    }
  }

  close() {
    if (this.over) return;
    this.over = true;
    clearInterval(this.keeper);
    this.lost();
  }

  /** Ends the life when nothing is held any more. What it may have left behind is taken over at once if its record is expired. */
  async end() {
    const { fleet } = this.worker, lost = this.over;
    this.over = true;
    clearInterval(this.keeper);
    while (this.renewing) await sleep(10);
    try {
      if (!lost) return await fleet.remove(fleet.claims, this.seq);
      const stored = await fleet.next(fleet.claims, this.subject);
      if (stored && !stored.json().expired) await fleet.replace(this.subject, { ...stored.json(), expired: true }, stored.seq);
    } catch (fault) {
      console.error(`heartbeat: ${fault.message}`); // others see that it stands still
    }
  }
}

/** What a worker knows of all lives of its pool. */
export class Peers {
  constructor(worker) { Object.assign(this, { worker, fleet: worker.fleet, seen: new Map() }); }

  /** Judges whoever a claim names. */
  async owner({ life, worker_id }) {
    if (!life) return "none";
    const stored = await this.fleet.next(this.fleet.claims, this.fleet.heartbeat(this.worker.pool, life));
    if (stored?.json().expired) return "expired";
    // Without a record it is taken for one whose record stands still from now on.
    if (!stored) this.see(life, 0, { type: "heartbeat", version: 1, worker_id, lease_ms: this.worker.lease, beat: 0 });
    return "alive";
  }

  see(life, seq, record) {
    if (this.seen.get(life)?.seq !== seq) this.seen.set(life, { seq, record, since: performance.now() });
  }

  /** Looks at all heartbeats once: expires those that stand still, and has the lanes of expired ones delivered again. */
  async round() {
    const { fleet, worker } = this, there = new Set();
    for (const msg of await fleet.all(fleet.claims, fleet.heartbeat(worker.pool, "*"))) {
      const life = msg.subject.split(".").at(-1);
      there.add(life);
      this.see(life, msg.seq, msg.json());
    }
    for (const [life, { seq, record, since }] of this.seen) {
      if (seq && !there.has(life)) this.seen.delete(life);
      else if (record.expired) await this.rescue(life, seq);
      else if (performance.now() - since >= record.lease_ms) await fleet.replace(fleet.heartbeat(worker.pool, life), { ...record, expired: true }, seq);
    }
  }

  /** Has the lanes of a life that is over delivered again, in each round until others have claimed them all. */
  async rescue(life, seq) {
    const { fleet, worker } = this;
    const claims = (await fleet.all(fleet.claims, fleet.claim(worker.pool, "*"))).map((msg) => msg.json()).filter((claim) => claim.life === life);
    for (const { lane, ready } of claims) {
      await fleet.wake(worker.pool, lane);
      await fleet.redeliver(worker.pool, ready);
    }
    if (claims.length === 0) await fleet.remove(fleet.claims, seq);
  }
}

/**
 * Makes lanes ready whose publisher was lost before it did, or left that to the workers: behind each entry that waits, one ready
 * message. What is settled by then is never told.
 */
export async function careForLanes(worker) {
  const { fleet, pool } = worker;
  const durable = `care_${pool}`, next = `$JS.API.CONSUMER.MSG.NEXT.${fleet.calls}.${durable}`;
  await fleet.jsm.consumers.info(fleet.calls, durable).catch(() => fleet.jsm.consumers.add(fleet.calls, {
    durable_name: durable, filter_subject: `${fleet.name}.call.${pool}.>`, ack_policy: "explicit",
    ack_wait: 5e9, max_deliver: -1, max_ack_pending: 1_048_576, headers_only: true,
  }));
  for (;;) {
    const msg = await fleet.nc.request(next, JSON.stringify({ batch: 1, no_wait: true }), { timeout: 5000, noMux: true });
    if (msg.headers?.code) return; // there is nothing more
    const lane = laneNamed(msg), [, , , hash, , mark] = msg.subject.split(".");
    if (lane && hash === "later") { // mark is the id of a call that waits for its time
      const wait = await moveCall(worker, lane, mark);
      if (wait > 0) fleet.park(msg, wait);
      else msg.respond();
      continue;
    }
    if (lane && (!mark || mark === "cancel")) await fleet.wake(pool, lane);
    msg.respond();
  }
}

/** Moves a call into its lane when its time has come, or when it is to be cancelled. Returns how many milliseconds it has to wait. */
async function moveCall({ fleet, pool, ahead }, lane, id) {
  const mailbox = fleet.mailbox(pool, lane), later = `${mailbox.replace(/[^.]+$/, "later.$&")}.${id}`;
  const waits = await fleet.next(fleet.calls, later), request = await fleet.next(fleet.calls, `${later}.cancel`);
  if (waits) {
    const call = waits.json(), left = Date.parse(call.not_before) - Date.parse(call.issued_at) - (Date.now() + ahead - waits.time.getTime());
    if (!request && left > 0) return left;
    const header = Object.fromEntries(waits.header.keys().map((name) => [name, waits.header.get(name)]));
    if (left < 0) header["Tf-Late"] = String(Math.round(-left));
    await fleet.publish(`${mailbox}.${id}`, waits.data, request ? { ...header, "Tf-Cancelled": "1" } : header);
    await fleet.remove(fleet.calls, waits.seq);
    await fleet.wake(pool, lane);
  } else if (request) { // the call was moved before
    await fleet.publish(`${mailbox}.${id}.cancel`, "", { "Tf-Lane": escaped(lane) });
    await fleet.wake(pool, lane);
  }
  if (request) await fleet.remove(fleet.calls, request.seq);
  return 0;
}
