// The secrets that the deployment declares, read through the role with the first call and kept in memory.
import { AwsError } from "./aws.js";
import { Failure } from "./failure.js";

const namesIn = (list) => (list ?? "").split(",").filter(Boolean);

/** The declared secrets of one deployment. */
export class Secrets {
  #read = null;

  constructor(aws, env) {
    this.aws = aws;
    this.arn = env.WHS_SECRET_ARN ?? "";
    this.required = namesIn(env.WHS_REQUIRED_KEYS);
    this.declared = [...this.required, ...namesIn(env.WHS_OPTIONAL_KEYS)];
  }

  /** What the agent's context.env holds. Throws Failure when it cannot be read, or a required one is not set. */
  async values() {
    if (!this.declared.length) return {};
    this.#read ??= this.#values();
    try {
      return await this.#read;
    } catch (error) {
      // What is missing may be set by the next call; a failed read may succeed.
      this.#read = null;
      throw error;
    }
  }

  async #values() {
    const kept = await this.#kept();
    const set = this.declared.filter((name) => Object.hasOwn(kept, name) && typeof kept[name] === "string");
    const missing = this.required.filter((name) => !set.includes(name));
    if (missing.length) {
      const line = `These secrets are required and not set: ${missing.join(", ")}.`;
      throw new Failure("MissingSecrets", "The agent's secrets are not set.", { logs: [line], ran: false });
    }
    return Object.fromEntries(set.map((name) => [name, kept[name]]));
  }

  async #kept() {
    if (!this.arn) return {};
    try {
      const answer = await this.aws.json("secretsmanager", "POST", "/", { SecretId: this.arn }, {
        headers: { "content-type": "application/x-amz-json-1.1", "x-amz-target": "secretsmanager.GetSecretValue" },
      });
      return JSON.parse(answer.SecretString).values ?? {};
    } catch (error) {
      if (error instanceof AwsError && error.code === "ResourceNotFoundException") return {};
      const why = error instanceof AwsError ? error.code : error.name;
      const logs = [`The secrets could not be read: ${why}.`];
      throw new Failure("SecretsUnavailable", "The agent's secrets could not be read.", { logs, ran: false });
    }
  }
}
