"""Compiled schedules on devices: where work goes, what is checked, what is held, what a run gives."""

from __future__ import annotations

import ctypes
import gc
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import handmade as made
import hostcode
import pytest

import rig
from rig.errors import Invalid, OutOfMemory, Refused
from rig.program.check import check
from rig.program.description import Alloc, Copy, Launch, Move, Submit
from tolk_engine import settings
from tolk_engine.assemble import assemble, blocks
from tolk_engine.compile import Compiled, compile
from tolk_engine.link import Linked, Storage, link, run, slots
from tolk_engine.renderer import Renderer
from tolk_engine.schedule import Arg, CopyCall, Kernel, Schedule

COUNT = (1.0, 2.0, 3.0, 4.0) * 4


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Renderer, "render", made.render)


@pytest.fixture
def memory_device() -> Iterator[Callable[..., rig.Device]]:
    opened = []

    def open_one(name: str = "m", **options: object) -> rig.Device:
        opened.append(rig.memory_device(name, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for device in opened:
        device.close()


def filled(device: rig.Device, values: tuple[float, ...] = COUNT) -> rig.Buffer:
    buffer = rig.Buffer.create(device, 4 * len(values))
    buffer.write(struct.pack(f"<{len(values)}f", *values))
    return buffer


def floats(buffer: rig.Buffer) -> list[float]:
    return list(struct.unpack(f"<{buffer.nbytes // 4}f", buffer.read()))


def calculate(compiled: Compiled, devices: dict[str, rig.Device], **options: Storage) -> list[float]:
    linked = link(compiled, devices, **options)
    given = slots(linked)
    first = given[0]
    assert first is not None and given[-1] is not None
    first.write(struct.pack("<16f", *COUNT))
    run(linked, given)
    return floats(given[-1])


def copies(a: str, b: str) -> Schedule:
    """Return x on `a`, copied to `b`."""
    return made.schedule([made.slot("x", a), made.slot("y", b)], [], [made.copy(made.SLOT(1), made.SLOT(0))])


# where work goes


@pytest.mark.spec("E-link-launch", "E-link-devices")
@pytest.mark.parametrize("storage", Storage)
@pytest.mark.parametrize("kind", ["host", "mapped", "apart"])
def test_a_schedule_runs_on_each_kind_of_device(
    kind: str, storage: Storage, memory_device: Callable[..., rig.Device]
) -> None:
    device = rig.host() if kind == "host" else memory_device(borrows=kind == "mapped")
    assert calculate(compile(made.chain(5)), {"CPU": device}, storage=storage) == [x + 5 for x in COUNT]


@pytest.mark.spec("E-link-launch")
def test_host_code_runs_on_its_devices_host_where_that_reaches_the_memory(
    memory_device: Callable[..., rig.Device],
) -> None:
    compiled = compile(made.chain(3, "GOFAST"))
    device = memory_device()
    hosted = assemble(compiled, {"GOFAST": device})
    (step,) = hosted.program.steps
    assert isinstance(step, Submit)
    assert hosted.devices == (device, rig.host()) and step.device == 1
    assert [i.device for i in hosted.program.inputs] == [0, 0]
    assert [m.device for m in hosted.program.memory if isinstance(m, Alloc)] == [0]
    check(hosted.program, hosted.devices)
    apart = memory_device("apart", borrows=False)
    own = assemble(compiled, {"GOFAST": apart})
    assert own.devices == (apart,)


@pytest.mark.spec("E-link-split")
@pytest.mark.parametrize(
    ("ops", "mem", "iterations", "expected"),
    [
        (0, 0, 1, 1), (0, 0, 0, 1), (1 << 16, 1, 100, 1), (1 << 20, 1, 100, 16), (1 << 20, 1, 10, 10),
        (1 << 30, (1 << 30) - 1, 1 << 20, 1 << 14), (1 << 30, 1 << 30, 1 << 20, 1 << 12),
        (1, 1 << 18, 100, 1), (1, 5 << 18, 100, 5), (1, 1 << 30, 100, 8), (1, 1 << 30, 3, 3),
        (10 << 18, 10 << 18, 100, 10), (3 << 18, 10 << 18, 100, 8), ((1 << 17) - 1, 1 << 10, 100, 1),
    ],
)  # fmt: skip
def test_the_number_of_blocks_follows_operations_and_bytes(ops: int, mem: int, iterations: int, expected: int) -> None:
    assert blocks(ops, mem, iterations) == expected


@pytest.mark.spec("E-link-split", "E-link-launch")
def test_a_launch_has_its_blocks_and_iterations() -> None:
    wide = made.kernel("wide", hostcode.add_constant(1.0), 2, iterations=16, ops=5 << 16, mem=64)
    program = compile(replace(made.chain(1), kernels=(wide,) * 3)).to_program()
    (step,) = program.steps
    assert isinstance(step, Submit)
    (launch,) = step.parts
    assert isinstance(launch, Launch)
    assert [v.value for v in launch.groups] == [5, 1, 1]  # type: ignore[union-attr]
    assert [v.value for v in launch.threads] == [16, 1, 1]  # type: ignore[union-attr]


@pytest.mark.spec("E-link-split")
def test_a_split_launch_computes_every_iteration_once() -> None:
    n = 1 << 16
    body = hostcode.at("p0", "o") + "  %l = load float, ptr %o, align 4\n  %s = fadd float %l, 1.0\n"
    text = hostcode.kernel("bump", 1, body + "  store float %s, ptr %o, align 4")
    bump = made.kernel("bump", text, 1, iterations=n, ops=n << 8, mem=4 * n)
    s = made.schedule([made.slot("x", n=n)], [], [made.call(0, made.SLOT(0))], kernels=[bump], outputs=(0,))
    linked = link(compile(s), {"CPU": rig.host()})
    buffer = rig.Buffer.create(rig.host(), 4 * n)
    for _ in range(3):
        run(linked, [buffer])
    assert set(floats(buffer)) == {3.0}


@pytest.mark.spec("E-link-submission")
def test_consecutive_kernels_and_copies_of_one_device_are_one_submission() -> None:
    calls = [made.call(2, made.STORAGE(0), made.SLOT(0)), made.copy(made.STORAGE(1), made.STORAGE(0)),
             made.call(2, made.SLOT(1), made.STORAGE(1))]  # fmt: skip
    s = made.schedule([made.slot("x"), made.slot("y")], [made.storage(), made.storage()], calls)
    compiled = compile(s)
    (step,) = compiled.to_program().steps
    assert isinstance(step, Submit)
    assert [type(p) for p in step.parts] == [Launch, Copy, Launch]
    apart = assemble(compiled, {"CPU": rig.host()}, separate=True).program
    assert [len(step.parts) for step in apart.steps if isinstance(step, Submit)] == [1, 1, 1]
    assert calculate(compiled, {"CPU": rig.host()}) == [x + 2 for x in COUNT]


@pytest.mark.spec("E-link-submission")
def test_work_of_two_devices_alternates(memory_device: Callable[..., rig.Device]) -> None:
    calls = [
        made.call(2, made.STORAGE(0), made.SLOT(0), device="A"),
        made.copy(made.STORAGE(1), made.STORAGE(0)),
        made.call(2, made.STORAGE(2), made.STORAGE(1), device="B"),
        made.copy(made.SLOT(1), made.STORAGE(2)),
    ]
    storages = [made.storage("A"), made.storage("B"), made.storage("B")]
    compiled = compile(made.schedule([made.slot("x", "A"), made.slot("y", "A")], storages, calls))
    pairs = [
        (memory_device("a"), memory_device("b")),
        (memory_device("c", borrows=False), memory_device("d", borrows=False)),
        (rig.host(), memory_device("e")),
        (memory_device("f", copies=False), rig.host()),
        (rig.host(), rig.host()),
    ]
    for a, b in pairs:
        assert calculate(compiled, {"A": a, "B": b}) == [x + 2 for x in COUNT]
        assert calculate(compiled, {"A": a, "B": b}, storage=Storage.PER_RUN) == [x + 2 for x in COUNT]


@dataclass(frozen=True)
class Made:
    """A device of our making, for what is decided before anything is opened."""

    name: str
    kind: str = "memory"
    arch: str = "x86-64-v3"
    instruction_set: str = "x86_64"
    runs_on_host: bool = True
    borrows: bool = True
    copies: bool = True
    alignment: int = 64

    @property
    def host(self) -> Made:
        return HOST


HOST = Made("host", "host")
NO_COPIES, NO_BORROW = Made("nocopy", copies=False), Made("noborrow", borrows=False)
GPU, OTHER_GPU = (Made(n, "cuda", "sm_90", "", False) for n in ("gpu0", "gpu1"))


@pytest.mark.spec("E-link-copy")
@pytest.mark.parametrize(
    ("src", "dst", "maker"),
    [
        (HOST, HOST, HOST), (HOST, Made("m"), HOST), (Made("m"), HOST, Made("m")), (Made("m"), Made("n"), Made("m")),
        (NO_COPIES, Made("n"), Made("n")), (NO_COPIES, NO_COPIES, None), (NO_COPIES, HOST, HOST),
        (NO_BORROW, NO_BORROW, NO_BORROW), (NO_BORROW, HOST, None), (HOST, NO_BORROW, None),
        (NO_BORROW, Made("n"), None), (Made("n"), NO_BORROW, None),
        (GPU, GPU, GPU), (GPU, OTHER_GPU, None), (GPU, HOST, None), (HOST, GPU, None),
    ],
)  # fmt: skip
def test_a_copy_is_a_part_where_a_device_makes_it_and_else_a_move(src: Made, dst: Made, maker: Made | None) -> None:
    built = assemble(compile(copies("A", "B")), {"A": src, "B": dst})
    (step,) = built.program.steps
    if maker is None:
        assert isinstance(step, Move)
        assert (step.length, len(built.devices)) == (64, len({src, dst}))
    else:
        assert isinstance(step, Submit)
        assert built.devices[step.device] == maker
        assert [type(p) for p in step.parts] == [Copy]


@pytest.mark.spec("E-link-copy")
def test_copies_keep_offsets_and_lengths() -> None:
    part = CopyCall(Arg(made.SLOT(1), 8, 16), Arg(made.STORAGE(0), 4, 16), 16)
    calls = [made.call(2, made.STORAGE(0), made.SLOT(0)), made.copy(made.SLOT(1), made.SLOT(0)), part,
             CopyCall(Arg(made.SLOT(1)), Arg(made.SLOT(0)), 0)]  # fmt: skip
    s = made.schedule([made.slot("x"), made.slot("y")], [made.storage()], calls)
    expected = list(COUNT)
    expected[2:6] = [x + 1 for x in COUNT[1:5]]
    assert calculate(compile(s), {"CPU": rig.host()}) == expected


def test_scalar_words_follow_the_pointers_and_offsets_move_them() -> None:
    body = hostcode.at("p0", "o") + hostcode.at("p1", "x") + "  %l = load float, ptr %x, align 4\n"
    body += "  %f = sitofp i64 %v0 to float\n  %s = fadd float %l, %f\n  store float %s, ptr %o, align 4"
    shift = made.kernel("shift", hostcode.kernel("shift", 2, body, values=1), 2, iterations=4, values=1)
    calls = [made.call(0, Arg(made.STORAGE(0), 16, 48), Arg(made.SLOT(0), 8, 56), values=(-7,)),
             made.call(0, made.SLOT(1), Arg(made.STORAGE(0), 16, 48), values=(100,))]  # fmt: skip
    s = made.schedule([made.slot("x"), made.slot("y")], [made.storage()], calls, kernels=[shift])
    assert calculate(compile(s), {"CPU": rig.host()})[:4] == [x - 7 + 100 for x in COUNT[2:6]]


# what link refuses


@pytest.mark.spec("E-link-devices", "E-link-refuse")
def test_a_device_that_is_not_mapped_is_named() -> None:
    with pytest.raises(Invalid, match=r"device 'CPU' is not mapped; mapped are \['GPU'\]"):
        link(compile(made.chain(1)), {"GPU": rig.host()})


@pytest.mark.spec("E-link-refuse")
def test_what_is_not_compiled_is_refused() -> None:
    with pytest.raises(Invalid, match="link takes a compiled schedule, not Schedule"):
        link(made.chain(1), {"CPU": rig.host()})  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="run takes a linked schedule, not Compiled"):
        run(compile(made.chain(1)), [])  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="storage is 'linked'"):
        link(compile(made.chain(1)), {"CPU": rig.host()}, storage="linked")  # type: ignore[arg-type]


