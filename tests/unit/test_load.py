"""Load: what it prepares, what it refuses, and that a refusal leaves nothing behind."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kernels import (
    Background,
    Words,
    alloc,
    as_bytes,
    binary,
    buffer,
    given,
    in_use,
    launch,
    load,
    loop,
    memory,
    memory_devices,
    move,
    on_host_code,
    opened,
    program,
    reads,
    run,
    submit,
    threads_alive,
    values,
    writes,
)

import rig
from rig import _core
from rig.errors import Invalid, Lost, OutOfMemory, Refused
from rig.program import description as d
from rig.program import load as load_program
from rig.program import to_bytes

KIB = 1024


@pytest.mark.spec("P-load-prepare", "P-copies-alternate")
@on_host_code
@pytest.mark.parametrize("two", [False, True])
def test_submission_is_prepared_once_or_once_per_copy(kind: str, two: bool) -> None:
    """The parameters of a step that no run changes stand where load put them, per copy where it names two."""
    with opened(kind) as device:
        parts = launch("where", d.Address(0, 0)), launch("copy_words", d.Address(1, 0), d.Address(0, 0))
        step = submit(0, *parts, fixed=[memory(0, 8), memory(1, 8)])
        out = buffer(device, count=1)
        loaded = load(
            [device], step, move(memory(1, 8), given(0), 8), memory=[alloc(0, 8, two=two), alloc(0, 8)], inputs=[(0, 8)]
        )
        seen = []
        for _ in range(6):
            run(loaded, [out])
            seen += values(out)
        assert len(set(seen)) == 1 + two
        assert seen[::2] == seen[:1] * 3
        assert seen[1::2] == seen[1:2] * 3


@pytest.mark.spec("P-load-devices")
def test_devices_as_many_as_described_and_of_their_arch() -> None:
    with memory_devices(1) as (device,):
        p = program([rig.host(), device], submit(1, launch("nothing")))
        for given_devices, found in (([rig.host()], "1 were given"), ([rig.host(), device, device], "3 were given")):
            with pytest.raises(Invalid, match=rf"^devices: {found}, the program is for 2"):
                load_program(p, given_devices)
        above = "arm64+nonesuch" if device.instruction_set == "arm64" else "x86-64-v5"
        for arch in (above, "sm_90", ""):
            wrong = d.Program((device.arch, arch), images=p.images)
            with pytest.raises(Invalid, match=rf"^devices\[1\]: the code is for '.*', but {device.name} runs"):
                load_program(wrong, [rig.host(), device])
        lowest = "arm64" if device.instruction_set == "arm64" else "x86-64-v1"
        run(load_program(d.Program((lowest, lowest), images=p.images, steps=p.steps), [rig.host(), device]))


def flat(requires: bytes) -> bytes:
    """Return a flat image without functions whose code needs the arch `requires`."""
    tables = requires.ljust(64, b"\0")
    rest = tables + b"\xc3".ljust(64, b"\0")
    head = struct.pack(
        "<8sIIQ6II", b"\x93RIGIMG\n", 1, 128, 64, 0, 0, len(requires), 0, len(requires), 0, _core.crc32c(rest)
    )
    return head.ljust(64, b"\0") + rest


@pytest.mark.spec("P-load-devices", "P-load-refused", "P-load-atomic")
@on_host_code
def test_image_that_needs_more_than_the_machine_has(kind: str) -> None:
    with opened(kind) as device:
        load([device], images=[d.Image(0, d.Data(flat(device.arch.encode())))])
        for needed in (b"x86-64-v9", b"arm64+nonesuch", b"riscv64"):
            with pytest.raises(Refused) as caught:
                load([device], images=[d.Image(0, d.Data(flat(needed)))], memory=[alloc(0, 4 * KIB)])
            assert str(caught.value).startswith(
                f"{device.name}: flat image that needs {needed.decode()}, this machine is "
            )


def refusals(name: str) -> dict[str, tuple[Any, dict[str, Any], type[Exception], str]]:
    """Programs for a device of that name and the host, what each is refused with, and how the message starts."""
    huge = 1 << 50
    missing = (submit(0), loop(1, submit(0, launch("nothing"), launch("missing"))))
    unrun = (submit(0, launch("nothing"), launch("nothing", shared=1)),)
    broken = [d.Image(0, d.Data(binary())), d.Image(0, d.Data(b"\x7fELF"))]
    hole = d.Hole(0, d.Width.W64, (d.Term(d.Address(0, 0), 1),))
    init = [alloc(0, 64), alloc(0, 8, d.Data(as_bytes(2**64 - 1), (hole,)))]
    small, full = alloc(0, 4 * KIB), f"{name}: out of memory"
    return {
        "function": (
            missing,
            {},
            Refused,
            f"steps[1].body[0].parts[1]: {name}: the image has no function named missing",
        ),
        "image": ((), {"images": broken}, Refused, f"{name}: "),
        "memory": ((), {"memory": [small, alloc(1, 4 * KIB), alloc(0, 1 << 20)]}, OutOfMemory, full),
        "copy": ((), {"memory": [small, alloc(0, 40 * KIB, two=True)]}, OutOfMemory, full),
        "host memory": ((), {"memory": [small, alloc(1, huge)]}, OutOfMemory, "host: out of memory"),
        "ints": ((), {"memory": [small], "ints": huge}, OutOfMemory, "host: out of memory"),
        "init": ((submit(0, fixed=[memory(0, 64)]),), {"memory": init}, Invalid, "memory[1].init.holes[0]: "),
        "part": (unrun, {}, Refused, f"steps[0].parts[1]: {name} runs no"),
    }


@pytest.mark.spec("P-load-atomic", "P-load-refused", "P-load-oom")
@pytest.mark.parametrize("which", list(refusals("")))
def test_refused_load_leaves_nothing(which: str) -> None:
    """No memory, no image and no thread, while the exception lives and afterwards; the next load works."""
    with memory_devices(1, nbytes=64 * KIB) as (device,):
        steps, more, error, start = refusals(device.name)[which]
        good = program(
            [device, rig.host()],
            submit(0, launch("bump", writes(0)), slots=(memory(0, 40 * KIB),)),
            memory=[alloc(0, 40 * KIB)],
        )
        run(load_program(good, [device, rig.host()]))
        before = (in_use(device), in_use(rig.host()), threads_alive(), _mapped())
        with pytest.raises(error) as caught:
            load([device, rig.host()], *steps, **more)
        assert str(caught.value).startswith(start), caught.value
        assert (in_use(device), in_use(rig.host()), threads_alive(), _mapped()) == before
        if isinstance(caught.value, OutOfMemory):
            assert caught.value.device in (device.name, "host")
            assert caught.value.nbytes >= 40 * KIB
            assert isinstance(caught.value, MemoryError)
        run(load_program(good, [device, rig.host()]))


def _mapped() -> int:
    """Count what is mapped of images."""
    return sum("rig-image" in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.spec("P-load-oom")
def test_message_names_the_memory_and_a_budget_counts() -> None:
    with memory_devices(1) as (device,):
        device.set_budget(10 * KIB)
        with pytest.raises(OutOfMemory) as caught:
            load([device], memory=[alloc(0, 4 * KIB), alloc(0, 4 * KIB), alloc(0, 3 * KIB)])
        assert f"{device.name}: out of memory: 3072 bytes asked for" in str(caught.value)
        assert "memory[2]" in str(caught.value)
        assert in_use(device) == 0
        # What nothing reaches any more is taken back before memory is refused.
        loaded = load([device], memory=[alloc(0, 8 * KIB)])
        del loaded
        load([device], memory=[alloc(0, 10 * KIB)])


@pytest.mark.spec("P-load-lost", "P-load-atomic")
@pytest.mark.parametrize("more", [{}, {"images": []}, {"images": [], "memory": [alloc(1, 8), alloc(0, 8)]}])
def test_load_on_a_lost_device(more: dict[str, Any]) -> None:
    """Closed or failed, and whatever the program has on it."""
    with memory_devices(1) as (closed,), memory_devices(1, fail_at=1) as (failed,):
        closed.close()
        with pytest.raises(Lost):
            run(load([failed], submit(0, launch("nothing"))))
        host = in_use(rig.host())
        for device, why in ((closed, "it was closed"), (failed, "it failed at submission 1")):
            with pytest.raises(Lost) as caught:
                load([device, rig.host()], **more)
            assert str(caught.value).startswith(f"{device.name}: the device is lost")
            assert why in str(caught.value)
            assert caught.value.device == device.name
            assert in_use(rig.host()) == host


@pytest.mark.spec("P-load-threads")
def test_loads_from_many_threads() -> None:
    """Eight threads load and run, the same description and others, over shared devices."""
    with memory_devices(2) as devices:
        shared = program(devices, submit(0, launch("store", writes(0), 5), slots=(given(0),)), inputs=[(0, 8)])

        def work(number: int) -> int:
            for turn in range(6):
                value = 100 * number + turn
                step = submit(turn % 2, launch("addk", writes(0), reads(1), value), slots=(given(0), memory(0, 8)))
                mine = load(devices, step, memory=[alloc(1, 8, as_bytes(7), two=True)], inputs=[(turn % 2, 8)])
                out, other = buffer(devices[turn % 2], 0), buffer(devices[0], 0)
                run(mine, [out])
                run(load_program(shared, devices), [other])
                assert (values(out), values(other)) == ([7 + value], [5])
            return number

        calls = [Background(work, i) for i in range(8)]
        assert [call.result() for call in calls] == list(range(8))
        for device in devices:
            device.close()
        assert [in_use(device) for device in devices] == [0, 0]


class Finalised(bytearray):
    """Memory whose finaliser calls something; rig lets go of it where it holds a lock."""

    call: Any = None
    seen: Any = None

    def __del__(self) -> None:
        try:
            self.call()
            Finalised.seen = "nothing raised"
        except Exception as error:
            Finalised.seen = error


@pytest.mark.spec("P-load-lock", "P-run-lock")
@pytest.mark.parametrize("what", ["load", "run", "bound run"])
def test_refused_in_a_callback_inside_a_lock(what: str) -> None:
    """Having done nothing: no memory is made, no step runs, and the run is not counted."""
    flags = Words()
    with memory_devices(1) as (device,):
        p = program([device], submit(0, launch("bump", flags.at(0))), memory=[alloc(0, 4 * KIB)])
        loaded = load_program(p, [device])
        bound = loaded.bound(loaded.frame([]))
        before = (in_use(device), device.submitted)
        source = Finalised(8)
        source.call = {
            "load": lambda: load_program(p, [device]),
            "run": lambda: loaded.run(loaded.frame([])),
            "bound run": bound.run,
        }[what]
        shared = rig.Buffer.of(source)
        Finalised.seen = None
        del source
        assert Finalised.seen is None
        del shared
        assert isinstance(Finalised.seen, Invalid), Finalised.seen
        assert str(Finalised.seen).startswith("a load" if what == "load" else "a run")
        assert "callback that rig makes while it holds a lock" in str(Finalised.seen)
        assert (in_use(device), device.submitted) == before
        assert flags[0] == 0
        run(loaded)
        load_program(p, [device])
        assert flags[0] == 1


@pytest.mark.spec("P-load-index", "P-load-atomic")
def test_broken_rule_is_found_before_anything_is_made() -> None:
    """The image before it would be refused, if it were looked at."""
    with memory_devices(1) as (device,):
        bad = d.Image(0, d.Data(b"no code"))
        with pytest.raises(Invalid, match=r"^steps\[0\]\.slots\[0\]: a view of 8 bytes at byte 60 lies outside"):
            load(
                [device],
                submit(0, launch("bump", writes(0)), slots=(memory(0, 8, 60),)),
                images=[bad],
                memory=[alloc(0, 64)],
            )
        assert device.submitted == 0


FOREIGN = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tinygrad", "tolk_engine", "llvmlite", "numpy"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import rig
from rig.program import load, of_bytes
p = of_bytes(sys.stdin.buffer.read())
far = rig.memory_device("far")
loaded = load(p, [rig.host(), far])
one, out = rig.Buffer.create(rig.host(), 24), rig.Buffer.create(rig.host(), 24)
one.write((3).to_bytes(8, "little") + (4).to_bytes(8, "little") + (5).to_bytes(8, "little"))
for _ in range(3):
    for end in loaded.run(loaded.frame([one, out], [2])):
        end.wait(30)
print(*out.read().cast("Q"))
print(sorted(m for m in sys.modules if m.split(".")[0] in ("tinygrad", "tolk_engine", "numpy")))
"""


