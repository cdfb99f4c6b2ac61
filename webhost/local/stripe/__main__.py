"""Run the local Stripe until told to stop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
from pathlib import Path

from aiohttp import web

from webhost.local.stripe.api import Api
from webhost.local.stripe.business import Business
from webhost.local.stripe.control import Control
from webhost.local.stripe.delivery import Post
from webhost.local.stripe.objects import Disk
from webhost.local.stripe.pages import Pages


async def serve(port: int, directory: Path) -> None:
    """Listen on a loopback port; key, secret and the product's address come from the environment."""
    disk = Disk(directory)
    address = f"http://127.0.0.1:{port}"
    secret = os.environ["STRIPE_WEBHOOK_SECRETS"].split(",")[0]
    post = Post(f"{os.environ['PUBLIC_URL']}/v1/billing/webhook", secret, disk.keep)
    business = Business(post, address)
    control = Control(business, disk.keep)
    api = Api(business, control, os.environ["STRIPE_SECRET_KEY"], disk.keep)
    business.stock()
    disk.keep()
    app = web.Application(middlewares=[api.guard])
    app.add_routes([*api.routes(), *control.routes(), *Pages(business, disk.keep).routes()])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    delivering = asyncio.create_task(post.run())
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    while not stopped.is_set():
        site = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        waiting = [asyncio.create_task(stopped.wait()), asyncio.create_task(control.away.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await site.stop()
        if control.away.is_set() and runner.server is not None:
            await runner.server.shutdown(timeout=0)  # those who are connected, too
            control.away.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), control.away_seconds)
    delivering.cancel()
    disk.keep()
    await runner.cleanup()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m webhost.local.stripe", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    options = parser.parse_args()
    directory = options.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    asyncio.run(serve(options.port, directory))


if __name__ == "__main__":
    main()
