"""Which files of a bundle are deployed, under which names, and what their imports become. Pure.

Only what the entrypoint reaches is deployed, so tests and tools in the folder do no harm. Files that are
not code become modules with a default export, which both runtimes take: JSON its value, text a string.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from runtimes.bundles.model import Module
from runtimes.transform import Broken, Transformed
from webhost.errors import InvalidRequestError, Issue

MOST_ISSUES: Final = 20
_CODE: Final = {".ts": ".js", ".mts": ".mjs", ".js": ".js", ".mjs": ".mjs"}
_TEXT: Final = frozenset({".txt", ".md", ".html", ".css", ".csv", ".sql", ".xml", ".yaml", ".yml"})
# What both runtimes resolve to the same file, and what can stand between quotes of either kind.
_MODULE_NAME = re.compile(r"[A-Za-z0-9_.@+$/-]+")
_OWN = re.compile(r"(?:node|cloudflare):[a-z][a-z0-9_/-]*")
_REMEDY = "Run `whs build` to bundle dependencies, then deploy what it wrote."


def is_code(name: str) -> bool:
    """Say whether a file is TypeScript or JavaScript that can be deployed."""
    return _suffix(name) in _CODE and not name.endswith((".d.ts", ".d.mts"))


def output_name(name: str) -> str:
    """Return the name under which a file is deployed: a.ts becomes a.js, a.json becomes a.json.js."""
    suffix = _suffix(name)
    return name.removesuffix(suffix) + _CODE[suffix] if suffix in _CODE else f"{name}.js"


def resolve(specifier: str, importer: str, names: Mapping[str, object]) -> str | None:
    """Return the file of the bundle that a relative import means, or None.

    As TypeScript has it: `./a.js` may be a.ts, and an import without a suffix is completed, last by index.
    """
    path = posixpath.normpath(posixpath.join(posixpath.dirname(importer), specifier))
    if path.startswith(("../", "/")) or path == "..":
        return None
    candidates = [] if specifier.endswith("/") else [path]
    stem, suffix = posixpath.splitext(path)
    candidates += {".js": [f"{stem}.ts"], ".mjs": [f"{stem}.mts"]}.get(suffix, [])
    candidates += [f"{path}{suffix}" for suffix in _CODE]
    candidates += [posixpath.normpath(f"{path}/index{suffix}") for suffix in _CODE]
    return next((name for name in candidates if name in names), None)


def link(entrypoint: str, files: Mapping[str, bytes], results: Mapping[str, Transformed | Broken]) -> list[Module]:
    """Return the modules to deploy, sorted by name; raises InvalidRequestError that lists every issue."""
    linker = _Linker(files, results)
    linker.follow(entrypoint)
    start = results.get(entrypoint)
    if isinstance(start, Transformed) and "default" not in start.exports:
        linker.wrong(entrypoint, "The entrypoint must export a function as its default.")
    if linker.issues:
        first = linker.issues[0]
        raise InvalidRequestError(f"{first['path']}: {first['message']}", issues=linker.issues)
    return sorted(linker.modules.values(), key=lambda module: module.name)


@dataclass
class _Linker:
    """Walks from the entrypoint along the imports, and collects modules and issues."""

    files: Mapping[str, bytes]
    results: Mapping[str, Transformed | Broken]
    modules: dict[str, Module] = field(default_factory=dict)
    issues: list[Issue] = field(default_factory=list)
    _made_from: dict[str, str] = field(default_factory=dict)

    def wrong(self, name: str, message: str, line: int | None = None) -> None:
        """Note an issue under the user's own file and line."""
        if len(self.issues) < MOST_ISSUES:
            self.issues.append({"path": f"{name}:{line}" if line else name, "message": message})

    def follow(self, entrypoint: str) -> None:
        """Take in the entrypoint and everything that it reaches."""
        waiting = [entrypoint]
        seen = {entrypoint}
        while waiting:
            name = waiting.pop()
            for reached in self._take(name):
                if reached not in seen:
                    seen.add(reached)
                    waiting.append(reached)

    def _take(self, name: str) -> Iterator[str]:
        made = output_name(name)
        other = self._made_from.setdefault(made, name)
        if other != name:
            self.wrong(name, f"This and {other} become the same module, {made}.")
        elif not _MODULE_NAME.fullmatch(name):
            self.wrong(name, "The name of a module holds only ASCII letters, digits and . _ - @ + $ /")
        elif not is_code(name):
            self._wrap(name, made)
        else:
            yield from self._rewrite(name, made)

    def _wrap(self, name: str, made: str) -> None:
        try:
            text = self.files[name].decode("utf-8-sig")
        except UnicodeDecodeError:
            self.wrong(name, "The file is not valid UTF-8.")
            return
        if _suffix(name) == ".json":
            if problem := _json_problem(text):
                self.wrong(name, problem)
                return
            # A literal would read "__proto__" otherwise than JSON does.
            code = f"export default JSON.parse({json.dumps(text)});\n"
        else:
            code = f"export default {json.dumps(text)};\n"
        self.modules[made] = Module(made, code.encode())

    def _rewrite(self, name: str, made: str) -> Iterator[str]:
        result = self.results[name]
        if isinstance(result, Broken):
            self.wrong(name, result.text, result.line)
            return
        code = [result.pieces[0]]
        for specifier, piece in zip(result.imports, result.pieces[1:], strict=True):
            target = self._target(specifier, name)
            if target is None:
                continue
            written = target
            if target in self.files:
                yield target
                written = posixpath.relpath(output_name(target), posixpath.dirname(name) or ".")
                written = written if written.startswith("../") else f"./{written}"
            code += [written, piece]
        self.modules[made] = Module(made, "".join(code).encode())

    def _target(self, specifier: str, importer: str) -> str | None:
        """Return the file that an import means, or the runtime's own name as it is; None after an issue."""
        if _OWN.fullmatch(specifier):
            return specifier
        shown = json.dumps(specifier[:200])
        if specifier.startswith(("./", "../")) or specifier in {".", ".."}:
            found = resolve(specifier, importer, self.files)
            if found and (is_code(found) or _suffix(found) == ".json" or _suffix(found) in _TEXT):
                return found
            why = "is neither TypeScript, JavaScript, JSON nor text" if found else "is not a file of the bundle"
            self.wrong(importer, f"The import {shown} {why}.", self._line(specifier, importer))
        else:
            why = "is neither relative nor the runtime's own (node:..., cloudflare:...)"
            self.wrong(importer, f"The import {shown} {why}. {_REMEDY}", self._line(specifier, importer))
        return None

    def _line(self, specifier: str, importer: str) -> int | None:
        """Return the first line that quotes a specifier; types and comments shift those of the output."""
        if len(self.issues) >= MOST_ISSUES:
            return None  # nobody will read it, and looking costs time
        text = self.files[importer].decode("utf-8-sig")
        places = [at for quote in "\"'`" if (at := text.find(f"{quote}{specifier}{quote}")) >= 0]
        return text.count("\n", 0, min(places)) + 1 if places else None


def _suffix(name: str) -> str:
    return posixpath.splitext(name)[1]


def _json_problem(text: str) -> str | None:
    try:
        json.loads(text, parse_constant=_refuse_constant, parse_int=float)
    except RecursionError:
        return "The JSON is nested too deeply."
    except ValueError as error:
        return f"The file is not valid JSON: {error}."
    return None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