@pytest.mark.spec("P-data-foreign-process", "P-data-bytes")
def test_another_process_decodes_loads_and_runs() -> None:
    """A process that has no compiler gets the bytes and computes with them, on the host and on a memory device."""
    with memory_devices(1) as (device,):
        p = program(
            [rig.host(), device],
            move(given(0), memory(0, 24), 24),
            submit(1, launch("addk", writes(0), reads(0), d.Int(0), n=3), slots=(memory(0, 24),)),
            loop(
                2, submit(0, launch("add", writes(0), writes(0), reads(1), n=3), slots=(memory(1, 24), memory(0, 24)))
            ),
            submit(0, launch("addk", writes(0), reads(1), 1, n=3), slots=(given(1), memory(1, 24))),
            memory=[alloc(1, 24), alloc(0, 24, as_bytes(1, 2, 3), two=True)],
            inputs=[(0, 24), (0, 24)],
            ints=1,
        )
    result = subprocess.run([sys.executable, "-c", FOREIGN], input=to_bytes(p), capture_output=True, timeout=60)
    assert result.returncode == 0, result.stderr.decode()
    # The third run uses the first copy again: its memory has grown twice.
    want = [start + 2 * 2 * (value + 2) + 1 for start, value in ((1, 3), (2, 4), (3, 5))]
    assert result.stdout.decode().split("\n")[:2] == [" ".join(map(str, want)), "[]"]
