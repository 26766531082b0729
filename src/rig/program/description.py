"""What a program is: frozen structs of ints, bytes and tuples that name everything by index.

A description touches no device. `rig.program.codec` turns it into bytes, `rig.program.check` holds it against its
rules, `rig.program.load` makes it runnable. Integers are signed 64-bit. Every struct is encoded as an array whose first
element is its tag where a choice exists, so the order of the fields is part of the format.
"""

from __future__ import annotations

import enum
from abc import ABC
from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Meta, Struct

from rig.kinds import Access, Kind

__all__ = [
    "Access", "Address", "Alloc", "Area", "Blob", "Copies", "Copy", "Data", "Entry", "Fill", "Fixed", "Handle", "Hole",
    "Image", "Input", "InputSlot", "Int", "IntsSlot", "Kind", "Launch", "Leaf", "Loop", "Memory", "MemorySlot", "Move",
    "Offset", "Part", "Program", "Rail", "Ready", "Ref", "Slot", "Step", "Submit", "Term", "Use", "Value", "View",
    "Width", "Words",
]  # fmt: skip

I64: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""A signed 64-bit integer."""


class Blob(ABC):  # noqa: B024 - bytes and memoryview are registered with it
    """The type of a field that holds bytes: `bytes`, or a `memoryview` of bytes that were decoded without a copy."""


Blob.register(bytes)
Blob.register(memoryview)

if TYPE_CHECKING:
    BlobLike: TypeAlias = bytes | memoryview
else:
    BlobLike = Blob


class Copies(enum.IntEnum):
    """How many copies of its memory a program keeps: run n uses copy n mod copies."""

    ONE = 1
    TWO = 2


class Area(enum.IntEnum):
    """The areas of a rail's end: what it sends, what it receives, and the counts that number the transfers."""

    OUTBOUND = 0
    INBOUND = 1
    COUNTS = 2


class Width(enum.IntEnum):
    """The width of a hole in bits."""

    W32 = 32
    W64 = 64


class Use(enum.IntEnum):
    """How a ref's work uses its slot."""

    READ = 0
    WRITE = 1
    UNORDERED = 2
    """Waits for nothing and is waited for by nothing; the memory is kept alive and counts as written."""


