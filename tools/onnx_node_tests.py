"""Run the node tests of the `onnx` package through the whole way, and write docs/onnx-operators.md.

Each test's model is captured, compiled and saved in one process, and opened and run in another, which imports no
compiler; some dozens of tests share such a pair of processes. A process that dies or takes too long is told of the test
that it was at, and the others go on. Results are kept in build/onnx-node-tests (or $RIG_ONNX_NODE_TESTS), so that a
second call runs only what is new; `--again failed` runs again what did not pass, `--again all` everything.

    nice python tools/onnx_node_tests.py                   # run what has no result yet
    python tools/onnx_node_tests.py --only 'reduce_.*'     # those tests only
    python tools/onnx_node_tests.py --write                # and write the table
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORK = Path(os.environ.get("RIG_ONNX_NODE_TESTS") or ROOT / "build" / "onnx-node-tests")
SECONDS = 120
"""What a test may take before it counts as hanging."""

PASSED, WRONG, MISSING, LIMIT, FAILED, CRASH, HANG = "passed", "wrong", "missing", "limit", "failed", "crash", "hang"
CLASSES = {
    PASSED: "passed", WRONG: "wrong result (bug)", MISSING: "missing operator", LIMIT: "documented limit",
    FAILED: "error of ours (bug)", CRASH: "crash (bug)", HANG: "hang (bug)",
}  # fmt: skip


MOST_PLACES = 4
"""Units in the last place by which sums in half precision may differ: they are rounded in another order."""

_ALIGNED = "as ONNX Runtime: corners are aligned to the whole size of the result, the test counts a part of an element"
KNOWN = {
    "test_resize_downsample_scales_linear_align_corners": _ALIGNED,
    "test_resize_downsample_scales_cubic_align_corners": _ALIGNED,
    "test_maxunpool_export_with_output_shape":
        "as ONNX Runtime: indices count in the given shape, the test counts them in the shape without padding",
}  # fmt: skip
"""Results that differ from the test's for a reason, by test."""


@dataclass(frozen=True)
class Case:
    """A test: a model's bytes, what goes in and what must come out, in the order of the graph."""

    name: str
    operator: str
    model: bytes
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    rtol: float
    atol: float


def cases() -> dict[str, Case]:
    """Return every node test of the installed `onnx` package; they are made once and kept."""
    import onnx

    kept = WORK / f"cases-{onnx.__version__}.pickle"
    if not kept.exists():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from onnx.backend.test.loader import load_model_tests

            made = [_case(case) for case in load_model_tests(kind="node")]
        WORK.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(pickle.dumps(made))
    return {values[0]: Case(*values) for values in pickle.loads(kept.read_bytes())}


def _case(case: Any) -> tuple[Any, ...]:
    """Return the fields of a `Case`."""
    import onnx

    model = case.model or onnx.load(Path(case.model_dir) / "model.onnx")
    inputs, outputs = ([_array(value) for value in values] for values in case.data_sets[0])
    return (
        case.name, _operator(case.name, model), model.SerializeToString(), tuple(inputs), tuple(outputs),
        case.rtol, case.atol,
    )  # fmt: skip


def _array(value: Any) -> Any:
    from onnx import TensorProto, numpy_helper

    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _operator(name: str, model: Any) -> str:
    """Return the operator that a test is about; one whose function body is written out is named by the test."""
    nodes = [n.op_type for n in model.graph.node]
    if len(set(nodes)) == 1:
        return str(nodes[0])
    words = re.sub("^test_", "", name).replace("_", "")
    return max((n for n in _all_operators() if words.startswith(n.lower())), key=len, default="") or str(nodes[-1])


def _all_operators() -> set[str]:
    from onnx import defs

    return {schema.name for schema in defs.get_all_schemas()}


# --- in a process of its own: from models to files -------------------------------------------------------------------


def compile_all(names: Sequence[str]) -> None:
    """Write the model of each test to a file; say on standard output what came of it, a line for each."""
    known = cases()
    for name in names:
        _say(name, "begins")
        started = time.monotonic()
        status, detail, fixed = _compile(known[name])
        _say(name, status, detail=detail, fixed=fixed, seconds=round(time.monotonic() - started, 2))


