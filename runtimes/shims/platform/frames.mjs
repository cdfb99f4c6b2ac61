// What the user's Worker tells the platform: one JSON object per line. All of it is a claim.

const LONGEST_LINE = 9_000_000;
const LONGEST_TEXT = 4_000_000;
const CLAIMABLE = new Set(["AgentError", "MissingSecrets"]);

/** How an invocation failed, in words for its caller. */
export class Failure extends Error {
  constructor(errorClass, message, status = 500) {
    super(message);
    this.errorClass = errorClass;
    this.status = status;
  }
}

/** Wait for a promise, or for the signal's reason. */
export function raced(promise, signal) {
  if (signal.aborted) return Promise.reject(signal.reason);
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason);
    signal.addEventListener("abort", stop, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}

async function* lines(body, signal) {
  const reader = body.getReader();
  const decoder = new TextDecoder("utf-8", { fatal: true });
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await raced(reader.read(), signal);
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      if (rest.length > LONGEST_LINE) throw new Failure("AnswerTooLarge", "The agent's answer is too large.");
      const found = rest.split("\n");
      rest = found.pop();
      yield* found;
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(line) {
  try {
    const frame = JSON.parse(line);
    if (frame !== null && typeof frame === "object") return frame;
  } catch {
    // falls through: whatever it was, it was no frame
  }
  throw new Failure("AgentProtocol", "The agent's answer could not be read.");
}

/** The pieces of text that an agent answers with, told to the meter as they pass. Throws Failure. */
export async function* deltas(body, signal, meter) {
  let size = 0;
  for await (const line of lines(body, signal)) {
    const frame = parsed(line);
    if (frame.type === "delta" && typeof frame.text === "string") {
      size += frame.text.length;
      if (size > LONGEST_TEXT) throw new Failure("AnswerTooLarge", "The agent's answer is too large.");
      meter.text(frame.text);
      if (frame.text) yield frame.text;
    } else if (frame.type === "log" && typeof frame.line === "string") {
      meter.log(frame.line);
    } else if (frame.type === "end") {
      meter.claim(frame.usage);
      return;
    } else if (frame.type === "error") {
      meter.claim(frame.usage);
      const errorClass = CLAIMABLE.has(frame.errorClass) ? frame.errorClass : "AgentError";
      throw new Failure(errorClass, "The agent failed.");
    } else {
      throw new Failure("AgentProtocol", "The agent's answer could not be read.");
    }
  }
  throw new Failure("Truncated", "The agent's answer broke off.");
}
