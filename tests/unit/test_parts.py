"""The parts of a submit: launches, copies and fills, their slots, refs and fixed memory."""

from __future__ import annotations

import pytest
from kernels import (
    INTS,
    alloc,
    as_bytes,
    buffer,
    copy,
    fill,
    given,
    in_use,
    launch,
    load,
    loop,
    memory,
    memory_devices,
    move,
    moving,
    on_each,
    on_host_code,
    opened,
    params,
    reads,
    run,
    submit,
    unordered,
    values,
    writes,
)

import rig
from rig.errors import Invalid, Refused
from rig.program import description as d


@pytest.mark.spec("P-part-launch")
@on_host_code
def test_launch_is_split_into_its_blocks(kind: str) -> None:
    """Block b does iterations b * n / blocks up to the next; a zero anywhere runs nothing."""
    with opened(kind) as device:
        for n, blocks, want in (
            (10, 1, [(0, 10)]),
            (10, 4, [(0, 2), (2, 5), (5, 7), (7, 10)]),
            (3, 3, [(0, 1), (1, 2), (2, 3)]),
            (0, 4, []),
            (5, 0, []),
        ):
            out = buffer(device, count=9)
            step = submit(0, launch("range", writes(0), n=n, blocks=blocks), slots=(given(0),))
            run(load([device], step, inputs=[(0, 72)]), [out])
            seen = values(out)
            assert seen[0] == len(want)
            assert sorted(zip(seen[1::2], seen[2::2], strict=True))[-len(want) or 9 :] == want


@pytest.mark.spec("P-part-launch", "P-load-refused", "P-load-atomic")
@on_host_code
def test_launch_that_host_code_does_not_run(kind: str) -> None:
    one, two = d.Fixed(1), d.Fixed(2)
    data, refs = params([writes(0)])
    with opened(kind) as device:
        before = in_use(device)
        for more, why in (
            ({"groups": (one, two, one)}, "groups (1, 2, 1) of threads (1, 1, 1)"),
            ({"threads": (one, one, two)}, "groups (1, 1, 1) of threads (1, 1, 2)"),
            ({"threads": (d.Fixed(-1), one, one)}, "1 blocks of -1 iterations, neither may be negative"),
            ({"groups": (d.Fixed(-3), one, one)}, "-3 blocks of 1 iterations"),
            ({"shared": d.Fixed(64)}, "shared memory of 64 bytes, host code has none"),
            ({"params": d.Data(data.bytes + bytes(4))}, "parameters of 12 bytes, host code takes a multiple of 8"),
        ):
            part = d.Launch(**{"image": 0, "name": "bump", "params": data, "refs": refs, **more})
            with pytest.raises(Refused) as caught:
                load(
                    [device],
                    submit(0),
                    submit(0, launch("nothing"), part, slots=(memory(0, 64),)),
                    memory=[alloc(0, 64)],
                )
            assert str(caught.value).startswith(f"steps[1].parts[1]: {device.name} runs no {why}"), caught.value
            assert in_use(device) == before


@pytest.mark.spec("P-part-params")
@pytest.mark.parametrize("size", [1, 2, 3, 6, 13])
def test_parameters_are_whole_words_of_32_bits(size: int) -> None:
    data = d.Data(bytes(size))
    for part in (d.Launch(0, "nothing", data), d.Fill(d.Entry(0, "nothing"), data)):
        with pytest.raises(
            Invalid, match=rf"^steps\[0\]\.parts\[0\]\.params.*: {size} bytes; a whole number of 32-bit words"
        ):
            load([rig.host()], submit(0, part))


@pytest.mark.spec("P-part-fill")
@on_host_code
def test_fill_is_a_call_with_its_parameters(kind: str) -> None:
    """Of code of the host, also on a memory device; its refs and holes are as a launch's."""
    with opened(kind) as device:
        out = buffer(device, count=6)
        devices = [device] if kind == "host" else [device, rig.host()]
        entry = d.Entry(len(devices) - 1, "append")
        step = submit(
            0,
            launch("append", writes(0), 1),
            fill(entry, writes(0), d.Int(0)),
            fill(d.Entry(0, "range"), moving(0, d.Use.WRITE, (d.Int(0), 3))),
            slots=(given(0),),
        )
        loaded = load(devices, step, inputs=[(0, 48)], ints=1)
        run(loaded, [out], [8])
        assert values(out) == [2, 1, 8, 1, 0, 1]