def _say(name: str, status: str, **more: Any) -> None:
    print(json.dumps({"name": name, "status": status, **more}), flush=True)


def _compile(case: Case) -> tuple[str, str, list[str]]:
    from rig.errors import Error
    from tolk_engine import compile, from_onnx

    fixed: list[str] = []
    while True:
        try:
            schedule = from_onnx(_with_constants(case, fixed), name=case.name)
            compile(schedule, jobs=1).save(WORK / f"{case.name}.rig")
            return "compiled", "", fixed
        except Error as e:
            needed = re.search(r"depends on input ('[^']*'(?:, '[^']*')*)", str(e))
            more = [n for n in re.findall(r"'([^']*)'", needed[1]) if n not in fixed] if needed else []
            if not more:
                return _class_of(str(e)), str(e), fixed
            fixed += more
        except Exception as e:
            return FAILED, f"{type(e).__name__}: {e}", fixed


def _class_of(message: str) -> str:
    return MISSING if re.search(r"operator '\w+' of domain .* is not supported; ", message) else LIMIT


def _with_constants(case: Case, fixed: Sequence[str]) -> bytes:
    """Return the test's model with some inputs as constants, since shapes depend on their values."""
    if not fixed:
        return case.model
    import onnx
    from onnx import numpy_helper

    model = onnx.load_from_string(case.model)
    for value, data in zip(list(model.graph.input), case.inputs, strict=True):
        if value.name in fixed:
            model.graph.initializer.append(numpy_helper.from_array(data, value.name))
            model.graph.input.remove(value)
    return bytes(model.SerializeToString())


# --- in another: from files to results -------------------------------------------------------------------------------


def run_all(names: Sequence[str]) -> None:
    """Open and run the file of each test and compare the outputs; say what came of it."""
    known = cases()
    for name in names:
        _say(name, "begins")
        status, detail = _run(known[name])
        _say(name, status, detail=detail)
    if {"tinygrad", "tolk_engine", "llvmlite"} & set(sys.modules):
        raise SystemExit("a compiler was imported")


def _run(case: Case) -> tuple[str, str]:
    import numpy as np
    import onnx

    import rig

    names = [value.name for value in onnx.load_from_string(case.model).graph.input]
    given = dict(zip(names, case.inputs, strict=True))
    try:
        model = rig.open(WORK / f"{case.name}.rig")
        outputs = model(*(np.asarray(given[t.name]) for t in model.signature.inputs))
    except Exception as e:
        return FAILED, f"{type(e).__name__}: {e}"
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    for tensor, got, wanted in zip(model.signature.outputs, outputs, case.outputs, strict=True):
        wanted = np.asarray(wanted)
        if (got.dtype, got.shape) != (wanted.dtype, wanted.shape):
            return WRONG, f"{tensor.name} is {got.dtype}{got.shape}, expected {wanted.dtype}{wanted.shape}"
        try:
            np.testing.assert_allclose(got, wanted, rtol=case.rtol, atol=case.atol)
        except AssertionError as e:
            off = _places(got, wanted)
            if off is not None and off <= MOST_PLACES:
                return LIMIT, f"{got.dtype} is rounded {off} units in the last place off, the test allows less than 1"
            if case.name in KNOWN:
                return LIMIT, KNOWN[case.name]
            return WRONG, f"{tensor.name}: " + " ".join(str(e).split())[:300]
    return PASSED, ""


def _places(got: Any, wanted: Any) -> int | None:
    """Return how many units in the last place two arrays of a narrow float type differ by at most."""
    import numpy as np

    if str(got.dtype) not in ("float16", "bfloat16") or not np.isfinite(got.astype(np.float32)).all():
        return None
    bits = [a.view(np.uint16).astype(np.int64) for a in (got, wanted)]
    ordered = [np.where(b < 0x8000, b, 0x8000 - b) for b in bits]
    return int(np.abs(ordered[0] - ordered[1]).max(initial=0))


# --- the pairs of processes ------------------------------------------------------------------------------------------