@pytest.mark.spec("E-link-refuse")
def test_devices_of_several_machines_are_refused() -> None:
    class Far(Made):
        @property
        def host(self) -> Made:
            return Made("elsewhere", "host")

    with pytest.raises(Invalid, match="devices 'A' and 'B' are of several machines: host and elsewhere"):
        link(compile(copies("A", "B")), {"A": HOST, "B": Far("far")})  # type: ignore[dict-item]


@pytest.mark.spec("E-link-refuse")
def test_host_code_for_a_device_of_another_kind_is_refused() -> None:
    with pytest.raises(Invalid, match=r"call 0 \(one\) is host code for x86-64-v3, but its device 'CPU' is gpu0"):
        link(compile(made.chain(1), "x86-64-v3"), {"CPU": GPU})  # type: ignore[dict-item]


@pytest.mark.spec("E-link-fail")
def test_code_that_does_not_load_carries_the_reason() -> None:
    compiled = compile(made.chain(1))
    with pytest.raises(Refused, match=r"^host: "):
        link(replace(compiled, image=b"no image"), {"CPU": rig.host()})
    with pytest.raises(Refused, match="f7"):
        link(replace(compiled, kernels=(replace(compiled.kernels[0], symbol="f7"),)), {"CPU": rig.host()})


@pytest.mark.case("C18")
def test_code_for_another_processor_is_refused_with_both_archs() -> None:
    other = "arm64" if rig.host().arch.startswith("x86") else "x86-64-v1"
    with pytest.raises((Invalid, Refused), match=rf"{other}.*{rig.host().arch}"):
        link(compile(made.chain(1), other), {"CPU": rig.host()})


