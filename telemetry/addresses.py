"""Where a webhook may go: public https addresses by name, on port 443. Pure decisions; imports no Django.

A customer names the address and we call it from inside, so everything that is not plainly public is refused
(OWASP, Server Side Request Forgery).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from telemetry.alert_rules import LONGEST_ADDRESS

HTTPS_PORT: Final = 443
_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")
_LABEL: Final = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
_NAME: Final = re.compile(rf"(?:{_LABEL}\.)+(?![0-9]+$){_LABEL}")
_LONGEST_NAME: Final = 253

# What Python's tables call global, or do not know yet (RFC 6052, 3056, 7526, 9637).
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_NEVER: Final = (
    ipaddress.ip_network("192.88.99.0/24"),
    ipaddress.ip_network("3fff::/20"),
    ipaddress.ip_network("2001::/23"),
)
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")


@dataclass(frozen=True)
class Endpoint:
    """An address that a webhook may have: a host by name, and what is asked of it."""

    host: str
    path: str


def endpoint_of(url: str) -> Endpoint | str:
    """Read a webhook's URL; return the endpoint, or what is wrong with it in words."""
    if len(url) > LONGEST_ADDRESS:
        return f"At most {LONGEST_ADDRESS} characters."
    # Before urlsplit, which quietly drops tabs and newlines.
    if not _VISIBLE.fullmatch(url) or "\\" in url:
        return "An address has no spaces, control characters or backslashes, and is ASCII (punycode, %-escapes)."
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "This is not an address."
    if parts.scheme.lower() != "https":
        return "The address must begin with https://."
    if "@" in parts.netloc:
        return "The address must not hold a name or a password."
    if port not in (None, HTTPS_PORT):
        return "Only port 443."
    if parts.fragment:
        return "The address must not have a fragment (#)."
    host = (parts.hostname or "").lower()
    if len(host) > _LONGEST_NAME or not _NAME.fullmatch(host):
        return "The host must be a public name, such as hooks.example.com; not a number."
    return Endpoint(host, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


def is_public(address: str) -> bool:
    """Say whether an IP address is one of the public internet, also when it is wrapped in an IPv6 one."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = _wrapped(ip)
        if inner is not None:
            return is_public(str(inner))
        if ip.scope_id is not None or ip not in _GLOBAL_UNICAST:
            return False
    refused = ip.is_multicast or ip.is_reserved or ip.is_unspecified or ip.is_link_local or ip.is_loopback
    return ip.is_global and not refused and not any(ip.version == net.version and ip in net for net in _NEVER)


def _wrapped(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
    return ip.ipv4_mapped or ip.sixtofour


def chosen(addresses: Sequence[str]) -> str | None:
    """Return which of a name's addresses is called: the first, if all are public. One that is not is a trick."""
    return addresses[0] if addresses and all(map(is_public, addresses)) else None
