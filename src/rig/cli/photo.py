"""Image files as inputs, through Pillow where it is installed; what they hold is never resized or cropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rig.errors import Invalid
from rig.model.arrays import dtype, spell

if TYPE_CHECKING:
    from rig.model.signature import Tensor

__all__ = ["read"]

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def read(tensor: Tensor, label: str, file: str, layout: str, scale: float | None) -> bytearray:
    """Return the image in `file` as the bytes of `tensor`, each value divided by `scale`.

    `layout` is NCHW or NHWC: the order of the axes, of which N is 1 or is left out.

    `Invalid`: the shape is no image's in that layout, the image has another size, or the element type cannot hold the
    values. `ImportError`: Pillow is not installed.
    """
    shape = tensor.sizes
    want = f"{label}: expected {spell(tensor.dtype, shape)}"
    axes = layout if len(shape) == 4 else layout[1:]
    if len(shape) not in (3, 4) or (len(shape) == 4 and shape[0] != 1):
        raise Invalid(f"{want}, which is no one image: {file} can fill 1x.. of {layout}, or {layout[1:]}")
    extents = dict(zip(axes, shape, strict=True))
    mode = _MODES.get(extents["C"])
    if mode is None:
        raise Invalid(f"{want}, which has {extents['C']} channels as {axes}; images have 1, 3 or 4 (see --layout)")
    try:
        from PIL import Image, UnidentifiedImageError  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ImportError(
            f"{file}: reading images needs the package pillow: pip install 'rig-runtime[images]'"
        ) from error
    try:
        with Image.open(file) as opened:
            image: Any = opened.convert(mode)
    except UnidentifiedImageError:
        raise Invalid(f"{label}: {file} is no image that pillow reads") from None
    if image.size != (extents["W"], extents["H"]):
        wide, high = image.size
        raise Invalid(
            f"{want}, an image of {extents['W']} x {extents['H']} pixels as {axes}, found {wide} x {high} pixels in "
            f"{file}; resize it first, nothing is resized here"
        )
    planes = [image.tobytes()] if axes.endswith("C") else [plane.tobytes() for plane in image.split()]
    return bytearray(_values(tensor.dtype, b"".join(planes), scale, label))


def _values(kind: str, pixels: bytes, scale: float | None, label: str) -> bytes:
    """Turn bytes from 0 to 255 into elements: a table of 256 of them, looked up."""
    from struct import pack

    if kind == "uint8" and scale in (None, 1.0):
        return pixels
    code = dtype(kind).code
    if dtype(kind).kind != "f" or not code:
        raise Invalid(f"{label}: an image's values divided by --scale are no {kind}; float types can hold them")
    table = [pack(code, value / (scale or 1.0)) for value in range(256)]
    return b"".join([table[byte] for byte in pixels])
