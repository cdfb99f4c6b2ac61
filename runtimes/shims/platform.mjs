// The platform Worker: the only address of all agents on this runtime. It lets in what the gateway
// signed, once; dispatches to the agent's own Worker; owns sessions, measures, and signs the report.
import { WorkerEntrypoint } from "cloudflare:workers";
import { Egress } from "./platform/egress.mjs";
import { deltas, Failure, raced } from "./platform/frames.mjs";
import { Replay, Session } from "./platform/objects.mjs";
import { deriveKey, fits, join, sign } from "./platform/signing.mjs";
import { Meter, report } from "./platform/usage.mjs";

export { Egress, Replay, Session };

const VALID_SECONDS = 60;
const LARGEST_BODY = 4 * 1024 * 1024;
const MOST_CPU_MS = 30_000;
const LIMITS = { cpuMs: 1_000, subRequests: 1 };
const limitsFor = (target) => ({ cpuMs: Math.min(target.timeoutSeconds * 1000, MOST_CPU_MS), subRequests: 50 });
const encoder = new TextEncoder();

const scriptOf = (deployment) => `d-${deployment.slice(4)}`;
const vaultOf = (agent) => `s-${agent.slice(4)}`;
const sessionOf = (agent, session) => `${agent}/${session}`;
const isNotThere = (error) => /worker not found/i.test(error?.message);
const ticketOf = async (env, rootKey, agent, session) =>
  sign(await deriveKey(env, rootKey, "session", agent), sessionOf(agent, session));

/**
 * What an agent's Worker may ask for, beside the internet. `props` are set at deploy, by us, and the agent
 * cannot see or change them: so it reaches its own secrets, and sessions it was invoked with, only.
 */
export class AgentServices extends WorkerEntrypoint {
  /** The declared secrets that are set, and the required ones that are not. */
  async environment() {
    const { requiredKeys, optionalKeys } = this.ctx.props;
    const names = [...requiredKeys, ...optionalKeys];
    if (!names.length) return { values: {}, missing: [] };
    const values = await this.#kept(names);
    return { values, missing: requiredKeys.filter((name) => !Object.hasOwn(values, name)) };
  }

  /** The JSON text kept under a key in a session, or null. */
  async sessionGet(session, ticket, key) {
    return (await this.#session(session, ticket)).read(key);
  }

  /** Keep a JSON text under a key in a session; null forgets it. */
  async sessionPut(session, ticket, key, json) {
    return (await this.#session(session, ticket)).write(key, json);
  }

  async #kept(names) {
    const { agent } = this.ctx.props;
    try {
      const vault = this.env.DISPATCHER.get(vaultOf(agent), {}, { limits: LIMITS });
      const answer = await vault.fetch("https://vault/", { method: "POST", body: JSON.stringify(names) });
      return await answer.json();
    } catch (error) {
      if (isNotThere(error)) return {};
      throw error;
    }
  }

  async #session(session, ticket) {
    const { agent, rootKey } = this.ctx.props;
    const key = await deriveKey(this.env, rootKey, "session", agent);
    if (typeof session !== "string" || !(await fits(key, sessionOf(agent, session), ticket))) {
      throw new Error("This is not a session of this invocation.");
    }
    return this.env.SESSIONS.getByName(sessionOf(agent, session));
  }
}

/** Check the gateway's signature and that this is its first use; throws Failure 401 otherwise. */
async function admit(request, raw, env) {
  const header = (name) => request.headers.get(name) ?? "";
  const call = {
    deployment: header("x-whs-deployment"),
    rootKey: header("x-whs-key"),
    invocation: header("x-whs-invocation"),
    trace: header("x-whs-trace"),
  };
  const timestamp = header("x-whs-timestamp");
  const [scheme, signature] = header("x-whs-signature").split("=");
  const wellFormed =
    /^dep_[0-9a-f]{32}$/.test(call.deployment) && /^inv_[0-9a-f]{32}$/.test(call.invocation) &&
    /^\d{1,12}$/.test(timestamp) && scheme === "v1";
  const key = wellFormed ? await deriveKey(env, call.rootKey, "invoke", call.deployment) : null;
  const data = join(`${timestamp}.${call.deployment}.${call.invocation}.`, raw);
  if (!key || !(await fits(key, data, signature))) {
    throw new Failure("BadSignature", "This call is not signed by the gateway.", 401);
  }
  const now = Math.floor(Date.now() / 1000);
  if (Math.abs(now - Number(timestamp)) > VALID_SECONDS) {
    throw new Failure("StaleSignature", "This call's signature is too old, or from the future.", 401);
  }
  const shard = env.REPLAY.getByName(`replay-${call.invocation.slice(-1)}`);
  if (!(await shard.claim(call.invocation, now))) {
    throw new Failure("Repeated", "This call was made before.", 401);
  }
  if (!/^trc_[0-9a-f]{32}$/.test(call.trace)) call.trace = null;
  return call;
}

function agentOf(env, call, target) {
  return env.DISPATCHER.get(scriptOf(call.deployment), {}, { limits: limitsFor(target), outbound: {} });
}

function crash(error) {
  if (error instanceof Failure) return error;
  if (isNotThere(error)) {
    return new Failure("NotDeployed", "This deployment is not there.", 404);
  }
  return new Failure("AgentCrashed", "The agent stopped unexpectedly.");
}

const inputOf = (request) => (request.input?.messages ?? []).map((message) => message.content).join("\n");

