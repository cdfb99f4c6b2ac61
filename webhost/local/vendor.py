"""What pages load in a browser from others: copied out of the locked npm packages, so that we serve it ourselves."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

VENDORED: Final = {
    "htmx.org/dist/htmx.min.js": "htmx.min.js",
    "htmx.org/LICENSE": "htmx.LICENSE.txt",
    "uplot/dist/uPlot.iife.min.js": "uplot.min.js",
    "uplot/dist/uPlot.min.css": "uplot.min.css",
    "uplot/LICENSE": "uplot.LICENSE.txt",
}
"""File in node_modules -> its name below static/vendor/."""


def copy_vendored(modules: Path, static: Path) -> None:
    """Write static/vendor/ anew from the installed packages."""
    folder = static / "vendor"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for source, name in VENDORED.items():
        shutil.copyfile(modules / source, folder / name)
