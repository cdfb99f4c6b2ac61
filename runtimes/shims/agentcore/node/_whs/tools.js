// The tools and the memory of AgentCore, as one invocation may use them. IAM has the last word on what is
// allowed; what is not allowed now is refused here already, without a call.
import { randomUUID } from "node:crypto";
import { AwsError } from "./aws.js";
import { messages } from "./eventstream.js";

const SERVICE = "bedrock-agentcore";
const LANGUAGES = new Set(["python", "javascript", "typescript"]);
const ROLES = new Set(["USER", "ASSISTANT", "TOOL", "OTHER"]);
const LONGEST_MEMORY = 100_000;
const MOST_MEMORIES = 100;
const MOST_PAGES = 10;
const START_MS = 30_000;
const STOP_MS = 5_000;
// A session that nobody stops, because this machine died, ends this long after its invocation had to.
const GRACE_SECONDS = 60;
const WORDS = { codeInterpreter: "code interpreter", browser: "browser", memory: "memory" };
const FOLDERS = { codeInterpreter: "code-interpreters", browser: "browsers" };

/** A tool that was asked and did not do it; `code` is the service's word for why. */
export class ToolError extends Error {
  name = "ToolError";

  constructor(message, code = null) {
    super(message);
    this.code = code;
  }
}

/** A tool that this invocation may not use. */
export class ToolUnavailableError extends ToolError {
  name = "ToolUnavailableError";

  constructor(capability, why) {
    super(`The ${WORDS[capability]} is not available: ${why}.`, "Unavailable");
    this.capability = capability;
    this.why = why;
  }
}

/** What a request allows, of what the deployment has. Pure. */
export function allowedIn(request, ids) {
  const off = request.options?.tools === "off";
  const allows = (name) => request.capabilities?.[name] === true && Boolean(ids[name]);
  return {
    memory: allows("memory"),
    codeInterpreter: allows("codeInterpreter") && !off,
    browser: allows("browser") && !off,
  };
}

/** The text and the kind of what a code interpreter answered; throws ToolError for an exception in it. Pure. */
export function resultOf(bytes) {
  const texts = [];
  let isError = false;
  for (const { headers, payload } of messages(bytes)) {
    if (headers[":message-type"] !== "event") {
      const code = headers[":exception-type"] ?? headers[":error-code"] ?? "Unknown";
      const told = headers[":error-message"] ?? JSON.parse(payload || "{}").message;
      throw new ToolError(`The code interpreter failed: ${told ?? code}`, code);
    }
    if (headers[":event-type"] !== "result") continue;
    const { content = [], structuredContent = {}, isError: failed } = JSON.parse(payload);
    const said = content.map((part) => part.text ?? part.resource?.text).filter((text) => typeof text === "string");
    texts.push(said.length ? said.join("\n") : [structuredContent.stdout, structuredContent.stderr].join(""));
    isError ||= failed === true;
  }
  return { text: texts.join(""), isError };
}

/** The tools of one invocation: starts what is asked for, counts it, and stops it at the end. */
export class Tools {
  #sessions = new Set();
  #interpreter = null;
  #closed = false;
  #stop = new AbortController();
  usage = { toolCalls: 0, codeExecutionMs: 0, browserSessions: 0 };

  constructor(aws, { ids, allowed, name, seconds, memorySession }) {
    Object.assign(this, { aws, ids, allowed, name, seconds, memorySession });
  }

