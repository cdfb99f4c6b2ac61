// Gives the platform Worker, on a laptop, the bindings it has at Cloudflare: the dispatch namespace holds
// the scripts of this process, and Durable Objects live in another process that outlives it.
import platform, { AgentServices as Services, Egress } from "./platform.mjs";

export { Egress };

function objects(state, binding) {
  return {
    getByName(name) {
      const call = async (method, args) => {
        const body = JSON.stringify([binding, name, method, args]);
        const answer = await state.fetch("http://state/", { method: "POST", body });
        const { value, error } = await answer.json();
        if (error) throw new Error(error);
        return value;
      };
      // A stub is no promise: awaiting one must not look like a call.
      const get = (_, method) => (method === "then" ? undefined : (...args) => call(method, args));
      return new Proxy({}, { get });
    },
  };
}

function bindings(env) {
  const get = (name) => {
    const script = env[`script ${name}`];
    if (!script) throw new Error("Worker not found.");
    return script;
  };
  return {
    ROOT_KEYS: env.ROOT_KEYS,
    PUBLIC_URL: env.PUBLIC_URL,
    REPORTS: env.REPORTS,
    DISPATCHER: { get },
    SESSIONS: objects(env.STATE, "SESSIONS"),
    REPLAY: objects(env.STATE, "REPLAY"),
  };
}

export class AgentServices extends Services {
  constructor(ctx, env) {
    super(ctx, bindings(env));
  }
}

export default { fetch: (request, env, ctx) => platform.fetch(request, bindings(env), ctx) };