@pytest.mark.spec("P-part-copy", "P-part-copy-end", "P-part-copy-offset")
@on_each
def test_copies_between_every_kind_of_slot(kind: str) -> None:
    with opened(kind) as device:
        one = buffer(device, *range(10, 18))
        out = buffer(device, count=4)
        step = submit(
            0,
            copy(0, 1, 16, src_offset=8),  # input to memory
            copy(1, 2, 8, src_offset=(8,), dst_offset=24),  # memory to memory
            copy(2, 3, 8, src_offset=24, dst_offset=8),  # memory to ints
            copy(3, 4, 24, dst_offset=8),  # ints to input
            copy(2, 4, 0, src_offset=32, dst_offset=32),  # nothing, at the end
            slots=(given(0), memory(0, 24, 8), memory(1, 32), INTS, given(1)),
        )
        loaded = load(
            [device, rig.host()] if kind == "memory" else [device],
            step,
            memory=[alloc(0, 32), alloc(0, 32)],
            inputs=[(0, 64), (0, 32)],
            ints=3,
        )
        run(loaded, [one, out], [5, 0, 6])
        assert values(out) == [0, 5, 12, 6]


@pytest.mark.spec("P-part-copy-end", "P-copies-alternate")
@on_each
def test_end_that_is_memory_is_of_the_copy_the_run_uses(kind: str) -> None:
    with opened(kind) as device:
        out = buffer(device, count=1)
        step = submit(0, copy(0, 1, 8), launch("addk", writes(0), writes(0), 1), slots=(memory(0, 8), given(0)))
        loaded = load([device], step, memory=[alloc(0, 8, as_bytes(20), two=True)], inputs=[(0, 8)])
        seen = []
        for _ in range(4):
            run(loaded, [out])
            seen += values(out)
    assert seen == [20, 20, 21, 21]


@pytest.mark.spec("P-part-copy-offset", "P-hole-run")
@on_each
def test_copies_move_with_the_loop_s_trips(kind: str) -> None:
    """Row r of the input, from a place that an int of the frame says, goes to the place of the trip."""
    with opened(kind) as device:
        rows, out = buffer(device, *range(100, 124)), buffer(device, count=12)
        body = submit(
            0,
            copy(0, 1, 24, src_offset=(8, (d.Int(0), 32), (d.Int(1), 32)), dst_offset=((d.Int(1), 24),)),
            slots=(given(0), given(1)),
        )
        loaded = load([device], loop(3, body, trip=1), inputs=[(0, 192), (0, 96)], ints=2)
        run(loaded, [rows, out], [2])
        assert values(out)[:9] == [109, 110, 111, 113, 114, 115, 117, 118, 119]


EXACT = [
    ("src_offset", ((d.Int(0), 2**62),), [4], "past a 64-bit integer"),
    ("src_offset", ((d.Int(0), -(2**63)),), [-1], "past a 64-bit integer"),
    ("dst_offset", ((d.Int(0), 1), (d.Int(1), 1)), [2**63 - 1, 1], "past a 64-bit integer"),
    ("dst_offset", ((d.Fixed(2**62), 4), d.Int(0)), [0], "past a 64-bit integer"),
    ("src_offset", (d.Int(0), (d.Fixed(2**62), 2), (d.Fixed(2**62), -2)), [0], "past a 64-bit integer"),
    ("src_offset", (d.Int(0), 10, -10, (d.Int(1), -1)), [2**63 - 1, 2**63 - 1], "past a 64-bit integer"),
    ("src_offset", (d.Int(0),), [-1], "offset -1 is not within its buffer of 64 bytes"),
    ("src_offset", (d.Int(0),), [57], "8 bytes at offset 57 is not within its buffer of 64 bytes"),
    ("dst_offset", (d.Int(0), 8), [49], "8 bytes at offset 57 is not within its buffer of 64 bytes"),
]


@pytest.mark.spec("P-part-copy-offset", "P-run-step-errors", "P-move-copy")
@pytest.mark.parametrize(("field", "terms", "ints", "why"), EXACT)
@pytest.mark.parametrize("part", ["copy", "move"])
@on_each
def test_offset_that_the_ints_make_wrong(
    kind: str, part: str, field: str, terms: tuple, ints: list[int], why: str
) -> None:
    """Refused at the step: the earlier steps ran, and the program runs again."""
    with opened(kind) as device:
        out, source = buffer(device, count=8), buffer(device, *range(8))
        first = submit(0, launch("bump", writes(0)), slots=(given(0),))
        if part == "copy":
            second = submit(0, launch("nothing"), copy(1, 0, 8, **{field: terms}), slots=(given(0), given(1)))
        else:
            second = move(given(1), given(0), 8, **{field: terms})
        loaded = load([device], first, second, inputs=[(0, 64), (0, 64)], ints=2)
        with pytest.raises(Invalid) as caught:
            loaded.run(loaded.frame([out, source], ints))
        message = str(caught.value)
        assert message.startswith("steps[1].parts[1]: " if part == "copy" else "steps[1]: "), message
        assert ("source" if field == "src_offset" else "destination") in message
        assert why in message
        assert values(out) == [1, 0, 0, 0, 0, 0, 0, 0]
        run(load([device], first, inputs=[(0, 64)]), [out])
        assert values(out)[0] == 2


