// Keeps the platform Worker's Durable Objects for all processes of a laptop.
export { Replay, Session } from "./platform/objects.mjs";

export default {
  async fetch(request, env) {
    const [binding, name, method, args] = await request.json();
    try {
      const value = await env[binding].getByName(name)[method](...args);
      return Response.json({ value: value ?? null });
    } catch (error) {
      return Response.json({ error: error.message });
    }
  },
};
