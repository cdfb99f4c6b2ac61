interface Context {
  env: { API_KEY: string };
}

/** Say how long the key is that it was given: enough to see that it is there, and nothing that gives it away. */
export default async function agent(_request: unknown, { env }: Context): Promise<{ text: string }> {
  return { text: `The key has ${env.API_KEY.length} characters.` };
}
