"""What a laptop has in place of the clouds: real servers, started and stopped at will, leaving nothing."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from webhost.local import environment, node
from webhost.local.postgres import Postgres
from webhost.local.processes import Child, LocalServiceError, accepts, free_port, release, wait_until
from webhost.local.redis import Redis
from webhost.local.stack import Stack


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may enter, as PostgreSQL's needs where we are root."""
    with tempfile.TemporaryDirectory(prefix="webhost-test-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
def postgres(folder: Path) -> Iterator[Postgres]:
    server = Postgres(folder / "postgres", free_port(), "secret")
    server.start()
    yield server
    server.remove()


@pytest.fixture
def valkey(folder: Path) -> Iterator[Redis]:
    server = Redis(folder / "redis", free_port(), "secret")
    server.start()
    yield server
    server.remove()


def query(server: Postgres, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def runs(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody asked after does not."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(shown.stdout.strip()) and not shown.stdout.startswith("Z")


class TestPostgres:
    def test_it_keeps_its_data_when_stopped_and_started(self, postgres: Postgres) -> None:
        query(postgres, "CREATE TABLE kept AS SELECT 7 AS seven")
        postgres.stop()
        assert not accepts(postgres.port)
        postgres.start()
        assert query(postgres, "SELECT seven FROM kept") == [(7,)]

    def test_it_keeps_what_was_committed_when_killed(self, postgres: Postgres) -> None:
        query(postgres, "CREATE TABLE kept AS SELECT 7 AS seven")
        postgres.kill()
        assert not postgres.alive
        postgres.start()
        assert query(postgres, "SELECT seven FROM kept") == [(7,)]

    def test_it_stops_at_once_though_a_client_is_connected(self, postgres: Postgres) -> None:
        connection = psycopg.connect(postgres.url)
        connection.execute("SELECT 1")
        postgres.stop()
        assert not postgres.alive
        connection.close()

    def test_it_lets_nobody_in_without_the_password(self, postgres: Postgres) -> None:
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(postgres.url.replace("secret", "guess"))

    def test_it_sorts_alike_on_every_machine_and_makes_commits_durable(self, postgres: Postgres) -> None:
        assert query(postgres, "SELECT array_agg(x ORDER BY x) FROM unnest(ARRAY['b', 'B', 'a', 'ä']) AS x") == [
            (["B", "a", "b", "ä"],)
        ]
        assert query(postgres, "SELECT current_setting('fsync'), current_setting('synchronous_commit')") == [
            ("on", "on")
        ]

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can shut another user out")
    def test_it_runs_for_root_below_a_folder_that_its_own_user_cannot_enter(self, folder: Path) -> None:
        folder.chmod(0o700)
        server = Postgres(folder / "postgres", free_port(), "secret")
        server.start()
        query(server, "CREATE TABLE kept AS SELECT 7 AS seven")
        elsewhere = Path((folder / "postgres" / "elsewhere").read_text())
        again = Postgres(folder / "postgres", server.port, "secret")
        server.stop()
        again.start()
        assert query(again, "SELECT seven FROM kept") == [(7,)]
        again.remove()
        assert not elsewhere.exists()

    def test_another_servers_port_is_named_as_the_reason(self, postgres: Postgres, folder: Path) -> None:
        second = Postgres(folder / "second", postgres.port, "other")
        with pytest.raises(LocalServiceError, match=f"port.*{postgres.port}|in use"):
            second.start()
        second.remove()


class TestValkey:
    def test_it_answers_at_the_same_address_after_a_restart_and_has_forgotten(self, valkey: Redis) -> None:
        with redis.Redis.from_url(valkey.url) as client:
            client.set("a", "1")
            valkey.stop()
            with pytest.raises(redis.ConnectionError):
                client.ping()
            valkey.start()
            assert client.get("a") is None

    def test_it_comes_back_after_a_kill(self, valkey: Redis) -> None:
        valkey.kill()
        assert not valkey.alive
        valkey.start()
        assert valkey.alive

    def test_it_lets_nobody_in_without_the_password(self, valkey: Redis) -> None:
        with pytest.raises(redis.AuthenticationError), redis.Redis(port=valkey.port, retry=None) as client:
            client.ping()


class TestNode:
    def test_the_workers_runtime_the_transform_and_the_lexer_run(self) -> None:
        side = node.install(environment.STATE / "node")
        runtime = subprocess.run([side.workerd, "--version"], capture_output=True, text=True, check=True)
        assert runtime.stdout.strip() == "workerd 2026-11-17"
        transformed = subprocess.run(
            [side.esbuild, "--loader=ts"], input="const a: number = 1", capture_output=True, text=True, check=True
        )
        assert transformed.stdout == "const a = 1;\n"
        lexer = "import { init, parse } from 'es-module-lexer'; await init; console.log(parse('import \"./a.js\"')[0][0].specifier)"
        command = [node.node_binary(), "--input-type=module", "--eval", lexer]
        assert (
            subprocess.run(command, cwd=side.modules, capture_output=True, text=True, check=True).stdout == "./a.js\n"
        )

    def test_what_is_installed_is_not_installed_again(self) -> None:
        node.install(environment.STATE / "node")
        stamp = environment.STATE / "node" / "installed"
        before = stamp.stat().st_mtime_ns
        node.install(environment.STATE / "node")
        assert stamp.stat().st_mtime_ns == before

    def test_every_package_is_locked_by_its_hash_and_none_names_an_address(self) -> None:
        lock = (environment.REPOSITORY / "webhost" / "local" / "npm" / "package-lock.json").read_text()
        packages = lock.count('"version":')
        assert packages == lock.count('"integrity": "sha512-') > 3
        assert "resolved" not in lock
        assert "://" not in lock


class TestChildren:
    def test_a_child_that_does_not_start_shows_the_end_of_its_log(self, folder: Path) -> None:
        child = Child("broken", [sys.executable, "-c", "raise SystemExit('no such thing')"], folder / "log")
        child.start()
        with pytest.raises(LocalServiceError, match="no such thing"):
            wait_until(lambda: False, "broken", 10, child)

    def test_a_child_that_will_not_stop_is_killed_with_all_it_started(self, folder: Path) -> None:
        stubborn = (
            "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
            "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
            "print(p.pid, flush=True); p.wait()"
        )
        child = Child("stubborn", [sys.executable, "-c", stubborn], folder / "log", patience=0.3)
        child.start()
        wait_until(lambda: (folder / "log").read_text().endswith("\n"), "stubborn", 10, child)
        grandchild = int((folder / "log").read_text())
        child.stop()
        assert child.exit_code == -signal.SIGKILL
        wait_until(lambda: not runs(grandchild), "the grandchild's end", 5)

    @pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's parent death signal")
    def test_a_killed_parent_leaves_no_child(self, folder: Path) -> None:
        program = (
            "import sys, time; from pathlib import Path; from webhost.local.stack import Stack\n"
            "stack = Stack(Path(sys.argv[1])); stack.start()\n"
            "print(stack.postgres.pid, stack.redis.pid, flush=True); time.sleep(60)"
        )
        command = [sys.executable, "-c", program, str(folder / "stack")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=environment.REPOSITORY) as parent:
            assert parent.stdout is not None
            children = [int(pid) for pid in parent.stdout.readline().split()]
            assert len(children) == 2
            assert all(runs(pid) for pid in children)
            parent.kill()
        wait_until(lambda: not any(runs(pid) for pid in children), "the children's end", 10)
        Stack(folder / "stack").remove()


class TestSettings:
    def test_secrets_are_made_once_kept_and_private(self, folder: Path) -> None:
        first, second = environment.keep(folder), environment.keep(folder)
        assert first.values == second.values
        assert stat.S_IMODE((folder / "env").stat().st_mode) == 0o600

    def test_no_two_stacks_share_a_secret(self, folder: Path) -> None:
        first, second = environment.keep(folder / "a"), environment.keep(folder / "b")
        assert not {v for k, v in first.values.items() if not k.endswith("_PORT")} & set(second.values.values())

    def test_what_is_given_from_outside_wins_and_nothing_is_started_in_its_place(self, folder: Path) -> None:
        given = {
            "DATABASE_URL": "postgresql://elsewhere/db",
            "REDIS_URL": "redis://elsewhere",
            "CLOUDFLARE_API_URL": "https://elsewhere/client/v4",
            "CLOUDFLARE_API_TOKEN": "given",
            "AWS_ENDPOINT_URL": "https://elsewhere",
            "AWS_PROFILE": "given",
            "STRIPE_API_URL": "https://elsewhere",
            "STRIPE_SECRET_KEY": "given",
        }
        with Stack(folder / "stack", given) as stack:
            assert stack.postgres is None
            assert stack.redis is None
            assert given.items() <= stack.environment.items()
            assert "LOCAL_CLOUDFLARE_PORT" not in stack.environment
            assert "LOCAL_AGENTCORE_PORT" not in stack.environment
            assert "LOCAL_STRIPE_PORT" not in stack.environment
            assert "STRIPE_WEBHOOK_SECRETS" not in stack.environment

    def test_the_local_aws_is_never_shown_a_laptops_own_keys(self, folder: Path) -> None:
        given = {
            "AWS_ACCESS_KEY_ID": "own",
            "AWS_SECRET_ACCESS_KEY": "own",
            "AWS_SESSION_TOKEN": "own",
            "AWS_PROFILE": "own",
        }
        settings = environment.settings_for(folder, environment.keep(folder), given)
        assert settings["AWS_ENDPOINT_URL"] == f"http://127.0.0.1:{settings['LOCAL_AGENTCORE_PORT']}"
        assert "own" not in settings.values()

    def test_the_local_stripe_is_never_shown_a_laptops_own_key(self, folder: Path) -> None:
        given = {"STRIPE_SECRET_KEY": "sk_live_own", "STRIPE_WEBHOOK_SECRETS": "own", "STRIPE_LIVEMODE": "true"}
        settings = environment.settings_for(folder, environment.keep(folder), given)
        assert settings["STRIPE_API_URL"] == f"http://127.0.0.1:{settings['LOCAL_STRIPE_PORT']}"
        assert settings["STRIPE_SECRET_KEY"].startswith("sk_test_")
        assert not {"sk_live_own", "own", "true"} & set(settings.values())

    def test_a_stack_of_its_own_inherits_no_setting_of_its_caller(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ROOT_KEYS", "callers")
        monkeypatch.setenv("REDIS_URL", "redis://callers")
        with Stack(folder / "stack", {"DATABASE_URL": "postgresql://elsewhere/db"}) as stack:
            assert "callers" not in stack.environment["ROOT_KEYS"] + stack.environment["REDIS_URL"]

    def test_two_stacks_cannot_run_on_the_same_data(self, folder: Path) -> None:
        given = {"DATABASE_URL": "postgresql://elsewhere/db", "REDIS_URL": "redis://elsewhere"}
        with (
            Stack(folder / "stack", given),
            pytest.raises(LocalServiceError, match="runs already"),
            Stack(folder / "stack", given),
        ):
            pass


def test_a_port_that_one_process_claimed_is_nobody_elses_until_it_ends() -> None:
    port = free_port()
    look = f"from webhost.local.processes import claim, is_free; print(claim({port}), is_free({port}))"

    def others() -> str:
        return subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout.strip()

    assert others() == "False True"
    release(port)
    assert others() == "True True"
