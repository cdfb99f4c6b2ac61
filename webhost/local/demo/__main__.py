"""Tell the whole story.

Prints each call and its answer in short and ends 1 if any expectation fails. It speaks HTTP with the API
and, as support would, with the admin; and it runs two of the operator's commands: one that makes
accounts, one that proves the usage.
"""

from __future__ import annotations

import os
import sys

from webhost.local.demo import limits, premium, upgrade
from webhost.local.demo.people import Support, failures, say


def main() -> int:
    """Tell the story; return 1 if any of it is not true."""
    url = os.environ.get("WHS_URL") or os.environ["PUBLIC_URL"]
    support = Support(url)
    alice = limits.limits_are_exact(url, support)
    limits.tokens_are_enforced(url, support)
    limits.sessions_and_streams(alice)
    premium.tell(url, support)
    upgrade.tell(url, support, os.environ["STRIPE_API_URL"])
    limits.usage_is_proven(alice)
    failed = failures()
    say(f"\n{len(failed)} expectations failed: {', '.join(failed)}" if failed else "\nEverything as promised.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
