"""`rig run`: a model on files, without NumPy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rig.cli.inputs import INPUT_FILES, assignment, input_options, pairs, read_inputs
from rig.model.npy import dump

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence

    from rig.model.signature import Tensor

__all__ = ["register"]

_EPILOG = (
    INPUT_FILES
    + """
An output's file is an .npy file if its name ends in .npy, else plain bytes.

examples:
  rig run model.rig --input image=image.npy
  rig run model.rig --input image=image.npy --input scale=scale.bin --output-dir results
  rig run model.rig --input image=image.npy --output logits=logits.npy
  rig run model.rig --input inputs.npz
  rig run model.rig --input image=cat.png --layout NCHW --scale 255
  rig run model.rig --input tokens=tokens.npy --var position=12
"""
)


def register(parser: ArgumentParser) -> Callable[[Namespace], int | None]:
    """Run a model on files and print its outputs."""
    parser.description = "Run a model once on files and print its outputs: name, element type, shape and values."
    parser.epilog = _EPILOG
    parser.add_argument("model", help="the model's file")
    input_options(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--output-dir", metavar="DIR", help="write each output to DIR/NAME.npy")
    where.add_argument(
        "--output", "-o", action="append", default=[], type=assignment, metavar="NAME=FILE",
        help="write an output to a file; as often as wanted",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, metavar="N", help="the number of threads (all cores by default)")
    return _run


def _run(space: Namespace) -> int | None:
    from rig.cli.show import lines
    from rig.device import host
    from rig.model import open as open_model

    model = open_model(space.model, device=None if space.threads is None else host(threads=space.threads))
    inputs = read_inputs(space, model.signature)
    signature = inputs.signature
    targets = pairs(space.output, signature.outputs, "output")
    if space.output_dir is not None:
        os.makedirs(space.output_dir, exist_ok=True)  # noqa: PTH103
        targets = {
            tensor.name: os.path.join(space.output_dir, name)  # noqa: PTH118
            for tensor, name in zip(signature.outputs, _file_names(signature.outputs), strict=True)
        }
    outputs = {tensor.name: bytearray(tensor.nbytes) for tensor in signature.outputs}
    model.bind(inputs.data, outputs, inputs.variables).run()
    for tensor in signature.outputs:
        print(*lines(tensor.name, tensor.dtype, tensor.sizes, memoryview(outputs[tensor.name])), sep="\n")
    for tensor in signature.outputs:
        if tensor.name in targets:
            _write(tensor, targets[tensor.name], outputs[tensor.name])
    return None


def _write(tensor: Tensor, file: str, data: bytearray) -> None:
    with open(file, "wb") as opened:
        opened.write(dump(tensor.dtype, tensor.sizes, data) if file.endswith(".npy") else data)


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
