"""Ask SmolLM2-135M-Instruct a question: the answer comes as it is made. Needs rig and tokenizers, nothing else.

    python examples/smollm2/run.py FOLDER "What is the capital of France?"

A run makes some tokens in one go, with the model's state from the run before.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rig

START, END = 1, 2  # <|im_start|> and <|im_end|>
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def prompt(tokenizer: Any, question: str) -> list[int]:
    """Return a question's tokens in the form that the model was taught."""
    turns = (("system", SYSTEM), ("user", question))
    text = "".join(f"<|im_start|>{who}\n{what}<|im_end|>\n" for who, what in turns) + "<|im_start|>assistant\n"
    return list(tokenizer.encode(text).ids)


def stream(model: rig.Model, given: list[int], limit: int, step: int = 8) -> Iterator[list[int]]:
    """Give the tokens behind `given`, at most `limit`, `step` at a time; it ends behind the end of the answer."""
    (tensor,) = model.signature.inputs
    context = tensor.sizes[0]
    if len(given) >= context:
        raise SystemExit(f"the question has {len(given)} tokens, the model was built for {context} in all")
    model.reset()
    tokens, out = bytearray(4 * context), bytearray(4 * context)
    seen = memoryview(tokens).cast("i")
    for i, token in enumerate(given):
        seen[i] = token
    begin, last = 0, min(len(given) + limit, context)
    while begin < last - 1:
        end = min(max(begin, len(given) - 1) + step, last - 1)
        numbers = {"begin": begin, "prompt": len(given), "end": end}
        model.bind({"tokens": tokens}, {"out": out}, numbers).run()
        fresh = memoryview(out).cast("i")[max(begin + 1, len(given)) : end + 1].tolist()
        tokens[:] = out
        if END in fresh:
            yield fresh[: fresh.index(END) + 1]
            return
        yield fresh
        begin = end


def main() -> None:
    """Answer the question of the command line."""
    parser = argparse.ArgumentParser(description="Ask SmolLM2-135M-Instruct a question.")
    parser.add_argument("folder", type=Path, help="where build.py wrote the model")
    parser.add_argument("question")
    parser.add_argument("--tokens", type=int, default=200, help="how many tokens the answer may have (200)")
    given = parser.parse_args()
    from tokenizers import Tokenizer

    start = time.perf_counter()
    model = rig.open(given.folder / "smollm2.rig")
    tokenizer = Tokenizer.from_file(str(given.folder / "tokenizer.json"))
    opened = time.perf_counter()
    asked = prompt(tokenizer, given.question)
    found: list[int] = []
    shown = ""
    for tokens in stream(model, asked, given.tokens):
        found += tokens
        text = tokenizer.decode([t for t in found if t != END])
        print(text[len(shown) :], end="", flush=True)
        shown = text
    took = time.perf_counter() - opened
    print(file=sys.stderr)
    count = len(asked) + len(found)
    said = f"[opened in {opened - start:.2f} s; {count} tokens read and made, {count / took:.0f} a second]"
    print(said, file=sys.stderr)


if __name__ == "__main__":
    main()
