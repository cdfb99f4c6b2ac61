"""The token on the developer's disk: nobody else can read it, at no moment."""

from __future__ import annotations

import json
import os
import stat

import pytest

from tests.cli.stub import Reply, envelope
from whs import config
from whs.client import checked_url
from whs.config import Config, load_config, save_config
from whs.errors import Exit, LocalError, UsageError

TOKEN = "whs_" + "a" * 64
ME = {"email": "alice@example.com"}


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "below" / "whs" / "config.json"


def test_what_is_saved_is_read_again(path):
    kept = Config("https://a.example", {"https://a.example": "whs_a", "https://b.example": "whs_b"})
    save_config(path, kept)
    assert load_config(path, pytest.fail) == kept


def test_file_and_folder_are_the_owners_only_whatever_the_umask(path):
    before = os.umask(0)
    try:
        save_config(path, Config("https://a.example", {"https://a.example": TOKEN}))
    finally:
        os.umask(before)
    assert mode(path) == 0o600
    assert mode(path.parent) == 0o700


def test_there_is_no_moment_at_which_others_could_read_it(path, monkeypatch):
    modes = []
    replace = config.Path.replace

    def watched(self, target):
        modes.append((mode(self), self.read_text(), self.parent == path.parent))
        return replace(self, target)

    monkeypatch.setattr(config.Path, "replace", watched)
    before = os.umask(0)
    try:
        save_config(path, Config("https://a.example", {"https://a.example": TOKEN}))
    finally:
        os.umask(before)
    ((found, text, is_beside),) = modes
    assert (found, is_beside) == (0o600, True)
    assert TOKEN in text


def test_a_folder_that_others_may_look_into_is_closed(path):
    path.parent.mkdir(parents=True, mode=0o755)
    save_config(path, Config())
    assert mode(path.parent) == 0o700


def test_a_file_that_others_could_read_is_closed_with_a_warning(path):
    save_config(path, Config("https://a.example", {"https://a.example": TOKEN}))
    path.chmod(0o644)
    warnings = []
    assert load_config(path, warnings.append).tokens == {"https://a.example": TOKEN}
    assert mode(path) == 0o600
    assert "revoke" in warnings[0]
    load_config(path, pytest.fail)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_somebody_elses_file_is_not_used(path):
    save_config(path, Config("https://evil.example", {}))
    os.chown(path, 12345, 12345)
    with pytest.raises(LocalError, match="somebody else"):
        load_config(path, pytest.fail)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(path, monkeypatch):
    save_config(path, Config("https://a.example", {}))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(config.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_config(path, Config("https://b.example", {}))
    assert load_config(path, pytest.fail).url == "https://a.example"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": 1}', '{"url": null, "profiles": {"a": {}}}'])
def test_a_damaged_file_is_told_with_what_to_do(path, text):
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(UsageError, match="damaged"):
        load_config(path, pytest.fail)


def test_a_token_is_not_sent_in_clear_over_a_network(monkeypatch):
    monkeypatch.delenv("WHS_ALLOW_HTTP", raising=False)
    assert checked_url("http://127.0.0.1:8000/") == "http://127.0.0.1:8000"
    assert checked_url("https://webhost.example/") == "https://webhost.example"
    with pytest.raises(UsageError, match="not encrypted"):
        checked_url("http://webhost.example")
    monkeypatch.setenv("WHS_ALLOW_HTTP", "1")
    assert checked_url("http://webhost.example") == "http://webhost.example"


@pytest.mark.parametrize(
    "url", ["webhost.example", "ftp://a.example", "https://", "https://u:p@a.example", "https://a?b"]
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(UsageError):
        checked_url(url)


# --- The program ---


def test_login_keeps_the_token_that_the_service_knows(whs, stub):
    stub.will(Reply(body=ME), Reply(body={"items": [], "nextCursor": None}))
    signed = whs("--url", stub.url, "login", given=f"{TOKEN}\n")
    assert signed.code == Exit.OK
    assert "alice@example.com" in signed.out
    assert TOKEN not in signed.out + signed.err
    assert mode(whs.folder / "config" / "config.json") == 0o600
    # From now on the address need not be given.
    assert whs("agents", "list").code == Exit.OK
    assert [asked.headers["Authorization"] for asked in stub.asked] == [f"Bearer {TOKEN}"] * 2


def test_a_token_that_is_pasted_is_not_echoed(whs, stub):
    stub.will(Reply(body=ME))
    shown = whs.at_terminal("--url", stub.url, "login", "--no-browser", asked="Token:", typed=TOKEN)
    assert f"Make a token at {stub.url}/" in shown
    assert "Signed in" in shown
    assert TOKEN not in shown


def test_login_keeps_nothing_that_the_service_refuses(whs, stub):
    stub.will(Reply(401, envelope("UNAUTHENTICATED")))
    assert whs("--url", stub.url, "login", given=TOKEN).code == Exit.NOT_SIGNED_IN
    assert not (whs.folder / "config").exists()


def test_what_is_no_token_is_not_even_sent(whs, stub):
    assert whs("--url", stub.url, "login", given="hunter2\n").code == Exit.USAGE
    assert stub.asked == []


def test_a_token_that_may_only_invoke_signs_in(whs, stub):
    stub.will(Reply(403, envelope("UNAUTHORIZED")))
    assert whs("--url", stub.url, "login", given=TOKEN).code == Exit.OK


def test_each_address_has_its_own_token_and_no_other_sees_it(whs, stub):
    save_config(whs.folder / "config" / "config.json", Config("https://a.example", {"https://a.example": TOKEN}))
    ended = whs("--url", stub.url, "whoami", "--json")
    assert ended.code == Exit.NOT_SIGNED_IN
    assert ended.json["error"]["code"] == "NOT_SIGNED_IN"
    assert stub.asked == []


def test_logout_forgets_the_token_of_this_address_only(whs, stub):
    path = whs.folder / "config" / "config.json"
    save_config(path, Config(stub.url, {stub.url: TOKEN, "https://b.example": "whs_b"}))
    assert whs("logout", "--json").json == {"url": stub.url, "wasSignedIn": True}
    assert json.loads(path.read_text()) == {"url": None, "profiles": {"https://b.example": {"token": "whs_b"}}}
    assert mode(path) == 0o600


def test_the_environment_wins_over_a_login(whs, stub):
    save_config(whs.folder / "config" / "config.json", Config("https://a.example", {"https://a.example": TOKEN}))
    stub.will(Reply(body={"items": [], "nextCursor": None}))
    assert whs("agents", "list", WHS_URL=stub.url, WHS_TOKEN="whs_other").code == Exit.OK
    assert stub.asked[0].headers["Authorization"] == "Bearer whs_other"
