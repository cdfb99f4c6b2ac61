"""A bundle's way in: what a zip may hold, and that no zip costs more than its size allows."""

import hashlib
import io
import json
import os
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest
from django.conf import settings
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from runtimes.bundle import prepare_bundle, read_bundle
from runtimes.bundles import archive
from runtimes.bundles.archive import read_archive
from runtimes.bundles.config import CONFIG_NAME, parse_config
from tests.factories import example, zip_of
from webhost.errors import InvalidRequestError

CONFIG = {"name": "alices-agent", "entrypoint": "agent.ts", "runtime": "cloudflare"}
AGENT = 'export default async () => ({ text: "hi" });\n'
FILES = {CONFIG_NAME: json.dumps(CONFIG), "agent.ts": AGENT}
MEGABYTE = 2**20


def read(data):
    return read_bundle(io.BytesIO(data))


def refusal(data):
    """Read a bundle, which must be refused, and return the refusal. Anything else that is raised fails."""
    with pytest.raises(InvalidRequestError) as refused:
        read(data)
    assert refused.value.status in {400, 413}
    assert refused.value.details["issues"]
    return refused.value


def zip_with(*entries, **options):
    """Zip the good files and then some ZipInfo or names with content; a name may come twice."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, **options) as made:
        for name, data in [*FILES.items(), *entries]:
            made.writestr(name, data)
    return content.getvalue()


def entry(name, *, mode=None, system=3, dos=0):
    info = zipfile.ZipInfo("x")
    info.filename = name
    info.create_system = system
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = (mode or 0) << 16 | dos
    return info


def patched(data, name, *, local=True, central=True, **fields):
    """Overwrite header fields of one entry: flags, method, crc, packed, size."""
    data = bytearray(data)
    places = {"flags": (6, 8, "<H"), "method": (8, 10, "<H"), "crc": (14, 16, "<I"), "packed": (18, 20, "<I"), "size": (22, 24, "<I")}  # fmt: skip
    with zipfile.ZipFile(io.BytesIO(bytes(data))) as made:
        start, directory = made.getinfo(name).header_offset, made.start_dir
    at = directory
    while data[at + 46 : at + 46 + len(name)] != name.encode():
        lengths = struct.unpack_from("<3H", data, at + 28)
        at += 46 + sum(lengths)
    for field, value in fields.items():
        in_local, in_central, form = places[field]
        if local:
            struct.pack_into(form, data, start + in_local, value)
        if central:
            struct.pack_into(form, data, at + in_central, value)
    return bytes(data)


# --- What is taken ---


def test_a_zipped_folder_is_read_as_it_is():
    data = zip_with(("lib/", ""), ("lib/a.ts", "export const a = 1;"), ("empty.txt", ""))
    source = read(data)
    assert dict(source.files) == {
        CONFIG_NAME: FILES[CONFIG_NAME].encode(), "agent.ts": AGENT.encode(), "lib/a.ts": b"export const a = 1;", "empty.txt": b"",
    }  # fmt: skip
    assert source.source_sha256 == hashlib.sha256(data).hexdigest()


def test_a_stored_a_commented_and_a_streamed_zip_are_read_too():
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w") as made:
        made.comment = b"made by alice"
        for name, text in FILES.items():
            made.writestr(name, text)

    class Pipe(io.RawIOBase):
        def __init__(self):
            self.written = b""

        def writable(self):
            return True

        def write(self, data):
            self.written += bytes(data)
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as made:
        for name, text in FILES.items():
            made.writestr(name, text)
    assert read(stored.getvalue()).files == read(pipe.written).files == read(zip_of(FILES)).files


@given(
    st.dictionaries(
        st.text("abcdefgh", min_size=1, max_size=8).map(lambda name: f"{name}.txt"),
        st.binary(max_size=5000),
        max_size=8,
    ),
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
)
def test_what_the_standard_library_writes_is_read_byte_for_byte(files, method):
    files = {name: data for name, data in files.items() if not data.startswith(archive._ARCHIVES)}
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as made:
        for name, data in files.items():
            made.writestr(name, data)
    assert read_archive(content.getvalue()) == files


def test_the_limits_themselves_are_allowed():
    names = {f"{n}.txt": "x" for n in range(archive.MOST_ENTRIES - len(FILES))}
    assert len(read(zip_of(FILES | names)).files) == archive.MOST_ENTRIES
    refused = refusal(zip_of(FILES | names | {"one-more.txt": "x"}))
    assert (refused.status, refused.message) == (413, "More than 1,000 entries.")
    deep = "/".join("d" * 10) + "/a.txt"
    assert deep in read(zip_of(FILES | {deep: "x"})).files
    assert "deep" in refusal(zip_of(FILES | {f"d/{deep}": "x"})).message
    long = "n" * 196 + ".txt"
    assert long in read(zip_of(FILES | {long: "x"})).files
    refusal(zip_of(FILES | {f"n{long}": "x"}))


def test_a_megabyte_of_zeros_is_allowed_and_more_is_a_bomb():
    assert len(read(zip_of(FILES | {"zeros.bin": bytes(MEGABYTE - 2000)})).files["zeros.bin"]) == MEGABYTE - 2000
    assert refusal(zip_of(FILES | {"zeros.bin": bytes(MEGABYTE + 1)})).status == 413
    many = {f"{n}.bin": bytes(MEGABYTE // 2) for n in range(20)}
    assert "100 times" in refusal(zip_of(FILES | many)).message


def test_sizes_are_counted_for_one_file_and_for_all(monkeypatch):
    noise = os.urandom(600_000)
    monkeypatch.setattr(archive, "LARGEST_ENTRY", 600_000)
    monkeypatch.setattr(archive, "LARGEST_TOTAL", 1_300_000)
    assert read(zip_of(FILES | {"a.bin": noise, "b.bin": noise}))
    assert refusal(zip_of(FILES | {"a.bin": noise + b"x"})).status == 413
    assert refusal(zip_of(FILES | {"a.bin": noise, "b.bin": noise, "c.bin": noise})).status == 413


# --- What is refused ---


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd", "../x.ts", "a/../../x.ts", "a/..", "..", "a\\b.ts", "C:x.ts", "C:/x.ts", "a:b.ts", "a//b.ts", "./a.ts",
        "a/./b.ts", "a\x00b.ts", "a\nb.ts", "a\x7f.ts", "a\u202ets.exe", "a\u200b.ts", "a\u2028.ts", "dot.", "space ", "dir./a.ts",
        "_whs.js", "_WHS/a.js", "lib/_whs_shim.mjs",
    ],
)  # fmt: skip
def test_a_name_that_could_mean_another_place_is_refused(name):
    # ZipFile cuts names at NUL and turns some separators; so the names are written by hand.
    data = zip_with(("P" * len(name.encode()), "x")).replace(b"P" * len(name.encode()), name.encode())
    if not name.isascii():
        data = patched_flags_for_utf8(data, name)
    refused = refusal(data)
    assert refused.details["issues"][0]["path"] != ""


def patched_flags_for_utf8(data, name):
    raw = name.encode()
    data = bytearray(data)
    local, central = data.find(raw), data.rfind(raw)
    struct.pack_into("<H", data, local - 30 + 6, 0x800)
    struct.pack_into("<H", data, central - 46 + 8, 0x800)
    return bytes(data)


@pytest.mark.parametrize(
    "names",
    [
        ["a.ts", "a.ts"],
        ["a.ts", "A.ts"],
        ["stra\u00dfe.ts", "STRASSE.ts"],
        ["caf\u00e9.ts", "cafe\u0301.ts"],
        ["lib/a.ts", "LIB/b.ts"],
        ["lib/", "lib/"],
        ["lib/a.ts", "LIB/"],
        ["lib", "lib/a.ts"],
        ["lib/a.ts", "lib"],
        ["lib", "lib/"],
        ["Agent.ts"],
        ["agent.ts"],
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_names_for_one_file_are_refused(names):
    refusal(zip_with(*[(name, "" if name.endswith("/") else "x") for name in names]))


@pytest.mark.parametrize("mode", [0o120777, 0o020666, 0o060666, 0o010666, 0o140666, 0o040755])
def test_links_devices_and_disguised_folders_are_refused(mode):
    refusal(zip_with((entry("link.ts", mode=mode), "/etc/passwd")))


def test_a_folder_is_a_folder_and_nothing_else():
    assert read(zip_with((entry("lib/", mode=0o040755, dos=0x10), "")))
    refusal(zip_with((entry("lib/", mode=0o040755), "content")))
    refusal(zip_with((entry("lib/", mode=0o100644), "")))
    refusal(zip_with((entry("lib", dos=0x10), "x")))


@pytest.mark.parametrize("method", [1, 6, 9, 12, 14, 93, 95, 99])
def test_unknown_compression_is_refused(method):
    refusal(patched(zip_of(FILES), "agent.ts", method=method))


@pytest.mark.parametrize("flag", [0x1, 0x40, 0x2000])
def test_encryption_is_refused(flag):
    assert "ncrypted" in refusal(patched(zip_of(FILES), "agent.ts", flags=flag)).message


@pytest.mark.parametrize("side", [{"local": False}, {"central": False}])
@pytest.mark.parametrize("field", ["method", "crc", "packed", "size"])
def test_headers_that_contradict_each_other_are_refused(field, side):
    refusal(patched(zip_of(FILES), "agent.ts", **{field: 8 if field == "packed" else 0}, **side))


@pytest.mark.parametrize("make", ["zip", "gzip", "tar", "bzip2", "xz"])
def test_an_archive_inside_the_bundle_is_refused(make):
    if make == "zip":
        inner = zip_of({"x": zip_of({"y": zip_of({"z": "1"})})})
    elif make == "tar":
        inner = b"a".ljust(257, b"\0") + b"ustar\0" + bytes(300)
    else:
        module = {"gzip": "gzip", "bzip2": "bz2", "xz": "lzma"}[make]
        inner = __import__(module).compress(b"x")
    assert "Archives inside" in refusal(zip_of(FILES | {"inner.dat": inner})).message


def test_a_bundle_without_its_config_says_what_to_do():
    refused = refusal(zip_of({f"my-agent/{name}": text for name, text in FILES.items()}))
    assert "zip the content of the folder" in refused.message
    missing = refusal(zip_of({CONFIG_NAME: json.dumps(CONFIG)}))
    assert missing.details["issues"][0]["path"] == "agent.config.json/entrypoint"


# --- UPL-01: a bomb costs what it weighs ---

MEASURE = """
import io, json, resource, sys, time, tempfile, os
import django
django.setup()
from runtimes.bundle import read_bundle
from webhost.errors import InvalidRequestError
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "linux" else 1048576)
before, began, folder = peak(), time.monotonic(), set(os.listdir(tempfile.gettempdir()))
try:
    with open(sys.argv[1], "rb") as file:
        read_bundle(file)
    status = 200
