// A lane while this process holds it: its calls run one by one, in the order in which the stream accepted them.
import { randomUUID } from "node:crypto";
import { laneHash, sleep } from "./fleet.mjs";

const DAY = 24 * 3600 * 1000, HOUR = DAY / 24;

/** Why a call's signal is aborted. */
export const Cause = { lost: "lost", cancelled: "cancelled", timeout: "run_timeout", deadline: "deadline_exceeded" };

class Lost extends Error {}

export class Lane {
  /** msg is the ready message, by which the lane may be claimed in this life of the worker. */
  constructor(worker, life, msg, lane) {
    Object.assign(this, { worker, fleet: worker.fleet, life, msg, lane, hash: laneHash(lane), since: Date.now() });
    this.mailbox = this.fleet.mailbox(worker.pool, lane);
    this.claimSubject = this.fleet.claim(worker.pool, this.hash);
    this.calls = new Map(); // unfinished calls by id, in order
    this.cursor = 1; // of the mailbox
    this.paused = this.held = false;
    this.running = null;
  }

  assertHeld() { if (!this.life.trusted) throw new Lost(); }

  /** Claims the lane and serves it until nothing is left, the worker stops, or its life is over. */
  async serve() {
    const cancels = this.fleet.nc.subscribe(`${this.mailbox.replace(".call.", ".stored.")}.*.cancel`, {
      callback: (_, msg) => this.cancel(msg.subject.split(".").at(-2)),
    });
    let parking;
    try {
      if (!(await this.claim())) return;
      // The consumer would deliver the ready message again; nobody needs it while the lane is held.
      parking = setTimeout(() => this.fleet.park(this.msg, HOUR), this.worker.lease / 4);
      await this.work();
    } catch (fault) {
      // If the life is over, others take what it has claimed. Calls that were started are then started again, or their outcome is unknown.
      if (!(fault instanceof Lost)) console.error(`lane ${this.lane}: ${fault.stack}`);
      if (!this.held) return this.fleet.park(this.msg, 100);
      await sleep(500);
      if (this.life.trusted) await this.leave(true).catch((again) => console.error(`lane ${this.lane}: ${again.message}`));
    } finally {
      this.held = false;
      clearTimeout(parking);
      cancels.unsubscribe();
    }
  }

  /** Stores the claim. Reports false, and gives the ready message back, if the lane is another worker's. */
  async claim() {
    const { fleet, worker, msg, life } = this;
    this.record = { type: "claim", version: 1, lane: this.lane, worker_id: worker.id, life: life.id, token: randomUUID(), ready: msg.seq };
    for (let expected = 0; ; ) {
      this.assertHeld();
      if ((this.epoch = await fleet.replace(this.claimSubject, this.record, expected))) break;
      const found = await fleet.next(fleet.claims, this.claimSubject), theirs = found?.json();
      // This process does not hold the lane, so a claim of its own life is a leftover.
      const owner = !found ? "none" : theirs.life === life.id ? "self" : await worker.peers.owner(theirs);
      if (owner === "alive") {
        fleet.park(msg, theirs.ready < msg.seq ? 20 : worker.lease); // it is letting go of the lane, or holds it
        if (msg.info.deliveryCount > 2) fleet.nc.publish(`${fleet.name}.ask.${worker.pool}.${this.hash}`); // or has forgotten that it does
        return false;
      }
      this.record.interrupted = owner === "expired" || theirs?.interrupted;
      expected = found?.seq ?? 0;
    }
    const ready = await fleet.next(fleet.calls, fleet.ready(worker.pool, this.lane));
    this.held = ready?.seq === msg.seq;
    if (!this.held) await fleet.remove(fleet.claims, this.epoch); // an old delivery: whoever held the lane has released it
    return this.held;
  }

  /** Runs what there is, and gives the lane up. */
  async work() {
    for (;;) {
      await this.look();
      const next = this.nextCall();
      const inside = [...this.calls.values()].some((c) => c.inline); // the ready message is a call that is not settled
      if (next && (inside || !this.worker.stopping)) await this.settle(next);
      else if (this.paused && this.calls.size > 0 && !this.worker.stopping) await sleep(1000);
      else return this.leave(inside);
    }
  }