@pytest.mark.spec("E-link-align")
def test_storage_that_its_device_does_not_align_is_refused(memory_device: Callable[..., rig.Device]) -> None:
    device = memory_device(alignment=16)
    calls = [made.call(2, made.STORAGE(0), made.SLOT(0)), made.call(2, made.SLOT(1), made.STORAGE(0))]
    s = made.schedule([made.slot("x"), made.slot("y")], [made.storage(align=32)], calls)
    message = "storage 0 needs alignment 32, but memory of m starts on multiples of 16"
    with pytest.raises(Invalid, match=message):
        link(compile(s), {"CPU": device})
    assert calculate(compile(replace(s, storages=(made.storage(align=16),))), {"CPU": device}) == [x + 2 for x in COUNT]


# bound storage


def bindable() -> Compiled:
    """Return y = w + x over a constant w, with a storage that nothing uses."""
    storages = [made.storage(init=struct.pack("<16f", *[10.0] * 16), name="w"), made.storage(name="idle")]
    calls = [made.call(0, made.SLOT(1), made.STORAGE(0), made.SLOT(0))]
    return compile(made.schedule([made.slot("x"), made.slot("y")], storages, calls))


@pytest.mark.spec("E-link-bound")
def test_a_bound_buffer_takes_the_storages_place() -> None:
    host = rig.host()
    bound = filled(host, (5.0,) * 16)
    linked = link(bindable(), {"CPU": host}, {made.STORAGE(0): bound})
    out = rig.Buffer.create(host, 64)
    run(linked, [filled(host), out])
    assert floats(out) == [x + 5 for x in COUNT]
    bound.write(struct.pack("<16f", *[7.0] * 16))
    run(linked, [filled(host), out])
    assert floats(out) == [x + 7 for x in COUNT]
    assert calculate(bindable(), {"CPU": host}) == [x + 10 for x in COUNT]


