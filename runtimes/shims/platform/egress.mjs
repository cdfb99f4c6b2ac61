// Where an agent may call: the public internet, and nothing else.
import { WorkerEntrypoint } from "cloudflare:workers";

const PRIVATE_NAMES = [".localhost", ".local", ".internal", ".home.arpa", ".lan", ".corp", ".onion"];
const PRIVATE_V4 = [
  ["0.0.0.0", 8], ["10.0.0.0", 8], ["100.64.0.0", 10], ["127.0.0.0", 8], ["169.254.0.0", 16], ["172.16.0.0", 12],
  ["192.0.0.0", 24], ["192.0.2.0", 24], ["192.88.99.0", 24], ["192.168.0.0", 16], ["198.18.0.0", 15],
  ["198.51.100.0", 24], ["203.0.113.0", 24], ["224.0.0.0", 3],
];

const numberOf = (address) => address.split(".").reduce((sum, part) => sum * 256 + Number(part), 0);

function isPublicV4(address) {
  const value = numberOf(address);
  return !PRIVATE_V4.some(([start, bits]) => {
    const size = 2 ** (32 - bits);
    return Math.floor(value / size) === Math.floor(numberOf(start) / size);
  });
}

function isPublicV6(address) {
  // Only global unicast, 2000::/3, and of that none that wraps an IPv4 address or is documentation.
  const [first, second] = address.split(":").map((group) => parseInt(group || "0", 16));
  if (first < 0x2000 || first > 0x3fff || first === 0x2002 || first === 0x3fff) return false;
  return !(first === 0x2001 && (second < 0x200 || second === 0xdb8));
}

/** Whether a host, as the URL parser writes it, is on the public internet as far as its name tells. */
export function isPublicHost(hostname) {
  const host = hostname.toLowerCase().replace(/\.$/, "");
  if (host.startsWith("[")) return isPublicV6(host.slice(1, -1));
  if (/^\d+\.\d+\.\d+\.\d+$/.test(host)) return isPublicV4(host);
  return host.includes(".") && !PRIVATE_NAMES.some((name) => host.endsWith(name));
}

/**
 * The only way out for agents: every fetch of theirs arrives here, redirects included. There is no
 * `connect`, so no raw sockets. A public name that resolves to a private address is refused by the
 * network below (Cloudflare's; on a laptop workerd's, which allows public addresses only).
 */
export class Egress extends WorkerEntrypoint {
  async fetch(request) {
    const url = new URL(request.url);
    if ((url.protocol !== "http:" && url.protocol !== "https:") || !isPublicHost(url.hostname)) {
      return new Response(`Agents may call public addresses only, and ${url.hostname} is not one.\n`, { status: 403 });
    }
    return fetch(request, { redirect: "manual" });
  }
}
