"""Reset: what runs write holds its first bytes again, in both copies, after the work of earlier runs."""

from __future__ import annotations

import pytest
from kernels import (
    INTS,
    Background,
    alloc,
    as_bytes,
    buffer,
    given,
    launch,
    load,
    loop,
    memory,
    on_each,
    opened,
    reads,
    run,
    submit,
    values,
    writes,
)

import rig


@on_each
def test_both_copies_and_what_has_no_first_bytes(kind: str) -> None:
    with opened(kind) as device:
        out = buffer(device, count=3)
        step = submit(
            0,
            launch("addk", writes(0), writes(0), 1),
            launch("addk", writes(1), writes(1), 10),
            launch("copy_words", writes(2), reads(0)),
            launch("copy_words", writes(2, 8), reads(1)),
            launch("copy_words", writes(2, 16), reads(3)),
            slots=(memory(0, 8), memory(1, 8), given(0), memory(2, 8)),
        )
        state = [alloc(0, 8, as_bytes(100), two=True), alloc(0, 8, as_bytes(7)), alloc(0, 8, as_bytes(3))]
        loaded = load([device], step, memory=state, inputs=[(0, 24)])

        def seen() -> list[int]:
            run(loaded, [out])
            return values(out)

        first = [seen() for _ in range(5)]
        assert first == [[101, 17, 3], [101, 27, 3], [102, 37, 3], [102, 47, 3], [103, 57, 3]]
        for runs in (1, 2, 5):
            loaded.reset()
            assert [seen() for _ in range(runs)] == first[:runs]


@on_each
def test_the_ints_are_zero_again(kind: str) -> None:
    """Ints beyond the frame's keep what the run before the last left there."""
    with opened(kind) as device:
        out = buffer(device, count=2)
        body = submit(
            0, launch("copy_words", writes(1), reads(0), n=2), launch("addk", writes(0), writes(0), 5, n=2),
            slots=(INTS, given(0)),
        )  # fmt: skip
        loaded = load([device], body, inputs=[(0, 16)], ints=2)
        for _ in range(3):
            run(loaded, [out])
        assert values(out) == [5, 5]
        loaded.reset()
        for _ in range(2):
            run(loaded, [out])
            assert values(out) == [0, 0]


def test_it_follows_the_work_of_earlier_runs() -> None:
    with opened("memory") as device:
        out = buffer(device, count=1)
        step = submit(
            0, launch("slow_addk", writes(0), writes(0), 1, 100), launch("copy_words", writes(1), reads(0)),
            slots=(memory(0, 8), given(0)),
        )  # fmt: skip
        loaded = load([device], step, memory=[alloc(0, 8, as_bytes(1))], inputs=[(0, 8)])
        loaded.run(loaded.frame([out]))
        loaded.reset()
        run(loaded, [out])
        assert values(out) == [2]


def test_it_waits_for_a_run_of_another_thread_and_runs_wait_for_it() -> None:
    with opened("host") as device:
        flags, out = buffer(device, count=2), buffer(device, count=1)
        step = submit(
            0, launch("gate", writes(1), reads(1, 8)), launch("addk", writes(0), writes(0), 1),
            launch("copy_words", writes(2), reads(0)), slots=(memory(0, 8), given(0), given(1)),
        )  # fmt: skip
        loaded = load([device], step, memory=[alloc(0, 8, as_bytes(1))], inputs=[(0, 16), (0, 8)])
        running = Background(run, loaded, [flags, out])
        while not values(flags)[0]:
            pass
        resetting = Background(loaded.reset)
        resetting._thread.join(0.05)
        assert not resetting.done
        flags.view(8, 8).write(as_bytes(1))
        running.result()
        resetting.result()
        run(loaded, [flags, out])
        assert values(out) == [2]


def test_a_pause_keeps_runs_out_and_belongs_to_a_thread() -> None:
    with opened("host") as device:
        loaded = load([device], loop(1, submit(0, launch("nothing"))))
        native = loaded._native
        assert native.pause() == ()
        with pytest.raises(rig.Invalid, match="a run within its own run"):
            run(loaded)
        waiting = Background(run, loaded)
        waiting._thread.join(0.05)
        assert not waiting.done
        with pytest.raises(rig.Invalid, match="this thread holds no pause"):
            Background(native.resume).result()
        native.resume()
        waiting.result()


def test_a_lost_device_is_said() -> None:
    with opened("memory", fail_at=2) as device:
        step = submit(0, launch("addk", writes(0), writes(0), 1), slots=(memory(0, 8),))
        loaded = load([device], step, memory=[alloc(0, 8, as_bytes(1))])
        run(loaded)
        with pytest.raises(rig.Lost):
            run(loaded)
        with pytest.raises(rig.Lost):
            loaded.reset()


def test_weights_are_not_kept_twice() -> None:
    """Only what runs write is kept for a reset."""
    with opened("host") as device:
        step = submit(0, launch("copy_words", writes(1), reads(0)), slots=(memory(0, 8), memory(1, 8)))
        loaded = load([device], step, memory=[alloc(0, 1 << 20, bytes(1 << 20)), alloc(0, 8, as_bytes(1))])
        assert sum(len(data) for _, data in loaded._state) == 8
