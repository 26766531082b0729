"""Holes hold what their formula says: at load what only load knows, before each submit what the ints hold."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st
from kernels import (
    Hollow,
    alloc,
    as_bytes,
    binary,
    buffer,
    given,
    hole,
    launch,
    load,
    loop,
    memory,
    memory_devices,
    moving,
    on_each,
    on_host_code,
    opened,
    program,
    reads,
    run,
    submit,
    values,
    wait_all,
    writes,
)

import rig
from rig.errors import Invalid
from rig.program import description as d
from rig.program import load as load_program

MASK = 2**64 - 1
W32, W64 = d.Width.W32, d.Width.W64


def formula(total: int, width: int, shift: int, bits: int = 0) -> int:
    """What the specification says a hole's word holds."""
    return ((total & MASK) >> shift & (1 << width) - 1) | bits


def dumped(device: rig.Device, *words: Any, ints: tuple[int, ...] = (), count: int = 0, **more: Any) -> list[int]:
    """Run a kernel on `device` whose parameters are `words`, and give the words that it saw."""
    count = count or len(words)
    out = buffer(device, count=count)
    step = submit(0, launch("dump", writes(0), count, *words), slots=(given(0),), fixed=more.pop("fixed", ()))
    run(load([device], step, inputs=[(0, 8 * count)], ints=len(ints), **more), [out], ints)
    return values(out)


@pytest.mark.spec("P-hole-formula", "P-hole-run")
@on_each
def test_int_fills_low_or_high_half_of_word(kind: str) -> None:
    with opened(kind) as device:
        low = Hollow((hole(d.Int(0), width=W32),), 7 << 32)
        high = Hollow((hole(d.Int(0), width=W32, at=4),), 9)
        whole = Hollow((hole((d.Int(0), 3), (d.Int(1), -2), (d.Fixed(10), 10), add=1),))
        seen = dumped(device, low, high, whole, ints=(0x1_0000_0005, 4))
    assert seen == [7 << 32 | 5, 5 << 32 | 9, 3 * 0x1_0000_0005 - 8 + 101]


@pytest.mark.spec("P-hole-formula")
@on_each
def test_hole_may_start_at_any_byte(kind: str) -> None:
    with opened(kind) as device:
        first = Hollow((hole(d.Int(0), width=W32, at=3),), 0xAA << 56 | 0xBB)
        over = Hollow((hole(d.Int(0), width=W64, at=5),))
        assert dumped(device, first, over, 0, ints=(0x01020304,)) == [
            0xAA << 56 | 0x01020304 << 24 | 0xBB,
            0x01020304 << 40 & MASK,
            0x01020304 >> 24,
        ]


@pytest.mark.spec("P-hole-formula", "P-leaf-address", "P-hole-load")
@on_each
def test_halves_of_address_make_address(kind: str) -> None:
    with opened(kind) as device:
        address = d.Address(0, 0)
        split = Hollow((hole(address, width=W32), hole(address, width=W32, at=4, shift=32)))
        more = Hollow((hole(address, add=24),))
        length = Hollow((hole(address, width=W32, shift=16),), 4096 << 48)
        whole, seen, after, high = dumped(
            device, address, split, more, length, memory=[alloc(0, 64)], fixed=[memory(0, 64)]
        )
    assert whole == seen != 0
    assert after == whole + 24
    assert high == formula(whole, 32, 16, 4096 << 48)


@pytest.mark.spec("P-hole-wrap")
@on_each
def test_high_half_of_minus_eight_is_all_ones(kind: str) -> None:
    with opened(kind) as device:
        words = (
            Hollow((hole(d.Int(0), width=W32, shift=32),)),
            Hollow((hole(d.Fixed(-8), width=W32, shift=32),)),
            Hollow((hole(d.Int(0), shift=32),)),
            Hollow((hole(d.Int(0)),)),
            Hollow((hole(d.Int(0), shift=1),)),
        )
        seen = dumped(device, *words, ints=(-8,))
    assert seen == [0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, MASK - 7, (MASK - 7) >> 1]


I64 = st.integers(-(2**63), 2**63 - 1)
EDGES = st.sampled_from([-(2**63), 2**63 - 1, 2**62, -(2**62), -8, -1, 0, 1, 2**32])


