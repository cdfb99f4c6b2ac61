"""Check the syntax of Python files, in a process of its own. The files are data: they are compiled, nothing runs.

In, on standard input: a line {"entrypoint": name, "files": [[name, size], ...]}, then the files' bytes.
Out: [{"name", "line", "text"}, ...], one for each file that is not valid.
"""

from __future__ import annotations

import ast
import json
import sys
from typing import Any

MOST_PROBLEMS = 20


def problem_of(name: str, source: bytes, *, is_entrypoint: bool) -> dict[str, Any] | None:
    """Return what is wrong with a file, or None."""
    try:
        tree = ast.parse(source, name)
        compile(tree, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        return {"name": name, "line": error.lineno, "text": f"{error.msg}."}
    except ValueError as error:
        return {"name": name, "line": None, "text": f"The file is no Python: {error}."}
    except (RecursionError, MemoryError):
        return {"name": name, "line": None, "text": "The file is too large or too deeply nested to be read."}
    if is_entrypoint and not any(binds_agent(statement) for statement in tree.body):
        return {"name": name, "line": None, "text": "The entrypoint must define a function called `agent`."}
    return None


def binds_agent(statement: ast.stmt) -> bool:
    """Say whether a statement of a module may leave a function called `agent` behind."""
    match statement:
        case ast.FunctionDef(name="agent") | ast.AsyncFunctionDef(name="agent"):
            return True
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return any((alias.asname or alias.name) == "agent" for alias in names)
        case ast.Assign(targets=targets):
            return any(isinstance(target, ast.Name) and target.id == "agent" for target in targets)
        case ast.AnnAssign(target=ast.Name(id="agent"), value=value):
            return value is not None
        case ast.If() | ast.Try() | ast.With():
            return any(binds_agent(inner) for inner in ast.iter_child_nodes(statement) if isinstance(inner, ast.stmt))
        case _:
            return False


def main() -> None:
    """Read the table and the files, and tell what is wrong."""
    table = json.loads(sys.stdin.buffer.readline())
    problems = []
    for name, size in table["files"]:
        source = sys.stdin.buffer.read(size)
        if problem := problem_of(name, source, is_entrypoint=name == table["entrypoint"]):
            problems.append(problem)
    json.dump(problems[:MOST_PROBLEMS], sys.stdout)


if __name__ == "__main__":
    main()
