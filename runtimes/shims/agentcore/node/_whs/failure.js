/** How an invocation failed: a class for the control plane, and words for its caller. */
export class Failure extends Error {
  constructor(errorClass, message, { logs = [], ran = true } = {}) {
    super(message);
    this.errorClass = errorClass;
    this.logs = logs;
    this.ran = ran;
  }
}