except InvalidRequestError as error:
    status = error.status
left = [name for name in set(os.listdir(tempfile.gettempdir())) - folder if name.startswith(("whs-", "tmp"))]
print(json.dumps({"status": status, "mb": peak() - before, "seconds": time.monotonic() - began, "left": left}))
"""


def measured(data, tmp_path):
    """Read a bundle in a process of its own that keeps its temporary files apart; return what it cost."""
    upload = tmp_path / "upload.zip"
    upload.write_bytes(data)
    temporary = tmp_path / "temporary"
    temporary.mkdir(exist_ok=True)
    answer = subprocess.run(
        [sys.executable, "-c", MEASURE, str(upload)],
        env=os.environ | {"TMPDIR": str(temporary)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(answer.stdout)


def bomb_of_zeros():
    """200 entries that become 50 MB each, written by hand because a good writer takes a minute over them."""
    body, size = deflated_zeros(50 * MEGABYTE), 50 * MEGABYTE
    return written_by_hand([(f"{n}.bin", body, size, 0) for n in range(200)])


def deflated_zeros(size):
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    return b"".join(squeeze.compress(bytes(MEGABYTE)) for _ in range(size // MEGABYTE)) + squeeze.flush()


def written_by_hand(entries, *, at=None):
    """Write a zip of (name, packed, size, crc); `at` puts all entries of the directory on one place."""
    body, directory = b"", b""
    for name, packed, size, crc in entries:
        raw = name.encode()
        place = len(body) if at is None else at
        fields = struct.pack("<4H3I2H", 0, 8, 0, 33, crc, len(packed), size, len(raw), 0)
        directory += b"PK\x01\x02" + struct.pack("<2H", 20, 20) + fields + struct.pack("<3H2I", 0, 0, 0, 0, place) + raw
        if at is None or not body:
            body += b"PK\x03\x04" + struct.pack("<H", 20) + fields + raw + packed
    return body + directory + ended(len(entries), len(directory), len(body))


def ended(count, length, start):
    return b"PK\x05\x06" + struct.pack("<4H2IH", 0, 0, count, count, length, start, 0)


def lying_size():
    """Five million zeros that say they are a hundred, in both headers."""
    data = zip_of(FILES | {"zeros.bin": bytes(5_000_000)})
    return patched(data, "zeros.bin", size=100)


def lying_size_and_checksum():
    """The same, with the checksum of those hundred: the standard library reads it without complaint."""
    return patched(lying_size(), "zeros.bin", crc=zlib.crc32(bytes(100)))


def hundred_thousand_entries():
    data = zip_of({f"{n:x}": "1" for n in range(100_000)})
    return data if len(data) <= settings.BUNDLE_LIMIT else data[: settings.BUNDLE_LIMIT]


def hidden_entries():
    """The directory of a hundred thousand entries, of which the end says there is one."""
    record = b"PK\x01\x02" + bytes(42)
    directory = record * 100_000
    return directory + ended(1, len(directory), 0)


def overlapping_entries():
    """Five hundred entries that share one deflated megabyte (D. Fifield, A better zip bomb)."""
    body = deflated_zeros(MEGABYTE)
    return written_by_hand([(f"{n:03}.bin", body, MEGABYTE, zlib.crc32(bytes(MEGABYTE))) for n in range(500)], at=0)


def empty_zip():
    return ended(0, 0, 0)


def junk_before():
    return b"#!/bin/sh\n" + zip_of(FILES)


def junk_before_told():
    """Leading junk that the offsets know of."""
    content = io.BytesIO(b"#!/bin/sh\n")
    content.seek(0, 2)
    with zipfile.ZipFile(content, "a") as made:
        for name, text in FILES.items():
            made.writestr(name, text)
    return content.getvalue()


@pytest.mark.case("UPL-01")
@pytest.mark.parametrize(
    "make",
    [
        bomb_of_zeros, lying_size, lying_size_and_checksum, hundred_thousand_entries, hidden_entries, overlapping_entries,
        empty_zip, junk_before, junk_before_told,
    ],
    ids=lambda make: make.__name__,
)  # fmt: skip
def test_a_bomb_is_refused_in_bounded_memory_and_time(make, tmp_path):
    cost = measured(make(), tmp_path)
    assert cost["status"] in {400, 413}
    assert cost["mb"] < 90, "the upload, once, and no more than 32 MB out of it"
    assert cost["seconds"] < 10
    assert cost["left"] == []


@pytest.mark.case("UPL-01")
def test_a_gigabyte_of_leading_junk_is_not_even_read(tmp_path):
    class Gigabyte(io.RawIOBase):
        def seek(self, place, whence=0):
            return 2**30

        def readinto(self, buffer):
            raise AssertionError("it was read")

    with pytest.raises(InvalidRequestError) as refused:
        read_bundle(Gigabyte())
    assert refused.value.status == 413


@pytest.mark.case("UPL-01")
@pytest.mark.parametrize("data", [b"", b"PK", b"not a zip", b"PK\x05\x06", bytes(100_000)])
def test_what_is_no_zip_is_refused(data):
    assert refusal(data).status == 400


@pytest.mark.case("UPL-01")
def test_a_zip_cut_anywhere_is_refused():
    data = zip_of(FILES)
    for length in range(len(data)):
        refusal(data[:length])
    refusal(data + b"x")


@given(st.data())
@hypothesis_settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_zip_is_read_right_or_refused_but_never_fails(data):
    good = zip_with(("lib/a.txt", "a" * 1000))
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        files = read(bytes(damaged)).files
    except InvalidRequestError:
        return
    assert files == read(good).files


# --- agent.config.json ---


def test_a_full_config_is_read_and_says_itself_back():
    config = parse_config(
        json.dumps(
            {
                "name": "a_full-one", "entrypoint": "./src/agent.mts", "runtimes": ["agentcore", "cloudflare"],
                "protocol": "invoke/v1", "env": {"requiredKeys": ["API_KEY"], "optionalKeys": ["REGION"]},
                "capabilities": {"streaming": True, "tools": False}, "timeoutSeconds": 300,
                "agentcore": {
                    "capabilities": {"memory": True, "codeInterpreter": False, "browser": True},
                    "lifecycle": {"idleTimeoutSeconds": 900},
                },
            }
        ).encode()
    )  # fmt: skip
    assert (config.name, config.entrypoint) == ("a_full-one", "src/agent.mts")
    assert config.runtimes == {"cloudflare", "agentcore"}
    assert (config.required_keys, config.optional_keys) == (("API_KEY",), ("REGION",))
    assert config.capabilities == {"memory", "browser"}
    assert (config.streaming, config.timeout_seconds) == (True, 300)
    assert parse_config(json.dumps(config.as_json()).encode()) == config


def test_what_a_config_does_not_say_has_a_default():
    config = parse_config(json.dumps(CONFIG).encode())
    assert (config.protocol, config.timeout_seconds, config.streaming) == ("invoke/v1", 60, False)
    assert config.required_keys == config.optional_keys == ()
    assert config.capabilities == frozenset()


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"name": "no"}, "name"),
        ({"name": "a b c"}, "name"),
        ({"name": None}, "name"),
        ({"name": "abc\n"}, "name"),
        ({"entrypoint": "agent.py"}, "entrypoint"),
        ({"entrypoint": "agent.d.ts"}, "entrypoint"),
        ({"entrypoint": ["agent.ts"]}, "entrypoint"),
        ({"runtime": "lambda"}, "runtime"),
        ({"runtime": ["cloudflare"]}, "runtime"),
        ({"runtimes": ["cloudflare"]}, "runtime"),
        ({"runtime": None}, "runtime"),
        ({"protocol": "invoke/v2"}, "protocol"),
        ({"timeoutSeconds": 0}, "timeoutSeconds"),
        ({"timeoutSeconds": 301}, "timeoutSeconds"),
        ({"timeoutSeconds": True}, "timeoutSeconds"),
        ({"timeoutSeconds": 1.5}, "timeoutSeconds"),
        ({"env": []}, "env"),
        ({"env": {"requiredKeys": "API_KEY"}}, "env/requiredKeys"),
        ({"env": {"requiredKeys": ["1A"]}}, "env/requiredKeys"),
        ({"env": {"requiredKeys": ["A"], "optionalKeys": ["A"]}}, "env"),
        ({"env": {"optionalKeys": [f"K{n}" for n in range(65)]}}, "env/optionalKeys"),
        ({"env": {"values": {}}}, "env/values"),
        ({"capabilities": {"streaming": 1}}, "capabilities/streaming"),
        ({"capabilities": {"browser": True}}, "capabilities/browser"),
        ({"agentcore": {"capabilities": {"memory": "yes"}}}, "agentcore/capabilities/memory"),
        ({"agentcore": {"capabilities": {"shell": True}}}, "agentcore/capabilities/shell"),
        ({"agentcore": {"lifecycle": {"idleTimeoutSeconds": 1}}}, "agentcore/lifecycle/idleTimeoutSeconds"),
        ({"agentcore": {"role": "admin"}}, "agentcore/role"),
        ({"owner": "charlie"}, "owner"),
    ],
)
def test_a_config_that_says_anything_else_is_refused_with_its_place(change, path):
    refused = refusal(zip_of(FILES | {CONFIG_NAME: json.dumps(CONFIG | change)}))
    assert f"agent.config.json/{path}" in {issue["path"] for issue in refused.details["issues"]}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"name": NaN}', '{"name": "a", "name": "b"}', "[" * 100_000])
def test_a_config_is_strict_json(text):
    assert refusal(zip_of(FILES | {CONFIG_NAME: text})).details["issues"][0]["path"] == CONFIG_NAME


def test_every_issue_of_a_config_is_told_at_once():
    bad = CONFIG | {"name": "", "timeoutSeconds": -1, "tier": "enterprise"}
    refused = refusal(zip_of(FILES | {CONFIG_NAME: json.dumps(bad)}))
    assert len(refused.details["issues"]) == 3


# --- The examples ---


@pytest.mark.parametrize("name", ["echo", "tokens", "session", "streaming"])
def test_each_example_is_a_good_bundle_with_one_hash(name):
    bundle = prepare_bundle(read(example(name)))
    assert bundle.config.name == name
    assert bundle.entrypoint == "agent.js"
    assert [module.name for module in bundle.modules] == sorted(module.name for module in bundle.modules)
    assert prepare_bundle(read(example(name))).deployed_sha256 == bundle.deployed_sha256
