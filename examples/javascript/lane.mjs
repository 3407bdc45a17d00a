// A lane while this process holds it: its calls run one by one, in the order in which the stream accepted them.
import { sleep } from "./fleet.mjs";

const DAY = 24 * 3600 * 1000;

/** Why a call's signal is aborted. */
export const Cause = { lost: "lost", cancelled: "cancelled", timeout: "run_timeout", deadline: "deadline_exceeded" };

class Lost extends Error {}

export class Lane {
  /** msg is the ready message; since is when it was asked for, so its lease began then or later. */
  constructor(worker, msg, since) {
    Object.assign(this, { worker, fleet: worker.fleet, msg, since, claimed: Date.now() });
    this.lane = JSON.parse(`"${msg.headers.get("Tf-Lane")}"`);
    this.mailbox = worker.fleet.mailbox(worker.pool, this.lane);
    this.calls = new Map(); // unfinished calls by id, in order
    this.cursor = 1; // of the mailbox
    this.paused = false;
    this.running = null;
    // Whoever held the lane before may have started or settled what waited then.
    this.before = msg.info.deliveryCount > 1;
  }

  /** The last fifth of a lease is for messages on their way, and for stopping. */
  get trusted() { return Date.now() - this.since < this.worker.lease * 0.8; }

  assertHeld() { if (!this.trusted) throw new Lost(); }

  /** Serves the lane until nothing is left, the worker stops, or the lease is lost. */
  async serve() {
    const keeper = setInterval(() => this.keep(), this.worker.lease / 12);
    const cancels = this.fleet.nc.subscribe(`${this.mailbox.replace(".call.", ".told.")}.*.cancel`, {
      callback: (_, msg) => this.cancel(msg.subject.split(".").at(-2)),
    });
    try {
      for (;;) {
        await this.look();
        const next = this.nextCall();
        const inside = [...this.calls.values()].some((c) => c.inline); // the ready message is a call that is not settled
        if (next && (inside || !this.worker.stopping)) await this.settle(next);
        else if (this.paused && this.calls.size > 0 && !this.worker.stopping) await sleep(1000);
        else return inside ? this.msg.nak() : await this.release();
      }
    } catch (fault) {
      // The ready message comes back when the lease ends. Calls that were started are then started again, or their outcome is unknown.
      if (!(fault instanceof Lost)) console.error(`lane ${this.lane}: ${fault.stack}`);
    } finally {
      clearInterval(keeper);
      cancels.unsubscribe();
    }
  }

  nextCall() {
    for (const c of this.calls.values()) if (!this.paused || this.refusal(c)) return c;
    return null;
  }

  /** Renews the lease when two fifths of it have passed. An answer counts from when it was asked for. */
  async keep() {
    if (!this.trusted) return this.running?.abort.abort(Cause.lost);
    if (this.renewing || Date.now() - this.since < this.worker.lease * 0.4) return;
    this.renewing = true;
    try {
      const sent = Date.now();
      await this.fleet.nc.request(this.msg.reply, "+WPI", { timeout: this.worker.lease / 12 });
      if (this.trusted) this.since = sent;
    } catch { /* tried again in a moment */ } finally {
      this.renewing = false;
    }
  }

  cancel(id) {
    const c = this.calls.get(id);
    if (c) c.cancelled = true;
    if (this.running?.id === id) this.running.abort.abort(Cause.cancelled);
  }

