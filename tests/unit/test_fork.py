"""Forks: what a child may drop, what it may run, and what it is refused; never a hang."""

from __future__ import annotations

import pytest

from tests.unit import processes

# Runs a function in a forked child, which must end within five seconds by itself, and gives its exit code.
FORK = """
import gc, traceback
def child(work, *args, leave=os._exit):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work(*args)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            leave(code)
    end = time.monotonic() + 5
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0, os.waitstatus_to_exitcode(status)
            return
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError(f"the child of {work.__name__} hangs")
def right(model, x, trips=3):
    before = word(x)
    run(model, [x], [trips])
    assert word(x) == before + trips, word(x)
def refused(device, work):
    try:
        work()
    except rig.Lost as error:
        assert error.device == device.name, error
        assert "it was opened before a fork and does not live in the child" in str(error), error
    else:
        raise AssertionError("not refused")
rig.host(threads=3)
host = rig.host()
spin = loaded(host, submit(call("spin_us", 100, n=8, blocks=8)))
"""


@pytest.mark.spec("R-fork")
@pytest.mark.case("C14")
def test_a_child_drops_runs_and_loads_host_programs() -> None:
    processes.check(
        FORK
        + """
model = counter(host)
x = rig.Buffer.create(host, 8)
bound = model.bound(model.frame([x], [2]))
for i in range(5): run(spin)  # the pool has workers
right(model, x)
def drop():
    global model, x, bound
    del model, x, bound
    gc.collect()
def run_both():
    right(model, x)
    bound.run()
    for i in range(5): run(spin)
def load_again():
    right(counter(host), rig.Buffer.create(host, 8))
def nested():
    child(run_both)
    run_both()
for i in range(3):
    for work in (drop, run_both, load_again, nested):
        child(work)
    right(model, x)
    run(spin)
child(run_both, leave=sys.exit)
print("good")
""",
        "good\n",
        seconds=60,
    )


@pytest.mark.spec("R-fork")
def test_a_childs_pool_is_made_anew() -> None:
    processes.check(
        FORK
        + """
from rig import _core
for i in range(5): run(spin)
assert _core.pool_workers() == 2
def fresh():
    assert _core.pool_workers() == 0
    for i in range(5): run(spin)
    assert _core.pool_workers() == 2
    assert len(os.listdir("/proc/self/task")) == 3
child(fresh)
assert _core.pool_workers() == 2
print("good")
""",
        "good\n",
    )


@pytest.mark.spec("R-fork")
@pytest.mark.case("C14")
def test_inherited_memory_devices_refuse_and_new_ones_work() -> None:
    processes.check(
        FORK
        + """
device = rig.memory_device("inherited", delay=0.01)
model = counter(device)
x, y, shared = rig.Buffer.create(device, 8), rig.Buffer.create(device, 8), rig.Buffer.create(host, 8)
right(model, x)
reached = run(model, [x], [1])[0]
reached.wait()
def inherited():
    assert device.lost and device not in rig.devices() and [d for d in rig.devices() if d.kind != "opencl"] == [host]
    assert reached.reached
    for work in (lambda: run(model, [x], [1]), x.read, lambda: x.write(bytes(8)), lambda: memoryview(x),
                 lambda: rig.Buffer.create(device, 8), lambda: x.submit_copy(y), lambda: x.submit_copy(shared),
                 lambda: shared.submit_copy(x), lambda: shared.borrow(device), point.wait, lambda: point.wait(1),
                 lambda: point.reached, late.read):
        refused(device, work)
    try:
        counter(device)
    except rig.Lost as error:
        assert "inherited: the device is lost" in str(error)
    own = rig.memory_device("own")
    right(counter(own), rig.Buffer.create(own, 8))
    right(counter(host), shared)
    device.close()
    own.close()
def drop():
    global model, x, y, point, device, late
    x.free()
    del model, x, y, point, device, late
    gc.collect()
import ctypes
words = (ctypes.c_uint64 * 2)()
gate = loaded(device, submit(call("gate", ctypes.addressof(words), ctypes.addressof(words) + 8)))
for i in range(3):
    late = rig.Buffer.create(host, 8)
    words[1] = 0
    run(gate)
    run(model, [x], [20])
    point = x.submit_copy(late)  # in flight
    child(inherited)
    child(drop)
    child(lambda: None, leave=sys.exit)
    child(inherited, leave=sys.exit)
    words[1] = 1
    right(model, x)
    assert point.wait(5)
print("good")
""",
        "good\n",
        seconds=60,
    )


@pytest.mark.spec("R-fork")
@pytest.mark.case("C14")
def test_forks_during_runs_of_other_threads() -> None:
    processes.check(
        FORK
        + """
device = rig.memory_device("busy")
models = [counter(host), counter(host)]
on_device = counter(device)
inner = rig.Buffer.create(device, 8)
xs = [rig.Buffer.create(host, 8) for m in models]
rig.Claim  # imported before: Python itself leaves a child waiting for a module that another thread was importing
stop = False
def work(model, x, trips):
    while not stop: run(model, [x], [trips])
def spins():
    while not stop: run(spin)
def claims():
    while not stop:
        rig.Claim.hold(xs[0]).release()
        rig.Buffer.create(host, 64).free()
        xs[0].borrow(device)
threads = [threading.Thread(target=work, args=a) for a in
           ((models[0], xs[0], 1), (models[1], xs[1], 100_000), (on_device, inner, 3))]
threads += [threading.Thread(target=spins), threading.Thread(target=claims)]
for t in threads: t.start()
def use():
    mine = rig.Buffer.create(host, 8)
    for model in models: right(model, mine)
    run(spin)
    right(counter(host), mine)
    rig.Claim.hold(xs[0]).release()
    refused(device, lambda: run(on_device, [inner], [1]))
    own = rig.memory_device("own")
    right(counter(own), rig.Buffer.create(own, 8))
for i in range(15):
    time.sleep(0.001 * i)
    child(use)
    began = time.monotonic()
    child(use, leave=sys.exit)
    assert time.monotonic() - began < 1.9, "the child's end waits for threads that it does not have"
stop = True
for t in threads: t.join()
for model, x in zip(models, xs): right(model, x)
right(on_device, inner)
print("good")
""",
        "good\n",
        seconds=90,
    )


@pytest.mark.spec("R-fork")
@pytest.mark.case("C14")
def test_a_pool_of_forked_workers() -> None:
    processes.check(
        FORK
        + """
import multiprocessing
model = counter(host)
x = rig.Buffer.create(host, 8)
right(model, x)
for i in range(5): run(spin)
def task(trips):
    mine = rig.Buffer.create(host, 8)
    run(model, [mine], [trips])
    run(spin)
    right(counter(host), rig.Buffer.create(host, 8))
    return word(mine)
with multiprocessing.get_context("fork").Pool(4) as pool:
    assert pool.map_async(task, range(40)).get(30) == list(range(40))
right(model, x)
print("good")
""",
        "good\n",
        seconds=60,
    )
