// Makes a fixed number of calls with so many callers over kept connections, and says what came back.
//
//   node load.mjs SPEC.json
//
// SPEC: {url, callers, calls, seconds, ending, requests: [{path, headers, body}, ...]}. The requests are taken
// in turn. `seconds` bounds the whole run: what is unanswered then is an error. `ending`: what every good answer
// ends with; one that breaks off is an error too. Latency is from sending to the last byte, in milliseconds.
import { readFileSync } from "node:fs";
import { Agent, request } from "node:http";

const spec = JSON.parse(readFileSync(process.argv[2], "utf8"));
const { hostname, port } = new URL(spec.url);
const agent = new Agent({ keepAlive: true, maxSockets: spec.callers, scheduling: "fifo" });
const prepared = spec.requests.map(({ path, headers, body }) => {
  const bytes = Buffer.from(body);
  const all = { "content-type": "application/json", "content-length": bytes.length, ...headers };
  return { bytes, options: { agent, hostname, port, path, method: "POST", headers: all } };
});

const latencies = [];
const firstBytes = [];
const statuses = {};
const errors = {};
let begun = 0;

const note = (counts, name) => {
  counts[name] = (counts[name] ?? 0) + 1;
};

function call({ bytes, options }) {
  return new Promise((resolve) => {
    const start = performance.now();
    const outgoing = request(options, (response) => {
      let tail = "";
      let first = 0;
      response.on("data", (chunk) => {
        first ||= performance.now();
        tail = (tail + chunk.toString("latin1")).slice(-64);
      });
      response.on("end", () => {
        const now = performance.now();
        latencies.push(now - start);
        firstBytes.push((first || now) - start);
        note(statuses, response.statusCode);
        if (response.statusCode < 300 && !tail.trimEnd().endsWith(spec.ending)) note(errors, "incomplete");
        resolve();
      });
      response.on("error", (error) => {
        note(errors, error.code ?? error.message);
        resolve();
      });
    });
    outgoing.on("error", (error) => {
      note(errors, error.code ?? error.message);
      resolve();
    });
    outgoing.end(bytes);
  });
}

async function caller() {
  while (begun < spec.calls) {
    const next = prepared[begun % prepared.length];
    begun += 1;
    await call(next);
  }
}

function percentile(values, share) {
  if (!values.length) return null;
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
}

function report() {
  const seconds = (performance.now() - start) / 1000;
  const answered = latencies.length;
  if (answered < spec.calls && !Object.keys(errors).length) errors.unanswered = spec.calls - answered;
  console.log(
    JSON.stringify({
      calls: answered,
      seconds,
      perSecond: answered / seconds,
      p50: percentile(latencies, 0.5),
      p99: percentile(latencies, 0.99),
      firstByteP50: percentile(firstBytes, 0.5),
      statuses,
      errors,
    }),
  );
  process.exit(0);
}

const start = performance.now();
setTimeout(report, spec.seconds * 1000);
Promise.all(Array.from({ length: spec.callers }, caller)).then(report);
