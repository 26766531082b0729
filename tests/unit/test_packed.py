"""Programs that are loaded without a description: what is taken keeps every rule, and what keeps the rules is taken."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from checks import FakeDevice
from generated import programs as any_programs
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import (
    alloc,
    as_bytes,
    buffer,
    copy,
    fill,
    launch,
    loop,
    memory,
    memory_devices,
    move,
    moving,
    program,
    reads,
    run,
    submit,
    values,
    wait_all,
    writes,
)
from kernels import given as input_slot
from programs import PREAMBLE, body_of, everything, nested, sealed

import rig
from rig import _core
from rig.errors import FormatError, Invalid, Refused
from rig.program import description as d
from rig.program.check import check
from rig.program.codec import of_bytes, to_bytes
from rig.program.load import load
from rig.program.packed import Packed, described
from rig.program.uses import written


def taken() -> d.Program:
    """Return a program that keeps every rule, of every kind that is taken, with what holes and offsets may be."""
    one = d.Fixed(1)
    holes = (
        d.Hole(0, d.Width.W64, (d.Term(d.Address(1, 0), 1), d.Term(d.Int(0), 8)), 16, 0),
        d.Hole(8, d.Width.W32, (d.Term(d.Fixed(3), 2),), 2, 1),
        d.Hole(16, d.Width.W64, (d.Term(d.Entry(0, "g"), 1),), 0, 62),
        d.Hole(28, d.Width.W32, (d.Term(d.Fixed(0), 5),)),
    )
    refs = (d.Ref(0, 32, d.Use.READ), d.Ref(1, 8, d.Use.WRITE), d.Ref(3, 24, d.Use.UNORDERED))
    params = d.Data(bytes(32) + b"\x08" + bytes(7), holes)
    part = d.Launch(0, "kernel", params, refs, (d.Int(1), one, one), (d.Fixed(128), one, d.Int(2)), d.Fixed(0))
    plain = d.Launch(0, "p", d.Data(bytes(8) + b"\x01" + bytes(7)), (d.Ref(0, 8, d.Use.WRITE), d.Ref(0, 0, d.Use.READ)))
    fixed_copy = d.Copy(0, (d.Term(d.Fixed(8), 2),), 2, (d.Term(d.Fixed(3), 4), d.Term(d.Fixed(-1), 4)), 12)
    moving_copy = d.Copy(0, (), 1, (d.Term(d.Int(1), 4),), 12)
    call = d.Fill(d.Entry(1, "f"), d.Data(bytes(12)), (d.Ref(0, 0, d.Use.READ),))
    slots = (d.MemorySlot(d.View(0, 8, 40)), d.InputSlot(0), d.IntsSlot(), d.MemorySlot(d.View(0, 48, 16)))
    fixed = ((d.View(1, 0, 96), d.Access.READ_WRITE), (d.View(0, 1, 2), d.Access.READ))
    step = d.Submit(0, (part, fixed_copy, moving_copy, plain, call), slots, fixed)
    steps = (
        step,
        d.Move(d.InputSlot(1), (), d.MemorySlot(d.View(0, 0, 48)), (d.Term(d.Int(0), 8),), 8),
        d.Move(d.MemorySlot(d.View(0, 0, 8)), (), d.MemorySlot(d.View(0, 4, 40)), (d.Term(d.Fixed(4), 1),), 8),
        d.Loop(d.Fixed(5), (d.Loop(d.Int(1), (step,), 2, (d.MemorySlot(d.View(0, 0, 48)), 4)),), None, None),
        d.Loop(d.Int(3), (), None, (d.IntsSlot(), 31)),
        d.Loop(d.Fixed(1), (), None, (d.InputSlot(0), 9000)),
        d.Move(d.IntsSlot(), (d.Term(d.Fixed(24), 1),), d.IntsSlot(), (), 8),
    )
    return d.Program(
        ("x86-64-v3", "x86-64-v2"),
        (d.Alloc(0, 64, d.Data(b"begin"), d.Copies.TWO, d.Kind.PINNED), d.Alloc(1, 96)),
        (d.Image(0, d.Data(b"code")), d.Image(1, d.Data(b"more code" * 20))),
        (d.Input(0, 100), d.Input(1, 0)),
        4,
        steps,
    )


TAKEN = to_bytes(taken())
BODY = body_of(TAKEN)
BLOBS = TAKEN[(64 + len(BODY) + 63) // 64 * 64 :]
HOST = FakeDevice()
DEVICES = (HOST, FakeDevice("far", kind="memory", host=HOST))


def passes(encoded: bytes, devices: Any = DEVICES) -> d.Program | None:
    """Return the description of bytes that keep every rule, else None."""
    try:
        found = of_bytes(encoded)
        check(found, devices)
    except Invalid:
        return None
    return found


def takes(encoded: bytes, devices: Any = DEVICES) -> bool:
    found = Packed.read(memoryview(encoded))
    return found is not None and found.fits(devices)


def beyond(p: d.Program) -> bool:
    """Tell whether a program has what is left to the description: rails, handles, words, and holes that load fills."""
    text = repr(p)
    if any(f"{kind}(" in text for kind in ("Rail", "Handle", "Ready", "Words")):
        return True
    data = [m.init for m in p.memory if isinstance(m, d.Alloc)] + [image.binary for image in p.images]
    return any(one.holes for one in data) or "Loop(trips=Entry(" in text


def agree(encoded: bytes, devices: Any = DEVICES) -> bool:
    """Require both ways to agree about bytes, and tell whether they are taken."""
    found = passes(encoded, devices)
    if takes(encoded, devices):
        assert found is not None, "what is taken must keep every rule"
        return True
    assert found is None or beyond(found), "what keeps the rules is taken"
    return False


def test_a_program_of_every_kind_is_taken() -> None:
    assert agree(TAKEN)
    found = Packed.read(memoryview(TAKEN))
    assert found is not None
    want = taken()
    assert found.devices == want.devices
    for mine, its in ((found.memory, want.memory), (found.images, want.images), (found.inputs, want.inputs)):
        assert len(mine) == len(its)
        for row, one in zip(mine, its, strict=True):
            for field in one.__struct_fields__:
                value = getattr(one, field)
                if isinstance(value, d.Data):
                    assert (bytes(getattr(row, field).bytes), getattr(row, field).holes) == (value.bytes, value.holes)
                else:
                    assert getattr(row, field) == value
    assert found.ints == want.ints
    assert described(found) == want
    assert set(found.native.written()) == written(want)


def test_which_memory_is_written() -> None:
    want = taken()
    copying = d.Submit(0, (d.Copy(1, (), 0, (), 8),), (d.MemorySlot(d.View(1, 0, 8)), d.MemorySlot(d.View(0, 0, 8))))
    counts = set()
    for step in (*want.steps, copying):
        one = msgspec.structs.replace(want, steps=(step,))
        native = _core.Packed.read(to_bytes(one))
        assert native is not None
        assert set(native.written()) == written(one)
        counts.add(len(native.written()))
    assert counts == {0, 1, 2}


def test_what_only_a_description_says_is_left_to_it() -> None:
    assert not takes(to_bytes(everything()))


@pytest.mark.parametrize(
    ("devices", "fit"),
    [
        (DEVICES, True),
        (DEVICES[:1], False),
        ((*DEVICES, HOST), False),
        ((HOST, FakeDevice("far", arch="x86-64-v1", kind="memory", host=HOST)), False),
        ((HOST, FakeDevice("far", arch="x86-64-v4", kind="memory", host=HOST)), True),
        ((HOST, FakeDevice("far", kind="memory")), False),
        ((HOST, FakeDevice("far", kind="cuda", host=HOST)), False),
        ((FakeDevice(kind="cuda"),) * 2, False),
    ],
)
def test_the_rules_that_devices_decide(devices: Any, fit: bool) -> None:
    assert takes(TAKEN, devices) is fit
    agree(TAKEN, devices)


def places(value: Any) -> list[tuple[int, ...]]:
    """Return the path of every value in lists of lists that is no list."""
    if not isinstance(value, list):
        return [()]
    return [(i, *path) for i, item in enumerate(value) for path in places(item)]


RAW = msgspec.msgpack.decode(BODY)
PLACES = places(RAW)
NUMBERS = [-(2**63), -9, -8, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 40, 41, 47, 48, 49, 62]
NUMBERS += [63, 64, 65, 95, 96, 97, 100, 101, 2**31, 2**32, 2**60 - 1, 2**60, 2**62, 2**63 - 9, 2**63 - 8, 2**63 - 1]


def changed(*changes: tuple[tuple[int, ...], Any]) -> bytes:
    """Return the program's bytes with other values at some places."""
    raw = msgspec.msgpack.decode(BODY)
    for path, value in changes:
        at = raw
        for index in path[:-1]:
            at = at[index]
        at[path[-1]] = value
    return sealed(msgspec.msgpack.encode(raw), BLOBS)


