"""Read a zip that nobody vouches for: every limit is counted on the bytes that really come out.

The standard library's reader trusts the sizes an archive declares, skips what stands before the first
entry, and reads a central directory of any length. So this one reads the format itself (PKWARE APPNOTE
6.3.10), and only the part that tools which zip a folder write: one disk, no zip64, no encryption, stored
or deflated. What a second reader could understand differently is refused.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, NoReturn

from runtimes.bundles.names import alias_problems, name_problem
from webhost.errors import InvalidRequestError

MOST_ENTRIES: Final = 1000
LARGEST_TOTAL: Final = 32 * 1024 * 1024
LARGEST_ENTRY: Final = 16 * 1024 * 1024
HIGHEST_RATIO: Final = 100
# Small files of one repeated line compress better than any ratio says; they harm nobody.
RATIO_FREE: Final = 1024 * 1024

# Without what nobody needs to know: versions, times, internal attributes.
_END = struct.Struct("<4s4H2IH")
_CENTRAL = struct.Struct("<4s4x2H4x3I4H2x2I")
_LOCAL = struct.Struct("<4s2x2H4x3I2H")
_STORED, _DEFLATED = 0, 8
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_STREAMED, _UTF8 = 0x8, 0x800
_FILE, _FOLDER, _KIND = 0o100000, 0o040000, 0o170000
_DOS_FOLDER = 0x10
_ARCHIVES: Final = (
    b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08", b"\x1f\x8b\x08", b"BZh", b"\xfd7zXZ\x00", b"7z\xbc\xaf\x27\x1c",
    b"Rar!\x1a\x07", b"\x28\xb5\x2f\xfd",
)  # fmt: skip


@dataclass(frozen=True)
class _End:
    """What the end of a zip says: how many entries, and from where to where the directory reaches."""

    count: int
    start: int
    stop: int


@dataclass(frozen=True)
class _Entry:
    """One entry as the central directory declares it."""

    name: str
    raw_name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    attributes: int
    start: int

    @property
    def is_folder(self) -> bool:
        return self.name.endswith("/")


def read_archive(data: bytes) -> dict[str, bytes]:
    """Return the files of a zip by name, in its own order; raises InvalidRequestError, 400 or 413.

    Memory is bounded by the input and LARGEST_TOTAL, time by the input, whatever the archive says.
    """
    end = _find_end(data)
    entries = list(_central_directory(data, end))
    for entry in entries:
        _require_plain(entry)
    for name, why in alias_problems(entry.name for entry in entries):
        _refuse(why, name)
    if sum(entry.size for entry in entries) > LARGEST_TOTAL:
        _refuse(f"The files are more than {LARGEST_TOTAL // 2**20} MB together.", too_large=True)
    bodies = _bodies(data, end.start, entries)
    files: dict[str, bytes] = {}
    out = 0
    for entry in entries:
        content = _unpack(bodies[entry.name], entry)
        out += len(content)
        if out > max(RATIO_FREE, HIGHEST_RATIO * len(data)):
            _refuse(f"The bundle expands more than {HIGHEST_RATIO} times.", too_large=True)
        if content.startswith(_ARCHIVES) or content[257:262] == b"ustar":
            _refuse("Archives inside the bundle are not opened; put their files into it.", entry.name)
        if not entry.is_folder:
            files[entry.name] = content
    return files


def _refuse(message: str, name: str = "bundle", *, too_large: bool = False) -> NoReturn:
    shown = name.encode("ascii", "backslashreplace").decode()[:220] if not name.isprintable() else name[:220]
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE if too_large else None
    said = message if shown == "bundle" else f"{shown}: {message}"
    raise InvalidRequestError(said, issues=[{"path": shown, "message": message}], status=status)


def _find_end(data: bytes) -> _End:
    """Return where the directory is, after checking that the file ends with it and nothing is unsaid."""
    at = data.rfind(b"PK\x05\x06", max(0, len(data) - _END.size - 0xFFFF))
    if at < 0 or at + _END.size > len(data):
        _refuse("This is not a zip, or only the beginning of one.")
    _, disk, first_disk, here, count, length, start, comment = _END.unpack_from(data, at)
    if at + _END.size + comment != len(data):
        _refuse("Something follows the end of the zip.")
    if disk or first_disk or here != count or count == 0xFFFF or start == 0xFFFFFFFF:
        _refuse("The zip is in several parts or in the zip64 format.")
    if count > MOST_ENTRIES:
        _refuse(f"More than {MOST_ENTRIES:,} entries.", too_large=True)
    if start + length != at:
        _refuse("The zip is damaged, or something stands before its first entry.")
    return _End(count, start, at)


def _central_directory(data: bytes, end: _End) -> Iterator[_Entry]:
    """Yield what the directory declares; it must be exactly as long as it says."""
    place = end.start
    for _ in range(end.count):
        if place + _CENTRAL.size > end.stop:
            _refuse("The directory of the zip is damaged.")
        signature, flags, method, crc, packed, size, n_name, n_extra, n_comment, part, attributes, local = (
            _CENTRAL.unpack_from(data, place)
        )
        name_at = place + _CENTRAL.size
        place = name_at + n_name + n_extra + n_comment
        if signature != b"PK\x01\x02" or place > end.stop or part:
            _refuse("The directory of the zip is damaged.")
        raw = data[name_at : name_at + n_name]
        yield _Entry(_decode(raw, flags), raw, flags, method, crc, packed, size, attributes, local)
    if place != end.stop:
        _refuse("The directory of the zip is damaged.")


def _decode(raw: bytes, flags: int) -> str:
    if not flags & _UTF8:
        return raw.decode("cp437")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        _refuse("A name is not valid UTF-8.")


def _require_plain(entry: _Entry) -> None:
    """Refuse, by what is declared, all but files and empty folders with harmless names."""
    if problem := name_problem(entry.name):
        _refuse(problem, entry.name)
    mode = (entry.attributes >> 16) & _KIND
    if mode not in {0, _FOLDER if entry.is_folder else _FILE}:
        _refuse("Links, devices and the like are not taken; only files and folders.", entry.name)
    if not entry.is_folder and entry.attributes & _DOS_FOLDER:
        _refuse("A folder that is called like a file.", entry.name)
    if entry.is_folder and entry.size:
        _refuse("A folder with content.", entry.name)
    if entry.flags & _ENCRYPTED:
        _refuse("Encrypted entries cannot be read.", entry.name)
    if entry.method not in {_STORED, _DEFLATED}:
        _refuse("Only stored and deflated entries are read; this one is compressed in another way.", entry.name)
    if entry.size > LARGEST_ENTRY:
        _refuse(f"A file is at most {LARGEST_ENTRY // 2**20} MB.", entry.name, too_large=True)
    if entry.size > max(RATIO_FREE, HIGHEST_RATIO * entry.packed):
        _refuse(f"The file expands more than {HIGHEST_RATIO} times.", entry.name, too_large=True)


def _bodies(data: bytes, directory: int, entries: list[_Entry]) -> dict[str, memoryview]:
    """Return the packed bytes of each entry; refuses leading junk, overlaps and contradicting local headers."""
    view = memoryview(data)
    bodies: dict[str, memoryview] = {}
    free = 0
    for n, entry in enumerate(sorted(entries, key=lambda entry: entry.start)):
        if n == 0 and entry.start != 0:
            _refuse("Something stands before the first entry of the zip.")
        if entry.start < free:
            _refuse("The entry overlaps another one.", entry.name)
        if entry.start + _LOCAL.size > directory:
            _refuse("The entry lies outside of the zip.", entry.name)
        signature, flags, method, crc, packed, size, n_name, n_extra = _LOCAL.unpack_from(data, entry.start)
        name_at = entry.start + _LOCAL.size
        begin = name_at + n_name + n_extra
        free = begin + entry.packed
        if signature != b"PK\x03\x04" or free > directory:
            _refuse("The entry lies outside of the zip.", entry.name)
        declared = (entry.crc, entry.packed, entry.size)
        # A streamed entry's own header was written before its size was known.
        said = declared if flags & _STREAMED else (crc, packed, size)
        name = data[name_at : name_at + n_name]
        differs = (flags ^ entry.flags) & (_ENCRYPTED | _UTF8)
        if differs or (method, name, *said) != (entry.method, entry.raw_name, *declared):
            _refuse("The entry contradicts the directory of the zip.", entry.name)
        bodies[entry.name] = view[begin:free]
    return bodies


def _unpack(body: memoryview, entry: _Entry) -> bytes:
    """Return an entry's content, never unpacking more than one byte beyond what was declared (and allowed)."""
    if entry.method == _STORED:
        content, ended = bytes(body), True
    else:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            content = inflate.decompress(body, entry.size + 1)
        except zlib.error:
            _refuse("The compressed data is damaged.", entry.name)
        ended = inflate.eof and not inflate.unused_data
    if len(content) != entry.size or not ended:
        _refuse("The zip lies about the size of the entry.", entry.name)
    if zlib.crc32(content) != entry.crc:
        _refuse("The checksum of the entry is wrong.", entry.name)
    return content
