// The agent's own thread, seen from outside. Whatever its code does there (loop for ever, exit, take all
// the memory), this side goes on answering, and the next call gets a new thread.
import { Worker } from "node:worker_threads";
import { Failure } from "./failure.js";

const PATIENCE_MS = 1_000;
const crashed = () => new Failure("AgentCrashed", "The agent stopped unexpectedly.");

/** One run of the agent in its thread. */
class Channel {
  #thread;
  #pulled = null;
  #stopped = null;
  #ended = false;

  constructor(thread, id, listener) {
    this.#thread = thread;
    this.id = id;
    this.listener = listener;
  }

  send(frame) {
    this.#thread.worker.postMessage(JSON.stringify({ run: this.id, ...frame }));
  }

  /** The next frame that answers: a piece of text, the end, or an error. */
  pull() {
    return new Promise((resolve, reject) => {
      this.#pulled = { resolve, reject };
      this.send({ type: "pull" });
    });
  }

  take(frame) {
    if (frame.type === "log" || frame.type === "call") this.listener(frame);
    else if (frame.type === "stopped") this.#stopped?.();
    // Until then, what it does to clean up is listened to.
    else if (frame.type === "closed") this.#thread.channels.delete(this.id);
    else {
      this.#ended ||= frame.type !== "delta";
      this.#pulled?.resolve(frame);
      this.#pulled = null;
    }
  }

  crash() {
    this.#pulled?.reject(crashed());
    this.#stopped?.();
  }

  /** Have the agent clean up after a run that did not end by itself; a thread that does not hear of it is ended. */
  stop() {
    if (this.#ended) {
      this.#thread.channels.delete(this.id);
      return;
    }
    const timer = setTimeout(() => this.#thread.worker.terminate(), PATIENCE_MS);
    const stopped = new Promise((resolve) => (this.#stopped = resolve)).then(() => clearTimeout(timer));
    this.#thread.quiet = Promise.all([this.#thread.quiet, stopped]);
    this.send({ type: "stop" });
  }
}

/** The module of an agent, loaded in a thread when it is first needed. */
export class Agent {
  #thread = null;

  constructor(entrypoint) {
    this.entrypoint = entrypoint;
  }

  /** Load the agent, unless it is; throws Failure with the agent's own trace when that fails. */
  load() {
    this.#thread ??= this.#start();
    return this.#thread.loading;
  }

  /** Begin a run; `listener` is told what the agent prints and calls. */
  async open(id, call, listener) {
    // A thread that is just being told to stop something may turn out to be stuck.
    await this.#thread?.quiet;
    const thread = await this.load();
    const channel = new Channel(thread, id, listener);
    thread.channels.set(id, channel);
    channel.send({ type: "start", ...call });
    return channel;
  }

  /** End a load that takes too long. */
  abandon() {
    if (this.#thread && !this.#thread.loaded) this.#thread.worker.terminate();
  }

  #start() {
    const worker = new Worker(new URL("./worker.js", import.meta.url), { workerData: this.entrypoint });
    const thread = { worker, channels: new Map(), loaded: false, quiet: null };
    const forget = () => {
      if (this.#thread === thread) this.#thread = null;
    };
    thread.loading = new Promise((resolve, reject) => {
      const failed = (line) => {
        forget();
        reject(new Failure("LoadError", "The agent does not load.", { logs: [line], ran: false }));
        worker.terminate();
      };
      worker.on("message", (text) => {
        const frame = JSON.parse(text);
        if (frame.type === "loaded") {
          thread.loaded = true;
          resolve(thread);
        } else if (frame.type === "unloadable") failed(frame.line);
        else thread.channels.get(frame.run)?.take(frame);
      });
      worker.on("error", (error) => {
        const line = String(error?.stack ?? error);
        for (const channel of thread.channels.values()) channel.listener({ type: "log", line });
        failed(line);
      });
      worker.on("exit", () => {
        failed("The agent ended while it was loaded.");
        for (const channel of thread.channels.values()) channel.crash();
      });
    });
    return thread;
  }
}