def test_every_number_is_looked_at() -> None:
    """Any other number at any place is taken if, and only if, the description's check passes it."""
    assert msgspec.msgpack.encode(RAW) == BODY
    took = refused = 0
    for path in PLACES:
        for value in (*NUMBERS, None, "", []):
            if agree(changed((path, value))):
                took += 1
            else:
                refused += 1
    assert took > 500
    assert refused > 5000


@settings(max_examples=500)
@given(st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(NUMBERS)), min_size=2, max_size=3))
def test_other_numbers_at_several_places(changes: list[tuple[tuple[int, ...], int]]) -> None:
    agree(changed(*changes))


@settings(max_examples=500)
@given(st.lists(st.tuples(st.integers(0, len(BODY) - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_changed_bodies_with_a_right_checksum(changes: list[tuple[int, int]]) -> None:
    body = bytearray(BODY)
    for at, byte in changes:
        body[at] = byte
    agree(sealed(bytes(body), BLOBS))


@settings(max_examples=200)
@given(st.integers(0, len(BODY)), st.integers(0, len(BODY)), st.binary(max_size=8), st.integers(0, len(BLOBS)))
def test_cut_and_spliced_bodies(begin: int, end: int, between: bytes, blobs: int) -> None:
    agree(sealed(BODY[:begin] + between + BODY[end:], BLOBS[:blobs]))


@settings(max_examples=200)
@given(st.integers(0, len(TAKEN) - 1), st.integers(1, 255))
def test_one_changed_byte_is_never_taken(at: int, by: int) -> None:
    encoded = bytearray(TAKEN)
    encoded[at] ^= by
    assert not takes(bytes(encoded))


def test_cut_anywhere_is_never_taken() -> None:
    assert not any(takes(TAKEN[:size]) for size in range(len(TAKEN)))
    assert not takes(TAKEN + b"\0")


small = st.integers(-1, 3) | st.integers(0, 2) | st.sampled_from([8, 16, 64])


@settings(max_examples=300)
@given(any_programs(small, blob=24))
def test_any_description(p: d.Program) -> None:
    encoded = to_bytes(p)
    host = FakeDevice()
    agree(encoded, [FakeDevice(f"d{i}", arch, host=host) for i, arch in enumerate(p.devices)])


@pytest.mark.parametrize("blobs", [b"", b"x", b"x" * 63, b"x" * 64, b"x" * 65])
def test_gaps_and_ends(blobs: bytes) -> None:
    """What follows the last blob, the gaps between blobs and the preamble's unused bytes are as the format says."""
    p = d.Program(("a",), (d.Alloc(0, 999, d.Data(blobs)), d.Alloc(0, 999, d.Data(b"last"))))
    good = to_bytes(p)
    devices = (FakeDevice(arch="a"),)
    assert agree(good, devices)
    body, begin = body_of(good), (64 + len(body_of(good)) + 63) // 64 * 64
    agree(sealed(body, good[begin:] + b"\0"), devices)
    agree(sealed(body, good[begin:], gap=b"\1"), devices)
    agree(sealed(body, good[begin:], reserved=b"\1"), devices)
    for at in range(begin, len(good)):
        if good[at] == 0:
            agree(sealed(body, good[begin:at] + b"\1" + good[at + 1 :]), devices)
    assert PREAMBLE.size == 64


def test_loops_inside_each_other() -> None:
    for loops in (1, 63, 64):
        assert agree(to_bytes(nested(loops)), (HOST,))
    raw: Any = []
    for _ in range(65):
        raw = [[2, [4, 1], raw, None, None]]
    assert not agree(sealed(msgspec.msgpack.encode([["x86-64-v3"], [], [], [], 1, raw])), (HOST,))


@pytest.mark.parametrize(
    "body",
    [
        b"\x96" + b"\xdd\x00\x10\x00\x00" + b"\xa0" * 2**20 + b"\x90\x90\x90\x00" + b"\x90",
        b"\x96\x91\xa1a\x90\x90\x90\x00\xdd\x00\x10\x00\x00" + b"\x90" * 2**20,
        b"\x96\x91\xa1a\xdd\xff\xff\xff\xff" + b"\x90" * 2**20,
        b"\x91" * 2**20,
    ],
    ids=["devices", "steps", "claimed", "deep"],
)
def test_hostile_bodies(body: bytes) -> None:
    agree(sealed(body), ())


# Loading.


def packed(p: d.Program) -> Packed:
    found = Packed.read(memoryview(to_bytes(p)))
    assert found is not None
    return found


def test_it_runs_as_the_description_does() -> None:
    """A program with holes, refs, words of the ints, a loop, a fill, copies and moves on two devices."""
    with memory_devices(1) as (far,):
        host = rig.host()
        slots = [memory(0, 32), input_slot(0)]
        fixed = [(memory(1, 32), d.Access.READ_WRITE)]
        p = program(
            [host, far],
            submit(0, launch("add", writes(0), reads(0), reads(1), n=4), slots=slots),
            submit(1, launch("addk", d.Address(1, 1), d.Address(1, 1), 5, n=4), fixed=fixed),
            loop(
                3,
                submit(0, launch("addk", moving(0, d.Use.WRITE, (d.Int(1), 8)), reads(0), d.Int(1)), slots=slots[:1]),
                trip=1,
            ),
            submit(1, fill(d.Entry(1, "addk"), writes(0), reads(0), 1), slots=[memory(1, 32)]),
            move(memory(1, 32), memory(2, 64), 32, dst_offset=32),
            submit(0, copy(0, 1, 32), slots=[memory(0, 32), memory(2, 64)]),
            move(memory(2, 64), input_slot(1), 64),
            memory=(alloc(0, 32, as_bytes(1, 2, 3, 4)), alloc(1, 32, as_bytes(10, 20), two=True), alloc(0, 64)),
            inputs=((0, 32), (0, 64)),
            ints=2,
        )
        found = []
        for way in (p, packed(p)):
            loaded = load(way, [host, far])
            assert loaded.description == p
            assert [(one.device, one.nbytes) for one in loaded.inputs] == [(0, 32), (0, 64)]
            outs = [buffer(host, count=8) for _ in range(4)]
            for out in outs:
                wait_all(run(loaded, [buffer(host, 1, 2, 3, 4), out], [7]))
            found.append([values(out) for out in outs])
        assert found[0] == found[1]
        assert len({tuple(out) for out in found[0]}) > 1


def test_what_a_load_refuses_has_the_same_words() -> None:
    host = rig.host()
    cases = [
        program([host], loop(2, submit(0, launch("add", 1, 2), launch("absent", 1)))),
        program([host], submit(0, launch("add", d.Entry(0, "gone")))),
        program([host], submit(0, launch("add", 1, shared=8))),
        program([host], images=(d.Image(0, d.Data(b"no code")),)),
        program([host], submit(0, launch("addk", 1)), memory=(alloc(0, 1 << 60),)),
    ]
    for p in cases:
        said = []
        for way in (p, packed(p)):
            with pytest.raises((Refused, rig.OutOfMemory)) as caught:
                load(way, [host])
            said.append((type(caught.value), str(caught.value)))
        assert said[0] == said[1]


def test_what_does_not_fit_is_refused_by_the_check() -> None:
    other = "arm64" if "86" in rig.host().arch else "x86-64-v1"
    one = packed(d.Program((other,), (d.Alloc(0, 8),)))
    with pytest.raises(Invalid, match=rf"devices\[0\]: the code is for '{other}', but host"):
        load(one, [rig.host()])
    with pytest.raises(Invalid, match="devices: 2 were given, the program is for 1"):
        load(one, [rig.host()] * 2)


def test_it_is_built_once_and_loads_again_all_the_same() -> None:
    one = packed(program([rig.host()], submit(0, launch("add", 1))))
    for _ in range(3):
        assert load(one, [rig.host()]).submit_steps == 1
    with pytest.raises(Invalid, match="built once"):
        one.native.build([], [], [], [])


def test_bytes_that_are_no_program_say_nothing() -> None:
    for data in (b"", b"\x93RIGPRG\n", random.Random(0).randbytes(200)):
        assert Packed.read(memoryview(data)) is None
    with pytest.raises(FormatError):
        of_bytes(b"")