/** One run of an agent: its text piece by piece, then what it used and how it failed, if it did. */
class Run {
  failure = null;
  #stop = new AbortController();

  constructor(env, call, envelope, clientSignal) {
    this.env = env;
    this.call = call;
    this.envelope = envelope;
    this.meter = new Meter(inputOf(envelope.request));
    clientSignal?.addEventListener("abort", () => this.hangUp());
  }

  hangUp() {
    this.#stop.abort(new Failure("ClientClosed", "The caller hung up."));
  }

  async *text() {
    const { request, target } = this.envelope;
    const signal = this.#stop.signal;
    const seconds = target.timeoutSeconds;
    const timeout = new Failure("Timeout", `The agent did not finish within ${seconds} seconds.`, 504);
    const timer = setTimeout(() => this.#stop.abort(timeout), seconds * 1000);
    try {
      const ticket = await ticketOf(this.env, this.call.rootKey, target.agent, request.sessionId);
      const body = JSON.stringify({ request, ticket, traceId: this.call.trace });
      const agent = agentOf(this.env, this.call, target);
      const answer = await raced(agent.fetch("https://agent/invoke", { method: "POST", body, signal }), signal);
      if (!answer.ok || !answer.body) throw new Failure("AgentCrashed", "The agent stopped unexpectedly.");
      yield* deltas(answer.body, signal, this.meter);
    } catch (error) {
      this.failure = crash(error);
    } finally {
      clearTimeout(timer);
      this.meter.stop();
    }
  }

  /** Send the report, unless the agent was never there. */
  async report() {
    if (this.failure?.errorClass === "NotDeployed") return;
    await report(this.env, this.call, this.envelope.target, this.meter.usage(), this.failure?.errorClass ?? null);
  }

  ending() {
    return { usage: this.meter.usage(), logs: this.meter.logs };
  }
}

const answered = (body, status = 200) => Response.json(body, { status, headers: { "x-whs-platform": "1" } });
const refused = (failure, ending = {}) =>
  answered({ error: { errorClass: failure.errorClass, message: failure.message }, ...ending }, failure.status);

async function invoke(run, ctx) {
  const work = (async () => {
    const pieces = [];
    for await (const piece of run.text()) pieces.push(piece);
    return pieces.join("");
  })();
  // Also when the caller is gone by then.
  ctx.waitUntil(work.then(() => run.report()));
  const text = await work;
  return run.failure ? refused(run.failure, run.ending()) : answered({ text, ...run.ending() });
}

const event = (name, data) => encoder.encode(`event: ${name}\ndata: ${JSON.stringify(data)}\n\n`);

async function stream(run, ctx) {
  let began = false;
  const pieces = run.text();
  const opening = pieces.next();
  const { readable, writable } = new TransformStream();
  const writer = writable.getWriter();
  const tell = (async () => {
    try {
      for (let next = await opening; !next.done; next = await pieces.next()) {
        await writer.write(event("delta", { text: next.value }));
        began = true;
      }
      const { failure } = run;
      if (failure && !began) return; // told as a plain HTTP error, below
      const failed = failure && { errorClass: failure.errorClass, message: failure.message };
      await writer.write(failed ? event("failure", { ...failed, ...run.ending() }) : event("final", run.ending()));
      await writer.close();
    } catch {
      // The caller's end is closed; let the agent's end know.
      run.hangUp();
      while (!(await pieces.next()).done);
    }
  })();
  ctx.waitUntil(tell.then(() => run.report()));
  if ((await opening).done && run.failure) return refused(run.failure, run.ending());
  const headers = { "content-type": "text/event-stream", "cache-control": "no-store", "x-whs-platform": "1" };
  return new Response(readable, { headers });
}

async function health(env, call, target) {
  try {
    // The agent's Worker answers this without running the agent.
    const answer = await agentOf(env, call, target).fetch("https://agent/health", { signal: AbortSignal.timeout(10_000) });
    if (answer.ok) return answered({ healthy: true });
    throw new Failure("AgentCrashed", "The agent does not start.");
  } catch (error) {
    return refused(crash(error));
  }
}

async function handle(request, env, ctx) {
  if (request.method !== "POST") throw new Failure("BadRequest", "Only POST.", 405);
  if (Number(request.headers.get("content-length")) > LARGEST_BODY) {
    throw new Failure("BadRequest", "This call is too large.", 413);
  }
  const raw = new Uint8Array(await request.arrayBuffer());
  const call = await admit(request, raw, env);
  // What was signed says what to do; the path is only for people who read logs.
  const envelope = JSON.parse(new TextDecoder().decode(raw));
  switch (envelope.do) {
    case "invoke":
      return invoke(new Run(env, call, envelope, request.signal), ctx);
    case "stream":
      return stream(new Run(env, call, envelope, request.signal), ctx);
    case "health":
      return health(env, call, envelope.target);
    case "stopSession":
      await env.SESSIONS.getByName(sessionOf(envelope.target.agent, envelope.request.sessionId)).clear();
      return answered({ stopped: true });
    default:
      throw new Failure("BadRequest", "Unknown call.", 400);
  }
}

export default {
  async fetch(request, env, ctx) {
    try {
      return await handle(request, env, ctx);
    } catch (error) {
      if (error instanceof Failure) return refused(error);
      console.error(error?.stack ?? String(error));
      return refused(new Failure("Platform", "Something went wrong on our side."));
    }
  },
};
