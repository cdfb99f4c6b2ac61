interface Context {
  session: {
    get(key: string): Promise<unknown>;
    put(key: string, value: unknown): Promise<void>;
  };
}

/** Count the turns of a session, across invocations and deployments. */
export default async function agent(_request: unknown, context: Context): Promise<{ text: string }> {
  const turns = Number((await context.session.get("turns")) ?? 0) + 1;
  await context.session.put("turns", turns);
  return { text: `turn ${turns}` };
}
