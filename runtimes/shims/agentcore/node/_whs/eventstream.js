// application/vnd.amazon.eventstream, as far as it is needed: TLS and TCP have checked the bytes, so the
// checksums are not looked at. https://smithy.io/2.0/aws/amazon-eventstream.html

const PRELUDE = 12;
const TRAILER = 4;
const TEXT = 7;
// How long a value of each type is; null is text or bytes, with its length before it.
const LENGTHS = [0, 0, 1, 2, 4, 8, null, null, 8, 16];

function headersOf(bytes) {
  const headers = {};
  for (let at = 0; at < bytes.length; ) {
    const name = bytes.toString("utf8", at + 1, at + 1 + bytes[at]);
    at += 1 + bytes[at];
    const type = bytes[at++];
    if (!(type in LENGTHS)) throw new Error("The event stream holds a header of an unknown type.");
    let length = LENGTHS[type];
    if (length === null) {
      length = bytes.readUInt16BE(at);
      at += 2;
    }
    if (type === TEXT) headers[name] = bytes.toString("utf8", at, at + length);
    at += length;
  }
  return headers;
}

/** The messages of a whole event stream, as {headers, payload}; throws when it breaks off. */
export function* messages(bytes) {
  for (let at = 0; at < bytes.length; ) {
    const whole = at + PRELUDE <= bytes.length ? bytes.readUInt32BE(at) : Infinity;
    if (whole < PRELUDE + TRAILER || at + whole > bytes.length) throw new Error("The event stream broke off.");
    const body = at + PRELUDE + bytes.readUInt32BE(at + 4);
    if (body > at + whole - TRAILER) throw new Error("The event stream cannot be read.");
    const headers = headersOf(bytes.subarray(at + PRELUDE, body));
    yield { headers, payload: bytes.toString("utf8", body, at + whole - TRAILER) };
    at += whole;
  }
}
