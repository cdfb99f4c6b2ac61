// Keys are derived from root keys and never stored (RFC 5869); the same derivation as webhost/signing.py.

const encoder = new TextEncoder();
const MOST_CACHED = 1000;
const derived = new Map();

/** Bytes of a hex text, or null when it is not one. */
export function fromHex(text) {
  if (text.length % 2 || !/^[0-9a-f]*$/.test(text)) return null;
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

/** Lower-case hex of bytes. */
export function toHex(bytes) {
  return Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function rootKey(env, id) {
  for (const item of env.ROOT_KEYS.split(",")) {
    const [name, hex] = item.trim().split(":");
    if (name === id) return fromHex(hex);
  }
  return null;
}

/** The HMAC key of one subject for one purpose, or null when the root key is not one of ours. */
export async function deriveKey(env, rootKeyId, purpose, subject) {
  const label = `${rootKeyId}/${purpose}:${subject}`;
  let key = derived.get(label);
  if (key) return key;
  const root = rootKey(env, rootKeyId);
  if (!root) return null;
  const material = await crypto.subtle.importKey("raw", root, "HKDF", false, ["deriveBits"]);
  const info = encoder.encode(`${purpose}:${subject}`);
  const parameters = { name: "HKDF", hash: "SHA-256", salt: new Uint8Array(0), info };
  const bits = await crypto.subtle.deriveBits(parameters, material, 256);
  key = await crypto.subtle.importKey("raw", bits, { name: "HMAC", hash: "SHA-256" }, false, ["sign", "verify"]);
  if (derived.size >= MOST_CACHED) derived.clear();
  derived.set(label, key);
  return key;
}

/** Lower-case hex HMAC-SHA256 of text or bytes. */
export async function sign(key, data) {
  return toHex(await crypto.subtle.sign("HMAC", key, typeof data === "string" ? encoder.encode(data) : data));
}

/** Whether a hex signature fits, compared in constant time by WebCrypto itself. */
export async function fits(key, data, signature) {
  const bytes = typeof signature === "string" ? fromHex(signature) : null;
  if (!bytes || bytes.length !== 32) return false;
  return crypto.subtle.verify("HMAC", key, bytes, typeof data === "string" ? encoder.encode(data) : data);
}

/** Bytes one after another. */
export function join(...parts) {
  const chunks = parts.map((part) => (typeof part === "string" ? encoder.encode(part) : part));
  const whole = new Uint8Array(chunks.reduce((size, chunk) => size + chunk.length, 0));
  let at = 0;
  for (const chunk of chunks) {
    whole.set(chunk, at);
    at += chunk.length;
  }
  return whole;
}