@pytest.mark.spec("P-hole-formula", "P-hole-wrap", "P-hole-shift")
@settings(max_examples=60)
@hypothesis_given(
    st.lists(st.tuples(st.booleans(), I64 | EDGES, I64 | EDGES), max_size=3),
    I64 | EDGES,
    st.integers(0, 62),
    st.sampled_from([W32, W64]),
)
def test_hole_is_its_formula(terms: list[tuple[bool, int, int]], add: int, shift: int, width: d.Width) -> None:
    ints = tuple(value for _, value, _ in terms)
    pairs = [(d.Int(i) if read else d.Fixed(value), factor) for i, (read, value, factor) in enumerate(terms)]
    hollow = Hollow((hole(*pairs, width=width, add=add, shift=shift),))
    total = sum(value * factor for _, value, factor in terms) + add
    want = formula(total, width, shift)
    assert dumped(rig.host(), hollow, ints=ints) == [want]
    # Bit 63 of the word is set iff the sum is negative and nothing is shifted.
    negative = (total & MASK) >> 63 == 1
    assert (want >> 63 == 1) == (negative and shift == 0 and width == W64)


@pytest.mark.spec("P-hole-formula", "P-part-ref", "P-hole-run")
@on_each
def test_ref_reaches_row_of_rows(kind: str) -> None:
    with opened(kind) as device:
        rows, out = buffer(device, *range(100, 120)), buffer(device, count=4)
        step = submit(
            0,
            launch("copy_words", writes(0), moving(1, d.Use.READ, (d.Int(1), 32), offset=8), n=3),
            slots=(given(0), given(1)),
        )
        loaded = load([device], step, inputs=[(0, 32), (0, 160)], ints=2)
        for row in (0, 3, 1):
            run(loaded, [out, rows], [0, row])
            assert values(out)[:3] == [101 + 4 * row, 102 + 4 * row, 103 + 4 * row]


@pytest.mark.spec("P-hole-run", "P-value-int")
@on_each
def test_parameters_are_filled_before_each_submit_of_each_run(kind: str) -> None:
    with opened(kind) as device:
        out = buffer(device, count=8)
        body = submit(
            0,
            launch("append", writes(0), Hollow((hole((d.Int(1), 10), d.Int(0)),))),
            slots=(given(0),),
        )
        loaded = load([device], loop(3, body, trip=1), inputs=[(0, 64)], ints=2)
        run(loaded, [out], [1000])
        run(loaded, [out], [2000])
        assert values(out)[:7] == [6, 1000, 1010, 1020, 2000, 2010, 2020]


@pytest.mark.spec("P-hole-run")
@on_host_code
def test_geometry_is_read_before_each_submit(kind: str) -> None:
    with opened(kind) as device:
        out = buffer(device, count=9)
        step = submit(0, launch("range", writes(0), n=d.Int(0), blocks=d.Int(1), shared=d.Int(2)), slots=(given(0),))
        loaded = load([device], step, inputs=[(0, 72)], ints=3)
        run(loaded, [out], [7, 1, 0])
        assert values(out) == [1, 0, 7, 0, 0, 0, 0, 0, 0]
        run(loaded, [out], [9, 3, 0])
        seen = values(out)
        assert seen[0] == 4
        assert sorted(zip(seen[3::2], seen[4::2], strict=True)) == [(0, 3), (3, 6), (6, 9)]
        run(loaded, [out], [0, 3, 0])
        assert values(out)[0] == 4


@pytest.mark.spec("P-hole-run", "P-run-step-errors")
@on_host_code
def test_shared_memory_read_from_ints_is_refused_at_step(kind: str) -> None:
    with opened(kind) as device:
        out = buffer(device, count=3)
        step = submit(0, launch("range", writes(0), shared=d.Int(0)), slots=(given(0),))
        loaded = load([device], step, inputs=[(0, 24)], ints=1)
        with pytest.raises(Invalid, match=r"^steps\[0\]\.parts\[0\].*shared memory of 5 bytes"):
            run(loaded, [out], [5])
        run(loaded, [out], [0])
        assert values(out) == [1, 0, 1]


@pytest.mark.spec("P-hole-load", "P-copies-init", "P-leaf-address")
@on_each
def test_init_holes_are_filled_for_each_copy(kind: str) -> None:
    with opened(kind) as device:
        out = buffer(device, count=2)
        step = submit(
            0,
            launch("deref", writes(0), d.Address(0, 0)),
            launch("dump", writes(0, 8), 1, d.Address(1, 0)),
            slots=(given(0),),
            fixed=[memory(0, 16), memory(1, 32)],
        )
        table = d.Data(bytes(16), (d.Hole(0, W64, (d.Term(d.Address(1, 0), 1),)),))
        loaded = load([device], step, memory=[alloc(0, 16, table, two=True), alloc(0, 32, two=True)], inputs=[(0, 16)])
        seen = []
        for _ in range(4):
            run(loaded, [out])
            held, wanted = values(out)
            assert held == wanted
            seen.append(held)
    assert seen[0] == seen[2] != seen[1] == seen[3]


