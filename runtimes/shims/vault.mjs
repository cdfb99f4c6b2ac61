// Holds the secrets of one agent as its own bindings, in a Worker that only the platform Worker can
// reach. It outlives deployments, so a new version or a rollback neither loses a secret nor revives one.
export default {
  async fetch(request, env) {
    const names = await request.json();
    const set = names.filter((name) => Object.hasOwn(env, name) && typeof env[name] === "string");
    return Response.json(Object.fromEntries(set.map((name) => [name, env[name]])));
  },
};
