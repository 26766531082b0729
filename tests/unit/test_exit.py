"""The end of the interpreter, with programs loaded and work in flight: in time, with the script's code, and quietly."""

from __future__ import annotations

import pytest

from tests.unit import processes

AT_ONCE = 4
often = pytest.mark.parametrize(
    "times", [20, pytest.param(100, marks=[pytest.mark.big, pytest.mark.timeout(300)])], ids=["", "100 times"]
)
"""Each script many times; as often as the report asks for among the big tests."""

SCRIPTS = {
    "a program in a global": """
model = counter(rig.host())
x = rig.Buffer.create(rig.host(), 8)
run(model, [x], [3])
bound = model.bound(model.frame([x], [2]))
bound.run()
assert word(x) == 5
""",
    "a run in flight on a memory device": """
device = rig.memory_device("busy", delay=0.01)
model = counter(device)
x = rig.Buffer.create(device, 8)
shared = rig.Buffer.of(bytearray(8), writable=True)
for i in range(3):
    run(model, [x], [2])
point = x.submit_copy(shared)
assert not point.reached
""",
    "a run in a daemon thread": """
model = counter(rig.host())
x = rig.Buffer.create(rig.host(), 8)
threading.Thread(target=run, args=(model, [x], [2**62]), daemon=True).start()
while word(x) == 0: time.sleep(0.0005)
""",
    "many short runs in daemon threads": """
model = counter(rig.host())
device = rig.memory_device("busy")
on_device = counter(device)
def again(model, device):
    x = rig.Buffer.create(device, 8)
    bound = model.bound(model.frame([x], [1]))
    while True:
        bound.run(); run(model, [x], [1])[0].wait(); memoryview(x); x.read()
for m, d_ in ((model, rig.host()), (on_device, device)) * 2:
    threading.Thread(target=again, args=(m, d_), daemon=True).start()
time.sleep(0.02)
""",
    "waits in daemon threads": """
device = rig.memory_device("busy", delay=0.05)
model = counter(device)
x = rig.Buffer.create(device, 8)
point = run(model, [x], [1])[0]
for wait in (point.wait, x.read, lambda: memoryview(x)) * 2:
    threading.Thread(target=wait, daemon=True).start()
time.sleep(0.002)
""",
    "a pool with workers": """
rig.host(threads=4)
spin = loaded(rig.host(), submit(call("spin_us", 100, n=8, blocks=8)))
for i in range(20): run(spin)
""",
    "an exit from within": """
model = counter(rig.host())
x = rig.Buffer.create(rig.host(), 8)
run(model, [x], [3])
sys.exit(0)
""",
}


@pytest.mark.spec("R-exit")
@pytest.mark.case("C16")
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
@often
def test_the_interpreter_ends_quietly(script: str, times: int) -> None:
    for _ in range(0, times, AT_ONCE):
        for process in [processes.start(script) for _ in range(AT_ONCE)]:
            assert processes.finish(process, 10) == (0, "", "")


@pytest.mark.spec("R-exit")
@pytest.mark.case("C16")
@often
def test_an_unhandled_exception_gives_its_code_and_its_text_only(times: int) -> None:
    script = """
device = rig.memory_device("busy", delay=0.01)
model, on_device = counter(rig.host()), counter(device)
x, y = rig.Buffer.create(rig.host(), 8), rig.Buffer.create(device, 8)
run(model, [x], [3]); run(on_device, [y], [3])
raise KeyError("on purpose")
"""
    for _ in range(0, times, AT_ONCE):
        for process in [processes.start(script) for _ in range(AT_ONCE)]:
            code, out, err = processes.finish(process, 10)
            assert (code, out) == (1, "")
            assert err.startswith("Traceback") and err.endswith("KeyError: 'on purpose'\n")
            assert err.count("\n") <= 4


@pytest.mark.spec("R-exit")
def test_work_that_never_ends_is_left_behind_after_a_bound() -> None:
    script = """
device = rig.memory_device("stuck", delay=3000)
model = counter(device)
x = rig.Buffer.create(device, 8)
run(model, [x], [1])
print("done", flush=True)
"""
    assert processes.finish(processes.start(script), 15) == (0, "done\n", "")


@pytest.mark.spec("R-exit")
def test_memory_given_back_as_the_interpreter_ends() -> None:
    # The queue lets go of shared memory just when nobody may touch Python objects any more.
    script = """
device = rig.memory_device("late", delay=2.02)
shared = rig.Buffer.of(bytearray(1 << 16), writable=True)
rig.Buffer.create(device, 1 << 16).submit_copy(shared)
del shared
"""
    for process in [processes.start(script) for _ in range(AT_ONCE)]:
        assert processes.finish(process, 15) == (0, "", "")
