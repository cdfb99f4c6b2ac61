interface Message {
  role: "system" | "user" | "assistant" | "tool";
  content: string;
}

/** Say what the user said last. Reports no usage, so tokens are estimated from the text. */
export default async function agent(request: { input: { messages: Message[] } }): Promise<{ text: string }> {
  const said = request.input.messages.filter((message) => message.role === "user");
  return { text: said.at(-1)?.content ?? "" };
}