@pytest.mark.spec("E-link-bound", "E-link-refuse")
def test_a_binding_that_does_not_fit_is_refused(memory_device: Callable[..., rig.Device]) -> None:
    host, compiled = rig.host(), bindable()

    def bind(ref: object, buffer: rig.Buffer) -> None:
        link(compiled, {"CPU": host}, {ref: buffer})  # type: ignore[dict-item]

    good = filled(host)
    with pytest.raises(Invalid, match=r"bound binds SlotRef\(index=0\), which is no storage; the schedule has 2"):
        bind(made.SLOT(0), good)
    with pytest.raises(Invalid, match="which is no storage"):
        bind(made.STORAGE(2), good)
    with pytest.raises(Invalid, match=r"storage 0 \('w'\) is on host, but its buffer is on m"):
        bind(made.STORAGE(0), filled(memory_device()))
    with pytest.raises(Invalid, match=r"storage 0 \('w'\) needs 64 bytes, but its buffer has 60"):
        bind(made.STORAGE(0), good.view(4, 60))
    odd = rig.Buffer.create(host, 80).view(2, 64)
    with pytest.raises(Invalid, match=r"\('w'\) must start 0 bytes past a multiple of 4, but its buffer starts 2 past"):
        bind(made.STORAGE(0), odd)
    bind(made.STORAGE(1), odd)  # nothing accesses it
    dead = filled(host)
    dead.free()
    with pytest.raises(Invalid, match=r"storage 0 \('w'\) is bound to memory that is dead"):
        bind(made.STORAGE(0), dead)
    taken = filled(host)
    with rig.Claim.exclusive(taken), pytest.raises(Invalid, match=r"storage 0 \('w'\): "):
        bind(made.STORAGE(0), taken)


