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

    from rig.model.signature import Signature, Tensor

__all__ = ["INPUT_FILES", "input_options", "read_inputs", "register"]

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")

INPUT_FILES = """\
An input's file is an .npy file of the input's element type and shape, or its plain bytes: dense, in C order,
little-endian, exactly as many as the input has. An .npz file gives NAME the array of that name, or its only one;
without NAME= it gives every input the array of its name. An image file (.png, .jpg and so on; needs pillow) gives a
uint8 or float input its pixels, 0 to 255, divided by --scale: as grey, RGB or RGBA by the number of channels. Its size
must be the input's: nothing is resized.
"""

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
        "--output", "-o", action="append", default=[], type=_assignment, metavar="NAME=FILE",
        help="write an output to a file; as often as wanted",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, metavar="N", help="the number of threads (all cores by default)")
    return _run


def input_options(parser: ArgumentParser) -> None:
    """Add the options that say where inputs come from."""
    parser.add_argument(
        "--input", "-i", action="append", default=[], type=_source, metavar="NAME=FILE",
        help="the file of an input, once for each; or one .npz file with all of them",
    )  # fmt: skip
    parser.add_argument("--layout", choices=("NCHW", "NHWC"), default="NCHW", help="the axes of an image (NCHW)")
    parser.add_argument("--scale", type=_divisor, metavar="S", help="divide an image's values by S, such as 255")


def read_inputs(space: Namespace, signature: Signature) -> dict[str, bytes | bytearray]:
    """Read the files that `input_options` were given; `Invalid` for names that are wrong and files that do not fit."""
    whole = [text for text in space.input if "=" not in text]
    files = _pairs([text for text in space.input if "=" in text], signature.inputs, "input")
    for file in whole:
        for name in _arrays(file, signature):
            if name in files:
                raise Invalid(f"input {name!r} is given twice: {files[name]} and {file}")
            files[name] = file
    return {t.name: _read(t, i, files[t.name], space) for i, t in enumerate(signature.inputs) if t.name in files}


def _arrays(file: str, signature: Signature) -> list[str]:
    """Return the names of an .npz file's arrays, all of which must be inputs."""
    from rig.model.npz import Npz

    found = list(Npz(file).names)
    names = [tensor.name for tensor in signature.inputs]
    for name in found:
        if name not in names:
            close = nearest(name, names)
            hint = f"; did you mean {close!r}?" if close else ""
            raise Invalid(f"{file}: {name!r} is no input of the model; the inputs are {', '.join(names)}{hint}")
    return found


def _run(space: Namespace) -> int | None:
    from rig.cli.show import lines
    from rig.device import host
    from rig.model import open as open_model

    model = open_model(space.model, device=None if space.threads is None else host(threads=space.threads))
    signature = model.signature
    inputs = read_inputs(space, signature)
    targets = _pairs(space.output, signature.outputs, "output")
    if space.output_dir is not None:
        os.makedirs(space.output_dir, exist_ok=True)  # noqa: PTH103
        targets = {
            tensor.name: os.path.join(space.output_dir, name)  # noqa: PTH118
            for tensor, name in zip(signature.outputs, _file_names(signature.outputs), strict=True)
        }
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


def _source(text: str) -> str:
    """Return `text` if it has the form NAME=FILE, or names an .npz file."""
    return text if "=" not in text and text.endswith(".npz") else _assignment(text)


def _divisor(text: str) -> float:
    """Return the number in `text`, which must not be zero."""
    from argparse import ArgumentTypeError

    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if number == 0 or number != number:
        raise ArgumentTypeError(f"{text!r} is no number to divide by")
    return number


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


def _read(tensor: Tensor, position: int, file: str, space: Namespace) -> bytes | bytearray:
    label = f"input {tensor.name!r} (position {position})"
    if "." in file and file.lower().endswith(_IMAGES):
        from rig.cli.photo import read

        return read(tensor, label, file, space.layout, space.scale)
    if file.endswith(".npz"):
        from rig.model.npz import Npz

        arrays = Npz(file)
        if tensor.name not in arrays.names and len(arrays.names) != 1:
            raise Invalid(f"{label}: {file} has no array of that name; it has {', '.join(arrays.names) or 'none'}")
        name = tensor.name if tensor.name in arrays.names else arrays.names[0]
        data, file = arrays.read(name), f"{file} ({name})"
    else:
        with open(file, "rb") as opened:
            data = opened.read()
    want = f"{label}: expected {spell(tensor.dtype, tensor.shape)}"
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