  nextCall() {
    for (const c of this.calls.values()) if (!this.paused || this.refusal(c)) return c;
    return null;
  }

  cancel(id) {
    const c = this.calls.get(id);
    if (c) c.cancelled = true;
    if (this.running?.id === id) this.running.abort.abort(Cause.cancelled);
  }

  /** Reads what is new in the mailbox. */
  async look() {
    this.assertHeld();
    const first = this.cursor === 1;
    const inline = first && this.msg.data.length > 0 ? this.entry(this.msg.headers, this.msg.data, this.msg.seq, this.msg.time.getTime()) : null;
    if (inline) inline.inline = true;
    const admit = (c) => { if (this.calls.has(c.call.id)) return false; this.calls.set(c.call.id, c); return true; };
    let waiting = inline;
    for (let msg; (msg = await this.fleet.next(this.fleet.calls, `${this.mailbox}.>`, this.cursor)); this.cursor = msg.seq + 1) {
      if (waiting && msg.seq > waiting.seq) { admit(waiting); waiting = null; }
      const [id, mark] = msg.subject.slice(this.mailbox.length + 1).split(".");
      const c = this.calls.get(id);
      const start = /^start(\d+)$/.exec(mark ?? "");
      if (!mark) {
        if (!admit(this.entry(msg.header, msg.data, msg.seq, msg.time.getTime()))) await this.fleet.remove(this.fleet.calls, msg.seq); // enqueued twice
      } else if (id === "lane" && mark === "pause") {
        this.paused = true; // stays where it is
        this.pauseSeq = msg.seq;
      } else if (c && (start || mark === "cancel")) {
        c.marks.push(msg.seq);
        if (start && !c.ownStarts.has(Number(start[1]))) c.starts = Math.max(c.starts, Number(start[1]));
        if (mark === "cancel") this.cancel(id);
      } else {
        await this.fleet.remove(this.fleet.calls, msg.seq); // of a call that is settled, or of another claim
      }
    }
    if (waiting) admit(waiting);
    if (first) for (const c of this.calls.values()) c.mayHaveStarted = this.record.interrupted;
    this.cursor = Math.max(this.cursor, 2);
    if (this.paused && !(await this.fleet.next(this.fleet.calls, `${this.mailbox}.lane.pause`))) this.paused = false;
  }

  /** Reads a call. One that cannot be read is answered all the same. */
  entry(header, body, seq, accepted) {
    let call, fault, code = "invalid_payload";
    try {
      call = JSON.parse(new TextDecoder().decode(body));
      if (call.type !== "call" || call.version !== 1) fault = `type ${call.type}, version ${call.version}`;
    } catch (broken) {
      fault = broken.message;
    }
    if (fault) {
      fault = `the worker cannot read the call: ${fault}`;
    } else if (this.worker.keys && !header.get("Tf-Cancelled")) { // a cancelled call does nothing
      const late = call.not_before ? Math.min(Number(header.get("Tf-Late") || 0), DAY) : 0;
      const waited = call.not_before ? Math.max(Date.parse(call.not_before) - Date.parse(call.issued_at), 0) : 0;
      fault = this.worker.keys.fault(this.fleet.name, header.get("Tf-Signed"), body, accepted - waited - late);
      if (fault) code = "not_signed";
    }
    if (fault) call = { id: header.get("Tf-Call"), session_id: header.get("Tf-Session"), resources: [{ key: this.lane, access: "exclusive" }], payload: {} };
    if (call.not_before) accepted -= Number(header.get("Tf-Late") || 0); // it waited for a worker
    return { call, fault, code, seq, accepted, marks: [], starts: 0, ownStarts: new Set(), cancelled: Boolean(header.get("Tf-Cancelled")) };
  }

