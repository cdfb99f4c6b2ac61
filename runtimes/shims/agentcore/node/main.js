// The Node side of AgentCore's HTTP contract: GET /ping, POST /invocations. What calls us is the service,
// for whoever may invoke the runtime; headers it adds (a workload token among them) end here.
import { createServer } from "node:http";
import { Agent } from "./_whs/agent.js";
import { Aws } from "./_whs/aws.js";
import { Invocations } from "./_whs/invocations.js";
import { Secrets } from "./_whs/secrets.js";

const LARGEST_BODY = 16 * 1024 * 1024;
const { env } = process;

const aws = new Aws(env);
const agent = new Agent(env.WHS_ENTRYPOINT ?? "");
const invocations = new Invocations(agent, new Secrets(aws, env), aws, env);

async function bodyOf(request) {
  const pieces = [];
  let size = 0;
  for await (const piece of request) {
    size += piece.length;
    if (size > LARGEST_BODY) return null;
    pieces.push(piece);
  }
  return Buffer.concat(pieces).toString("utf8");
}

function answer(response, status, body) {
  const text = JSON.stringify(body);
  response.writeHead(status, { "content-type": "application/json", "content-length": Buffer.byteLength(text) });
  response.end(text);
}

async function serve(request, response) {
  const path = request.url.split("?")[0];
  if (path === "/ping" && request.method === "GET") {
    // No time_of_last_update: one that moves would keep an idle session alive.
    answer(response, 200, { status: invocations.running ? "HealthyBusy" : "Healthy" });
  } else if (path === "/invocations" && request.method === "POST") {
    const session = request.headers["x-amzn-bedrock-agentcore-runtime-session-id"];
    const streams = (request.headers.accept ?? "").includes("text/event-stream");
    await invocations.take(await bodyOf(request), { session, streams, response });
  } else {
    answer(response, 404, { message: "Not found." });
  }
}

const server = createServer((request, response) => {
  serve(request, response).catch((error) => {
    console.error(error);
    if (response.headersSent) response.destroy();
    else answer(response, 500, { message: "The shim failed." });
  });
});
// An agent may take its time; who waits for it decides for how long.
server.requestTimeout = 0;
process.on("SIGTERM", () => process.exit(0));
server.listen(Number(env.PORT ?? 8080), env.HOST ?? "0.0.0.0");