@pytest.mark.spec("E-link-bound")
def test_bound_memory_is_held_while_the_schedule_is_reachable() -> None:
    host, compiled = rig.host(), bindable()
    bound = filled(host)
    linked = link(compiled, {"CPU": host}, {made.STORAGE(0): bound})
    with pytest.raises(Invalid):
        rig.Claim.exclusive(bound)
    del linked
    gc.collect()
    rig.Claim.exclusive(bound).release()
    with pytest.raises(Refused):
        link(replace(compiled, image=b"no image"), {"CPU": host}, {made.STORAGE(0): bound})
    gc.collect()
    rig.Claim.exclusive(bound).release()
    idle = filled(host)
    kept = link(compiled, {"CPU": host}, {made.STORAGE(1): idle})
    rig.Claim.exclusive(idle).release()
    assert isinstance(kept, Linked)


# storage


def heavy(n: int = 1 << 18) -> Compiled:
    """Return a chain over storage of 1 MiB each, two at a time."""
    big = made.kernel("big", hostcode.add_constant(1.0), 2)
    calls = [made.call(0, made.STORAGE(0), made.SLOT(0)), made.call(0, made.STORAGE(1), made.STORAGE(0)),
             made.call(0, made.SLOT(1), made.STORAGE(1))]  # fmt: skip
    storages = [made.storage(n=n), made.storage(n=n)]
    return compile(made.schedule([made.slot("x"), made.slot("y")], storages, calls, kernels=[big]))


