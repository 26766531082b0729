"""Buffers: made, shared, viewed, copied and freed, on the host and on memory devices."""

from __future__ import annotations

import array
import gc
import operator
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rig
from rig import Access, Buffer, Claim, Invalid, Kind, Refused
from tests.unit import kernels as k


def until(condition: Callable[[], bool], seconds: float = 20) -> bool:
    """Wait until something holds that happens a moment after a point."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


@pytest.mark.spec("R-buffer")
@k.on_each
def test_create_gives_zeros_of_any_kind(kind: str) -> None:
    with k.opened(kind) as device:
        for place in Kind:
            for nbytes in (0, 1, 100, 70_000, 3 << 20):
                buffer = Buffer.create(device, nbytes, kind=place)
                assert (buffer.device, buffer.nbytes, len(buffer)) == (device, nbytes, nbytes)
                assert buffer.live and buffer.writable and buffer.access is Access.READ_WRITE
                assert not any(buffer.read())
        for wrong in (-1, 3):
            with pytest.raises(Invalid, match=f"kind is {wrong}, allowed is DEVICE, PINNED or MAPPED"):
                Buffer.create(device, 8, kind=wrong)
        with pytest.raises(Invalid, match="nbytes is -1, it must not be negative"):
            Buffer.create(device, -1)
        assert repr(Buffer.create(device, 8)) == f"<rig.Buffer of 8 bytes on {device.name}>"


@pytest.mark.spec("R-buffer")
@k.on_each
def test_read_and_write_copy_whole_buffers(kind: str) -> None:
    with k.opened(kind) as device:
        buffer = Buffer.create(device, 6)
        buffer.write(b"abcdef")
        first = buffer.read()
        assert isinstance(first, memoryview) and bytes(first) == b"abcdef"
        into = bytearray(6)
        view = buffer.read(into)
        assert into == b"abcdef" and view.obj is into
        buffer.write(np.arange(6, dtype=np.uint8))  # type: ignore[arg-type]
        assert bytes(first) == b"abcdef"  # a copy
        assert bytes(buffer.read()) == bytes(range(6))
        with pytest.raises(Invalid, match="writing 5 bytes into a buffer of 6"):
            buffer.write(b"abcde")
        with pytest.raises(Invalid, match="reading 6 bytes into memory of 7"):
            buffer.read(bytearray(7))
        with pytest.raises(BufferError):
            buffer.read(b"abcdef")
        with pytest.raises(TypeError):
            buffer.write("abcdef")  # type: ignore[arg-type]
        big = bytes(range(256)) * 10_000
        large = Buffer.create(device, len(big))
        large.write(big)
        assert bytes(large.read()) == big


@pytest.mark.spec("R-buffer")
@k.on_each
def test_views_share_the_bytes(kind: str) -> None:
    with k.opened(kind) as device:
        buffer = Buffer.create(device, 16)
        buffer.write(bytes(range(16)))
        view = buffer.view(4, 8)
        assert bytes(view.read()) == bytes(range(4, 12))
        assert view.address == buffer.address + 4
        inner = view.view(2, 3)
        inner.write(b"xyz")
        assert bytes(buffer.read()) == bytes([*range(6), *b"xyz", *range(9, 16)])
        assert buffer.view(16, 0).nbytes == 0 and buffer.view(0, 16).nbytes == 16
        for offset, nbytes in ((-1, 4), (0, -1), (17, 0), (0, 17), (16, 1), (2**62, 2**62)):
            with pytest.raises(Invalid, match=f"a view of {nbytes} bytes at offset {offset} is not within.* 16 bytes"):
                buffer.view(offset, nbytes)
        with pytest.raises(Invalid, match="not within the buffer's 3 bytes"):
            inner.view(1, 3)
        del buffer, view
        assert bytes(inner.read()) == b"xyz"  # it keeps the memory


@pytest.mark.spec("R-buffer")
def test_of_names_memory_without_a_copy() -> None:
    data = bytearray(b"abcd")
    shared = Buffer.of(data, writable=True)
    assert shared.writable and shared.access is Access.READ_WRITE and shared.device == rig.host()
    shared.write(b"wxyz")
    assert data == b"wxyz"
    data[0] = ord("A")
    assert bytes(shared.read()) == b"Axyz"
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    of_numbers = Buffer.of(numbers, writable=True)
    assert of_numbers.nbytes == 24 and of_numbers.address == numbers.ctypes.data
    assert Buffer.of(array.array("d", [1.0, 2.0])).nbytes == 16
    fixed = Buffer.of(b"abcd")
    assert not fixed.writable and fixed.access is Access.READ
    assert not Buffer.of(data).writable  # unless it is asked for
    for read_only in (fixed, fixed.view(0, 2), Buffer.of(data)):
        with pytest.raises(Invalid, match="read-only memory"):
            read_only.write(bytes(read_only.nbytes))
    with pytest.raises(Invalid, match="takes contiguous memory, this memoryview is not"):
        Buffer.of(memoryview(b"abcdef")[::2])
    with pytest.raises(Invalid, match="takes contiguous memory, this ndarray is not"):
        Buffer.of(numbers[:, ::2])
    with pytest.raises(Invalid, match="takes contiguous writable memory, this bytes is not"):
        Buffer.of(b"abcd", writable=True)
    with pytest.raises(Invalid, match="takes contiguous memory, this str is not"):
        Buffer.of("abcd")


class ByDlpack:
    """An array that others reach by DLPack only."""

    def __init__(self, held: np.ndarray[Any, Any]) -> None:
        self.held = held

    def __dlpack__(self, **options: Any) -> Any:
        return self.held.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.held.__dlpack_device__()


@pytest.mark.spec("R-buffer")
def test_of_takes_dlpack_without_a_copy() -> None:
    numbers = np.arange(4, dtype=np.int64)
    shared = Buffer.of(ByDlpack(numbers))
    numbers[0] = 9
    assert k.values(shared) == [9, 1, 2, 3]
    assert shared.address == numbers.ctypes.data


@pytest.mark.spec("R-buffer")
def test_the_buffer_protocol_shares_the_memory() -> None:
    with k.memory_devices(1) as (device,):
        for place in (rig.host(), device):
            buffer = k.buffer(place, 1, 2)
            view = memoryview(buffer)
            assert view.nbytes == 16 and not view.readonly
            words = np.frombuffer(memoryview(buffer), dtype=np.uint64)
            words[1] = 7
            assert k.values(buffer) == [1, 7]
            buffer.view(0, 8).write(k.as_bytes(5))
            assert words.tolist() == [5, 7]
            assert bytes(memoryview(buffer.view(8, 8))) == k.as_bytes(7)
    fixed = Buffer.of(b"ab")
    assert memoryview(fixed).readonly
    assert not np.frombuffer(memoryview(fixed), dtype=np.uint8).flags.writeable
    with pytest.raises(BufferError):
        k.buffer(rig.host()).read(fixed)


@pytest.mark.spec("R-buffer")
def test_the_buffer_protocol_waits_for_the_work() -> None:
    with k.memory_devices(1, delay=0.05) as (device,):
        step = k.submit(0, k.launch("store", k.writes(0), 42), slots=[k.given(0)])
        store = k.load([device], step, inputs=[(0, 8)])
        buffer = k.buffer(device, 0)
        store.run(store.frame([buffer]))
        assert bytes(memoryview(buffer)) == k.as_bytes(42)
        store.run(store.frame([buffer]))
        assert np.frombuffer(memoryview(buffer), dtype=np.uint64)[0] == 42


@pytest.mark.spec("R-buffer")
def test_borrows_are_the_same_bytes_on_another_device() -> None:
    with k.memory_devices(2) as (a, b):
        buffer = k.buffer(rig.host(), 1, 2, 3)
        seen = buffer.view(8, 16).borrow(a)
        assert seen.device == a and seen.nbytes == 16
        assert seen.address == buffer.borrow(a).address + 8
        assert buffer.borrow(rig.host()).address == buffer.address
        seen.view(0, 8).write(k.as_bytes(9))
        assert k.values(buffer) == [1, 9, 3]
        on_a = k.buffer(a, 4)
        assert k.values(on_a.borrow(b)) == k.values(on_a.borrow(rig.host())) == [4]
        fixed = Buffer.of(b"abcdefgh").borrow(a)
        assert fixed.access is Access.READ
        with pytest.raises(Invalid, match="read-only memory"):
            fixed.write(bytes(8))
        step = k.submit(0, k.launch("addk", k.writes(0), k.reads(0), 5), slots=[k.given(0)])
        add = k.load([a], step, inputs=[(0, 8)])
        k.run(add, [buffer.view(0, 8).borrow(a)])
        assert k.values(buffer) == [6, 9, 3]
        with pytest.raises(Invalid, match="input 0 is read-only memory, the program writes it"):
            add.run(add.frame([fixed]))


@pytest.mark.spec("R-buffer")
def test_addresses_and_handles() -> None:
    with k.memory_devices(1, alignment=64) as (device,):
        buffer = Buffer.create(device, 256)
        assert buffer.address % 64 == 0
        assert buffer.aligned(1) and buffer.aligned(64) and buffer.aligned(128, 64) and not buffer.aligned(128)
        assert buffer.view(4, 8).aligned(64, 4) and buffer.view(4, 8).aligned(4) and not buffer.view(4, 8).aligned(8)
        for align in (0, 3, 96):
            with pytest.raises(Invalid, match=f"align is {align}, it must be a power of two"):
                buffer.aligned(align)
        with pytest.raises(Invalid, match="phase is 8, allowed is 0 to align - 1 = 7"):
            buffer.aligned(8, 8)
        for one in (buffer, Buffer.create(rig.host(), 8)):
            with pytest.raises(Refused, match=f"{one.device.name}: its memory has no handle"):
                _ = one.handle


@pytest.mark.spec("R-buffer")
def test_copies_are_in_order_with_other_work() -> None:
    words = k.Words()
    with k.memory_devices(2) as (a, b):
        host, on_a, on_b, back = (k.buffer(device, n) for n, device in enumerate((rig.host(), a, b, rig.host())))
        gate = k.load([a], k.submit(0, k.launch("gate", words.at(0), words.at(1))))
        gate.run(gate.frame([]))
        host.write(k.as_bytes(77))
        points = [host.submit_copy(on_a), on_a.submit_copy(on_b), on_b.submit_copy(back)]
        assert [point.device for point in points] == [a.name, a.name, b.name]
        assert not any(point.reached for point in points)
        words[1] = 1
        assert k.values(back) == [77]
        assert all(point.reached for point in points)
        on_a.write(k.as_bytes(5))
        reader = on_a.submit_copy(back)
        on_a.write(k.as_bytes(6))  # follows the copy that reads it
        assert reader.reached
        assert k.values(back) == [5]
        done = host.submit_copy(back)
        assert done.device == "host" and done.reached
        assert k.values(back) == [77]


@pytest.mark.spec("R-buffer")
def test_copies_wait_for_points() -> None:
    words = k.Words()
    with k.memory_devices(2) as (a, b):
        gate = k.load([a], k.submit(0, k.launch("gate", words.at(0), words.at(1))))
        (point,) = gate.run(gate.frame([]))
        x, y = k.buffer(b, 3), k.buffer(b, 0)
        copy = x.submit_copy(y, waits=[point])
        assert not copy.wait(0.05)
        on_host = k.Background(lambda: k.buffer(rig.host(), 1).submit_copy(k.buffer(rig.host(), 0), waits=[point]))
        time.sleep(0.02)
        assert not on_host.done
        words[1] = 1
        assert on_host.result().reached
        assert k.values(y) == [3]


@pytest.mark.spec("R-buffer")
@k.on_each
def test_copies_refuse_what_cannot_be(kind: str) -> None:
    with k.opened(kind) as device:
        a, b = Buffer.create(device, 16), Buffer.create(device, 8)
        with pytest.raises(Invalid, match="a copy of 16 bytes into a buffer of 8"):
            a.submit_copy(b)
        with pytest.raises(Invalid, match="destination is read-only memory"):
            b.submit_copy(Buffer.of(bytes(8)))
        with pytest.raises(Invalid, match="ends overlap: bytes 0 and 4 of one memory, 8 each"):
            a.view(0, 8).submit_copy(a.view(4, 8))
        a.write(bytes(range(16)))
        a.view(0, 8).submit_copy(a.view(8, 8)).wait()
        assert bytes(a.read()) == bytes(range(8)) * 2
        a.view(3, 0).submit_copy(a.view(3, 0)).wait()


class Tracked(bytearray):
    """Memory whose end can be seen."""


@pytest.mark.spec("R-buffer")
def test_shared_memory_is_kept_until_its_work_is_over() -> None:
    words = k.Words()
    with k.memory_devices(1) as (device,):
        gate = k.load([device], k.submit(0, k.launch("gate", words.at(0), words.at(1))))
        gate.run(gate.frame([]))
        data = Tracked(k.as_bytes(5))
        alive = weakref.ref(data)
        shared = Buffer.of(data)
        there = Buffer.create(device, 8)
        point = shared.submit_copy(there)
        del data, shared
        gc.collect()
        _ = rig.host().memory_in_use
        assert alive() is not None and not point.reached
        words[1] = 1
        assert point.wait(20)
        assert until(lambda: rig.host().memory_in_use >= 0 and alive() is None)
        assert k.values(there) == [5]
    data = Tracked(8)
    alive = weakref.ref(data)
    shared = Buffer.of(data)
    del data
    assert alive() is not None
    del shared
    assert alive() is None  # without work: at once


def uses(buffer: Buffer, program: Any) -> dict[str, Callable[[], Any]]:
    """Give every way to use a buffer of 16 bytes."""
    other = Buffer.create(buffer.device, 16)
    return {
        "view": lambda: buffer.view(0, 8),
        "borrow": lambda: buffer.borrow(rig.host()),
        "read": buffer.read,
        "write": lambda: buffer.write(bytes(16)),
        "copy from": lambda: buffer.submit_copy(other),
        "copy to": lambda: other.submit_copy(buffer),
        "address": lambda: buffer.address,
        "aligned": lambda: buffer.aligned(8),
        "memoryview": lambda: memoryview(buffer),
        "hold": lambda: Claim.hold(buffer),
        "exclusive": lambda: Claim.exclusive(buffer),
        "run": lambda: program.run(program.frame([buffer])),
        "bound": lambda: program.bound(program.frame([buffer])).run(),
    }


def adder(device: rig.Device, name: str = "addk", *words: int) -> Any:
    step = k.submit(0, k.launch(name, k.writes(0), k.reads(0), 1, *words), slots=[k.given(0)])
    return k.load([device], step, inputs=[(0, 8)])


@pytest.mark.spec("R-buffer-dead")
@pytest.mark.parametrize("through", ["itself", "a view", "a borrow"])
@k.on_each
def test_any_use_of_freed_memory_is_refused_with_the_reason(kind: str, through: str) -> None:
    with k.opened(kind) as device:
        program = adder(device)
        made = Buffer.create(device, 16)
        used = {"itself": made, "a view": made.view(0, 16), "a borrow": made.borrow(device)}[through]
        for use in uses(used, program).values():
            made_point = use()
            if isinstance(made_point, Claim):
                made_point.release()
            del made_point
        made.free()
        made.free()
        assert not made.live and not used.live
        assert (used.nbytes, used.device) == (16, device)
        assert "dead" in repr(used)
        for name, use in uses(used, program).items():
            with pytest.raises(Invalid, match="it was freed"):
                use()
                raise AssertionError(f"{name} was not refused")


@pytest.mark.spec("R-buffer-dead")
def test_any_use_of_consumed_memory_is_refused_with_the_reason() -> None:
    program = adder(rig.host())
    made = Buffer.create(rig.host(), 16)
    view = made.view(0, 16)
    heir = Claim.exclusive(made).consume("it was given to the next run")
    for one in (made, view):
        for name, use in uses(one, program).items():
            with pytest.raises(Invalid, match="it was given to the next run"):
                use()
                raise AssertionError(f"{name} was not refused")
    assert heir.live
    program.run(program.frame([heir]))
    assert k.values(heir) == [1, 0]


@pytest.mark.spec("R-buffer-dead")
def test_freeing_returns_memory_after_the_work_on_it() -> None:
    words = k.Words()
    with k.memory_devices(1) as (device,):
        gate = k.load([device], k.submit(0, k.launch("gate", words.at(0), words.at(1))))
        gate.run(gate.frame([]))
        before = device.memory_in_use
        used, idle = k.buffer(device, 0), Buffer.create(device, 100)
        source = k.buffer(rig.host(), 1)
        point = source.submit_copy(used)
        used.free()
        idle.free()
        assert device.memory_in_use == before + 8  # the idle one returned at once
        del used, idle
        assert device.memory_in_use == before + 8
        words[1] = 1
        assert point.wait(20)
        assert until(lambda: device.memory_in_use == before)


@pytest.mark.spec("R-buffer-dead")
def test_memory_freed_during_a_run_stays_until_the_run_ends() -> None:
    words = k.Words()
    step = k.submit(0, k.launch("gated_store", words.at(0), words.at(1), k.writes(0), 7), slots=[k.given(0)])
    program = k.load([rig.host()], step, inputs=[(0, 1 << 20)])
    before = rig.host().memory_in_use
    buffer = Buffer.create(rig.host(), 1 << 20)
    running = k.Background(program.run, program.frame([buffer]))
    assert words.wait(0)
    buffer.free()
    del buffer
    assert rig.host().memory_in_use == before + (1 << 20)
    words[1] = 1
    running.result()
    del running
    assert until(lambda: rig.host().memory_in_use == before)


@pytest.mark.spec("R-buffer-dead")
def test_memory_freed_during_a_wait_is_refused_by_the_call_that_waited() -> None:
    words = k.Words()
    with k.memory_devices(1) as (device,):
        gate = k.load([device], k.submit(0, k.launch("gate", words.at(0), words.at(1))))
        gate.run(gate.frame([]))
        buffer = Buffer.create(device, 8)
        k.buffer(rig.host(), 1).submit_copy(buffer)
        calls: tuple[Callable[[], Any], ...] = (buffer.read, lambda: buffer.write(bytes(8)), lambda: memoryview(buffer))
        waiting = [k.Background(call) for call in calls]
        time.sleep(0.05)
        assert not any(call.done for call in waiting)
        buffer.free()
        words[1] = 1
        for call in waiting:
            with pytest.raises(Invalid, match="the buffer is dead: it was freed"):
                call.result()


@pytest.mark.spec("R-buffer-dead")
@k.on_each
def test_exported_memory_stays_in_place_after_a_free(kind: str) -> None:
    with k.opened(kind) as device:
        before = device.memory_in_use
        buffer = Buffer.create(device, 1 << 20)
        view = np.frombuffer(memoryview(buffer), dtype=np.uint8)
        buffer.free()
        del buffer
        assert device.memory_in_use == before + (1 << 20)
        view[:] = 3
        assert operator.length_hint(view) == 1 << 20 and view.sum(dtype=np.uint64) == 3 << 20
        del view
        assert until(lambda: device.memory_in_use == before)
