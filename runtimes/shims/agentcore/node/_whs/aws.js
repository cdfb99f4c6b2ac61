// AWS without its SDK: the role's credentials from the instance metadata service (IMDSv2 only), and
// Signature Version 4. https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
import { createHash, createHmac } from "node:crypto";

const METADATA = "http://169.254.169.254";
const METADATA_MS = 5_000;
const TOKEN_SECONDS = 21_600;
// Credentials are taken anew this long before they end.
const MARGIN_MS = 300_000;

/** What a service answered instead of doing it. */
export class AwsError extends Error {
  constructor(code, message, status) {
    super(`${code}: ${message}`);
    this.code = code;
    this.status = status;
  }
}

const sha256 = (data) => createHash("sha256").update(data).digest("hex");
const hmac = (key, data) => createHmac("sha256", key).update(data).digest();
const escaped = (text) =>
  encodeURIComponent(text).replace(/[!'()*]/g, (one) => `%${one.charCodeAt(0).toString(16).toUpperCase()}`);

function queryOf(url) {
  const pairs = [...url.searchParams].map(([name, value]) => [escaped(name), escaped(value)]);
  return pairs.sort().map((pair) => pair.join("=")).join("&");
}

/** The headers that sign a request; its path is escaped twice, as every service but S3 has it. Pure. */
export function signed({ method, url, body, region, service, credentials, now }) {
  const time = now.toISOString().replace(/[-:]|\.\d+/g, "");
  const scope = `${time.slice(0, 8)}/${region}/${service}/aws4_request`;
  const headers = { host: url.host, "x-amz-date": time };
  if (credentials.Token) headers["x-amz-security-token"] = credentials.Token;
  const names = Object.keys(headers).sort();
  const request = [
    method,
    url.pathname.split("/").map(escaped).join("/"),
    queryOf(url),
    ...names.map((name) => `${name}:${headers[name]}`),
    "",
    names.join(";"),
    sha256(body),
  ].join("\n");
  const text = ["AWS4-HMAC-SHA256", time, scope, sha256(request)].join("\n");
  const key = scope.split("/").reduce(hmac, `AWS4${credentials.SecretAccessKey}`);
  const { host, ...sent } = headers;
  sent.authorization =
    `AWS4-HMAC-SHA256 Credential=${credentials.AccessKeyId}/${scope}, ` +
    `SignedHeaders=${names.join(";")}, Signature=${hmac(key, text).toString("hex")}`;
  return sent;
}

function errorOf(response, body) {
  let told = {};
  try {
    told = JSON.parse(body) ?? {};
  } catch {
    // a proxy's page, or nothing
  }
  // Some services give the code in a header, some in the body; some with a namespace, some with a link.
  const code = response.headers.get("x-amzn-errortype") ?? told.__type ?? told.code ?? `Status${response.status}`;
  const message = told.message ?? told.Message ?? "The service gave no reason.";
  return new AwsError(String(code).split(":")[0].split("#").pop(), String(message), response.status);
}

/** The services of one region, called as the runtime's role. */
export class Aws {
  #credentials = null;
  #asked = null;

  constructor(env) {
    this.region = env.AWS_REGION ?? env.AWS_DEFAULT_REGION ?? "us-east-1";
    this.metadata = env.AWS_EC2_METADATA_SERVICE_ENDPOINT || METADATA;
    this.endpoints = {
      secretsmanager: env.AWS_ENDPOINT_URL_SECRETS_MANAGER,
      "bedrock-agentcore": env.AWS_ENDPOINT_URL_BEDROCK_AGENTCORE,
    };
  }

  /** Call a service and return the body of its answer as bytes; throws AwsError, or what fetch throws. */
  async call(service, method, path, { body = "", headers = {}, signal } = {}) {
    const base = this.endpoints[service] || `https://${service}.${this.region}.amazonaws.com`;
    const url = new URL(`${base.replace(/\/$/, "")}${path}`);
    const signature = await this.sign(service, method, url, body);
    const sent = { "content-type": "application/json", ...headers, ...signature };
    const response = await fetch(url, { method, headers: sent, body: body || undefined, redirect: "manual", signal });
    const bytes = Buffer.from(await response.arrayBuffer());
    if (!response.ok) throw errorOf(response, bytes.toString("utf8"));
    return bytes;
  }

  /** As `call`, with JSON on both sides. */
  async json(service, method, path, value, options = {}) {
    const body = value === undefined ? "" : JSON.stringify(value);
    const bytes = await this.call(service, method, path, { ...options, body });
    return bytes.length ? JSON.parse(bytes.toString("utf8")) : {};
  }

  /** The headers that sign a request to a service, with the role's credentials of now. */
  async sign(service, method, url, body) {
    const credentials = await this.#role();
    return signed({ method, url, body, region: this.region, service, credentials, now: new Date() });
  }

  #role() {
    if (this.#credentials && Date.parse(this.#credentials.Expiration) - Date.now() > MARGIN_MS) {
      return this.#credentials;
    }
    // Calls at the same time wait for one and the same answer.
    this.#asked ??= this.#fetched().finally(() => (this.#asked = null));
    return this.#asked;
  }

  async #fetched() {
    const ttl = { "x-aws-ec2-metadata-token-ttl-seconds": String(TOKEN_SECONDS) };
    const token = await this.#ask("/latest/api/token", { method: "PUT", headers: ttl });
    const headers = { "x-aws-ec2-metadata-token": token };
    const folder = "/latest/meta-data/iam/security-credentials/";
    const role = (await this.#ask(folder, { headers })).split("\n")[0].trim();
    this.#credentials = JSON.parse(await this.#ask(folder + role, { headers }));
    return this.#credentials;
  }

  async #ask(path, options) {
    const response = await fetch(this.metadata.replace(/\/$/, "") + path, {
      ...options,
      signal: AbortSignal.timeout(METADATA_MS),
    });
    const text = await response.text();
    if (!response.ok) throw new AwsError("NoCredentials", "The role's credentials are not to be had.", response.status);
    return text;
  }
}
