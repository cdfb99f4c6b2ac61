import { convertArrayToReadableStream, MockLanguageModelV4 } from "ai/test";

type Options = Parameters<MockLanguageModelV4["doStream"]>[0];
type Part = Awaited<ReturnType<MockLanguageModelV4["doStream"]>>["stream"] extends ReadableStream<infer P> ? P : never;

const finish = (reason: "stop" | "tool-calls", tokens: number): Part => ({
  type: "finish",
  finishReason: { unified: reason, raw: undefined },
  usage: {
    inputTokens: { total: tokens, noCache: tokens, cacheRead: undefined, cacheWrite: undefined },
    outputTokens: { total: tokens, text: tokens, reasoning: undefined },
  },
});

function parts({ prompt }: Options): Part[] {
  const last = prompt.at(-1)!;
  if (last.role === "tool") {
    const result = last.content.find((content) => content.type === "tool-result")!;
    const words = ["The tool", " counted ", `${"value" in result.output ? result.output.value : "?"}`, " words."];
    const deltas = words.map((delta): Part => ({ type: "text-delta", id: "t", delta }));
    return [{ type: "text-start", id: "t" }, ...deltas, { type: "text-end", id: "t" }, finish("stop", 3)];
  }
  const said = last.role === "user" ? last.content.map((content) => ("text" in content ? content.text : "")).join("") : "";
  const input = JSON.stringify({ text: said });
  return [{ type: "tool-call", toolCallId: "c", toolName: "countWords", input }, finish("tool-calls", 2)];
}

/** The framework's own test model: asks for the tool, then says what the tool said. It needs no network and no key. */
export function rehearsal(): MockLanguageModelV4 {
  return new MockLanguageModelV4({
    doStream: async (options) => ({ stream: convertArrayToReadableStream(parts(options)) }),
  });
}
