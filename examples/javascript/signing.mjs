// Signatures of calls, as docs/wire.md describes them: callers sign, workers check.
import { createHash, createPrivateKey, createPublicKey, sign, verify } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";

const WINDOW = 10 * 60 * 1000; // how far the time of a signature may be from when the server stored the call
const HASH = 32, SIGNATURE = 64; // bytes

const sha256 = (...parts) => parts.reduce((hash, part) => hash.update(part), createHash("sha256")).digest();
const leaf = (fleet, at, body) => sha256(Buffer.of(0), `toolfleet call 1\n${fleet}\n${at}\n`, body);
const signed = (root) => Buffer.concat([Buffer.from("toolfleet calls 1\n"), root]);
const idOf = (key) => sha256(key.export({ format: "der", type: "spki" }).subarray(-32)).subarray(0, 8).toString("hex");

/** Signs calls with the private key of a PEM file. Each call is signed alone: a tree of one leaf, whose root it is. */
export class Signer {
  constructor(file) {
    this.key = createPrivateKey(readFileSync(file));
    this.id = idOf(createPublicKey(this.key));
  }

  /** Returns the signer of the file, or else of the key that coordinator serve makes next to its token; null without one. */
  static find(file, creds) {
    const beside = creds && join(dirname(creds), "calls.key");
    return file ? new Signer(file) : beside && existsSync(beside) ? new Signer(beside) : null;
  }

  /** Returns the header Tf-Signed of a call that is enqueued now. */
  sign(fleet, body) {
    const at = String(Date.now()), root = leaf(fleet, at, body);
    return [this.id, at, 1, 0, Buffer.concat([root, sign(null, signed(root), this.key)]).toString("base64url")].join(" ");
  }
}

/** Checks signatures with the public keys of a PEM file, which is read once. */
export class Keys {
  constructor(file) {
    const blocks = readFileSync(file, "utf8").match(/-----BEGIN PUBLIC KEY-----[^]*?-----END PUBLIC KEY-----/g) ?? [];
    if (blocks.length === 0) throw new Error(`--call-keys ${file}: has no block "PUBLIC KEY" (PEM)`);
    if (blocks.some((block) => block.includes("Tenant:"))) throw new Error(`--call-keys ${file}: has the key of a tenant, which this example does not know`);
    this.keys = new Map(blocks.map((block) => createPublicKey(block)).map((key) => [idOf(key), key]));
  }

  /** Says why a call is not to be run; "" for one that a key has signed. stored is when the server stored it, in ms. */
  fault(fleet, value, body, stored) {
    if (!value) return "the call is not signed, and this worker runs only signed calls (--call-keys): sign it with the private key calls.key";
    const [id, at, size, index, text] = value.split(" ");
    const bytes = Buffer.from(text ?? "", "base64url"), root = bytes.subarray(0, HASH);
    const path = bytes.subarray(HASH + SIGNATURE), key = this.keys.get(id);
    if (!key) return `the call is signed with key ${JSON.stringify(id.slice(0, 16))}, which is none of this worker's (--call-keys)`;
    if (bytes.length < HASH + SIGNATURE || path.length % HASH) return "the signature of the call has another form";
    if (!leads(leaf(fleet, at, body), Number(index), Number(size), path, root)) return "the signature of the call is not that of its content";
    if (!verify(null, signed(root), key, bytes.subarray(HASH, HASH + SIGNATURE))) return "the signature of the call is not that of its key";
    if (!(Math.abs(stored - Number(at)) <= WINDOW)) return `the call was signed more than ${WINDOW / 60_000} minutes from the time at which it was enqueued: clocks differ, or it is a copy`;
    return "";
  }
}

/** Reports whether an audit path leads from a leaf to a root (RFC 9162, 2.1.3.2). */
function leads(leaf, index, size, path, root) {
  let at = index, last = size - 1, hash = leaf;
  if (!(Number.isInteger(at) && at >= 0 && at <= last && size <= 2 ** 30)) return false;
  for (let i = 0; i < path.length; i += HASH, at >>= 1, last >>= 1) {
    const sibling = path.subarray(i, i + HASH);
    if (last === 0) return false;
    if (at % 2 === 0 && at !== last) {
      hash = sha256(Buffer.of(1), hash, sibling);
      continue;
    }
    hash = sha256(Buffer.of(1), sibling, hash);
    while (at % 2 === 0 && at !== 0) { at >>= 1; last >>= 1; }
  }
  return last === 0 && hash.equals(root);
}