  /** Reads what is new in the mailbox. */
  async look() {
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
        if (!admit(this.entry(msg.header, msg.data, msg.seq, msg.time.getTime()))) await this.remove(msg.seq); // enqueued twice
      } else if (id === "lane" && mark === "pause") {
        this.paused = true; // stays where it is
        this.pauseSeq = msg.seq;
      } else if (c && (start || mark === "cancel")) {
        c.marks.push(msg.seq);
        if (start && !c.ownStarts.has(Number(start[1]))) c.starts = Math.max(c.starts, Number(start[1]));
        if (mark === "cancel") this.cancel(id);
      } else {
        await this.remove(msg.seq); // of a call that is settled, or of another claim
      }
    }
    if (waiting) admit(waiting);
    if (first) for (const c of this.calls.values()) c.maySettled = c.mayHaveStarted = this.before;
    this.cursor = Math.max(this.cursor, 2);
    if (this.paused && !(await this.fleet.next(this.fleet.calls, `${this.mailbox}.lane.pause`))) this.paused = false;
  }

  /** Reads a call. One that cannot be read is answered all the same. */
  entry(header, body, seq, accepted) {
    let call, fault;
    try {
      call = JSON.parse(new TextDecoder().decode(body));
      if (call.type !== "call" || call.version !== 1) fault = `type ${call.type}, version ${call.version}`;
    } catch (broken) {
      fault = broken.message;
    }
    if (fault) call = { id: header.get("Tf-Call"), session_id: header.get("Tf-Session"), resources: [{ key: this.lane, access: "exclusive" }], payload: {} };
    return { call, fault, seq, accepted, marks: [], starts: header?.get("Tf-Started") ? 1 : 0, ownStarts: new Set() };
  }

  /** Takes a call to its result, and removes it. */
  async settle(c) {
    this.assertHeld();
    if ((c.maySettled || c.call.again) && (await this.fleet.findResult(c.call))) return this.done(c);
    // Nobody can have started what has to wait for a call that has no result.
    for (const later of this.calls.values()) if (later !== c && conflict(c.call, later.call)) later.mayHaveStarted = false;
    const result = this.refusal(c) ?? (await this.countStart(c)) ?? (await this.execute(c));
    await this.store(c, result);
    await this.done(c);
  }

  /** How long a call may take in all, by the clock of who made it; both times are its. */
  life(c) { return c.call.deadline ? Date.parse(c.call.deadline) - Date.parse(c.call.issued_at) : Infinity; }
  age(c) { return Date.now() + this.worker.ahead - c.accepted; }

  /** The result of a call that is not to be started at all. */
  refusal(c) {
    const { call } = c;
    const result = (status, code, message) => ({ status, error: { code, message } });
    if (c.cancelled && c.mayHaveStarted) return result("outcome_unknown", "outcome_unknown", "cancelled; a worker that was lost may have started it");
    if (c.cancelled) return result("cancelled", "cancelled", "the call was cancelled before it started");
    if (c.fault) return result("rejected", "invalid_payload", `the worker cannot read the call: ${c.fault}`);
    if (this.age(c) >= this.life(c)) {
      return c.mayHaveStarted
        ? result("outcome_unknown", "outcome_unknown", "the deadline passed; a worker that was lost may have started it")
        : result("rejected", "deadline_exceeded", "the call's deadline passed while it waited; it was not run");
    }
    if (!c.mayHaveStarted && call.queue_timeout_ms && this.age(c) >= call.queue_timeout_ms) return result("rejected", "queue_timeout", `the call waited longer than ${call.queue_timeout_ms} ms; it was not run`);
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
      setTimeout(() => abort.abort(Cause.deadline), Math.min(this.life(c) - this.age(c), DAY)),
    ];
    this.running = { id: call.id, session: call.session_id, tool: call.tool ?? "", attempt, started, abort };
    this.assertHeld();
    const result = { attempt, queue_ms: this.age(c), lane_ms: Math.min(this.age(c), started - this.claimed) };
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
    for (const seq of c.inline ? c.marks : [c.seq, ...c.marks]) await this.remove(seq);
  }

  async remove(seq) {
    try {
      await this.fleet.jsm.streams.deleteMessage(this.fleet.calls, seq, false);
    } catch (fault) {
      if (!/no message found|not found|deleted message/.test(fault.message)) throw fault;
    }
  }

  /** Gives the lane up: removes the ready message, and then looks once more. */
  async release() {
    this.assertHeld();
    await this.remove(this.msg.seq);
    this.msg.ack(); // for the consumer's books; the removal is what counts
    let left = await this.fleet.next(this.fleet.calls, `${this.mailbox}.>`);
    if (left?.subject.endsWith(".lane.pause")) left = await this.fleet.next(this.fleet.calls, `${this.mailbox}.>`, left.seq + 1);
    if (left) await this.fleet.wake(this.worker.pool, this.lane);
  }

  /** What operators are told, see "coordinator lane ls". */
  describe() {
    const r = this.running;
    return {
      lane: this.lane, ready: this.msg.seq, delivery: this.msg.info.deliveryCount, held_ms: Date.now() - this.claimed, paused: this.paused,
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
