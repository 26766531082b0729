"""What the engine needs, what of it is here, and the command that brings the rest: ``python -m tolk_engine check``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["Item", "items", "main"]


@dataclass(frozen=True, slots=True)
class Item:
    """One thing: its name, what was found or why it is not there, and for what is missing how to get it.

    What is not `needed` is only missing for what `get` says.
    """

    name: str
    found: str
    get: str = ""
    needed: bool = True


def items() -> Iterator[Item]:
    """Look for everything, one after the other; nothing raises."""
    import platform

    import rig

    yield Item("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield Item("rig", f"{rig.__version__}, this host runs {rig.host().arch}")
    yield _look("tinygrad", _tinygrad, "pip install 'rig-runtime[tolk]'")
    yield _look("llvmlite", _llvmlite, "pip install 'rig-runtime[tolk]'")
    yield _look("onnx", _package("onnx"), "pip install 'rig-runtime[onnx]', for ONNX files", needed=False)
    yield _look("numpy", _package("numpy"), "pip install numpy, to call models with arrays", needed=False)
    yield _look("clang", _clang, "pip install ziglang, or a clang of your system, for --compiler clang", needed=False)
    yield Item("cache", _cache())


def main() -> int:
    """Print a line for each; return 1 where something is missing that compiling needs."""
    missing = False
    for item in items():
        print(f"{item.name:10} {item.found}" + (f"\n{'':10} {item.get}" if item.get else ""))
        missing |= bool(item.get) and item.needed
    return int(missing)


def _look(name: str, look: Callable[[], str], get: str, *, needed: bool = True) -> Item:
    try:
        return Item(name, look(), needed=needed)
    except Exception as e:  # a broken install raises anything
        return Item(name, f"not usable: {e}" if str(e) else f"not usable: {type(e).__name__}", get, needed)


def _package(name: str) -> Callable[[], str]:
    def look() -> str:
        from importlib import import_module

        return str(import_module(name).__version__)

    return look


def _tinygrad() -> str:
    from tolk_engine.frontend import adapter

    return f"{adapter.VERSION}, the version that this engine works with"


def _llvmlite() -> str:
    from tolk_engine.compiler import compiler
    from tolk_engine.target import default

    made = compiler(default(), "llvmlite")
    return f"{made.version}, tunes for {made.processor or 'no processor'}"


def _clang() -> str:
    from tolk_engine.clang import command

    found = command()
    return f"{found.version} ({' '.join(found.words)})"


def _cache() -> str:
    from tolk_engine.cache import place

    folder, why, limit = place()
    return f"{folder}, at most {limit / 1e6:.0f} MB" if folder is not None else f"off: {why}"
