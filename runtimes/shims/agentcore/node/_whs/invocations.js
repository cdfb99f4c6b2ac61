// POST /invocations: one run of the agent for each request id, answered whole or as server-sent events.
// The service turns every 4xx and 5xx into one without a body, so failures are told in answers of 200.
import { createHash } from "node:crypto";
import { once } from "node:events";
import { Failure } from "./failure.js";
import { Session } from "./session.js";
import { allowedIn, ToolError, Tools, ToolUnavailableError } from "./tools.js";

const LONGEST_TEXT = 4_000_000;
const MOST_TOKENS = 1_000_000_000;
const MOST_CALLS = 1_000_000;
const MOST_SEEN = 100_000;
const MOST_LINES = 1_002;
const PROBE_SECONDS = 20;
const MOST_SECONDS = 900;

const claimed = (value, most) => (Number.isSafeInteger(value) && value >= 0 && value <= most ? value : null);
const event = (name, data) => `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;

/** Wait for a promise, or for the signal's reason. */
function raced(promise, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason);
    if (signal.aborted) stop();
    signal.addEventListener("abort", stop, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}

/** What the control plane sent, or null when it cannot have been sent by it. Pure. */
export function parsed(text) {
  let call;
  try {
    call = JSON.parse(text);
  } catch {
    return null;
  }
  if (call?.probe === true) return call;
  const { requestId, timeoutSeconds: seconds, request } = call ?? {};
  const isWhole =
    /^inv_[0-9a-f]{32}$/.test(requestId) && seconds > 0 && seconds <= MOST_SECONDS &&
    request !== null && typeof request === "object";
  return isWhole ? call : null;
}

/** The name under which a session's memories are kept: its own id, if the service would take it. Pure. */
export function memorySessionOf(session, request) {
  if (/^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$/.test(session ?? "")) return session;
  return `s${createHash("sha256").update(String(request.sessionId)).digest("hex")}`;
}

function described(error) {
  if (error instanceof ToolUnavailableError) return { capability: error.capability, message: error.why };
  if (error instanceof ToolError) return { name: "ToolError", message: error.message, code: error.code };
  return { name: "Error", message: error.message };
}

/** One run of the agent: its text piece by piece, then what it used and how it failed, if it did. */
class Run {
  failure = null;
  logs = [];
  #claim = {};
  #stop = new AbortController();
  #channel = null;
  #over = false;

  constructor(call, { agent, secrets, session, tools }) {
    Object.assign(this, { call, agent, secrets, session, tools });
  }

  get signal() {
    return this.#stop.signal;
  }

  hangUp() {
    this.#stop.abort(new Failure("ClientClosed", "The caller hung up."));
  }

  async *text() {
    const { timeoutSeconds: seconds } = this.call;
    const timeout = new Failure("Timeout", `The agent did not finish within ${seconds} seconds.`);
    const timer = setTimeout(() => this.#stop.abort(timeout), seconds * 1000);
    try {
      yield* this.#pieces();
    } catch (error) {
      this.failure = error instanceof Failure ? error : new Failure("AgentCrashed", "The agent stopped unexpectedly.");
      this.logs.push(...this.failure.logs);
    } finally {
      clearTimeout(timer);
      this.#over = true;
      if (this.#channel) this.#channel.stop();
      else if (this.signal.aborted) this.agent.abandon();
      await this.tools.close();
    }
  }

  async *#pieces() {
    const { requestId, request, traceId = null } = this.call;
    const { signal } = this;
    const env = await raced(this.secrets.values(), signal);
    const context = { env, traceId, capabilities: this.tools.allowed };
    const opening = this.agent.open(requestId, { request, context }, (frame) => this.#heard(frame));
    this.#channel = await raced(opening, signal);
    let size = 0;
    for (;;) {
      const frame = await raced(this.#channel.pull(), signal);
      if (frame.type === "end") {
        this.#claim = frame.usage ?? {};
        return;
      }
      if (frame.type !== "delta" || typeof frame.text !== "string") {
        throw new Failure("AgentError", "The agent failed.");
      }
      size += frame.text.length;
      if (size > LONGEST_TEXT) throw new Failure("AnswerTooLarge", "The agent's answer is too large.");
      if (frame.text) yield frame.text;
    }
  }

  #heard(frame) {
    if (frame.type === "call") this.#answer(frame);
    else if (typeof frame.line === "string" && !this.#over && this.logs.length < MOST_LINES) this.logs.push(frame.line);
  }

  async #answer({ call, method, values }) {
    const { session, tools } = this;
    const does = {
      "session.read": (key) => session.read(key),
      "session.write": (key, json) => session.write(key, json),
      "codeInterpreter.run": (code, options) => tools.runCode(code, options),
      "browser.open": () => tools.openBrowser(),
      "browser.close": (sessionId) => tools.closeBrowser(sessionId),
      "memory.add": (text, options) => tools.remember(text, options),
      "memory.recent": (count) => tools.recall(count),
    };
    let reply;
    try {
      reply = { value: (await does[method](...values)) ?? null };
    } catch (error) {
      reply = { error: described(error) };
    }
    this.#channel?.send({ type: "reply", call, ...reply });
  }

  /** What the run used, by its own claim and by what was started for it; tokens are null where it told none. */
  usage() {
    const ran = this.failure?.ran ?? true;
    const { toolCalls, ...used } = this.tools.usage;
    return {
      tokens: ran ? claimed(this.#claim.tokens, MOST_TOKENS) : 0,
      toolCalls: Math.max(toolCalls, claimed(this.#claim.toolCalls, MOST_CALLS) ?? 0),
      ...used,
    };
  }

  ending() {
    return { usage: this.usage(), logs: this.logs };
  }
}

/** Takes the invocations of one machine. */
export class Invocations {
  running = 0;
  #seen = new Set();
  #session = new Session();

  constructor(agent, secrets, aws, env) {
    Object.assign(this, { agent, secrets, aws });
    this.ids = {
      codeInterpreter: env.WHS_CODE_INTERPRETER_ID,
      browser: env.WHS_BROWSER_ID,
      memory: env.WHS_MEMORY_ID,
    };
  }

  /** Answer one request; a body of null was too large. */
  async take(text, { session, streams, response }) {
    const call = text === null ? null : parsed(text);
    if (call?.probe) {
      await this.#probe(response);
      return;
    }
    if (!call) {
      refuse(response, streams, new Failure("BadRequest", "The request cannot be read."));
      return;
    }
    if (!this.#isFirst(call.requestId)) {
      refuse(response, streams, new Failure("Repeated", "This call was made before."));
      return;
    }
    this.running += 1;
    try {
      const run = this.#run(call, session);
      response.on("close", () => response.writableFinished || run.hangUp());
      await (streams ? stream(run, response) : whole(run, response));
    } finally {
      this.running -= 1;
    }
  }

  #run(call, session) {
    const tools = new Tools(this.aws, {
      ids: this.ids,
      allowed: allowedIn(call.request, this.ids),
      name: call.requestId,
      seconds: call.timeoutSeconds,
      memorySession: memorySessionOf(session, call.request),
    });
    return new Run(call, { agent: this.agent, secrets: this.secrets, session: this.#session, tools });
  }

  #isFirst(requestId) {
    if (this.#seen.has(requestId)) return false;
    this.#seen.add(requestId);
    if (this.#seen.size > MOST_SEEN) this.#seen.delete(this.#seen.values().next().value);
    return true;
  }

  async #probe(response) {
    this.running += 1;
    const late = new Failure("LoadError", "The agent does not load.", {
      logs: [`The agent did not load within ${PROBE_SECONDS} seconds.`],
    });
    const stop = new AbortController();
    const timer = setTimeout(() => stop.abort(late), PROBE_SECONDS * 1000);
    try {
      await raced(this.agent.load(), stop.signal);
      answer(response, { ok: true });
    } catch (error) {
      if (error === late) this.agent.abandon();
      answer(response, { error: errorOf(error), logs: error.logs });
    } finally {
      clearTimeout(timer);
      this.running -= 1;
    }
  }
}

const errorOf = ({ errorClass, message }) => ({ errorClass, message });
const NOTHING = { usage: { tokens: 0, toolCalls: 0, codeExecutionMs: 0, browserSessions: 0 }, logs: [] };
const STREAM = { "content-type": "text/event-stream", "cache-control": "no-store" };

function answer(response, body) {
  const text = JSON.stringify(body);
  response.writeHead(200, { "content-type": "application/json", "content-length": Buffer.byteLength(text) });
  response.end(text);
}

function refuse(response, streams, failure) {
  if (streams) response.writeHead(200, STREAM).end(event("failure", { ...errorOf(failure), ...NOTHING }));
  else answer(response, { error: errorOf(failure), ...NOTHING });
}

async function whole(run, response) {
  const pieces = [];
  for await (const piece of run.text()) pieces.push(piece);
  if (run.failure) answer(response, { error: errorOf(run.failure), ...run.ending() });
  else answer(response, { text: pieces.join(""), ...run.ending() });
}

async function stream(run, response) {
  response.writeHead(200, STREAM);
  response.flushHeaders();
  for await (const text of run.text()) {
    // A reader that does not read holds the agent up, instead of filling our memory, until it hangs up or time is up.
    if (!response.write(event("delta", { text })) && !run.signal.aborted) {
      await once(response, "drain", { signal: run.signal }).catch(() => {});
    }
  }
  const { failure } = run;
  response.end(failure ? event("failure", { ...errorOf(failure), ...run.ending() }) : event("final", run.ending()));
}
