"""Run the local Cloudflare until told to stop."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from webhost.local.cloudflare.fleet import Settings
from webhost.local.cloudflare.server import Cloud, State
from webhost.local.node import NodeSide


def main() -> None:
    """Listen on a loopback port; secrets come from the environment, state lives below a folder."""
    parser = argparse.ArgumentParser(prog="python -m webhost.local.cloudflare", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    options.directory.mkdir(parents=True, exist_ok=True)
    settings = Settings(
        directory=options.directory.resolve(),
        workerd=NodeSide(Path(os.environ["NODE_MODULES_DIR"])).workerd,
        root_keys=os.environ["ROOT_KEYS"],
        public_url=os.environ["PUBLIC_URL"].rstrip("/"),
    )
    state = State(settings)
    try:
        while True:
            serve(options.port, os.environ["CLOUDFLARE_API_TOKEN"], state)
    except KeyboardInterrupt:
        pass
    finally:
        state.namespaces.stop()


def serve(port: int, token: str, state: State) -> None:
    """Serve until a test asks for nobody to listen, and then come back after that while."""
    with Cloud(port, token, state) as cloud:
        cloud.serve_forever(poll_interval=0.05)
        cloud.drop_connections()
    time.sleep(state.away_seconds)


def _leave(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    main()