@pytest.mark.spec("E-link-storage")
def test_linked_storage_is_held_and_per_run_storage_is_not(memory_device: Callable[..., rig.Device]) -> None:
    for options in ({}, {"borrows": False}):
        device = memory_device(**options)
        given = [filled(device), filled(device)]
        before = device.memory_in_use
        linked = link(heavy(), {"CPU": device})
        assert device.memory_in_use - before >= 2 << 20
        run(linked, given)
        del linked
        gc.collect()
        per_run = link(heavy(), {"CPU": device}, storage=Storage.PER_RUN)
        assert device.memory_in_use == before
        for _ in range(3):
            run(per_run, given)
            assert floats(given[1]) == [x + 3 for x in COUNT]
            assert device.memory_in_use == before


@pytest.mark.spec("E-link-oom", "E-run-oom")
def test_storage_that_cannot_be_made_is_out_of_memory(memory_device: Callable[..., rig.Device]) -> None:
    device = memory_device(nbytes=1 << 20)
    with pytest.raises(OutOfMemory, match="m"):
        link(heavy(), {"CPU": device})
    given = [filled(device), filled(device)]
    linked = link(heavy(), {"CPU": device}, storage=Storage.PER_RUN)
    before = device.memory_in_use
    with pytest.raises(OutOfMemory):
        run(linked, given)
    assert floats(given[1]) == list(COUNT)  # no call has run
    assert device.memory_in_use == before


@pytest.mark.spec("E-run-oom")
def test_a_run_that_fails_for_memory_gives_back_what_it_made(memory_device: Callable[..., rig.Device]) -> None:
    roomy, tight = memory_device("roomy"), memory_device("tight", nbytes=1 << 16)
    n = 1 << 18
    calls = [
        made.call(2, made.STORAGE(0), made.SLOT(0), device="A"),
        made.call(2, made.SLOT(1), made.STORAGE(0), device="A"),
        made.call(2, made.STORAGE(1), made.SLOT(2), device="B"),
        made.call(2, made.SLOT(3), made.STORAGE(1), device="B"),
    ]
    ports = [made.slot("a", "A"), made.slot("b", "A"), made.slot("c", "B"), made.slot("d", "B")]
    s = made.schedule(ports, [made.storage("A", n=n), made.storage("B", n=n)], calls, outputs=(1, 3))
    linked = link(compile(s), {"A": roomy, "B": tight}, storage=Storage.PER_RUN)
    given = slots(linked)
    before = roomy.memory_in_use
    with pytest.raises(OutOfMemory):
        run(linked, given)
    assert roomy.memory_in_use == before


def test_state_stays_from_run_to_run() -> None:
    for storage in Storage:
        state = made.storage(init=struct.pack("<16f", *[10.0] * 16))
        calls = [made.call(2, made.STORAGE(1), made.STORAGE(0)), made.copy(made.STORAGE(0), made.STORAGE(1)),
                 made.call(0, made.SLOT(1), made.STORAGE(0), made.SLOT(0))]  # fmt: skip
        s = made.schedule([made.slot("x"), made.slot("y")], [state, made.storage()], calls)
        linked = link(compile(s), {"CPU": rig.host()}, storage=storage)
        x, out = filled(rig.host(), (0.0,) * 16), rig.Buffer.create(rig.host(), 64)
        for n in range(1, 4):
            run(linked, [x, out])
            assert set(floats(out)) == {10.0 + n}


# runs


