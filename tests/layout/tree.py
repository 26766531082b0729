"""The source tree as the layout tests see it: files, the modules they are, and what each imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"


@dataclass(frozen=True)
class Import:
    """One import: the absolute name of the module, the line, and whether it happens when the importer is imported."""

    module: str
    line: int
    at_import: bool


@cache
def modules() -> dict[str, Path]:
    """Return every module of both packages by its dotted name."""
    found: dict[str, Path] = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    """Parse a file once."""
    return ast.parse(path.read_text("utf-8"), str(path))


def _typing_only(node: ast.If) -> bool:
    return "TYPE_CHECKING" in ast.unparse(node.test)


def imports(name: str, *, typing: bool = False) -> tuple[Import, ...]:
    """Return the imports of module `name`; those under TYPE_CHECKING only where `typing` asks for them."""
    path = modules()[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    known = modules()

    def named(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            return
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, base]) if base else ".".join(above)
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            yield inner if inner in known else base

    def walk(node: ast.AST, at_import: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                yield from (Import(module, child.lineno, at_import) for module in named(child))
            elif isinstance(child, ast.If) and _typing_only(child) and not typing:
                for other in child.orelse:
                    yield from walk(ast.Module([other], []), at_import)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from walk(child, at_import and not inside)

    return tuple(walk(tree(path), True))


def within(module: str, package: str) -> bool:
    """Tell whether `module` is `package` or lies in it."""
    return module == package or module.startswith(package + ".")