@pytest.mark.spec("P-hole-constant")
@pytest.mark.parametrize("value", [d.Fixed(3), d.Entry(0, "nothing")])
@on_each
def test_value_known_at_load_meets_set_bits(kind: str, value: d.Value) -> None:
    """What load made is given back, even while the exception and its traceback live."""
    with opened(kind) as device:
        before = device.memory_in_use
        bits = 1 if value == d.Fixed(3) else MASK
        step = submit(0, launch("dump", writes(0), 1, Hollow((hole(value),), bits)), slots=(memory(0, 4096),))
        with pytest.raises(Invalid) as caught:
            load([device], submit(0, launch("nothing")), step, memory=[alloc(0, 4096)], ints=3)
        assert str(caught.value).startswith("steps[1].parts[0]: the value ")
        assert "byte 16 of its params meets set bits" in str(caught.value)
        assert device.memory_in_use == before
        assert traceback.extract_tb(caught.tb)


@pytest.mark.spec("P-hole-constant", "P-load-atomic")
@on_host_code
def test_value_in_init_or_image_meets_set_bits(kind: str) -> None:
    with opened(kind) as device:
        before = device.memory_in_use
        entry = (d.Hole(8, W64, (d.Term(d.Entry(0, "nothing"), 1),)),)
        table = d.Data(bytes(8) + as_bytes(MASK), entry)
        with pytest.raises(Invalid) as caught:
            load([device], memory=[alloc(0, 4096), alloc(0, 16, table)])
        assert str(caught.value).startswith("memory[1].init.holes[0]: the value 0x")
        assert "at byte 8" in str(caught.value)
        assert device.memory_in_use == before
        broken = d.Data(binary(), entry)  # over the library's own header
        with pytest.raises(Invalid, match=r"^images\[1\]\.binary\.holes\[0\]: the value 0x"):
            load([device], images=[d.Image(0, d.Data(binary())), d.Image(0, d.Data(b"\1" * 16 + broken.bytes, entry))])


@pytest.mark.spec("P-hole-constant", "P-run-step-errors")
@on_each
def test_value_read_at_run_meets_set_bits(kind: str) -> None:
    """The earlier steps ran, the later ones did not, and the program runs again."""
    with opened(kind) as device:
        out = buffer(device, count=4)
        first = submit(0, launch("bump", writes(0)), slots=(given(0),))
        second = submit(0, launch("dump", writes(0, 8), 1, Hollow((hole(d.Int(0)),), 4)), slots=(given(0),))
        third = submit(0, launch("bump", writes(0, 24)), slots=(given(0),))
        loaded = load([device], first, second, third, inputs=[(0, 32)], ints=1)
        with pytest.raises(Invalid) as caught:
            loaded.run(loaded.frame([out], [6]))
        assert str(caught.value).startswith("steps[1].parts[0]: the value 6 read from the ints meets set bits")
        assert values(out) == [1, 0, 0, 0]
        run(loaded, [out], [3])
        assert values(out) == [2, 7, 0, 1]


@pytest.mark.spec("P-hole-load")
def test_constant_blocks_stay_as_load_filled_them() -> None:
    """Leaves are filled once: a run that changes nothing sees the same words at the same place."""
    with memory_devices(1) as (device,):
        out = buffer(device, count=2)
        step = submit(
            0,
            launch("where", d.Address(0, 0)),
            launch("copy_words", writes(0), d.Address(0, 0)),
            slots=(given(0),),
            fixed=[memory(0, 8)],
        )
        fixed_step = submit(0, launch("where", d.Address(0, 0)), fixed=[memory(0, 8)])
        copy_step = submit(0, launch("copy_words", writes(0), reads(1)), slots=(given(0), memory(0, 8)))
        loaded = load_program(
            program([device], step, fixed_step, copy_step, memory=[alloc(0, 8)], inputs=[(0, 16)]), [device]
        )
        seen = set()
        for _ in range(3):
            wait_all(loaded.run(loaded.frame([out])))
            seen.add(values(out)[0])
        assert len(seen) == 1
