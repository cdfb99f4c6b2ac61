// Does what its prompt says; agent.py does the same.
const pause = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

const does = {
  say: (rest) => rest,
  object: (rest) => ({ text: rest, usage: { tokens: 12 } }),
  claim: (rest) => ({ text: "claimed", usage: JSON.parse(rest) }),
  async later(rest) {
    await pause(0.05);
    return { text: rest };
  },
  *words(rest) {
    yield* rest.split(" ");
    return { usage: { tokens: 3 } };
  },
  async *slowly(rest) {
    for (const word of rest.split(" ")) {
      yield word;
      await pause(0.15);
    }
  },
  nothing: () => null,
  number: () => ({ text: 5 }),
  *yields() {
    yield "a";
    yield { type: "end", usage: { tokens: 0 } };
  },
  throw(rest) {
    throw new TypeError(rest);
  },
  async *breaks(rest) {
    yield "a";
    throw new TypeError(rest);
  },
  loop: () => {
    console.log("looping");
    for (;;);
  },
  async sleep(rest) {
    await pause(Number(rest));
    return "slept";
  },
  big: () => "x".repeat(4_000_001),
  async *forever(rest, { session }) {
    let count = 0;
    await session.put("closed", false);
    try {
      for (;;) {
        await session.put("count", ++count);
        yield rest === "big" ? "x".repeat(100_000) : "x";
        await pause(rest === "big" ? 0 : 0.05);
      }
    } finally {
      await session.put("closed", true);
    }
  },
  async count(_, { session }) {
    const turns = ((await session.get("turns")) ?? 0) + 1;
    await session.put("turns", turns);
    return String(turns);
  },
  async kept(rest, { session }) {
    return JSON.stringify((await session.get(rest)) ?? null);
  },
  async fill(_, { session }) {
    await session.put("v", "x".repeat(200_000));
    return "";
  },
  see: (_, context, request) =>
    JSON.stringify({
      request, keys: Object.keys(context).sort(), env: context.env, trace: context.traceId,
      left: context.limits.remaining.requests, session: context.session.id, capabilities: { ...context.capabilities },
    }),
  process: () => JSON.stringify(process.env),
  async print(rest) {
    console.log("first", rest);
    await pause(0.1);
    console.error("second", rest);
    return "";
  },
  flood() {
    for (let n = 0; n < 5000; n++) console.log("x".repeat(50_000));
    return "ok";
  },
  async code(rest, { tools }) {
    const { text, isError } = await tools.codeInterpreter.run(rest, { language: "python" });
    return JSON.stringify([text, isError]);
  },
  async twice(rest, { tools }) {
    const both = await Promise.all([tools.codeInterpreter.run(rest), tools.codeInterpreter.run(rest)]);
    return both.map(({ text }) => text).join();
  },
  async browse(rest, { tools }) {
    const { close, ...browser } = await tools.browser.open();
    if (rest === "close") await close();
    return JSON.stringify(browser);
  },
  async remember(rest, { memory }) {
    await memory.add(rest, { role: "assistant" });
    return "kept";
  },
  async recall(rest, { memory }) {
    return JSON.stringify(await memory.recent(Number(rest)));
  },
  async try(rest, context, request) {
    const [word, ...others] = rest.split(" ");
    try {
      return await does[word](others.join(" "), context, request);
    } catch (error) {
      return `${error.name}: ${error.message}`;
    }
  },
};

export default function agent(request, context) {
  const [word, ...rest] = request.input.messages.at(-1).content.split(" ");
  return does[word](rest.join(" "), context, request);
}