@pytest.mark.spec("P-part-ref")
@on_each
def test_ref_is_an_offset_into_its_slot(kind: str) -> None:
    """The work sees the address: of an input's view, of a view of memory, of the ints; the end is allowed too."""
    with opened(kind) as device:
        whole = buffer(device, *range(8))
        out = buffer(device, count=4)
        step = submit(
            0,
            launch("copy_words", writes(0), reads(1, 8)),
            launch("copy_words", writes(0, 8), reads(2, 16)),
            launch("copy_words", writes(0, 16), reads(3, 8)),
            launch("nothing", reads(0, 32), reads(2, 24), unordered(4, 8)),
            slots=(given(0), given(1), memory(0, 24, 8), INTS, memory(0, 8)),
        )
        loaded = load(
            [device] if kind == "host" else [device, rig.host()],
            step,
            memory=[alloc(0, 64, as_bytes(60, 61, 62, 63, 64))],
            inputs=[(0, 32), (0, 16)],
            ints=2,
        )
        run(loaded, [out, whole.view(16, 24)], [70, 71])
        assert values(out) == [3, 63, 71, 0]


@pytest.mark.spec("P-part-ref", "P-run-step-errors")
@on_each
def test_ref_that_the_run_makes_wrong(kind: str) -> None:
    """An offset that moves, or lies past the least size of an input, is held against the buffer at the step."""
    with opened(kind) as device:
        out = buffer(device, count=8)
        fixed_far = submit(0, launch("store", writes(0, 40), 6), slots=(given(0),))
        loaded = load([device], fixed_far, inputs=[(0, 16)])
        run(loaded, [out])
        assert values(out) == [0, 0, 0, 0, 0, 6, 0, 0]
        with pytest.raises(Invalid, match=r"^steps\[0\]\.parts\[0\]: a ref's offset is 40, its slot has 24 bytes"):
            loaded.run(loaded.frame([out.view(0, 24)]))
        run(loaded, [out.view(8, 56)])
        assert values(out) == [0, 0, 0, 0, 0, 6, 6, 0]
        step = submit(0, launch("store", moving(0, d.Use.WRITE, d.Int(0)), 7), slots=(given(0),))
        loaded = load([device], step, inputs=[(0, 16)], ints=1)
        for bad in (-8, 65):
            with pytest.raises(Invalid, match=rf"a ref's offset is {bad}, its slot has 64 bytes"):
                loaded.run(loaded.frame([out], [bad]))
        run(loaded, [out], [56])
        assert values(out)[7] == 7


@pytest.mark.spec("P-part-fixed")
@on_each
def test_fixed_memory_is_every_run_s(kind: str) -> None:
    with opened(kind) as device:
        out = buffer(device, count=1)
        step = submit(
            0,
            launch("addk", d.Address(0, 0), d.Address(1, 0), 0),
            launch("addk", d.Address(1, 0), d.Address(0, 0), 1),
            launch("copy_words", writes(0), d.Address(1, 0)),
            slots=(given(0),),
            fixed=[memory(0, 8), (memory(1, 8), d.Access.READ_WRITE)],
        )
        loaded = load([device], step, memory=[alloc(0, 8), alloc(0, 8, as_bytes(5))], inputs=[(0, 8)])
        for want in (6, 7, 8):
            run(loaded, [out])
            assert values(out) == [want]


@pytest.mark.spec("P-part-slots")
def test_slots_are_named_in_one_way() -> None:
    host, out = rig.host(), given(0)
    for parts, slots, where, why in (
        ((launch("nothing"),), (out,), r"slots\[0\]", "no ref and no copy of the submit names it"),
        ((launch("nothing", writes(0), unordered(0)),), (out,), r"slots\[0\]", "UNORDERED ref and a READ or WRITE"),
        ((copy(0, 1, 8), launch("nothing", unordered(1))), (out, given(1)), r"slots\[1\]", "UNORDERED ref and"),
        ((launch("nothing", writes(1)),), (out,), r"parts\[0\]\.refs\[0\]", "a ref's slot is 1, 0 to 0 are allowed"),
        ((copy(0, 2, 8),), (out, given(1)), r"parts\[0\]", "a copy's dst is 2, 0 to 1 are allowed"),
    ):
        with pytest.raises(Invalid, match=rf"^steps\[0\]\.{where}.*{why}"):
            load([host], submit(0, *parts, slots=slots), inputs=[(0, 8), (0, 8)])


