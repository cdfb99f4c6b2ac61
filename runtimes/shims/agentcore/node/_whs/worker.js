// Runs the agent in a thread of its own. This side shares everything with code we do not know, so all it
// tells the other side is a claim; `runtimes/shims/user.mjs` is the same for Cloudflare.
import { AsyncLocalStorage } from "node:async_hooks";
import { format } from "node:util";
import { parentPort, workerData } from "node:worker_threads";
import { Logs } from "./logs.js";
import { ToolError, ToolUnavailableError } from "./tools.js";

const ROOT = new URL("../bundle/", import.meta.url);
const OURS = new URL("./", import.meta.url).href;
const invocations = new AsyncLocalStorage();
const { stringify, parse } = JSON;
const send = parentPort.postMessage.bind(parentPort);

// Before the agent's own modules run, which may keep a reference to the console.
for (const level of ["debug", "error", "info", "log", "trace", "warn"]) {
  const plain = console[level].bind(console);
  console[level] = (...values) => {
    const run = invocations.getStore();
    if (run) run.log(format(...values));
    else plain(...values);
  };
}
// As on the other runtime, a promise that nobody waited for ends nothing.
process.on("unhandledRejection", (error) => console.error(traceOf(error)));

class Misuse extends Error {}

/** Run the agent; yield its text, return its usage. */
async function* runs(agent, request, context) {
  const result = await agent(request, context);
  if (typeof result === "string") {
    yield result;
    return undefined;
  }
  const iterator = result?.[Symbol.asyncIterator]?.() ?? (typeof result?.next === "function" ? result : null);
  if (!iterator) {
    if (typeof result?.text !== "string") {
      throw new Misuse("An agent returns text, an object with `text`, or yields text.");
    }
    yield result.text;
    return result.usage;
  }
  try {
    for (;;) {
      const { value, done } = await iterator.next();
      if (done) return value?.usage;
      if (typeof value !== "string") throw new Misuse(`An agent yields text, and this one yielded ${typeof value}.`);
      yield value;
    }
  } finally {
    // The caller hung up or time is up: let the agent clean up. Nobody but this run waits for it.
    await (async () => iterator.return?.())().catch(() => {});
  }
}

function told(error) {
  const named = error instanceof Error && !(error instanceof Misuse);
  return named ? `${error.name}: ${error.message}` : String(error?.message ?? error);
}

function traceOf(error) {
  const lines = typeof error?.stack === "string" ? error.stack.split("\n") : [told(error)];
  // The agent's own lines, under the names its author knows.
  const own = lines.filter((line) => !line.includes(OURS) && !/\bnode:internal\b|\(<anonymous>\)$/.test(line));
  return own.join("\n").replaceAll(ROOT.href, "").replaceAll(decodeURIComponent(ROOT.pathname), "");
}

/** One invocation of the agent. */
class Run {
  #id;
  #logs = new Logs();
  #pieces;
  #calls = new Map();
  #made = 0;

  constructor(id, agent, { request, context }) {
    this.#id = id;
    this.#inside(() => {
      this.#pieces = runs(agent, request, this.#context(request, context));
    });
  }

  log(line) {
    for (const kept of this.#logs.add(line)) this.#send({ type: "log", line: kept });
  }

  /**
   * Answer with the next piece, the end, or the error; one for each pull, so a slow reader slows the agent
   * down. Says whether that was the last.
   */
  async pull() {
    return this.#inside(async () => {
      try {
        const { value, done } = await this.#pieces.next();
        this.#send(done ? { type: "end", usage: value } : { type: "delta", text: value });
        return done;
      } catch (error) {
        this.log(traceOf(error));
        this.#send({ type: "error" });
        return true;
      }
    });
  }

  /** Say that this was heard, have the agent clean up when it gets to it, and say when that is done. */
  async stop() {
    this.#send({ type: "stopped" });
    await this.#inside(() => this.#pieces.return().catch(() => {}));
    this.#send({ type: "closed" });
  }

  /** Hand over what the other side answered to a call. */
  reply({ call, value, error }) {
    const { resolve, reject } = this.#calls.get(call);
    this.#calls.delete(call);
    if (error) reject(made(error));
    else resolve(value);
  }

  #inside(work) {
    return invocations.run(this, work);
  }

  #send(frame) {
    send(stringify({ run: this.#id, ...frame }));
  }

  #call(method, ...values) {
    return new Promise((resolve, reject) => {
      const call = (this.#made += 1);
      this.#calls.set(call, { resolve, reject });
      this.#send({ type: "call", call, method, values });
    });
  }

  #context(request, { env, traceId, capabilities }) {
    const call = this.#call.bind(this);
    const openBrowser = async () => {
      const session = await call("browser.open");
      return Object.freeze({ ...session, close: () => call("browser.close", session.sessionId) });
    };
    return Object.freeze({
      env: Object.freeze(env),
      session: Object.freeze({
        id: request.sessionId,
        async get(key) {
          const json = await call("session.read", key);
          return json === null ? undefined : parse(json);
        },
        put: (key, value) => call("session.write", key, value === undefined ? null : stringify(value)),
      }),
      traceId,
      capabilities: Object.freeze(capabilities),
      limits: Object.freeze({ ...request.limits }),
      tools: Object.freeze({
        codeInterpreter: Object.freeze({ run: (code, options) => call("codeInterpreter.run", code, options ?? {}) }),
        browser: Object.freeze({ open: openBrowser }),
      }),
      memory: Object.freeze({
        add: (text, options) => call("memory.add", text, options ?? {}),
        recent: (count) => call("memory.recent", count ?? 10),
      }),
    });
  }
}

/** The error that the other side described. */
function made({ name, message, code, capability }) {
  if (capability) return new ToolUnavailableError(capability, message);
  return name === "ToolError" ? new ToolError(message, code) : new Error(message);
}

async function load() {
  const module = await import(new URL(workerData, ROOT).href);
  if (typeof module.default !== "function") throw new Misuse(`${workerData} must export a function as its default.`);
  return module.default;
}

function serve(agent) {
  const running = new Map();
  const does = {
    start: (id, call) => running.set(id, new Run(id, agent, call)),
    async pull(id) {
      if (await running.get(id)?.pull()) running.delete(id);
    },
    reply: (id, answer) => running.get(id)?.reply(answer),
    async stop(id) {
      await running.get(id)?.stop();
      running.delete(id);
    },
  };
  parentPort.on("message", (text) => {
    const { run, type, ...rest } = parse(text);
    does[type](run, rest);
  });
  send(stringify({ type: "loaded" }));
}

await load().then(serve, (error) => send(stringify({ type: "unloadable", line: traceOf(error) })));
