interface Message {
  role: string;
  content: string;
}

const LONGEST_SECONDS = 890;

/** Sleep as many seconds as the user says, then say how many that were. */
export default async function agent(request: { input: { messages: Message[] } }): Promise<{ text: string }> {
  const said = request.input.messages.filter((message) => message.role === "user").at(-1)?.content ?? "";
  const seconds = Math.min(Math.max(Number.parseFloat(said) || 0, 0), LONGEST_SECONDS);
  await new Promise((done) => setTimeout(done, seconds * 1000));
  return { text: `slept ${seconds} s` };
}
