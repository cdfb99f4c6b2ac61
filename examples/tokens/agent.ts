import { countWords } from "./words";

interface Message {
  role: string;
  content: string;
}

/** Say what the user said last, and report a token for each of its words. */
export default async function agent(request: { input: { messages: Message[] } }) {
  const text = request.input.messages.filter((message) => message.role === "user").at(-1)?.content ?? "";
  return { text, usage: { tokens: countWords(text) } };
}