@pytest.mark.spec("E-run-slots")
def test_a_slot_that_does_not_fit_is_refused_before_any_work(memory_device: Callable[..., rig.Device]) -> None:
    host = rig.host()
    linked = link(compile(made.chain(2)), {"CPU": host})
    x, out = filled(host), filled(host, (-1.0,) * 16)
    odd = rig.Buffer.create(host, 80).view(1, 64)
    faults: list[tuple[list[rig.Buffer | None], str]] = [
        ([x], "the schedule has 2 slots, 1 buffers were given"),
        ([None, out], r"input slot 0 \('x'\) has no buffer"),
        ([x, None], r"output slot 1 \('y'\) has no buffer"),
        ([filled(memory_device()), out], r"input slot 0 \('x'\) is on host, but its buffer is on m"),
        ([x.view(0, 60), out], r"input slot 0 \('x'\) needs 64 bytes, but its buffer has 60"),
        ([odd, out], r"input slot 0 \('x'\) must start 0 bytes past a multiple of 4, but its buffer starts 1 past"),
        ([x, rig.Buffer.of(bytes(64))], "read"),
    ]
    for given, message in faults:
        with pytest.raises(Invalid, match=message):
            run(linked, given)
    assert floats(out) == [-1.0] * 16
    run(linked, [x, out])
    assert floats(out) == [v + 2 for v in COUNT]


@pytest.mark.spec("E-run-slots")
@pytest.mark.case("C05")
def test_a_buffer_that_only_copies_access_may_start_anywhere() -> None:
    host = rig.host()
    linked = link(compile(copies("CPU", "CPU")), {"CPU": host})
    for start in (0, 1, 2, 3, 8, 13):
        x, out = (rig.Buffer.create(host, 80).view(start, 64) for _ in range(2))
        x.write(struct.pack("<16f", *COUNT))
        run(linked, [x, out])
        assert floats(out) == list(COUNT)


@pytest.mark.spec("E-run-slots", "E-link-align")
@pytest.mark.case("C05")
def test_a_slot_starts_at_its_phase() -> None:
    eight = made.kernel("eight", hostcode.add_constant(1.0), 2, align=8)
    off = Arg(made.SLOT(0), 4, 60)
    s = made.schedule(
        [made.slot("x", align=8, phase=4), made.slot("y")], [], [made.call(0, made.SLOT(1), off)], kernels=[eight]
    )
    linked = link(compile(s), {"CPU": rig.host()})
    given = slots(linked)
    assert given[0] is not None and given[0].address % 8 == 4
    run(linked, given)
    with pytest.raises(Invalid, match=r"must start 4 bytes past a multiple of 8, but its buffer starts 0 past"):
        run(linked, [rig.Buffer.create(rig.host(), 64), given[1]])


@pytest.mark.spec("E-run-vars")
def test_a_variable_that_is_not_there_is_named() -> None:
    linked = link(compile(made.chain(1)), {"CPU": rig.host()})
    with pytest.raises(Invalid, match="no variable 'n'"):
        run(linked, slots(linked), {"n": 3})


@pytest.mark.spec("E-run-async")
def test_a_run_returns_before_its_work_is_done_and_a_read_waits(memory_device: Callable[..., rig.Device]) -> None:
    apart = memory_device("apart", borrows=False, delay=0.5)
    linked = link(compile(made.chain(3)), {"CPU": apart})
    x, out = filled(apart), rig.Buffer.create(apart, 64)
    floats(x)
    start = time.monotonic()
    run(linked, [x, out])
    assert time.monotonic() - start < 0.4
    assert floats(out) == [v + 3 for v in COUNT]
    assert time.monotonic() - start >= 0.5


@pytest.mark.spec("E-run-async", "E-link-copy")
def test_a_copy_between_devices_is_not_waited_for(memory_device: Callable[..., rig.Device]) -> None:
    a, b = memory_device("a", delay=0.5), memory_device("b")
    linked = link(compile(copies("A", "B")), {"A": a, "B": b})
    x, out = filled(a), rig.Buffer.create(b, 64)
    floats(x)
    start = time.monotonic()
    run(linked, [x, out])
    assert time.monotonic() - start < 0.4
    assert floats(out) == list(COUNT)
    assert time.monotonic() - start >= 0.5


@pytest.mark.spec("E-run-keepsnone")
def test_a_run_keeps_no_slots_buffer(memory_device: Callable[..., rig.Device]) -> None:
    for options in ({}, {"borrows": False}):
        device = memory_device(**options)
        linked = link(compile(made.chain(2)), {"CPU": device})
        before = device.memory_in_use
        given: list[rig.Buffer | None] = [rig.Buffer.create(device, 1 << 20), rig.Buffer.create(device, 1 << 20)]
        run(linked, given)
        assert given[1] is not None
        given[1].read()
        assert device.memory_in_use >= before + (2 << 20)
        del given
        gc.collect()
        assert device.memory_in_use == before