  /** Run code in this invocation's own session, which its first call starts. */
  async runCode(code, { language = "python" } = {}) {
    this.#require("codeInterpreter");
    if (typeof code !== "string") throw new ToolError("Code is text.");
    if (!LANGUAGES.has(language)) throw new ToolError(`The languages are ${[...LANGUAGES].join(", ")}.`);
    this.usage.toolCalls += 1;
    this.#interpreter ??= this.#start("codeInterpreter");
    const session = await this.#interpreter.catch((error) => {
      this.#interpreter = null;
      throw error;
    });
    const body = JSON.stringify({ name: "executeCode", arguments: { code, language } });
    const headers = {
      accept: "application/vnd.amazon.eventstream",
      "x-amzn-code-interpreter-session-id": session.sessionId,
    };
    const path = `/code-interpreters/${encodeURIComponent(this.ids.codeInterpreter)}/tools/invoke`;
    const began = performance.now();
    try {
      const signal = this.#stop.signal;
      const bytes = await this.#asked("codeInterpreter", this.aws.call(SERVICE, "POST", path, { body, headers, signal }));
      return resultOf(bytes);
    } finally {
      this.usage.codeExecutionMs += Math.round(performance.now() - began);
    }
  }

  /** Start a browser; returns its id, and where and with which headers to reach it over a WebSocket. */
  async openBrowser() {
    this.#require("browser");
    this.usage.toolCalls += 1;
    const session = await this.#start("browser");
    this.usage.browserSessions += 1;
    const url = session.streams.automationStream.streamEndpoint;
    const headers = await this.aws.sign(SERVICE, "GET", new URL(url.replace(/^ws/, "http")), "");
    return { sessionId: session.sessionId, url, headers };
  }

  /** Stop a browser of this invocation; one that is not, or not any more, is left alone. */
  async closeBrowser(sessionId) {
    for (const started of this.#sessions) {
      if (started.kind === "browser" && (await started.session.catch(() => null))?.sessionId === sessionId) {
        this.#sessions.delete(started);
        await this.#asked("browser", this.#end(started.kind, sessionId));
      }
    }
  }

  /** Remember a text beyond this session's machine. */
  async remember(text, { role = "user" } = {}) {
    this.#require("memory");
    if (typeof text !== "string" || !text || text.length > LONGEST_MEMORY) {
      throw new ToolError(`A memory is text of 1 to ${LONGEST_MEMORY} characters.`);
    }
    const kind = String(role).toUpperCase();
    if (!ROLES.has(kind)) throw new ToolError("A memory's role is user, assistant, tool or other.");
    const event = {
      actorId: "agent",
      sessionId: this.memorySession,
      eventTimestamp: Date.now() / 1000,
      payload: [{ conversational: { content: { text }, role: kind } }],
      clientToken: randomUUID(),
    };
    await this.#asked("memory", this.#memory("/events", event));
  }

  /** The newest memories of this session, the oldest of them first, as {text, role}. */
  async recall(count = 10) {
    this.#require("memory");
    if (!Number.isInteger(count) || count < 1 || count > MOST_MEMORIES) {
      throw new ToolError(`1 to ${MOST_MEMORIES} memories can be read at once.`);
    }
    const events = [];
    let nextToken;
    // Their order is not documented, so all are read, up to a bound, and sorted.
    for (let page = 0; page < MOST_PAGES && (page === 0 || nextToken); page++) {
      const path = `/actor/agent/sessions/${encodeURIComponent(this.memorySession)}`;
      const asked = { includePayloads: true, maxResults: MOST_MEMORIES, nextToken };
      const answer = await this.#asked("memory", this.#memory(path, asked));
      events.push(...answer.events);
      nextToken = answer.nextToken;
    }
    const at = ({ eventTimestamp: time }) => (typeof time === "number" ? time * 1000 : Date.parse(time));
    events.sort((one, other) => at(one) - at(other) || (one.eventId < other.eventId ? -1 : 1));
    const told = events.flatMap((event) => event.payload).filter((part) => part.conversational);
    return told.slice(-count).map(({ conversational: { content, role } }) => ({
      text: content.text,
      role: role.toLowerCase(),
    }));
  }

  /** Refuse further use, break off what runs, and stop every session that was started; waits a few seconds at most. */
  async close() {
    this.#closed = true;
    this.#stop.abort(new ToolError("The invocation is over."));
    const stopping = [...this.#sessions].map(async ({ kind, session }) => this.#end(kind, (await session).sessionId));
    this.#sessions.clear();
    let timer;
    const patience = new Promise((resolve) => (timer = setTimeout(resolve, STOP_MS)));
    await Promise.race([Promise.allSettled(stopping), patience]);
    clearTimeout(timer);
  }

  #require(capability) {
    if (this.#closed) throw new ToolUnavailableError(capability, "the invocation is over");
    if (!this.allowed[capability]) throw new ToolUnavailableError(capability, "this invocation may not use it");
  }

  #start(kind) {
    const path = `/${FOLDERS[kind]}/${encodeURIComponent(this.ids[kind])}/sessions/start`;
    const wanted = { name: this.name, sessionTimeoutSeconds: Math.ceil(this.seconds) + GRACE_SECONDS };
    // Not broken off by the end of the invocation: what it started must be known, to be stopped.
    const signal = AbortSignal.timeout(START_MS);
    const session = this.#asked(kind, this.aws.json(SERVICE, "PUT", path, wanted, { signal }));
    const started = { kind, session };
    this.#sessions.add(started);
    session.catch(() => this.#sessions.delete(started));
    return session;
  }

  #end(kind, sessionId) {
    const path = `/${FOLDERS[kind]}/${encodeURIComponent(this.ids[kind])}/sessions/stop`;
    const query = `?sessionId=${encodeURIComponent(sessionId)}`;
    return this.aws.json(SERVICE, "PUT", path + query, {}, { signal: AbortSignal.timeout(STOP_MS) });
  }

  #memory(path, value) {
    const whole = `/memories/${encodeURIComponent(this.ids.memory)}${path}`;
    return this.aws.json(SERVICE, "POST", whole, value, { signal: this.#stop.signal });
  }

  /** Wait for an answer; throws ToolError, and ToolUnavailableError where the role may not (any more). */
  async #asked(capability, answer) {
    try {
      return await answer;
    } catch (error) {
      if (error instanceof ToolError) throw error;
      if (!(error instanceof AwsError)) throw new ToolError(`The ${WORDS[capability]} could not be reached.`, error.name);
      if (error.status === 403) throw new ToolUnavailableError(capability, "access is denied");
      throw new ToolError(`The ${WORDS[capability]} failed: ${error.message}`, error.code);
    }
  }
}
