"""The native core of rig; use it through the package rig."""

from collections.abc import Sequence

import rig.kinds
from typing_extensions import Buffer as _Buffer


def crc32c(data: _Buffer, seed: int = 0) -> int:
    """
    Return the CRC-32C of `data`; `seed` is the value of the bytes before it.
    """

def read_into(fd: int, file_offset: int, into: _Buffer) -> int:
    """
    Fill the writable buffer `into` from byte `file_offset` of the open file `fd`; return the CRC-32C of its bytes.

    Raises FormatError if the file ends before the buffer is full, OSError if a read fails.
    """

def scan_msgpack(data: _Buffer, max_depth: int) -> tuple[int, str] | None:
    """
    Check that `data` is exactly one MessagePack object of nil, 64-bit integers, UTF-8 strings and arrays in shortest form.

    Returns None, or the position of the first fault and its reason. Allocates nothing by the lengths that it reads.
    """

def nonzero_gap(data: _Buffer, ends: list[int], alignment: int) -> int | None:
    """
    Return the position of the first byte that is not zero between one of `ends` and the next multiple of `alignment`.

    None if there is none. `alignment` is a power of two.
    """

class Device:
    """
    Memory and, mostly, a processor: this process's host, or a memory device.

    A device's work is one sequence of submissions numbered 1, 2, ...: its timeline. Devices compare equal if they are the same.
    Get one from `rig.host` or `rig.memory_device`.
    """

    @property
    def name(self) -> str:
        """The name that messages give."""

    @property
    def kind(self) -> str:
        """The driver's kind: "host" or "memory"."""

    @property
    def arch(self) -> str:
        """
        What its code is compiled for: x86-64-v1 to x86-64-v4, or arm64 with its sorted features.
        """

    @property
    def instruction_set(self) -> str:
        """x86_64 or arm64."""

    @property
    def alignment(self) -> int:
        """The bytes on whose multiples its memory starts."""

    @property
    def cache_bytes(self) -> int | None:
        """
        The bytes of the last-level cache, or None where the system does not state them.
        """

    @property
    def cores(self) -> int:
        """
        The cores that this process may use, by its affinity mask and its control group's quota.
        """

    @property
    def threads(self) -> int:
        """The number of threads that launches on the host are split over."""

    @property
    def runs_on_host(self) -> bool:
        """Whether its work is host code."""

    @property
    def borrows(self) -> bool:
        """Whether it maps host memory and memory that the host addresses."""

    @property
    def copies(self) -> bool:
        """Whether copies are work of it."""

    @property
    def host(self) -> Device:
        """Its machine's host."""

    @property
    def lost(self) -> bool:
        """Whether it is gone for good: failed, closed, or left behind by a fork."""

    @property
    def submitted(self) -> int:
        """The number of submissions made so far."""

    @property
    def memory_in_use(self) -> int:
        """The bytes of its memory that are allocated now."""

    @property
    def budget(self) -> int | None:
        """The most bytes that may be in use, or None."""

    def set_budget(self, nbytes: int | None) -> None:
        """
        Limit the bytes in use to `nbytes`, or not at all for None.

        What is in use stays; an allocation over it is OutOfMemory.
        """

    def close(self) -> None:
        """
        End the device after its work; later uses of it and of its memory are Lost.

        Closing twice does nothing. The host cannot be closed: Invalid.
        """

    def __eq__(self, other: object | None) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

def host(threads: int | None = None) -> Device:
    """
    This process's host; `threads` sets how many threads launches are split over.
    """

def memory_device(name: str, nbytes: int | None, alignment: int, borrows: bool, copies: bool, delay: float, fail_at: int | None) -> Device:
    """Open a memory device; see rig.memory_device."""

def pool_workers() -> int:
    """The number of threads that the host's pool has made."""

def arch_runs(have: str, need: str) -> bool:
    """Whether a machine of arch `have` runs code compiled for `need`."""

class Point:
    """
    A point of completion: a value on a device's timeline.

    It is reached once every submission of the device up to the value is over. A host's point is reached from the start.
    """

    @property
    def device(self) -> str:
        """The name of its device."""

    @property
    def value(self) -> int:
        """The number of the submission on its device."""

    @property
    def reached(self) -> bool:
        """
        Whether the work up to it is over.

        Raises Lost if it never will be, or if its work was not done.
        """

    def wait(self, timeout: float | None = None) -> bool:
        """
        Wait until it is reached, at most `timeout` seconds (no bound for None).

        Returns whether it was reached. Other threads go on meanwhile; Ctrl-C ends the wait. Raises Lost if its device is lost before
        it is reached, or if its work was not done because something that it waited for was lost.
        """

    def __eq__(self, other: object | None) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

