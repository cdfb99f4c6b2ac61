"""The zip: the same files give the same bytes, so that the same source has the same hash at the service."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Final

from whs.errors import LocalError

# As runtimes/bundles/archive.py has them; said here before anything is sent.
MOST_FILES: Final = 1_000
LARGEST_FILE: Final = 16 * 1024 * 1024
LARGEST_ZIP: Final = 10 * 1024 * 1024
_BEGINNING = (1980, 1, 1, 0, 0, 0)
_FILE_MODE = 0o100644


def pack(files: Mapping[str, bytes]) -> bytes:
    """Zip files; raises LocalError where the service would not take them."""
    if len(files) > MOST_FILES:
        raise LocalError(
            "TOO_LARGE", f"The bundle has {len(files):,} files; at most {MOST_FILES:,} are taken.",
            todo="Leave out what the agent does not need.",
        )  # fmt: skip
    for name, content in files.items():
        if len(content) > LARGEST_FILE:
            raise LocalError("TOO_LARGE", f"{name} is larger than {LARGEST_FILE // 2**20} MB.")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _BEGINNING)
            entry.external_attr = _FILE_MODE << 16
            entry.create_system = 3
            archive.writestr(entry, files[name], zipfile.ZIP_DEFLATED, 9)
    content = packed.getvalue()
    if len(content) > LARGEST_ZIP:
        raise LocalError(
            "TOO_LARGE", f"The bundle is {len(content) / 2**20:.1f} MB; at most {LARGEST_ZIP // 2**20} MB are taken.",
            todo="Leave out what the agent does not need.",
        )  # fmt: skip
    return content
