"use strict";
// The playground's answer as it comes. Without this the form is sent and the whole answer shown (runtimes/pages/playground.py).
(() => {
  const form = document.getElementById("playground-form");
  const log = document.getElementById("conversation");
  const busy = document.getElementById("busy");
  const stop = document.getElementById("stop");
  const send = form.querySelector("button[type=submit]");
  const session = document.getElementById("sessionId");
  let running = null;

  // Text only, never markup: what an agent says is shown, not read.
  function add(parent, tag, text = "", attributes = {}) {
    const element = document.createElement(tag);
    element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    parent.append(element);
    return element;
  }
  const number = (n) => Number(n ?? 0).toLocaleString("en");

  function body() {
    const given = new FormData(form);
    const options = {};
    for (const name of ["maxTokens", "maxSteps", "temperature"]) if (given.get(name)) options[name] = Number(given.get(name));
    if (given.get("tools")) options.tools = given.get("tools");
    const request = { input: { prompt: given.get("prompt") } };
    if (given.get("sessionId")) request.sessionId = given.get("sessionId");
    if (Object.keys(options).length) request.options = options;
    return JSON.stringify(request);
  }

  // The envelope: what, until when, what to do, and the trace id; the same as the API says.
  function refuse(envelope) {
    const { error, traceId } = envelope;
    const details = error.details ?? {};
    const note = add(log, "div", "", { class: "note error", role: "alert" });
    add(note, "p", error.message);
    for (const issue of details.issues ?? []) if (issue.message !== error.message) add(note, "p", `${issue.path}: ${issue.message}`);
    if (details.resetsAt) add(note, "p", `It resets at ${details.resetsAt}.`);
    const action = details.suggestedAction;
    if (action?.type === "upgrade_tier" && /^\/[^/\\]/.test(action.url)) {
      add(add(note, "p", "What to do: "), "a", `upgrade to ${action.tier}`, { href: action.url });
    } else if (action?.type === "contact_support") {
      add(note, "p", "What to do: contact support.");
    } else if (error.retryable) {
      add(note, "p", "What to do: try again in a moment.");
    }
    if (typeof details.docs === "string" && details.docs.startsWith("/") && !details.docs.startsWith("//")) {
      add(add(note, "p"), "a", "What this means", { href: details.docs });
    }
    add(note, "p", `Trace id: ${traceId}`, { class: "small" });
  }

  async function* events(stream) {
    const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const blocks = rest.split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const fields = Object.fromEntries(block.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1).trim()]));
        if (fields.event) yield [fields.event, JSON.parse(fields.data || "{}")];
      }
    }
  }

  function tell(answer, meta, usage, ending) {
    const line = add(answer, "p", "", { class: "soft small" });
    if (usage) line.append(`${number(usage.tokens)} tokens${usage.tokensEstimated ? " (estimated)" : ""}, ${number(usage.computeMs)} ms, ${number(usage.toolCalls)} tool calls · `);
    if (ending) line.append(`${ending} · `);
    line.append("session ");
    add(line, "code", meta.sessionId);
    line.append(" · ");
    add(line, "a", meta.invocationId, { href: `/invocations/${encodeURIComponent(meta.invocationId)}/` });
    line.append(" · trace ");
    add(line, "code", meta.traceId);
  }

  async function run() {
    running = new AbortController();
    const request = body();
    add(add(log, "p", "", { class: "said" }), "strong", "You").after(` ${form.prompt.value}`);
    form.prompt.value = "";
    let answer = null, text = null, meta = null, usage = null, ended = false;
    try {
      const response = await fetch(form.dataset.stream, {
        method: "POST", body: request, signal: running.signal, credentials: "same-origin",
        headers: { "Content-Type": "application/json", "X-CSRFToken": form.csrfmiddlewaretoken.value },
      });
      if (!response.ok) { refuse(await response.json()); return; }
      for await (const [event, data] of events(response.body)) {
        if (event === "meta") {
          meta = data;
          session.value = data.sessionId;
          answer = add(log, "div", "", { class: "answer" });
          add(answer, "strong", form.dataset.name);
          text = add(answer, "pre", "", { class: "text" });
        } else if (event === "delta") text.append(data.text);
        else if (event === "usage") usage = data;
        else if (event === "error") { refuse(data); ended = true; }
        else if (event === "done") ended = true;
      }
      if (meta) tell(answer, meta, usage, ended ? "" : "The answer broke off. What was used until then counts.");
    } catch (error) {
      if (error.name === "AbortError") {
        if (meta) tell(answer, meta, usage, "Stopped. What was used until then counts.");
        else add(log, "p", "Stopped before an answer came. What was used until then counts.", { class: "soft small" });
      } else {
        add(log, "div", "The connection broke. The receipt says what became of the call.", { class: "note error", role: "alert" });
      }
    }
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running) return;
    send.disabled = true;
    stop.hidden = false;
    busy.hidden = false;
    busy.textContent = "The agent is answering.";
    stop.focus();
    try { await run(); } finally {
      running = null;
      send.disabled = false;
      stop.hidden = true;
      busy.hidden = true;
      busy.textContent = "";
      form.prompt.focus();
    }
  });
  stop.addEventListener("click", () => running?.abort());
})();