  /** Takes a call to its result, and removes it. */
  async settle(c) {
    this.assertHeld();
    if (await this.fleet.findResult(c.call)) return this.done(c); // it was sent again, or the last holder was lost before it removed it
    // Nobody can have started what has to wait for a call that has no result.
    for (const later of this.calls.values()) if (later !== c && conflict(c.call, later.call)) later.mayHaveStarted = false;
    const result = this.refusal(c) ?? (await this.countStart(c)) ?? (await this.execute(c));
    await this.store(c, result);
    await this.done(c);
  }

  /** How long a call may take in all, by the clock of who made it; both times are its. */
  lifetime(c) { return c.call.deadline ? Date.parse(c.call.deadline) - Math.max(Date.parse(c.call.issued_at), Date.parse(c.call.not_before ?? c.call.issued_at)) : Infinity; }
  age(c) { return Date.now() + this.worker.ahead - c.accepted; }

  /** The result of a call that is not to be started at all. */
  refusal(c) {
    const { call } = c, ran = c.mayHaveStarted || c.starts > 0;
    const result = (status, code, message) => ({ status, error: { code, message } });
    if (c.cancelled && ran) return result("outcome_unknown", "outcome_unknown", "cancelled; a worker that was lost may have started it");
    if (c.cancelled) return result("cancelled", "cancelled", "the call was cancelled before it started");
    if (c.fault) return result("rejected", c.code, c.fault);
    if (this.age(c) >= this.lifetime(c)) {
      return ran
        ? result("outcome_unknown", "outcome_unknown", "the deadline passed; a worker that was lost may have started it")
        : result("rejected", "deadline_exceeded", "the call's deadline passed while it waited; it was not run");
    }
    if (!ran && call.queue_timeout_ms && this.age(c) >= call.queue_timeout_ms) return result("rejected", "queue_timeout", `the call waited longer than ${call.queue_timeout_ms} ms; it was not run`);
    if (!this.worker.handlers[call.payload.type]) return result("rejected", "unknown_payload", `this worker does not know payloads of type ${call.payload.type}`);
    return null;
  }

  /** Stores the mark of a start that may not be the first; the stream takes each once. */
  async countStart(c) {
    const { call } = c;
    const mark = async (n) => {
      const seq = await this.fleet.publish(`${this.mailbox}.${call.id}.start${n}`, this.worker.id);
      if (seq) { c.marks.push(seq); c.ownStarts.add(n); }
      c.starts = n;
      return seq > 0;
    };
    if (call.delivery === "at_most_once") {
      if (c.starts === 0 && (await mark(1))) return null;
      return { status: "outcome_unknown", attempt: 1, error: { code: "outcome_unknown", message: "the worker that ran the call was lost; it is not run again" } };
    }
    if (!c.mayHaveStarted && c.starts === 0) return null;
    for (let n = Math.max(c.starts, 1) + 1; ; n++) {
      if (n > (call.max_attempts || 5)) return { status: "failed", attempt: n - 1, error: { code: "attempts_exhausted", message: `the worker was lost at each of ${n - 1} attempts` } };
      if (await mark(n)) return null;
    }
  }

  /** Runs the handler of a call's payload. */
  async execute(c) {
    const { call } = c, attempt = Math.max(c.starts, 1), started = Date.now(), abort = new AbortController();
    const timers = [
      setTimeout(() => abort.abort(Cause.timeout), Math.min(call.run_timeout_ms || 120_000, DAY)),
      setTimeout(() => abort.abort(Cause.deadline), Math.min(this.lifetime(c) - this.age(c), DAY)),
    ];
    this.running = { id: call.id, session: call.session_id, tool: call.tool ?? "", attempt, started, abort };
    this.assertHeld();
    const result = { attempt, queue_ms: this.age(c), lane_ms: Math.min(this.age(c), started - this.since) };
    try {
      const output = await this.worker.handlers[call.payload.type](call.payload.arguments, { id: call.id, attempt, signal: abort.signal });
      Object.assign(result, { status: "ok", value: { type: call.payload.type, version: 1, output } });
    } catch (fault) {
      Object.assign(result, { status: "failed", error: { code: "tool_failed", message: String(fault?.message ?? fault) } });
    } finally {
      timers.forEach(clearTimeout);
      this.running = null;
    }
    switch (abort.signal.aborted && result.status !== "ok" ? abort.signal.reason : "") {
      case Cause.lost: throw new Lost();
      case Cause.cancelled: Object.assign(result, { status: "cancelled", error: { code: "cancelled", message: "the call was cancelled while it ran" } }); break;
      case Cause.timeout: case Cause.deadline: Object.assign(result, { status: "timeout", error: { code: abort.signal.reason, message: "the call ran out of its time" } }); break;
    }
    result.run_ms = Date.now() - started;
    return result;
  }

