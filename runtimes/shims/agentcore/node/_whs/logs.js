const LONGEST_LINE = 8_192;
const LONGEST_LOG = 65_536;
const MOST_LINES = 1_000;

/** Bounds what one invocation prints. */
export class Logs {
  #lines = 0;
  #size = 0;
  #full = false;

  /** What to keep of a line: itself, a part of it, a last remark, or nothing. */
  add(line) {
    if (this.#full) return [];
    const kept = [String(line).slice(0, Math.min(LONGEST_LINE, LONGEST_LOG - this.#size))];
    this.#lines += 1;
    this.#size += kept[0].length + 1;
    this.#full = this.#size >= LONGEST_LOG || this.#lines >= MOST_LINES;
    return this.#full ? [...kept, "(the rest is not kept)"] : kept;
  }
}
