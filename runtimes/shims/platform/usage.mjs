// What an invocation used, as the platform saw it, and the signed report of it.
import { deriveKey, sign } from "./signing.mjs";

const MOST_TOKENS = 1_000_000_000;
const MOST_CALLS = 1_000_000;
const LONGEST_LOG = 65_536;
const MOST_LINES = 1_000;
const RETRY_SECONDS = [1, 3, 8];
const encoder = new TextEncoder();

const claimed = (value, most) => (Number.isSafeInteger(value) && value >= 0 && value <= most ? value : null);

/** Measures one invocation. What the agent says about itself is a claim: checked, or ignored. */
export class Meter {
  #began = Date.now();
  #bytes;
  #logged = 0;
  #claim = {};
  #milliseconds = null;
  logs = [];

  constructor(input) {
    this.#bytes = encoder.encode(input).length;
  }

  text(text) {
    this.#bytes += encoder.encode(text).length;
  }

  claim(usage) {
    if (usage !== null && typeof usage === "object") this.#claim = usage;
  }

  log(line) {
    const left = LONGEST_LOG - this.#logged;
    if (left <= 0 || this.logs.length >= MOST_LINES) return;
    this.logs.push(line.slice(0, left));
    this.#logged += line.length + 1;
    if (this.#logged >= LONGEST_LOG || this.logs.length >= MOST_LINES) this.logs.push("(the rest is not kept)");
  }

  stop() {
    this.#milliseconds ??= Date.now() - this.#began;
  }

  /**
   * The figures of the answer and of the report: one and the same. Milliseconds are by the clock and
   * include waiting. A claim of 0 tokens stays 0; without one they are estimated from the text.
   */
  usage() {
    const tokens = claimed(this.#claim.tokens, MOST_TOKENS);
    return {
      tokens: tokens ?? Math.ceil(this.#bytes / 4),
      computeMs: this.#milliseconds ?? Date.now() - this.#began,
      toolCalls: claimed(this.#claim.toolCalls, MOST_CALLS) ?? 0,
      codeExecutionMs: 0,
      browserSessions: 0,
      tokensEstimated: tokens === null,
    };
  }
}

/** Post the signed report of an invocation; tries again for a while when nobody takes it. */
export async function report(env, call, target, usage, errorClass) {
  const { tokensEstimated, ...measures } = usage;
  const body = JSON.stringify({
    eventId: `evt_${call.invocation.slice(4)}`,
    invocationId: call.invocation,
    accountId: target.account,
    agentId: target.agent,
    deploymentId: call.deployment,
    runtimeProvider: "cloudflare",
    timestamp: new Date().toISOString(),
    requests: 1,
    ...measures,
    errors: errorClass ? 1 : 0,
    errorClass,
    provider: tokensEstimated ? { tokensEstimated: true } : {},
    traceId: call.trace,
  });
  const key = await deriveKey(env, call.rootKey, "telemetry", call.deployment);
  const init = {
    method: "POST",
    body,
    headers: {
      "content-type": "application/json",
      "x-telemetry-deployment-id": call.deployment,
      "x-telemetry-signature": `v1=${await sign(key, body)}`,
    },
  };
  for (const seconds of [...RETRY_SECONDS, null]) {
    if (await taken(env, init)) return;
    if (seconds !== null) await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  }
  console.error(`The report of ${call.invocation} was not taken.`);
}

async function taken(env, init) {
  try {
    // REPORTS leads to PUBLIC_URL where that is no public address, as on a laptop.
    const url = `${env.PUBLIC_URL}/v1/telemetry/report`;
    const answer = await (env.REPORTS ? env.REPORTS.fetch(url, init) : fetch(url, init));
    await answer.body?.cancel();
    // What is refused for good is not worth repeating.
    return answer.ok || (answer.status >= 400 && answer.status < 500 && answer.status !== 429);
  } catch {
    return false;
  }
}
