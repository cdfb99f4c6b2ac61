interface Message {
  role: string;
  content: string;
}

const PAUSE_MS = 50;
const pause = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

/** Say what the user said last, word by word. */
export default async function* agent(request: { input: { messages: Message[] } }): AsyncGenerator<string> {
  const text = request.input.messages.filter((message) => message.role === "user").at(-1)?.content ?? "";
  for (const piece of text.match(/\S+\s*|\s+/g) ?? []) {
    yield piece;
    await pause(PAUSE_MS);
  }
}