@pytest.mark.spec("E-run-serial")
@pytest.mark.parametrize("storage", Storage)
@pytest.mark.parametrize("borrows", [True, False])
def test_runs_from_several_threads_are_each_right(
    storage: Storage, borrows: bool, memory_device: Callable[..., rig.Device]
) -> None:
    device = memory_device(borrows=borrows)
    linked = link(compile(made.chain(20)), {"CPU": device}, storage=storage)
    wrong: list[object] = []

    def work(n: int) -> None:
        try:
            x, out = filled(device, (float(n),) * 16), rig.Buffer.create(device, 64)
            for _ in range(50):
                run(linked, [x, out])
                if floats(out) != [n + 20.0] * 16:
                    wrong.append(floats(out))
        except Exception as e:
            wrong.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


@pytest.mark.spec("E-run-debug")
def test_debug_says_how_many_calls_a_run_makes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few, many = (link(compile(made.chain(n)), {"CPU": rig.host()}) for n in (9, 10))
    for level, expected in ((0, ""), (1, "jit execs 10 calls\n")):
        monkeypatch.setattr(settings, "debug", level)
        run(few, slots(few))
        run(many, slots(many))
        assert capsys.readouterr().out == expected


@pytest.mark.spec("E-run-debug", "E-link-submission")
def test_debug_2_makes_each_kernel_a_submission_and_prints_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(settings, "debug", 2)
    linked = link(compile(made.chain(3)), {"CPU": rig.host()})
    assert linked._loaded.submit_steps == 3
    run(linked, slots(linked))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in lines] == [["***", "host", str(n), "one"] for n in range(3)]
    assert all("2 args" in line for line in lines)


def test_slots_that_no_call_uses_need_no_buffer() -> None:
    s = made.schedule(
        [made.slot("x"), made.slot("unused"), made.slot("y")], [], [made.call(2, made.SLOT(2), made.SLOT(0))]
    )
    linked = link(compile(s), {"CPU": rig.host()})
    given = slots(linked)
    assert given[1] is None
    run(linked, given)
    run(linked, [given[0], filled(rig.host()), given[2]])


def test_weights_of_one_byte_steps_load_right() -> None:
    """Constants of odd sizes share a memory, each at its own alignment."""
    kernels: list[Kernel] = [made.ADD]
    odd = made.storage(init=b"abc", align=1)
    odd = replace(odd, nbytes=3, dtype="uint8", shape=(3,))
    weight = made.storage(init=struct.pack("<16f", *COUNT))
    calls = [made.copy(Arg(made.SLOT(1), 0, 3), Arg(made.STORAGE(0), 0, 3), 3),
             made.call(0, made.SLOT(2), made.STORAGE(1), made.SLOT(0))]  # fmt: skip
    s = made.schedule([made.slot("x"), made.slot("z"), made.slot("y")], [odd, weight], calls, kernels=kernels)
    linked = link(compile(s), {"CPU": rig.host()})
    given = [filled(rig.host()), rig.Buffer.create(rig.host(), 64), rig.Buffer.create(rig.host(), 64)]
    run(linked, given)
    assert given[1].read()[:3] == b"abc"
    assert floats(given[2]) == [2 * x for x in COUNT]


def test_the_test_loader_and_rig_agree() -> None:
    code = hostcode.Loaded(compile(made.chain(1)).image)
    x, out = hostcode.floats(COUNT), hostcode.floats([0] * 16)
    code.call("f0", [ctypes.addressof(out), ctypes.addressof(x)], 0, 16)
    assert list(out) == calculate(compile(made.chain(1)), {"CPU": rig.host()})