@pytest.mark.spec("P-part-borrow")
def test_memory_and_inputs_of_another_device_are_borrowed() -> None:
    """Slots, fixed memory and copies of a step name memory of the host and of two memory devices."""
    with memory_devices(2) as (one, two):
        devices = [rig.host(), one, two]
        for device in range(3):
            inputs = [buffer(owner, 10 * i) for i, owner in enumerate(devices, 1)]
            out = buffer(devices[device], count=1)
            step = submit(
                device,
                *[launch("add", writes(3), writes(3), reads(i)) for i in range(3)],
                *[launch("add", writes(3), writes(3), d.Address(i, device)) for i in range(3)],
                copy(3, 4, 8),
                launch("add", writes(5), reads(4), reads(4)),
                slots=(given(0), given(1), given(2), memory(3, 8), memory(4, 8), given(3)),
                fixed=[(memory(i, 8), d.Access.READ) for i in range(3)],
            )
            sizes = [alloc(i, 8, as_bytes(i + 1)) for i in range(3)]
            owners = [(0, 8), (1, 8), (2, 8), (device, 8)]
            more = [alloc((device + 1) % 3, 8), alloc((device + 2) % 3, 8)]
            loaded = load(devices, step, memory=[*sizes, *more], inputs=owners)
            run(loaded, [*inputs, out])
            assert values(out) == [132]
            run(loaded, [*inputs, out])
            assert values(out) == [264]


@pytest.mark.spec("P-part-borrow", "P-load-refused", "P-load-atomic")
@pytest.mark.parametrize("how", ["slot", "fixed", "copy", "ints"])
def test_memory_that_cannot_be_borrowed(how: str) -> None:
    with memory_devices(1, borrows=False) as (device,):
        steps = {
            "slot": submit(0, launch("nothing", reads(0)), slots=(memory(0, 64),)),
            "fixed": submit(0, launch("nothing"), fixed=[memory(0, 64)]),
            "copy": submit(0, copy(0, 1, 8), slots=(memory(0, 64), memory(1, 64))),
            "ints": submit(0, launch("nothing", reads(0)), slots=(INTS,)),
        }
        host = in_use(rig.host())
        with pytest.raises(Refused) as caught:
            load([device, rig.host()], submit(1), steps[how], memory=[alloc(1, 64), alloc(0, 64)], ints=1)
        assert str(caught.value).startswith(
            f"steps[1]: {device.name}: it borrows no memory of other devices, here of host"
        )
        assert (in_use(device), in_use(rig.host())) == (0, host)


@pytest.mark.spec("P-part-borrow", "P-load-refused")
def test_host_does_not_reach_memory_of_device_without_a_window() -> None:
    with memory_devices(1, borrows=False) as (device,):
        step = submit(0, launch("nothing", reads(0)), slots=(memory(0, 64),))
        with pytest.raises(
            Refused,
            match=rf"^steps\[0\]: host: it cannot borrow memory of {device.name}, which the host does not address",
        ):
            load([rig.host(), device], step, memory=[alloc(1, 64)])


@pytest.mark.spec("P-part-copy", "P-load-refused")
def test_device_that_does_not_copy_refuses_copy_parts() -> None:
    with memory_devices(1, copies=False) as (device,):
        step = submit(0, copy(0, 1, 8), slots=(memory(0, 8), memory(1, 8)))
        with pytest.raises(Refused, match=rf"^steps\[0\]\.parts\[0\]: {device.name} makes no copies"):
            load([device], step, memory=[alloc(0, 8), alloc(0, 8)])


@pytest.mark.spec("P-part-words", "P-load-refused", "P-load-atomic")
@on_each
def test_words_are_refused(kind: str) -> None:
    with opened(kind) as device:
        before = in_use(device)
        step = submit(0, launch("nothing"), d.Words(d.View(0, 0, 64)))
        with pytest.raises(
            Refused, match=rf"^steps\[0\]\.?[^:]*: {device.name} takes no words: it has no work format of its own"
        ):
            load([device], step, memory=[alloc(0, 64)])
        assert in_use(device) == before


@pytest.mark.spec("P-part-launch", "P-part-slots")
@on_each
def test_slot_of_no_bytes(kind: str) -> None:
    """Memory of no bytes, an empty view and ints of no words have an address, and nothing else."""
    with opened(kind) as device:
        out = buffer(device, count=1)
        step = submit(
            0,
            launch("nothing", reads(0), reads(1), reads(2)),
            launch("bump", writes(3)),
            slots=(memory(0, 0), memory(1, 0, 64), INTS, given(0)),
        )
        run(
            load(
                [device] if kind == "host" else [device, rig.host()],
                step,
                memory=[alloc(0, 0), alloc(0, 64)],
                inputs=[(0, 8)],
            ),
            [out],
        )
        assert values(out) == [1]
