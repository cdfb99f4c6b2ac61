// Answers as the platform Worker does (runtimes/shims/platform.mjs): a JSON envelope, or the same as events.
// It does no work of its own, so what is measured is the way to it. GET /count: how often it was called.
// A prompt that starts with "sleep N" is answered after N milliseconds.
import { createServer } from "node:http";

const WORDS = "The quick brown fox jumps over the lazy dog while nobody in particular looks on. ".repeat(4);
const PIECES = WORDS.match(/.{1,32}/gs);
const CLOSING = {
  usage: { tokens: 123, computeMs: 7, toolCalls: 0, codeExecutionMs: 0, browserSessions: 0, tokensEstimated: false },
  logs: [],
};
const JSON_ANSWER = Buffer.from(JSON.stringify({ text: WORDS, ...CLOSING }));
const DELTAS = PIECES.map((text) => `event: delta\ndata: ${JSON.stringify({ text })}\n\n`);
const FINAL = `event: final\ndata: ${JSON.stringify(CLOSING)}\n\n`;
const SLEEP = /"content":"sleep (\d{1,5})/;

let calls = 0;

function answer(response) {
  response.writeHead(200, { "content-type": "application/json", "content-length": JSON_ANSWER.length });
  response.end(JSON_ANSWER);
}

// Piece by piece, each in a turn of its own, as a model's words arrive: not one write, not one packet.
function tell(response, next = 0) {
  if (response.destroyed) return;
  if (next === 0) response.writeHead(200, { "content-type": "text/event-stream" });
  if (next === DELTAS.length) {
    response.end(FINAL);
    return;
  }
  response.write(DELTAS[next]);
  setImmediate(tell, response, next + 1);
}

const server = createServer((request, response) => {
  if (request.method === "GET") {
    response.end(JSON.stringify({ calls }));
    return;
  }
  const chunks = [];
  request.on("data", (chunk) => chunks.push(chunk));
  request.on("end", () => {
    calls += 1;
    const act = request.url.endsWith("/stream") ? tell : answer;
    const pause = SLEEP.exec(Buffer.concat(chunks).toString("latin1"));
    if (pause) setTimeout(act, Number(pause[1]), response);
    else act(response);
  });
});
server.keepAliveTimeout = 120_000;
server.maxConnections = 4096;
server.listen(Number(process.argv[2] ?? 0), "127.0.0.1", 2048, () => console.log(server.address().port));
