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
    Object.assign(this, { nc, jsm, name, calls: `${name.toUpperCase()}_CALLS`, results: `${name.toUpperCase()}_RESULTS` });
  }

  mailbox(pool, lane) { return `${this.name}.call.${pool}.${laneHash(lane)}`; }
  ready(pool, lane) { return `${this.name}.ready.${pool}.${laneHash(lane)}`; }
  result(call) { return `${this.name}.result.${call.session_id}.${call.id}`; }

  /** Stores a message and returns its sequence, or 0 if the stream refused it because there is one already. */
  async publish(subject, body, header = {}) {
    const h = headers();
    for (const [name, value] of Object.entries(header)) h.set(name, value);
    const answer = (await this.nc.request(subject, body, { timeout: 5000, headers: h })).json();
    if (!answer.error) return answer.seq;
    const { err_code: code, description } = answer.error;
    if (code === 10071 || (code === 10077 && description.includes("per subject"))) return 0;
    throw new Error(`publish on ${subject}: ${description}`);
  }

  /** Makes a lane ready, unless it is ready or held. */
  wake(pool, lane) { return this.publish(this.ready(pool, lane), "", { "Tf-Lane": escaped(lane) }); }

  /** Returns the first message at or after seq on a subject with wildcards, as the stream's leader knows it; null if there is none. */
  async next(stream, subject, seq = 1) {
    try {
      return await this.jsm.streams.getMessage(stream, { seq, next_by_subj: subject });
    } catch (fault) {
      if (fault.code === 10037) return null;
      throw fault;
    }
  }

  /** Returns the stored result of a call; null if there is none yet. */
  async findResult(call) { return (await this.next(this.results, this.result(call)))?.json() ?? null; }
}

/** A lane is the first two segments of a resource key. */
export function laneOf(call) { return call.resources[0].key.split("/", 2).join("/"); }

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
