const MOST_KEYS = 256;
const LONGEST_KEY = 128;
const LONGEST_VALUE = 100_000;

/** What an agent keeps for its session: JSON texts, for as long as this machine lives. One machine is one session. */
export class Session {
  #kept = new Map();

  /** The JSON text kept under a key, or null. */
  read(key) {
    return this.#kept.get(key) ?? null;
  }

  /** Keep a JSON text under a key; null forgets it. Throws when it is too much. */
  write(key, json) {
    if (typeof key !== "string" || !key || key.length > LONGEST_KEY) {
      throw new Error(`A session key is text of 1 to ${LONGEST_KEY} characters.`);
    }
    if (json === null) {
      this.#kept.delete(key);
      return;
    }
    if (typeof json !== "string" || json.length > LONGEST_VALUE) {
      throw new Error(`A session value is at most ${LONGEST_VALUE} characters as JSON.`);
    }
    if (this.#kept.size >= MOST_KEYS && !this.#kept.has(key)) {
      throw new Error(`A session keeps at most ${MOST_KEYS} keys.`);
    }
    this.#kept.set(key, json);
  }
}
