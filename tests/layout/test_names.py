"""Public names: each public module lists them, each is there, each is documented; files and functions stay readable."""

from __future__ import annotations

import ast

import pytest
from tree import ROOT, SRC, modules, tree

PUBLIC = [name for name in modules() if not any(part.startswith("_") for part in name.split("."))]
LINES_OF_A_FILE = 650
LINES_OF_A_FUNCTION = 90


def listed(module: ast.Module) -> list[str] | None:
    """Return the names that `__all__` spells out, or None where the module has none."""
    for node in module.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            assert isinstance(node.value, ast.List | ast.Tuple)
            return [ast.literal_eval(name) for name in node.value.elts if not isinstance(name, ast.Starred)]
    return None


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_module_lists_its_names(name: str) -> None:
    names = listed(tree(modules()[name]))
    assert names is not None, f"{name} has no __all__"
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", PUBLIC)
def test_everything_public_is_documented(name: str) -> None:
    module = tree(modules()[name])
    missing = [] if ast.get_docstring(module) else [name]
    names = set(listed(module) or ())
    for node in module.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name not in names:
            continue
        if not ast.get_docstring(node):
            missing.append(f"{name}.{node.name}")
        if isinstance(node, ast.ClassDef) and "Protocol" not in map(ast.unparse, node.bases):
            missing += [
                f"{name}.{node.name}.{method.name}"
                for method in node.body
                if isinstance(method, ast.FunctionDef)
                and not method.name.startswith("_")
                and not ast.get_docstring(method)
                and not any(ast.unparse(d).endswith((".setter", "overload")) for d in method.decorator_list)
            ]
    assert missing == []


@pytest.mark.parametrize("name", list(modules()))
def test_every_module_uses_postponed_annotations(name: str) -> None:
    module = tree(modules()[name])
    code = [node for node in module.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    if code:
        assert ast.unparse(code[0]) == "from __future__ import annotations"


def test_files_stay_readable() -> None:
    sources = [*SRC.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    sources += [p for p in (ROOT / "native").rglob("*") if p.suffix in (".cc", ".h")]
    long = {str(p.relative_to(ROOT)): n for p in sources if (n := p.read_text("utf-8").count("\n")) > LINES_OF_A_FILE}
    assert long == {}


@pytest.mark.parametrize("name", list(modules()))
def test_functions_stay_readable(name: str) -> None:
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(tree(modules()[name]))
        if isinstance(node, ast.FunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > LINES_OF_A_FUNCTION
    ]
    assert long == []


@pytest.mark.parametrize("package", ["rig", "tolk_engine"])
def test_the_packages_are_typed(package: str) -> None:
    assert (SRC / package / "py.typed").is_file()
