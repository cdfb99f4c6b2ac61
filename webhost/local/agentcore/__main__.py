"""Run the local AWS until told to stop."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from webhost.local.agentcore.access import Access
from webhost.local.agentcore.control import Control
from webhost.local.agentcore.moto import Moto
from webhost.local.agentcore.server import Aws, Front
from webhost.local.agentcore.state import Store
from webhost.local.agentcore.tools import Tools
from webhost.local.agentcore.vms import Vms
from webhost.local.node import node_binary


def main() -> None:
    """Listen on a loopback port; settings and credentials come from the environment, state lives below a folder."""
    parser = argparse.ArgumentParser(prog="python -m webhost.local.agentcore", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--hurry", type=float, default=1.0, help="how much sooner sessions are idle or too old")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    directory = options.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    region, boundary = os.environ["AWS_REGION"], os.environ["AGENTCORE_BOUNDARY_ARN"]
    moto = Moto(directory, region=region)
    moto.prepare(os.environ["AGENTCORE_BUCKET"], boundary)
    store = Store(directory, region, boundary.split(":")[4])
    control = Control(store, directory, moto.s3, moto.iam)
    address = f"http://127.0.0.1:{options.port}"
    program = os.environ.get("NODE_BINARY") or str(node_binary())
    vms = Vms(store, control, directory, address=address, region=region, node=program, hurry=options.hurry)
    access = Access(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"], vms, store, moto)
    aws = Aws(store, control, vms, Tools(store, directory, region), moto, access)
    try:
        while True:
            with Front(options.port, aws) as front:
                front.serve_forever(poll_interval=0.05)
            time.sleep(aws.away_seconds)
    except KeyboardInterrupt:
        pass
    finally:
        vms.stop_all()
        moto.stop()


def _leave(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    main()
