"""The whole product on a laptop: starts, survives the loss of a part, keeps its data, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests

from webhost.local import environment
from webhost.local.processes import accepts, wait_until
from webhost.local.product import Part, Product
from webhost.local.up import make_people

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="webhost-test-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture(scope="module")
def own(folder: Path) -> Iterator[Product]:
    own = Product(folder / "own")
    with own:
        yield own
    own.remove()


def family(pid: int) -> list[psutil.Process]:
    one = psutil.Process(pid)
    return [one, *one.children(recursive=True)]


def gone(processes: list[psutil.Process]) -> bool:
    return all(not one.is_running() or one.status() == psutil.STATUS_ZOMBIE for one in processes)


class TestAProductOfItsOwn:
    def test_every_part_runs_and_the_web_server_says_that_it_is_ready(self, own: Product) -> None:
        assert set(own.pids) == set(Part)
        assert requests.get(f"{own.url}/readyz", timeout=5).status_code == 200

    def test_its_people_are_made_once_and_can_use_the_api(self, own: Product) -> None:
        first, second = make_people(own), make_people(own)
        assert first == second
        answer = requests.get(f"{own.url}/v1/me", headers={"Authorization": f"Bearer {first['token']}"}, timeout=5)
        assert answer.status_code == 200

    def test_a_killed_web_worker_is_replaced(self, own: Product) -> None:
        victim = own.web_worker_pids[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(set(own.web_worker_pids) - {victim}) == own.web_workers, "another worker", 15)
        assert requests.get(f"{own.url}/readyz", timeout=5).status_code == 200

    @pytest.mark.parametrize("part", [Part.WORKER, Part.BEAT, Part.CLOUDFLARE, Part.AGENTCORE, Part.STRIPE, Part.WEB])
    def test_a_killed_part_can_be_started_again_at_the_same_address(self, own: Product, part: Part) -> None:
        before = own.pids[part]
        processes = family(before)
        own.kill(part)
        wait_until(lambda: gone(processes), f"the end of {part} and all it started", 5)
        own.start_part(part)
        own.check_alive()
        assert own.pids[part] != before

    @pytest.mark.parametrize("part", [Part.POSTGRES, Part.REDIS])
    def test_it_is_ready_again_after_a_service_below_it_was_away(self, own: Product, part: Part) -> None:
        own.kill(part)
        own.start_part(part)
        wait_until(lambda: requests.get(f"{own.url}/readyz", timeout=15).status_code == 200, "readiness", 30)

    def test_stopping_it_leaves_no_process_and_the_next_start_finds_its_data(self, own: Product) -> None:
        token = make_people(own)["token"]
        processes = [one for pid in own.pids.values() for one in family(pid)]
        own.stop()
        assert gone(processes)
        assert own.pids == {}
        own.start()
        assert make_people(own)["token"] == token


@pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's parent death signal")
def test_when_its_starter_is_killed_the_product_ends_by_itself(folder: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from webhost.local.product import Product\n"
        "product = Product(Path(sys.argv[1])); product.start()\n"
        "print(product.environment['LOCAL_WEB_PORT'], *product.pids.values(), flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program, str(folder / "orphan")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=environment.REPOSITORY) as starter:
        assert starter.stdout is not None
        port, *pids = [int(word) for word in starter.stdout.readline().split()]
        assert len(pids) == len(Part)
        processes = [one for pid in pids for one in family(pid)]
        starter.kill()
    wait_until(lambda: gone(processes), "the end of everything", 20)
    assert not accepts(port)
    Product(folder / "orphan").remove()