  /** Stores a result unless there is one: the first one wins. */
  async store(c, result) {
    const whole = {
      type: "result", version: 1, call_id: c.call.id, session_id: c.call.session_id, worker_id: this.worker.id,
      queue_ms: this.age(c), lane_ms: 0, run_ms: 0, ...result, finished_at: new Date(),
    };
    let body = JSON.stringify(whole);
    if (Buffer.byteLength(body) > this.fleet.nc.info.max_payload - 16384) {
      body = JSON.stringify({ ...whole, value: undefined, status: "failed", error: { code: "payload_too_large", message: "the call ran, but its result is too large; ask for less at once" } });
    }
    for (;;) {
      this.assertHeld();
      try {
        return await this.fleet.publish(this.fleet.result(c.call), body, { "Nats-Expected-Last-Subject-Sequence": "0" });
      } catch (fault) { // whether it was stored is not known; trying once more does no harm
        console.error(`lane ${this.lane}: ${fault.message}`);
        await sleep(100);
      }
    }
  }

  async done(c) {
    this.calls.delete(c.call.id);
    for (const seq of c.inline ? c.marks : [c.seq, ...c.marks]) await this.fleet.remove(this.fleet.calls, seq);
  }

  /** Gives the lane up: with its ready message if somebody else has to go on with that, else without. */
  async leave(inside) {
    const interrupted = [...this.calls.values()].some((c) => c.mayHaveStarted);
    while (!this.life.fresh) { // what is removed below must not be the next holder's
      this.assertHeld();
      await sleep(this.worker.lease / 12);
    }
    return inside || interrupted ? this.handOver(interrupted) : this.release();
  }

  /** Leaves the ready message to another worker. */
  async handOver(interrupted) {
    const { fleet, worker, msg } = this;
    await fleet.parkSurely(msg, worker.lease); // should this process be lost before the last step
    if (interrupted) await fleet.replace(this.claimSubject, { ...this.record, life: "", interrupted }, this.epoch);
    else await fleet.remove(fleet.claims, this.epoch);
    this.held = false;
    await fleet.wake(worker.pool, this.lane); // refused, unless an attempt to release the lane ended halfway
    await fleet.redeliver(worker.pool, msg.seq);
  }

  /** Removes the ready message, looks once more, and then removes the claim: who is lost in between leaves it. */
  async release() {
    const { fleet, worker } = this;
    await fleet.remove(fleet.calls, this.msg.seq);
    let left = await fleet.next(fleet.calls, `${this.mailbox}.>`);
    if (left?.subject.endsWith(".lane.pause")) left = await fleet.next(fleet.calls, `${this.mailbox}.>`, left.seq + 1);
    if (left) await fleet.wake(worker.pool, this.lane);
    await fleet.remove(fleet.claims, this.epoch);
    this.msg.ack(); // for the consumer's books; the removal is what counts
  }

  /** What operators are told, see "coordinator lane ls". */
  describe() {
    const r = this.running;
    return {
      lane: this.lane, epoch: this.epoch, held_ms: Date.now() - this.since, paused: this.paused,
      running: r ? [{ call_id: r.id, session_id: r.session, tool: r.tool, attempt: r.attempt, running_ms: Date.now() - r.started }] : [],
    };
  }
}

/** Two calls conflict if a key of one contains a key of the other, and one of these uses is exclusive. */
function conflict(a, b) {
  const contains = (x, y) => `${y}/`.startsWith(`${x}/`);
  return a.resources.some((x) => b.resources.some((y) =>
    (x.access === "exclusive" || y.access === "exclusive") && (contains(x.key, y.key) || contains(y.key, x.key))));
}