def results_of(names: Sequence[str], chunk: int = 40) -> Iterator[dict[str, Any]]:
    """Run tests; yields a result for each."""
    for start in range(0, len(names), chunk):
        made = {r["name"]: r for r in _work("compile", names[start : start + chunk])}
        ready = [name for name, r in made.items() if r["status"] == "compiled"]
        ran = {r["name"]: r for r in _work("run", ready)}
        for name, result in made.items():
            yield {**result, **ran.get(name, {})}


def _work(kind: str, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Let a process do `kind` for tests; after one that it does not survive, another goes on with the next."""
    left = list(names)
    while left:
        command = [sys.executable, __file__, "--worker", kind, *left]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        log = WORK / f"{kind}.log"
        with log.open("w") as errors, subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process:  # fmt: skip
            at = ""
            late = False
            for line in _lines(process):
                if line is None:
                    late = True
                    process.kill()
                    break
                said = json.loads(line)
                at = said["name"]
                if said["status"] != "begins":
                    yield said
                    left.remove(at)
                    at = ""
        if process.returncode and not at:
            raise SystemExit(f"a process ended with {process.returncode} between two tests: see {log}")
        if at:
            left.remove(at)
            how = f"no end in {SECONDS} s" if late else f"the process ended with {process.returncode}"
            yield {"name": at, "status": HANG if late else CRASH, "detail": f"{kind}: {how}"}


def _lines(process: subprocess.Popen[str]) -> Iterator[str | None]:
    """Yield a process's lines, and None if it says nothing for too long."""
    import queue
    import threading

    lines: queue.Queue[str] = queue.Queue()
    stream = process.stdout
    assert stream is not None

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=SECONDS)
        except queue.Empty:
            yield None
            return
        if not line:
            return
        yield line


def main() -> None:
    """Run the tests that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", metavar="REGEX", help="tests whose names match, without test_")
    parser.add_argument("--again", choices=["failed", "all"], help="run what has a result")
    parser.add_argument("--write", action="store_true", help="write the table")
    parser.add_argument("--show", action="store_true", help="print what did not pass")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    space = parser.parse_args()
    if space.worker:
        {"compile": compile_all, "run": run_all}[space.worker[0]](space.worker[1:])
        return
    known = cases()
    store = WORK / "results.json"
    results: dict[str, Any] = json.loads(store.read_text()) if store.exists() else {}
    chosen = [n for n in known if re.fullmatch(space.only or ".*", n.removeprefix("test_"))]
    todo = [n for n in chosen if n not in results or space.again == "all" or (
        space.again == "failed" and results[n]["status"] != PASSED)]  # fmt: skip
    for done, result in enumerate(results_of(todo), 1):
        results[result["name"]] = result
        if done % 40 == 0 or done == len(todo):
            store.write_text(json.dumps(results, indent=0))
            print(f"{done}/{len(todo)}", flush=True)
    print(_summary(results[n] for n in chosen))
    if space.write:
        (ROOT / "docs" / "onnx-operators.md").write_text(table(known, results), "utf-8")
    if space.show:
        for name in chosen:
            if results[name]["status"] != PASSED:
                print(f"{name} [{results[name]['status']}] {results[name]['detail'][:300]}")


def _summary(results: Iterable[dict[str, Any]]) -> str:
    counts: dict[str, int] = {}
    for result in results:
        counts[result["status"]] = counts.get(result["status"], 0) + 1
    return ", ".join(f"{CLASSES[status]}: {n}" for status, n in sorted(counts.items(), key=lambda c: -c[1]))


# --- the table -------------------------------------------------------------------------------------------------------

_HEAD = """\
# ONNX operators

What the node tests of the `onnx` package say: each test's model is captured, compiled and saved in one process, opened
and run in another, and its outputs are compared as that package's own runner does (rtol 1e-3, atol 1e-7 unless the test
says otherwise; type and shape must be equal). Written by `python tools/onnx_node_tests.py --write`; do not edit.

With {versions}: {total} tests.
{summary}.

An input that decides a shape (axes, sizes, counts; most often {inputs})
has to be a constant of the graph. Of the tests that passed, {fixed} have such an input, whose value was put into the
graph; the column "as constant" counts them. Other inputs are inputs of the compiled model.