class StepPoints:
    """
    Where a run reports each Submit step's point: a sequence, made once and reused.

    One element per Submit step in the order of the steps, a loop's body counted once. A step that a run did not reach holds the
    host's shared reached point afterwards.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Point: ...

class Function:
    """A function of an image; it keeps the image loaded."""

    @property
    def name(self) -> str:
        """Its name in the image."""

    @property
    def image(self) -> Image:
        """The image that it is of."""

    @property
    def entry(self) -> int:
        """What compiled code calls it by: for host code, its address."""

    @property
    def max_threads(self) -> int:
        """The most threads a group may have, 0 for no limit."""

class Image:
    """
    Compiled code loaded on a device: for host code a flat image or a shared library.

    It is unloaded once nothing names it and the work that uses it is over.
    """

    @staticmethod
    def load(device: Device, binary: _Buffer) -> Image:
        """
        Load `binary`, code in the device's format.

        Raises Refused, starting with the device's name, for bytes that are no image, code that needs more than the machine has, and imports that are not given to images.
        """

    @property
    def device(self) -> Device:
        """The device it is loaded on."""

    def resolve(self, name: str) -> Function:
        """
        The function of that name.

        Raises Refused if the image has none.
        """

def create_many(host: Device, sizes: Sequence[int]) -> list[Buffer]:
    """
    Make buffers of these sizes on the host in one allocation, which returns once all of them are gone.
    """

class Buffer:
    """
    Bytes in a region of memory, as one device sees them.

    Views and borrows of one region share its order, its life and its claims, and keep it. Memory that the host addresses is given
    by the buffer protocol too, once the work that wrote it is done.
    """

    @staticmethod
    def create(device: Device, nbytes: int, *, kind: int = 0) -> Buffer:
        """
        Make memory of `device`: `nbytes` zero bytes or more of `kind` (`rig.Kind`, DEVICE by default).

        It starts on the device's alignment, on the host from 64 KiB on a page. Raises Invalid for a negative size, OutOfMemory if it
        cannot be made, Lost if the device is lost.
        """

    @staticmethod
    def of(obj: object, *, writable: bool = False) -> Buffer:
        """
        Name the memory of `obj`, an object with the buffer protocol or DLPack, without a copy.

        `obj` is kept until the last work on it is over. Raises Invalid for memory that is not contiguous, or is read-only where
        `writable` is asked for.
        """

    @property
    def device(self) -> Device:
        """The device that sees the bytes at `address`."""

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""

    @property
    def writable(self) -> bool:
        """Whether work may write it."""

    @property
    def access(self) -> rig.kinds.Access:
        """READ or READ_WRITE; READ memory is never written."""

    @property
    def _offset(self) -> int: ...

    @property
    def _region_nbytes(self) -> int: ...

    @property
    def live(self) -> bool:
        """Whether it may be used: not freed and not consumed."""

    @property
    def address(self) -> int:
        """
        The address of its first byte as its device's work sees it.

        Raises Refused where memory has a handle only.
        """

    @property
    def handle(self) -> int:
        """
        The driver's object.

        Raises Refused where there is none, as on the host and on memory devices.
        """

    def view(self, offset: int, nbytes: int) -> Buffer:
        """
        The `nbytes` bytes from `offset`, sharing this memory.

        Raises Invalid for bytes outside this buffer.
        """

    def borrow(self, device: Device) -> Buffer:
        """
        These bytes as `device` sees them.

        Raises Refused where it does not map them.
        """

    def aligned(self, align: int, phase: int = 0) -> bool:
        """
        Whether its address is `phase` bytes past a multiple of `align`, a power of two.
        """

    def read(self, into: _Buffer | None = None) -> memoryview:
        """
        The bytes, copied once the work that writes them is done, into `into` or new memory.

        Raises Lost if that work never will be.
        """

    def write(self, data: _Buffer) -> None:
        """
        Copy `data`, of exactly `nbytes` bytes, in, once the work that uses these bytes is done.
        """

    def submit_copy(self, dst: Buffer, *, waits: Sequence[Point] = ()) -> Point:
        """
        Copy these bytes into `dst`, of the same size, in order with other work on both; gives the point of the copy.

        Made by this memory's device if it copies and reaches both, else by the destination's, else by the host, which is done when
        this returns. Raises Invalid for other sizes, ends that overlap and read-only memory.
        """

    def free(self) -> None:
        """
        End every buffer over this memory; the bytes return once the work on them is over.
        """

    def _hold(self) -> None: ...

    def _unhold(self) -> None: ...

    def _exclude(self) -> None: ...

    def _unexclude(self) -> None: ...

    def _consume(self, why: str) -> Buffer: ...

    def __len__(self) -> int: ...

    def __repr__(self) -> str: ...

    def __buffer__(self, flags: int, /) -> memoryview:
        """Give the memory that the host addresses, once the work that wrote it is done."""

class Program:
    """A built program; use it through rig.program.Loaded."""

    def run(self, inputs: Sequence[Buffer], ints: Sequence[int], step_points: StepPoints | None, waits: Sequence[Point]) -> tuple[Point, ...]: ...

    def step_points(self) -> StepPoints: ...

    def bind(self, inputs: Sequence[Buffer], ints: Sequence[int]) -> Bound: ...

    @property
    def submit_steps(self) -> int: ...

    @property
    def host_only(self) -> bool: ...

    def input_written(self, index: int) -> bool: ...

def build_program(description: object, devices: list[Device], memory: list[list[Buffer]], images: list[Image], ints: list[Buffer], shared: bool) -> Program:
    """Build a checked description over the memory and images that load made."""

class Bound:
    """
    A program with the buffers of its runs given once.

    Each run checks the buffers anew and costs little more than its kernels.
    """

    def run(self) -> None:
        """
        Run the program once. Work on devices other than the host may still run when this returns.
        """

    def submit(self) -> tuple[Point, ...]:
        """Run the program once and give its ends."""

    def set_ints(self, ints: Sequence[int]) -> None:
        """Set the first words of the ints that later runs start with."""

def refuse_in_callback(what: str) -> None:
    """
    Raise Invalid on a thread that is in a callback which rig makes while it holds a lock of its own.
    """

def at_exit(devices: list[Device]) -> None:
    """
    Wait, within a bound, for the work of `devices` as the interpreter ends.
    """
