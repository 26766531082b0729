"""The files that a command takes for a model's inputs, and the values of its variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rig.errors import Invalid
from rig.model.arrays import difference, nearest, spell
from rig.model.npy import MAGIC, parse

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from rig.model.signature import Signature, Tensor

    Data = bytes | bytearray

__all__ = ["INPUT_FILES", "Inputs", "assignment", "input_options", "pairs", "read_inputs"]

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")

INPUT_FILES = """\
An input's file is an .npy file of the input's element type and shape, or its plain bytes: dense, in C order,
little-endian, exactly as many as the input has. An .npz file gives NAME the array of that name, or its only one;
without NAME= it gives every input the array of its name. An image file (.png, .jpg and so on; needs pillow) gives a
uint8 or float input its pixels, 0 to 255, divided by --scale: as grey, RGB or RGBA by the number of channels. Its size
must be the input's: nothing is resized. Where an extent is a variable, an .npy file's shape gives its value; for other
files --var does.
"""


def input_options(parser: ArgumentParser) -> None:
    """Add the options that say where inputs come from."""
    parser.add_argument(
        "--input", "-i", action="append", default=[], type=_source, metavar="NAME=FILE",
        help="the file of an input, once for each; or one .npz file with all of them",
    )  # fmt: skip
    parser.add_argument("--layout", choices=("NCHW", "NHWC"), default="NCHW", help="the axes of an image (NCHW)")
    parser.add_argument(
        "--var", action="append", default=[], type=_number, metavar="NAME=N",
        help="the value of a variable that no input's shape gives; once for each",
    )  # fmt: skip
    parser.add_argument("--scale", type=_divisor, metavar="S", help="divide an image's values by S, such as 255")


class Inputs:
    """What the options gave: `data` of inputs by name, the model's variables, and its `signature` in numbers."""

    def __init__(self, signature: Signature, data: dict[str, Data], variables: dict[str, int]) -> None:
        """Keep the three."""
        self.signature = signature
        self.data = data
        self.variables = variables


def read_inputs(space: Namespace, signature: Signature, *, largest: bool = False) -> Inputs:
    """Read the files that `input_options` were given.

    With `largest`, a variable that nothing gives is as large as it may be. Raises `Invalid` for names that are wrong,
    variables that nothing gives, and files that do not fit.
    """
    from rig.model.variables import settle

    whole = [text for text in space.input if "=" not in text]
    files = pairs([text for text in space.input if "=" in text], signature.inputs, "input")
    for file in whole:
        for name in _arrays(file, signature):
            if name in files:
                raise Invalid(f"input {name!r} is given twice: {files[name]} and {file}")
            files[name] = file
    read = {t.name: _read(t, files[t.name]) for t in signature.inputs if t.name in files}
    shapes = {name: found.shape for name, found in read.items() if found.shape is not None}
    given = dict(space.var)
    if largest:
        known = {e for t in signature.inputs if t.name in shapes for e in t.shape if isinstance(e, str)}
        given = {v.name: v.max for v in signature.variables if v.name not in known and v.default is None} | given
    for i, tensor in enumerate(signature.inputs):
        if tensor.name in shapes and len(shapes[tensor.name]) != len(tensor.shape):
            raise read[tensor.name].misfit(tensor, i)
    values = settle(signature, shapes, given)
    at = signature.at(values)
    data = {t.name: _fitting(t, i, read[t.name], space) for i, t in enumerate(at.inputs) if t.name in read}
    return Inputs(at, data, values)


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


def assignment(text: str) -> str:
    """Return `text` if it has the form NAME=FILE."""
    if not text.partition("=")[0] or not text.partition("=")[2]:
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"{text!r} is not NAME=FILE")
    return text


def _source(text: str) -> str:
    """Return `text` if it has the form NAME=FILE, or names an .npz file."""
    return text if "=" not in text and text.endswith(".npz") else assignment(text)


def _number(text: str) -> tuple[str, int]:
    """Return the name and the value in NAME=N."""
    from argparse import ArgumentTypeError

    name, found, number = text.partition("=")
    try:
        return (name, int(number)) if name and found else ("", int(""))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not NAME=N with a whole number N") from None


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


def pairs(texts: Sequence[str], tensors: Sequence[Tensor], kind: str) -> dict[str, str]:
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


class _File:
    """An input's file: its name for messages and its bytes; element type and shape where it says them."""

    def __init__(
        self, name: str, data: Data | memoryview, dtype: str = "", shape: tuple[int, ...] | None = None
    ) -> None:
        self.name = name
        self.data = data
        self.dtype = dtype
        self.shape = shape

    def misfit(self, tensor: Tensor, position: int) -> Invalid:
        """Say that it holds another array than the input's."""
        want = f"input {tensor.name!r} (position {position}): expected {spell(tensor.dtype, tensor.shape)}"
        where = difference(tensor.shape, self.shape or ())
        found = spell(self.dtype, self.shape or ())
        return Invalid(f"{want}, found {found} in {self.name}{': ' if where else ''}{where}")


def _read(tensor: Tensor, file: str) -> _File:
    """Read a file; an image is read once its size is known."""
    label = f"input {tensor.name!r}"
    if _is_image(file):
        return _File(file, b"")
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
    if not data.startswith(MAGIC):
        return _File(file, data)
    dtype, shape, elements = parse(data, file)
    return _File(file, elements, dtype, shape)


def _is_image(file: str) -> bool:
    return "." in file and file.lower().endswith(_IMAGES)


_BITS = {"bfloat16": ("uint16",), "float8_e4m3fn": ("|V1", "uint8"), "float8_e5m2": ("|V1", "uint8")}


def _fitting(tensor: Tensor, position: int, file: _File, space: Namespace) -> Data:
    """Return a file's bytes as those of an input, or raise `Invalid`."""
    if _is_image(file.name):
        from rig.cli.photo import read

        return read(tensor, f"input {tensor.name!r} (position {position})", file.name, space.layout, space.scale)
    if file.shape is None:
        if len(file.data) != tensor.nbytes:
            want = f"input {tensor.name!r} (position {position}): expected {spell(tensor.dtype, tensor.shape)}"
            raise Invalid(f"{want}, {tensor.nbytes} bytes, found {len(file.data)} bytes in {file.name}")
        return bytes(file.data)
    if (file.dtype != tensor.dtype and file.dtype not in _BITS.get(tensor.dtype, ())) or file.shape != tensor.shape:
        raise file.misfit(tensor, position)
    return bytearray(file.data)  # a copy, whose start is aligned whatever the header's length is
