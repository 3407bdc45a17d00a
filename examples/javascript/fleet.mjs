// What callers and workers have in common: the connection, the names, and a publish that may be refused.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { jetstreamManager } from "@nats-io/jetstream";
import { connect, credsAuthenticator, headers } from "@nats-io/transport-node";

export class Fleet {
  /** Connects. creds is a NATS credentials file, or one with nothing but a token. */
  static async open({ nats = "nats://127.0.0.1:4222", creds, fleet = "tf" }) {
    const secret = creds ? readFileSync(creds, "utf8").trim() : "";
    const login = secret.includes("BEGIN NATS USER JWT")
      ? { authenticator: credsAuthenticator(new TextEncoder().encode(secret)) }
      : secret ? { token: secret } : {};
    const nc = await connect({ servers: nats, maxReconnectAttempts: -1, ...login });
    return new Fleet(nc, await jetstreamManager(nc), fleet);
  }

  constructor(nc, jsm, name) {
    const stream = (what) => `${name.toUpperCase()}_${what}`;
    Object.assign(this, { nc, jsm, name, calls: stream("CALLS"), claims: stream("CLAIMS"), results: stream("RESULTS") });
  }

  mailbox(pool, lane) { return `${this.name}.call.${pool}.${laneHash(lane)}`; }
  ready(pool, lane) { return `${this.name}.ready.${pool}.${laneHash(lane)}`; }
  claim(pool, hash) { return `${this.name}.claim.${pool}.${hash}`; }
  heartbeat(pool, life) { return `${this.name}.heartbeat.${pool}.${life}`; }
  result(call) { return `${this.name}.result.${call.session_id}.${call.id}`; }

  /** Stores a message and returns its sequence, or 0 if the stream refused it because of one that is there. */
  async publish(subject, body, header = {}, timeout = 5000) {
    const h = headers();
    for (const [name, value] of Object.entries(header)) h.set(name, value);
    const answer = (await this.nc.request(subject, body, { timeout, headers: h })).json();
    if (!answer.error) return answer.seq;
    const { err_code: code, description } = answer.error;
    if (code === 10071 || (code === 10077 && description.includes("per subject"))) return 0;
    throw new Error(`publish on ${subject}: ${description}`);
  }

  /** Stores a record if the last one of its subject has the sequence expected, 0 for none; returns as publish does. */
  replace(subject, record, expected, timeout) {
    return this.publish(subject, JSON.stringify(record), { "Nats-Expected-Last-Subject-Sequence": String(expected) }, timeout);
  }

  /** Makes a lane ready, unless it is ready or held. */
  wake(pool, lane) { return this.publish(this.ready(pool, lane), "", { "Tf-Lane": escaped(lane) }); }

  /** Returns the first message at or after seq on a subject with wildcards, as the stream's leader knows it; null if there is none. */
  next(stream, subject, seq = 1) { return this.jsm.streams.getMessage(stream, { seq, next_by_subj: subject }); }

  /** Returns all messages on a subject with wildcards. */
  async all(stream, subject) {
    const found = [];
    for (let msg; (msg = await this.next(stream, subject, (found.at(-1)?.seq ?? 0) + 1)); found.push(msg));
    return found;
  }

  /** Deletes a message, and returns when it is gone, also if it was before. */
  async remove(stream, seq) {
    try {
      await this.jsm.streams.deleteMessage(stream, seq, false);
    } catch (fault) {
      if (!/no message found|not found|deleted message/.test(fault.message)) throw fault;
    }
  }

  /** Has the pool's consumer wait before it delivers a ready message again. */
  park(msg, ms) { this.nc.publish(msg.reply, `-NAK {"delay": ${Math.round(ms) * 1e6}}`); }

  /** The same, and returns when the consumer knows. */
  async parkSurely(msg, ms) { await this.nc.request(msg.reply, `-NAK {"delay": ${Math.round(ms) * 1e6}}`); }

  /** Has the pool's consumer deliver a ready message again at once, whoever was given it before, and returns when it knows. */
  async redeliver(pool, seq) {
    const { delivered } = await this.jsm.consumers.info(this.calls, `ready_${pool}`);
    const ack = `$JS.ACK.${this.calls}.ready_${pool}.1.${seq}.${delivered.consumer_seq}.${Date.now()}000000.0`;
    this.nc.publish(ack, `-NAK {"delay": 1}`); // outlives the consumer's leader
    await this.nc.request(ack, "-NAK");
  }

  /** Returns the stored result of a call; null if there is none yet. */
  async findResult(call) { return (await this.next(this.results, this.result(call)))?.json() ?? null; }
}

/** A lane is the first two segments of a resource key. */
export function laneOf(call) { return call.resources[0].key.split("/", 2).join("/"); }

/** Returns the lane that a ready message or an entry of a mailbox names; null if that is not the one of its subject. */
export function laneNamed(msg) {
  try {
    const lane = JSON.parse(`"${msg.headers.get("Tf-Lane")}"`);
    const [, , , hash, later] = msg.subject.split(".");
    return laneHash(lane) === (hash === "later" ? later : hash) ? lane : null;
  } catch {
    return null;
  }
}

/** The lane's place in subjects: lower-case base32 of the first 16 bytes of its SHA-256. */
export function laneHash(lane) {
  const bytes = createHash("sha256").update(lane).digest().subarray(0, 16);
  const bits = [...bytes].map((b) => b.toString(2).padStart(8, "0")).join("");
  return bits.match(/.{1,5}/g).map((five) => "abcdefghijklmnopqrstuvwxyz234567"[parseInt(five.padEnd(5, "0"), 2)]).join("");
}

/** Readable names in headers are escaped as in a JSON string, spaces at their ends too: NATS would take those away. */
export function escaped(text) {
  return JSON.stringify(text).slice(1, -1).replace(/[\u007f-\uffff]|^ | $/g, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

/** Reads --name value pairs; what comes after them is returned as rest. */
export function flags(known) {
  const args = process.argv.slice(2), found = { ...known };
  while (args[0]?.startsWith("--")) {
    const name = args.shift().slice(2);
    if (!(name in known) || args.length === 0) throw new Error(`--${name}: known are ${Object.keys(known).map((k) => `--${k} VALUE`).join(", ")}`);
    found[name] = args.shift();
  }
  return { ...found, rest: args };
}

export const sleep = (ms) => new Promise((wake) => setTimeout(wake, ms));
