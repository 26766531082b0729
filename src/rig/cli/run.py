"""`rig run`: a model on files, without NumPy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rig.errors import Invalid
from rig.model.arrays import difference, nearest, spell
from rig.model.npy import MAGIC, dump, parse

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence

    from rig.model.signature import Tensor

__all__ = ["register"]

_EPILOG = """\
An input's file is an .npy file of the input's element type and shape, or its plain bytes: dense, in C order,
little-endian, exactly as many as the input has. An output's file is an .npy file if its name ends in .npy, else plain
bytes.

examples:
  rig run model.rig --input image=image.npy
  rig run model.rig --input image=image.npy --input scale=scale.bin --output-dir results
  rig run model.rig --input image=image.npy --output logits=logits.npy
"""


def register(parser: ArgumentParser) -> Callable[[Namespace], int | None]:
    """Run a model on files and print its outputs."""
    parser.description = "Run a model once on files and print its outputs: name, element type, shape and values."
    parser.epilog = _EPILOG
    parser.add_argument("model", help="the model's file")
    parser.add_argument(
        "--input", "-i", action="append", default=[], type=_assignment, metavar="NAME=FILE",
        help="the file of an input; once for each",
    )  # fmt: skip
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--output-dir", metavar="DIR", help="write each output to DIR/NAME.npy")
    where.add_argument(
        "--output", "-o", action="append", default=[], type=_assignment, metavar="NAME=FILE",
        help="write an output to a file; as often as wanted",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, metavar="N", help="the number of threads (all cores by default)")
    return _run


def _run(space: Namespace) -> int | None:
    from rig.cli.show import lines
    from rig.device import host
    from rig.model import open as open_model

    model = open_model(space.model, device=None if space.threads is None else host(threads=space.threads))
    signature = model.signature
    files = _pairs(space.input, signature.inputs, "input")
    targets = _pairs(space.output, signature.outputs, "output")
    if space.output_dir is not None:
        os.makedirs(space.output_dir, exist_ok=True)  # noqa: PTH103
        targets = {
            tensor.name: os.path.join(space.output_dir, name)  # noqa: PTH118
            for tensor, name in zip(signature.outputs, _file_names(signature.outputs), strict=True)
        }
    inputs = {t.name: _read(t, i, files[t.name]) for i, t in enumerate(signature.inputs) if t.name in files}
    outputs = {tensor.name: bytearray(tensor.nbytes) for tensor in signature.outputs}
    model.bind(inputs, outputs).run()
    for tensor in signature.outputs:
        print(*lines(tensor.name, tensor.dtype, tensor.shape, memoryview(outputs[tensor.name])), sep="\n")
    for tensor in signature.outputs:
        if tensor.name in targets:
            _write(tensor, targets[tensor.name], outputs[tensor.name])
    return None


def _assignment(text: str) -> str:
    """Return `text` if it has the form NAME=FILE."""
    if not text.partition("=")[0] or not text.partition("=")[2]:
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"{text!r} is not NAME=FILE")
    return text


def _pairs(texts: Sequence[str], tensors: Sequence[Tensor], kind: str) -> dict[str, str]:
    """Split NAME=FILE at the first ``=`` that a tensor's name ends at."""
    names = [tensor.name for tensor in tensors]
    found: dict[str, str] = {}
    for text in texts:
        splits = [(text[:i], text[i + 1 :]) for i, c in enumerate(text) if c == "="]
        name, file = next((split for split in splits if split[0] in names), splits[0])
        if name not in names:
            close = nearest(name, names)
            hint = f"; did you mean {close!r}?" if close else ""
            raise Invalid(f"{name!r} is no {kind} of the model; the {kind}s are {', '.join(names)}{hint}")
        if name in found:
            raise Invalid(f"{kind} {name!r} is given twice: {found[name]} and {file}")
        found[name] = file
    return found


def _read(tensor: Tensor, position: int, file: str) -> bytes | bytearray:
    with open(file, "rb") as opened:
        data = opened.read()
    want = f"input {tensor.name!r} (position {position}): expected {spell(tensor.dtype, tensor.shape)}"
    if not data.startswith(MAGIC):
        if len(data) != tensor.nbytes:
            raise Invalid(f"{want}, {tensor.nbytes} bytes, found {len(data)} bytes in {file}")
        return data
    name, shape, elements = parse(data, file)
    bits = {"bfloat16": ("uint16",), "float8_e4m3fn": ("|V1", "uint8"), "float8_e5m2": ("|V1", "uint8")}
    if (name != tensor.dtype and name not in bits.get(tensor.dtype, ())) or shape != tensor.shape:
        where = difference(tensor.shape, shape)
        raise Invalid(f"{want}, found {spell(name, shape)} in {file}{': ' if where else ''}{where}")
    return bytearray(elements)  # a copy, whose start is aligned whatever the header's length is


def _write(tensor: Tensor, file: str, data: bytearray) -> None:
    with open(file, "wb") as opened:
        opened.write(dump(tensor.dtype, tensor.shape, data) if file.endswith(".npy") else data)


def _file_names(tensors: Sequence[Tensor]) -> list[str]:
    """Return a distinct file name for each tensor: its name, without what a path would read as folders."""
    found: list[str] = []
    for tensor in tensors:
        plain = tensor.name.replace("/", "_").replace("\0", "_").lstrip(".") or "output"
        name, number = f"{plain}.npy", 1
        while name in found:
            number += 1
            name = f"{plain}_{number}.npy"
        found.append(name)
    return found
