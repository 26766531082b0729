"""A run: what its frame must be, what it keeps and reports, and what it refuses at a step."""

from __future__ import annotations

from typing import Any

import pytest
from kernels import (
    INTS,
    Background,
    To,
    Words,
    alloc,
    as_bytes,
    buffer,
    copy,
    given,
    in_use,
    launch,
    load,
    loop,
    memory,
    memory_devices,
    move,
    on_each,
    opened,
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

PAUSE = 0.03


@pytest.mark.spec("P-run-frame")
@on_each
def test_frame_is_checked_before_any_step(kind: str) -> None:
    """Nothing runs, and the refused run is not counted: the next one uses the copy it would have used."""
    flags = Words()
    with opened(kind) as device, memory_devices(1) as (other,):
        steps = (
            submit(0, launch("bump", flags.at(0)), launch("bump", writes(0)), slots=(memory(0, 8),)),
            submit(0, launch("copy_words", writes(0), reads(1)), slots=(given(0), memory(0, 8))),
            submit(0, launch("nothing", reads(0)), slots=(given(1),)),
        )
        loaded = load([device], *steps, memory=[alloc(0, 8, two=True)], inputs=[(0, 16), (0, 8)], ints=2)
        out, two = buffer(device, count=2), buffer(device, 1)
        dead = buffer(device, 1, 1)
        dead.free()
        good = loaded.frame([out, two], [1, 2])
        points = load([device], submit(0)).step_points()
        frames: list[tuple[Any, str]] = [
            (loaded.frame([out]), "the frame has 1 inputs, the program takes 2"),
            (loaded.frame([out, two, two]), "the frame has 3 inputs, the program takes 2"),
            (loaded.frame([out, two], [1, 2, 3]), "the frame has 3 ints, the program has 2"),
            (loaded.frame([out, two], [1], points), "the frame has 1 step points, the program has 3 Submit steps"),
            (
                loaded.frame([buffer(other, 1, 1), two]),
                f"input 0 is memory of {other.name}, the program takes memory of",
            ),
            (loaded.frame([out.view(0, 15), two]), "input 0 has 15 bytes, the program needs 16"),
            (loaded.frame([out, two.view(0, 0)]), "input 1 has 0 bytes, the program needs 8"),
            (loaded.frame([dead, two]), "input 0 is a dead buffer: it was freed"),
            (loaded.frame([out, two], [2**63]), "int 0 of the frame is 9223372036854775808"),
            (loaded.frame([out, two], [1, -(2**63) - 1]), "int 1 of the frame is -9223372036854775809"),
            (loaded.frame([out, None]), "input 1 of the frame is None, it takes a Buffer"),  # type: ignore[list-item]
        ]
        run(loaded, good.inputs, good.ints)
        assert (flags[0], values(out)[0]) == (1, 1)
        for frame, why in frames:
            submitted = device.submitted
            with pytest.raises(Invalid) as caught:
                loaded.run(frame)
            assert why in str(caught.value)
            assert device.submitted == submitted
        assert flags[0] == 1
        seen = []
        for _ in range(3):
            run(loaded, good.inputs, good.ints)
            seen.append(values(out)[0])
        assert seen == [1, 2, 2]


@pytest.mark.spec("P-run-frame", "P-run-waits", "P-run-steppoints")
def test_values_of_other_types() -> None:
    """Refused as what they are, before any step."""
    flags = Words()
    loaded = load([rig.host()], submit(0, launch("bump", flags.at(0))))
    frame = loaded.frame([])
    with pytest.raises(Invalid, match=r"^wait 1 is 7, it takes a Point"):
        loaded.run(frame, waits=[*run(loaded), 7])  # type: ignore[list-item]
    frame.step_points = [None]  # type: ignore[assignment]
    with pytest.raises(Invalid, match=r"^the frame's step points are \[None\]"):
        loaded.run(frame)
    assert flags[0] == 1


@pytest.mark.spec("P-run-frame", "P-part-borrow")
def test_input_that_cannot_be_borrowed() -> None:
    flags = Words()
    with memory_devices(1, borrows=False) as (device,):
        steps = submit(0, launch("bump", flags.at(0))), submit(0, launch("nothing", reads(0)), slots=(given(0),))
        loaded = load([device, rig.host()], *steps, inputs=[(1, 8)])
        with pytest.raises(Invalid, match=rf"^input 0 cannot be borrowed: {device.name}: it borrows no memory"):
            loaded.run(loaded.frame([buffer(rig.host(), 1)]))
        assert (device.submitted, flags[0]) == (0, 0)


WRITERS: dict[str, tuple[d.Step, bool]] = {
    "read ref": (submit(0, launch("nothing", reads(0)), slots=(given(0),)), False),
    "write ref": (submit(0, launch("nothing", writes(0)), slots=(given(0),)), True),
    "unordered ref": (submit(0, launch("nothing", To(0, d.Use.UNORDERED)), slots=(given(0),)), True),
    "both": (submit(0, launch("nothing", reads(0), writes(0)), slots=(given(0),)), True),
    "copy's source": (submit(0, copy(0, 1, 8), slots=(given(0), memory(0, 8))), False),
    "copy's destination": (submit(0, copy(1, 0, 8), slots=(given(0), memory(0, 8))), True),
    "move's source": (move(given(0), memory(0, 8), 8), False),
    "move's destination": (move(memory(0, 8), given(0), 8), True),
    "flag": (loop(1, flag=(given(0), 0)), False),
    "within loops": (loop(0, loop(1, move(memory(0, 8), given(0), 8))), True),
}


@pytest.mark.spec("P-run-writes", "P-run-frame")
@pytest.mark.parametrize("way", WRITERS)
def test_run_that_writes_takes_no_read_only_memory(way: str) -> None:
    step, written = WRITERS[way]
    loaded = load([rig.host()], submit(0), step, memory=[alloc(0, 8)], inputs=[(0, 8)])
    assert loaded.input_written(0) == written
    data = as_bytes(77)
    read_only = rig.Buffer.of(data)
    if written:
        with pytest.raises(Invalid, match=r"^input 0 is read-only memory, the program writes it"):
            loaded.run(loaded.frame([read_only]))
        run(loaded, [rig.Buffer.of(bytearray(data), writable=True)])
    else:
        run(loaded, [read_only])
    assert data == as_bytes(77)


@pytest.mark.spec("P-run-snapshot", "P-run-keeps")
@on_each
def test_inputs_and_ints_are_read_once(kind: str) -> None:
    """A change to the frame during the run changes nothing, and the run keeps the input that the frame lost."""
    flags = Words()
    with opened(kind) as device:
        steps = (
            submit(0, launch("gate", flags.at(0), flags.at(1))),
            move(given(0), memory(0, 1 << 20), 1 << 20),
            loop(2, submit(0, launch("addk", writes(0), reads(1), d.Int(0)), slots=(given(1), memory(0, 8)))),
        )
        devices = [rig.host()] if kind == "host" else [device, rig.host()]
        if kind == "memory":
            # So that the run lasts: the host reads a flag after the gate.
            steps = (*steps, submit(1, launch("nothing", reads(0)), slots=(memory(0, 8),)))
        loaded = load(devices, *steps, memory=[alloc(0, 1 << 20)], inputs=[(0, 1 << 20), (0, 8)], ints=1)
        big, out, wrong = buffer(device, 5, count=1 << 17), buffer(device, 0), buffer(device, 0)
        frame = loaded.frame([big, out], [100])
        before = in_use(device)
        call = Background(lambda: loaded.run(frame))
        assert flags.wait(0)
        frame.inputs[:] = [wrong, wrong, wrong]
        frame.ints[:] = [200, 300, 400]
        del big
        assert in_use(device) == before
        flags[1] = 1
        wait_all(call.result())
        assert values(out) == [105]
        assert values(wrong) == [0]
        assert in_use(device) == before - (1 << 20)


@pytest.mark.spec("P-run-keeps")
def test_inputs_are_kept_until_their_work_is_done_and_no_longer() -> None:
    """The run returned; the work on the input goes on over memory that nothing names any more."""
    flags = Words()
    with memory_devices(1) as (device,):
        step = submit(
            0,
            launch("gate", flags.at(0), flags.at(1)),
            launch("copy_words", flags.at(2), reads(0)),
            slots=(given(0),),
        )
        loaded = load([device], step, inputs=[(0, 8)])
        data = bytearray(as_bytes(66) + bytes(1 << 20))
        shared = rig.Buffer.create(device, len(data))
        shared.write(data)
        ends = loaded.run(loaded.frame([shared]))
        del shared
        assert in_use(device) == len(data)
        flags[1] = 1
        wait_all(ends)
        assert flags[2] == 66
        assert in_use(device) == 0


@pytest.mark.spec("P-run-ends")
def test_ends_are_the_last_points_of_the_devices_that_worked() -> None:
    """In the order of the program's devices, whatever the order of the steps."""
    with memory_devices(3) as (one, two, three):
        devices = [one, rig.host(), two, three]
        steps = (
            submit(3, launch("nothing")),
            submit(0, launch("nothing")),
            submit(1, launch("nothing")),
            submit(0, launch("nothing")),
            move(memory(0, 8), memory(1, 8), 8),
            loop(0, submit(2, launch("nothing"))),
        )
        loaded = load(devices, *steps, memory=[alloc(3, 8), alloc(0, 8)])
        for turn in (1, 2):
            ends = run(loaded)
            assert [end.device for end in ends] == [one.name, "host", three.name]
            assert (ends[0].value, ends[2].value) == (2 * turn, 2 * turn)
            assert (one.submitted, two.submitted, three.submitted) == (2 * turn, 0, 2 * turn)
        assert run(load(devices)) == ()
        assert run(load(devices, loop(0, submit(0, launch("nothing"))))) == ()


@pytest.mark.spec("P-run-waits")
@pytest.mark.parametrize("what", ["submit", "move", "host submit", "host move"])
def test_first_work_of_each_device_follows_waits(what: str) -> None:
    flags = Words()
    with memory_devices(2) as (one, two), memory_devices(1, borrows=False) as (blind,):
        gate = load([one], submit(0, launch("gate", flags.at(0), flags.at(1))))
        waits = gate.run(gate.frame([]))
        out, source = buffer(rig.host(), 0), buffer(rig.host(), 4)
        steps: dict[str, tuple[d.Step, ...]] = {
            "submit": (submit(0, launch("copy_words", writes(0), reads(1)), slots=(given(0), given(1))),),
            "move": (move(given(1), memory(0, 8), 8), move(memory(0, 8), given(0), 8)),
            "host submit": (submit(1, launch("copy_words", writes(0), reads(1)), slots=(given(0), given(1))),),
            "host move": (move(given(1), memory(1, 8), 8), move(memory(1, 8), given(0), 8)),
        }
        loaded = load(
            [two, rig.host(), blind], *steps[what], memory=[alloc(0, 8), alloc(2, 8)], inputs=[(1, 8), (1, 8)]
        )
        call = Background(lambda: loaded.run(loaded.frame([out, source]), waits=waits))
        call._thread.join(PAUSE)
        # What the host does waits in the run, what a device does in its queue.
        assert call.done == (what in ("submit", "move"))
        assert bytes(memoryview(source)) == as_bytes(4)
        if call.done:
            assert not call.result()[0].reached
        flags[1] = 1
        wait_all(call.result())
        assert values(out) == [4]


@pytest.mark.spec("P-run-waits")
def test_each_device_s_first_submission_follows_waits() -> None:
    """Also that of a device whose first step comes after others' steps; and a wait of its own is its order."""
    flags = Words()
    with memory_devices(3) as (one, two, three):
        gate = load([one], submit(0, launch("gate", flags.at(0), flags.at(1))))
        waits = gate.run(gate.frame([]))
        loaded = load(
            [one, two, three],
            submit(1, launch("bump", flags.at(2))),
            submit(2, launch("bump", flags.at(2))),
            submit(0, launch("bump", flags.at(2))),
        )
        ends = loaded.run(loaded.frame([]), waits=waits)
        assert not any(end.wait(PAUSE) for end in ends)
        assert flags[2] == 0
        flags[1] = 1
        wait_all(ends)
        assert flags[2] == 3


@pytest.mark.spec("P-run-steppoints")
def test_step_points_in_step_order_a_loop_s_body_counted_once() -> None:
    with memory_devices(2) as (one, two):
        devices = [one, two, rig.host()]
        steps = (
            submit(0, launch("nothing")),
            loop(3, submit(1, launch("nothing")), loop(2, submit(0, launch("nothing"))), submit(2, launch("nothing"))),
            loop(d.Int(0), submit(1, launch("nothing"))),
            move(memory(0, 8), memory(1, 8), 8),
            submit(1, launch("nothing")),
        )
        loaded = load(devices, *steps, memory=[alloc(0, 8), alloc(0, 8)], ints=1)
        assert loaded.submit_steps == 6
        points = loaded.step_points()
        rest = loaded.step_points()[0]
        assert len(points) == 6
        assert all(point == rest for point in points)
        assert rest.reached
        assert rest.device == "host"
        frame = loaded.frame([], [1], points)
        loaded.run(frame)
        seen = [(point.device, point.value) for point in points]
        host = seen[3][1]
        assert seen == [(one.name, 1), (two.name, 3), (one.name, 7), ("host", host), (two.name, 4), (two.name, 5)]
        # The loop that is not reached holds the shared reached point, and no element an earlier run's.
        frame.ints = [0]
        loaded.run(frame)
        assert points[4] == rest
        seen = [(point.device, point.value) for i, point in enumerate(points) if i != 4]
        assert seen == [(one.name, 9), (two.name, 8), (one.name, 15), ("host", seen[3][1]), (two.name, 9)]
        assert seen[3][1] > host
        wait_all(list(points))


@pytest.mark.spec("P-run-steppoints", "P-run-step-errors")
def test_step_points_of_a_run_that_raised() -> None:
    """The steps that it reached hold their points, the others the shared reached point."""
    with memory_devices(1) as (device,):
        steps = (
            submit(0, launch("nothing")),
            submit(0, launch("nothing", n=d.Int(0))),
            submit(0, launch("nothing")),
        )
        loaded = load([device], *steps, ints=1)
        points = loaded.step_points()
        rest = points[0]
        loaded.run(loaded.frame([], [1], points))
        assert [point.value for point in points] == [1, 2, 3]
        with pytest.raises(Invalid):
            loaded.run(loaded.frame([], [-1], points))
        assert points[0].value == 4
        assert points[0].wait(30)
        assert (points[1], points[2]) == (rest, rest)


# A step, an int that makes it wrong, one that does not (None where the inputs alone decide), and what is said.
FAR = submit(0, launch("nothing", To(0, d.Use.READ, 1 << 20)), slots=(given(0),))
MOVING = submit(0, copy(0, 1, 8, src_offset=(d.Int(0),)), slots=(given(0), memory(0, 8)))
DEEP = loop(2, submit(0), loop(1, submit(0, launch("nothing"), launch("nothing", n=d.Int(0)))))
ERRORS: dict[str, tuple[d.Step, int, int | None, str]] = {
    "blocks": (submit(0, launch("nothing", blocks=d.Int(0))), -5, 2, ".parts[0]: {} runs no -5 blocks of 1 iterations"),
    "iterations": (submit(0, launch("nothing", n=d.Int(0))), -5, 2, ".parts[0]: {} runs no 1 blocks of -5 iterations"),
    "shared": (submit(0, launch("nothing", shared=d.Int(0))), 9, 0, ".parts[0]: {} runs no shared memory of 9 bytes"),
    "copy": (MOVING, 64, 8, ".parts[0]: a copy's source of 8 bytes at offset 64 is not within its buffer of 16 bytes"),
    "ref": (FAR, 0, None, ".parts[0]: a ref's offset is 1048576, its slot has 16 bytes"),
    "flag": (loop(1, flag=(given(0), 99)), 0, None, ": the flag at byte 99 is past its buffer of 16 bytes"),
    "in loops": (DEEP, -1, 1, ".body[1].body[0].parts[1]: {} runs no 1 blocks of -1 iterations"),
}


@pytest.mark.spec("P-run-step-errors")
@pytest.mark.parametrize("which", ERRORS)
@on_each
def test_refusal_at_a_step(kind: str, which: str) -> None:
    """The earlier steps ran, the later ones did not; the run is counted, and the program runs again."""
    step, bad, good, why = ERRORS[which]
    with opened(kind) as device:
        count = submit(0, launch("bump", writes(0)), launch("bump", writes(1)), slots=(given(1), memory(1, 8)))
        show = submit(0, launch("copy_words", writes(0, 8), reads(1)), slots=(given(1), memory(1, 8)))
        loaded = load(
            [device], count, step, show, memory=[alloc(0, 8), alloc(0, 8, two=True)], inputs=[(0, 16), (0, 16)], ints=1
        )
        first, out = buffer(device, 1, 1), buffer(device, 0, 0)
        with pytest.raises(Invalid) as caught:
            loaded.run(loaded.frame([first, out], [bad]))
        if kind == "opencl" and which in ("blocks", "iterations", "shared", "in loops"):
            why = why.split("no ")[0] + "no launch of 'nothing'"
        assert str(caught.value).startswith("steps[1]" + why.format(device.name))
        assert values(out) == [1, 0]
        if good is not None:
            for want in (1, 2, 2):
                run(loaded, [first, out], [good])
                assert values(out)[1] == want
            assert values(out)[0] == 4


@pytest.mark.spec("P-run-step-errors", "P-run-ints")
def test_next_run_on_the_copy_waits_for_a_run_that_raised() -> None:
    """A run that raised left work behind: the run after next on its copy waits for it."""
    flags = Words()
    with memory_devices(1) as (device,):
        steps = (
            submit(
                0, launch("gate", flags.at(0), flags.at(1)), launch("copy_words", flags.at(2), reads(0)), slots=(INTS,)
            ),
            submit(0, launch("nothing", n=d.Int(1))),
        )
        loaded = load([device, rig.host()], *steps, ints=2)
        with pytest.raises(Invalid):
            loaded.run(loaded.frame([], [7, -1]))
        loaded.run(loaded.frame([], [8, 1]))
        call = Background(run, loaded, [], [9, 1])
        call._thread.join(PAUSE)
        assert not call.done
        assert flags[2] == 0
        flags[1] = 1
        call.result()
        assert flags[2] == 9


@pytest.mark.spec("P-run-hostdone", "P-run-ends")
def test_host_s_work_is_done_when_run_returns() -> None:
    """Submits of the host and flags that it reads, after work of a device that is late."""
    with memory_devices(1) as (device,):
        out = bytearray(16)
        steps = (
            submit(1, launch("slow_addk", writes(0), writes(0), 1, 20), slots=(memory(0, 8),)),
            loop(
                1,
                submit(0, launch("copy_words", writes(0), reads(1)), slots=(given(0), memory(0, 8))),
                flag=(memory(0, 8), 0),
            ),
            submit(1, launch("slow_addk", writes(0), writes(0), 1, 20), slots=(memory(0, 8),)),
            submit(0, launch("copy_words", writes(0, 8), reads(1)), slots=(given(0), memory(0, 8))),
        )
        loaded = load([rig.host(), device], *steps, memory=[alloc(1, 8, as_bytes(40))], inputs=[(0, 16)])
        ends = loaded.run(loaded.frame([rig.Buffer.of(out, writable=True)]))
        assert out == as_bytes(41, 42)
        assert ends[0].reached


@pytest.mark.spec("P-run-frame", "P-run-keeps")
def test_bound_frame_is_checked_at_each_run() -> None:
    """Its inputs may die between runs; its ints are set anew."""
    host = rig.host()
    step = submit(0, launch("addk", writes(0), writes(0), d.Int(0)), slots=(given(0),))
    loaded = load([host], step, inputs=[(0, 8)], ints=1)
    out = buffer(host, 0)
    bound = loaded.bound(loaded.frame([out], [5]))
    bound.run()
    bound.set_ints([7])
    (end,) = bound.submit()
    assert end.reached
    assert values(out) == [12]
    bound.set_ints([7, 7])
    with pytest.raises(Invalid, match=r"^the frame has 2 ints, the program has 1"):
        bound.run()
    bound.set_ints([1])
    out.free()
    with pytest.raises(Invalid, match=r"^input 0 is a dead buffer: it was freed"):
        bound.run()