Every test that did not pass is of one of these classes, and is told in one line that names the node or the input:

- *missing operator*: the test needs the operator named there.
- *documented limit*: an element type or a form that is not supported, or a result that is right and not the test's.
- *wrong result*, *error of ours*, *crash*, *hang*: bugs.

## Operators

| operator | passed | as constant | not passed |
|---|---|---|---|
"""


def table(known: dict[str, Case], results: dict[str, Any]) -> str:
    """Return the text of docs/onnx-operators.md."""
    from importlib.metadata import version

    by_operator: dict[str, list[str]] = {}
    for name, case in known.items():
        by_operator.setdefault(case.operator, []).append(name)
    passed = [n for n in known if results[n]["status"] == PASSED]
    fixed = [n for n in passed if results[n].get("fixed")]
    packages = ("onnx", "tinygrad", "llvmlite", "numpy")
    text = _HEAD.format(
        versions=", ".join(f"{name} {version(name)}" for name in packages), total=len(known), fixed=len(fixed),
        summary=_summary(results[n] for n in known).capitalize(),
        inputs=", ".join(f"`{n}`" for n in _frequent(x for n in fixed for x in results[n]["fixed"])),
    )  # fmt: skip
    for operator in sorted(o for o, names in by_operator.items() if set(names) & set(passed)):
        names = by_operator[operator]
        good = [n for n in names if n in passed]
        reasons = sorted({_reason(results[n]) for n in names if n not in good})
        constant = len([n for n in good if n in fixed])
        text += f"| {operator} | {len(good)} / {len(names)} | {constant or ''} | {'; '.join(reasons)} |\n"
    text += "\n## Operators of which no test passes\n\n| operator | tests | why |\n|---|---|---|\n"
    for operator in sorted(o for o, names in by_operator.items() if not set(names) & set(passed)):
        reasons = sorted({_reason(results[n]) for n in by_operator[operator]})
        text += f"| {operator} | {len(by_operator[operator])} | {'; '.join(reasons)} |\n"
    return text + "\n## The tests that did not pass\n" + _failures(known, results)


def _failures(known: dict[str, Case], results: dict[str, Any]) -> str:
    groups: dict[tuple[str, str], list[str]] = {}
    for name in known:
        if results[name]["status"] != PASSED:
            groups.setdefault((results[name]["status"], _reason(results[name])), []).append(name.removeprefix("test_"))
    text = ""
    for status, title in CLASSES.items():
        found = sorted((reason, names) for (s, reason), names in groups.items() if s == status)
        if found:
            text += f"\n### {title.capitalize()}\n\n"
        for reason, names in found:
            text += f"- {reason}: {', '.join(names)}\n"
    return text


def _frequent(names: Iterable[str]) -> list[str]:
    from collections import Counter

    return [name for name, _ in Counter(names).most_common(6)]


_REASONS = (
    (r"operator '(\w+)' of domain .* is not supported; ", "missing operator {0}"),
    (r"operator '(\w+)' of domain .* is not supported with attribute '(\w+)'", "attribute {1} of {0}"),
    (r"operator '(\w+)' of domain .* is not supported with these inputs", "this form of {0}"),
    (r"(?:input '[^']*' is|gives) (?:a |an )?(sequence|optional value)", "{0}s"),
    (r"(?:input '[^']*' is|gives) string", "strings"),
    (r"(?:input '[^']*' is|gives) (\w+\d\w*):", "element type {0}"),
    (r"weight '[^']*' holds (\w+)", "element type {0}"),
    (r"invalid coordinate_transformation_mode='(\w+)'", "coordinate_transformation_mode {0}"),
    (r"(antialias) is not implemented", "{0}"),
    (r"(\w+) is rounded", "rounding of {0}, at most 4 units in the last place"),
)


def _reason(result: dict[str, Any]) -> str:
    """Return in few words why a test did not pass."""
    detail = result["detail"]
    for pattern, words in _REASONS:
        found = re.search(pattern, detail)
        if found:
            return words.format(*found.groups())
    words = detail if result["status"] == LIMIT else f"{result['status']}: {detail}"
    return str(words).replace("|", "/")[:160]


if __name__ == "__main__":
    main()