class _Base(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    pass


# Leaves and values: what stands in a hole. A leaf is known at load, an Int is read when its step runs.


class Address(_Base, tag=0, frozen=True):
    """The address of memory `memory`'s first byte as work of device `on` sees it; of the run's copy if it has two."""

    memory: I64
    on: I64


class Handle(_Base, tag=1, frozen=True):
    """The driver's object for memory `memory`, such as a `cl_mem`; of the run's copy if it has two."""

    memory: I64


class Entry(_Base, tag=2, frozen=True):
    """What compiled code calls image `image`'s function `name` by: for host code, its address."""

    image: I64
    name: str


class Ready(_Base, tag=3, frozen=True):
    """The address of the ready function of this machine's end of rail `rail`."""

    rail: I64


class Fixed(_Base, tag=4, frozen=True):
    """The integer itself."""

    value: I64


class Int(_Base, tag=5, frozen=True):
    """Word `index` of the run's ints, as it holds when the step that needs it runs."""

    index: I64


Leaf: TypeAlias = Address | Handle | Entry | Ready
Value: TypeAlias = Address | Handle | Entry | Ready | Fixed | Int


class Term(_Base, frozen=True):
    """One summand: `value` times `factor`."""

    value: Value
    factor: I64


Offset: TypeAlias = tuple[Term, ...]
"""A byte offset: the exact sum of its terms, whose values are Fixed or Int."""


class Hole(_Base, frozen=True):
    """A place in bytes that receives a value when the program loads or runs.

    The low `width` bits of ``(sum of value * factor + add) >> shift`` are ORed into the little-endian word at byte
    `at`. The sum wraps at 64 bits and the shift brings in zeros, so the high half of -8 is 0xFFFFFFFF. `shift` is 0
    to 62.
    """

    at: I64
    width: Width
    terms: tuple[Term, ...]
    add: I64 = 0
    shift: I64 = 0


class Data(_Base, frozen=True):
    """Bytes with holes; no two holes share a byte, and the bytes under a hole hold only the word's constant bits."""

    bytes: BlobLike = b""
    holes: tuple[Hole, ...] = ()


# Memory and images.


class Alloc(_Base, tag=0, frozen=True):
    """Memory made at load on device `device`: `nbytes` bytes, the first of them `init`, in `copies` copies."""

    device: I64
    nbytes: I64
    init: Data = Data()
    copies: Copies = Copies.ONE
    kind: Kind = Kind.DEVICE


class Rail(_Base, tag=1, frozen=True):
    """The area `area` of this machine's end of the rail of id `rail`: host memory that the program borrows."""

    rail: I64
    area: Area


Memory: TypeAlias = Alloc | Rail


class Image(_Base, frozen=True):
    """Compiled code in device `device`'s format; a hole may name an entry of an earlier image."""

    device: I64
    binary: Data


class View(_Base, frozen=True):
    """`length` bytes of memory `memory` from byte `offset`; of the run's copy if it has two."""

    memory: I64
    offset: I64
    length: I64


# Slots: the buffers that a step names.


class MemorySlot(_Base, tag=0, frozen=True):
    """Bytes of the program's memory."""

    view: View


class InputSlot(_Base, tag=1, frozen=True):
    """The run's input `index`, whole."""

    index: I64


class IntsSlot(_Base, tag=2, frozen=True):
    """The run's ints, whole: 8 * `Program.ints` bytes of host memory."""


Slot: TypeAlias = MemorySlot | InputSlot | IntsSlot


class Ref(_Base, frozen=True):
    """The 8 parameter bytes at `at` hold an offset into slot `slot`'s buffer; the work sees the address."""

    slot: I64
    at: I64
    use: Use


# Parts of a submission.


class Words(_Base, tag=0, frozen=True):
    """Bytes handed to the driver as work in its own format, read at the hand-over."""

    view: View


class Fill(_Base, tag=1, frozen=True):
    """A native call during the hand-over of `fill`, an Entry of a host image or a Ready."""

    fill: Leaf
    params: Data
    refs: tuple[Ref, ...] = ()


class Copy(_Base, tag=2, frozen=True):
    """A copy of `length` bytes from byte `src_offset` of slot `src` into byte `dst_offset` of slot `dst`."""

    src: I64
    src_offset: Offset
    dst: I64
    dst_offset: Offset
    length: I64


class Launch(_Base, tag=3, frozen=True):
    """A call of function `name` of image `image` with `params`, over `groups` of `threads`.

    For host code the parameters are 64-bit words, `groups` is (blocks, 1, 1), `threads` is (iterations, 1, 1) and
    `shared` is 0.
    """

    image: I64
    name: str
    params: Data
    refs: tuple[Ref, ...] = ()
    groups: tuple[Value, Value, Value] = (Fixed(1), Fixed(1), Fixed(1))
    threads: tuple[Value, Value, Value] = (Fixed(1), Fixed(1), Fixed(1))
    shared: Value = Fixed(0)


Part: TypeAlias = Words | Fill | Copy | Launch


# Steps.


class Submit(_Base, tag=0, frozen=True):
    """One submission of `parts` on device `device`, over its slots and the memory that every run uses, `fixed`."""

    device: I64
    parts: tuple[Part, ...]
    slots: tuple[Slot, ...] = ()
    fixed: tuple[tuple[View, Access], ...] = ()


class Move(_Base, tag=1, frozen=True):
    """One copy of `length` bytes between two slots' buffers, by whichever device reaches both."""

    src: Slot
    src_offset: Offset
    dst: Slot
    dst_offset: Offset
    length: I64


class Loop(_Base, tag=2, frozen=True):
    """`body`, `trips` times, with the trip's index from 0 in word `trip` of the ints.

    With `flag` (slot, at) the byte at `at` of the slot's buffer is read before each trip; 0 ends the loop.
    """

    trips: Value
    body: tuple[Submit | Move | Loop, ...]
    trip: I64 | None = None
    flag: tuple[Slot, I64] | None = None


Step: TypeAlias = Submit | Move | Loop


class Input(_Base, frozen=True):
    """A buffer of device `device` of at least `nbytes` bytes, given by each run."""

    device: I64
    nbytes: I64


class Program(_Base, frozen=True):
    """A whole program: the arch that each device's code is compiled for, memory, images, inputs, ints and steps."""

    devices: tuple[str, ...]
    memory: tuple[Memory, ...] = ()
    images: tuple[Image, ...] = ()
    inputs: tuple[Input, ...] = ()
    ints: I64 = 0
    steps: tuple[Step, ...] = ()
