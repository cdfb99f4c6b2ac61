// Runs the agent inside its own Worker and tells the platform what it says, one JSON object per line.
// This shares a sandbox with code we do not know, so it holds no secret and promises nothing: the
// platform Worker takes whatever comes out of here as a claim.
import { AsyncLocalStorage } from "node:async_hooks";
import { format } from "node:util";

const LONGEST_LINE = 8_192;
const invocations = new AsyncLocalStorage();
const { stringify, parse } = JSON;
const encoder = new TextEncoder();

// Before the agent's own modules run, which may keep a reference to the console.
for (const level of ["debug", "error", "info", "log", "trace", "warn"]) {
  const plain = console[level].bind(console);
  console[level] = (...values) => {
    const frames = invocations.getStore();
    if (frames) frames.log(format(...values));
    else plain(...values);
  };
}

class Frames {
  #controller = null;

  constructor(controller) {
    this.#controller = controller;
  }

  send(frame) {
    this.#controller?.enqueue(encoder.encode(stringify(frame) + "\n"));
  }

  log(line) {
    this.send({ type: "log", line: line.slice(0, LONGEST_LINE) });
  }

  end(frame) {
    this.send(frame);
    this.#controller?.close();
    this.#controller = null;
  }

  drop() {
    this.#controller = null;
  }
}

class Misuse extends Error {}

function sessionOf(id, ticket, services) {
  return Object.freeze({
    id,
    async get(key) {
      const json = await services.sessionGet(id, ticket, key);
      return json === null ? undefined : parse(json);
    },
    async put(key, value) {
      await services.sessionPut(id, ticket, key, value === undefined ? null : stringify(value));
    },
  });
}

/** Run the agent; yield its text, return its usage. */
async function* run(agent, request, context) {
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
    // The caller hung up or time is up: let the agent clean up, without waiting for it.
    Promise.resolve(iterator.return?.()).catch(() => {});
  }
}

function told(error) {
  const named = error instanceof Error && !(error instanceof Misuse);
  return named ? `${error.name}: ${error.message}` : String(error?.message ?? error);
}

function traceOf(error) {
  const lines = typeof error?.stack === "string" ? error.stack.split("\n") : [told(error)];
  // The agent's own lines, under the names its author knows.
  return lines.filter((line) => !/\b(shim|main)\.mjs\b|\(<anonymous>\)$/.test(line)).join("\n").replaceAll("bundle/", "");
}

async function tell(frames, agent, call, platform, environment) {
  const { request, ticket, traceId } = call;
  const { values, missing } = environment ? await platform.environment() : { values: {}, missing: [] };
  if (missing.length) {
    frames.log(`These secrets are required and not set: ${missing.join(", ")}.`);
    frames.end({ type: "error", errorClass: "MissingSecrets", usage: { tokens: 0 } });
    return null;
  }
  const context = Object.freeze({
    env: Object.freeze(Object.fromEntries(Object.entries(values))),
    session: sessionOf(request.sessionId, ticket, platform),
    traceId,
    capabilities: Object.freeze({ ...request.capabilities }),
    limits: Object.freeze({ ...request.limits }),
  });
  return run(agent, request, context);
}

function answer(agent, call, platform, environment) {
  let frames;
  let pieces;
  const inside = (work) => invocations.run(frames, work);
  return new ReadableStream(
    {
      start(controller) {
        frames = new Frames(controller);
      },
      // One piece per pull, so that a slow reader slows the agent down.
      async pull() {
        await inside(async () => {
          try {
            pieces ??= await tell(frames, agent, call, platform, environment);
            if (!pieces) return;
            const { value, done } = await pieces.next();
            if (done) frames.end({ type: "end", usage: value });
            else frames.send({ type: "delta", text: value });
          } catch (error) {
            frames.log(traceOf(error));
            frames.end({ type: "error", errorClass: "AgentError" });
          }
        });
      },
      cancel() {
        frames.drop();
        inside(() => pieces?.return().catch(() => {}));
      },
    },
    { highWaterMark: 1 },
  );
}

/** Make the Worker of an agent's module; throws, at deploy, when it has no function to call. */
export function serve(module, { entrypoint, environment }) {
  const agent = module.default;
  if (typeof agent !== "function") throw new TypeError(`${entrypoint} must export a function as its default.`);
  return {
    async fetch(request, env) {
      if (request.method !== "POST") return new Response(null, { status: 204 });
      return new Response(answer(agent, await request.json(), env.PLATFORM, environment));
    },
  };
}
