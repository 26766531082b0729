"""Values: the integer itself, and a word of the ints as it holds when the step that reads it runs."""

from __future__ import annotations

from typing import Any

import pytest
from kernels import (
    INTS,
    Hollow,
    alloc,
    as_bytes,
    buffer,
    copy,
    given,
    hole,
    launch,
    load,
    loop,
    memory,
    memory_devices,
    move,
    moving,
    on_each,
    opened,
    run,
    submit,
    values,
    writes,
)

import rig
from rig.program import description as d

SLOW_MS = 30


@pytest.mark.spec("P-value-fixed", "P-value-int")
@on_each
def test_fixed_and_int_everywhere_a_value_stands(kind: str) -> None:
    with opened(kind) as device:
        out, source = buffer(device, count=6), buffer(device, *range(50, 60))
        step = submit(
            0,
            launch("dump", writes(0), d.Fixed(2), d.Fixed(-1), d.Int(1)),
            launch("addk", writes(0, 16), moving(1, d.Use.READ, (d.Int(2), 8)), 100, n=d.Int(0)),
            copy(1, 0, 8, src_offset=(8, (d.Int(2), 8)), dst_offset=((d.Fixed(8), 5),)),
            slots=(given(0), given(1)),
        )
        loaded = load([device], step, inputs=[(0, 48), (0, 80)], ints=3)
        run(loaded, [out, source], [2, 9, 4])
        assert values(out) == [2**64 - 1, 9, 154, 155, 0, 55]


def writers(device: int) -> dict[str, tuple[Any, ...]]:
    """Steps that write 3 into word 0 of the ints, late where work can be late; memory 0 holds 3."""
    ints = submit(device, launch("slow_addk", writes(0), writes(1), 0, SLOW_MS), slots=(INTS, memory(0, 8)))
    fixed_copy = submit(device, launch("sleep_us", SLOW_MS * 1000), copy(1, 0, 8), slots=(INTS, memory(0, 8)))
    late = submit(device, launch("slow_addk", writes(0), writes(0), 0, SLOW_MS), slots=(memory(0, 8),))
    return {"launch": (ints,), "copy": (fixed_copy,), "move": (late, move(memory(0, 8), INTS, 8))}


@pytest.mark.spec("P-value-int", "P-order-step")
@pytest.mark.parametrize("writer", ["launch", "copy", "move"])
@pytest.mark.parametrize("writing", [0, 1])
@pytest.mark.parametrize("reading", [0, 1, 2])
def test_int_is_read_once_earlier_work_wrote_it(writer: str, writing: int, reading: int) -> None:
    """Host, or a device that is late, writes the ints; then a parameter, geometry, offsets and trips read them."""
    with memory_devices(2) as (one, two):
        devices = [rig.host(), one, two]
        out, source = buffer(devices[reading], count=12), buffer(devices[reading], *range(50, 60))
        three = alloc(writing, 8, as_bytes(3))
        slots = (given(0), given(1))
        readers = {
            "param": submit(reading, launch("store", writes(0), d.Int(0)), slots=(given(0),)),
            "geometry": submit(reading, launch("addk", writes(0), writes(0), 1, n=d.Int(0)), slots=(given(0),)),
            "ref": submit(reading, launch("copy_words", writes(0), moving(1, d.Use.READ, (d.Int(0), 8))), slots=slots),
            "copy": submit(reading, copy(1, 0, 8, src_offset=((d.Int(0), 8),)), slots=slots),
            "move": move(given(1), given(0), 8, src_offset=((d.Int(0), 8),)),
            "trips": loop(d.Int(0), submit(reading, launch("bump", writes(0)), slots=(given(0),))),
        }
        wants = {"param": 3, "geometry": 1, "ref": 53, "copy": 53, "move": 53, "trips": 3}
        for name, reader in readers.items():
            out.write(bytes(96))
            loaded = load(
                devices,
                *writers(writing)[writer],
                reader,
                memory=[three],
                inputs=[(reading, 96), (reading, 80)],
                ints=2,
            )
            run(loaded, [out, source], [0])
            assert values(out)[0] == wants[name], name
            if name == "geometry":
                assert values(out)[:4] == [1, 1, 1, 0]


@pytest.mark.spec("P-value-int", "P-loop-trips", "P-loop-nested")
@on_each
def test_int_holds_trips_of_enclosing_loops(kind: str) -> None:
    with opened(kind) as device:
        out = buffer(device, count=8)
        body = submit(
            0, launch("append", writes(0), Hollow((hole((d.Int(0), 10), d.Int(1), d.Int(2)),))), slots=(given(0),)
        )
        loaded = load([device], loop(2, loop(3, body, trip=1), trip=0), inputs=[(0, 64)], ints=3)
        run(loaded, [out], [9, 9, 500])
        assert values(out)[:7] == [6, 500, 501, 502, 510, 511, 512]


@pytest.mark.spec("P-value-int", "P-copies-alternate")
def test_ints_beyond_the_frame_s_keep_what_the_copy_held() -> None:
    """Each copy of the ints is 0 at first and keeps its words from run n - 2."""
    host = rig.host()
    out = buffer(host, count=2)
    step = submit(
        0,
        launch("addk", writes(1, 8), writes(1, 8), 1),
        launch("copy_words", writes(0), writes(1), n=2),
        slots=(given(0), INTS),
    )
    loaded = load([host], step, inputs=[(0, 16)], ints=2)
    seen = []
    for n in range(5):
        run(loaded, [out], [n])
        seen.append(tuple(values(out)))
    assert seen == [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3)]


@pytest.mark.spec("P-value-leaf")
def test_leaf_stands_among_other_terms() -> None:
    host = rig.host()
    out = buffer(host, count=2)
    word = Hollow((hole(d.Address(0, 0), (d.Int(0), 8), (d.Fixed(2), 4)),))
    step = submit(0, launch("dump", writes(0), 2, d.Address(0, 0), word), slots=(given(0),), fixed=[memory(0, 64)])
    run(load([host], step, memory=[alloc(0, 64)], inputs=[(0, 16)], ints=1), [out], [3])
    address, moved = values(out)
    assert moved == address + 32
