// What outlives an invocation: an agent's sessions, and which invocations were already seen.
import { DurableObject } from "cloudflare:workers";

const MOST_KEYS = 256;
const LONGEST_KEY = 128;
const LONGEST_VALUE = 100_000;
const DAY = 86_400_000;
const SESSION_DAYS = 30;

/** One session of one agent: a small store of JSON values, forgotten 30 days after its last change. */
export class Session extends DurableObject {
  /** The JSON text kept under a key, or null. */
  async read(key) {
    return (await this.ctx.storage.get(`v:${key}`)) ?? null;
  }

  /** Keep a JSON text under a key; null forgets it. Throws when it is too much. */
  async write(key, json) {
    if (typeof key !== "string" || !key || key.length > LONGEST_KEY) {
      throw new Error(`A session key is text of 1 to ${LONGEST_KEY} characters.`);
    }
    if (json === null) {
      await this.ctx.storage.delete(`v:${key}`);
      return;
    }
    if (typeof json !== "string" || json.length > LONGEST_VALUE) {
      throw new Error(`A session value is at most ${LONGEST_VALUE} characters as JSON.`);
    }
    const kept = await this.ctx.storage.list({ prefix: "v:", limit: MOST_KEYS });
    if (kept.size >= MOST_KEYS && !kept.has(`v:${key}`)) {
      throw new Error(`A session keeps at most ${MOST_KEYS} keys.`);
    }
    await this.ctx.storage.put(`v:${key}`, json);
    const alarm = await this.ctx.storage.getAlarm();
    if (alarm === null || alarm < Date.now() + (SESSION_DAYS - 1) * DAY) {
      await this.ctx.storage.setAlarm(Date.now() + SESSION_DAYS * DAY);
    }
  }

  /** Forget everything, for good. */
  async clear() {
    await this.ctx.storage.deleteAlarm();
    await this.ctx.storage.deleteAll();
  }

  async alarm() {
    await this.ctx.storage.deleteAll();
  }
}

const KEPT_SECONDS = 180; // longer than a signature is valid, in both directions
const CLAIMS_PER_SWEEP = 200;

/** Remembers invocation ids for as long as their signatures would be accepted. */
export class Replay extends DurableObject {
  #claims = 0;

  constructor(ctx, env) {
    super(ctx, env);
    ctx.storage.sql.exec("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID");
  }

  /** True the first time an id is claimed, false ever after. A Durable Object runs one at a time. */
  claim(id, now) {
    const sql = this.ctx.storage.sql;
    if (this.#claims++ % CLAIMS_PER_SWEEP === 0) sql.exec("DELETE FROM seen WHERE at < ?", now - KEPT_SECONDS);
    return sql.exec("INSERT OR IGNORE INTO seen (id, at) VALUES (?, ?) RETURNING id", id, now).toArray().length === 1;
  }
}
