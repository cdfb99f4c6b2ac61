import { isStepCount, streamText, tool } from "ai";
import { z } from "zod";
import { rehearsal } from "./rehearsal";

interface Request {
  input: { messages: { role: "user" | "assistant" | "system"; content: string }[] };
}

const countWords = tool({
  description: "Count the words of a text.",
  inputSchema: z.object({ text: z.string() }),
  execute: async ({ text }) => text.split(/\s+/).filter(Boolean).length,
});

/** Let a model use a tool and say what came of it, as the Vercel AI SDK does that. */
export default async function* agent({ input }: Request) {
  const result = streamText({
    model: rehearsal(), // or createOpenAI({ apiKey: context.env.OPENAI_API_KEY })("...") of @ai-sdk/openai
    messages: input.messages,
    tools: { countWords },
    stopWhen: isStepCount(4),
  });
  for await (const piece of result.textStream) yield piece;
  const { totalTokens } = await result.totalUsage;
  const toolCalls = (await result.steps).flatMap((step) => step.toolCalls).length;
  return { usage: { tokens: totalTokens, toolCalls } };
}
