"""C14: a child of a fork may drop, run and open models, and its parent goes on; nothing hangs and nothing is wrong.

The same below models, for programs and devices, is in `tests/unit/test_fork.py`.
"""

from __future__ import annotations

from pathlib import Path

import made
import numpy as np
import pytest

from tests.unit import processes

pytestmark = pytest.mark.case("C14")
often = pytest.mark.parametrize(
    "times", [10, pytest.param(200, marks=[pytest.mark.big, pytest.mark.timeout(600)])], ids=["", "200 times"]
)

PRELUDE = """
import gc, os, traceback
import numpy as np
path = os.environ["RIG_TEST_MODEL"]
times = int(os.environ["RIG_TEST_TIMES"])
weight = np.arange(100_000, dtype="float32")
def child(work, leave=os._exit):
    "Run `work` in a forked child, which must end well within five seconds."
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            leave(code)
    end = time.monotonic() + 5
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0, (work.__name__, os.waitstatus_to_exitcode(status))
            return
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError(f"the child of {work.__name__} hangs")
def right(model, number=3):
    x = np.full(100_000, number, "float32")
    assert np.array_equal(model(x), weight * number)
rig.host(threads=3)
whole = open(path, "rb").read()
model, mapped = rig.open(path), rig.open(path, mmap=True)
x, y = np.full(100_000, 2, "float32"), np.zeros(100_000, "float32")
bound = model.bind({"x": x}, {"y": y})
def drop():
    global model, mapped, bound
    del model, mapped, bound
    gc.collect()
def use():
    right(model); right(mapped, 5); bound.run()
    assert np.array_equal(y, weight * 2)
def open_again():
    right(rig.open(whole)); right(rig.open(path, mmap=True))
    own = rig.memory_device("own")
    right(rig.open(path, device=own))
    own.close()
def nested():
    child(use); use(); child(drop)
"""

ONE_AFTER_THE_OTHER = """
use()
for i in range(times):
    for work in (drop, use, open_again, nested):
        child(work, leave=sys.exit if i % 2 else os._exit)
    use()
print("good")
"""

WHILE_OTHERS_RUN = """
device = rig.memory_device("inherited")
far = rig.open(path, device=device)
right(far)
stop, runs = False, [0, 0, 0]
def work(at, call):
    while not stop:
        call(); runs[at] += 1
import rig.model.artifact, rig.program.load  # a child waits for ever for a module that another thread is importing
mine = rig.open(path)
threads = [threading.Thread(target=work, args=a) for a in
           ((0, lambda: right(mine, 7)), (1, lambda: right(far, 8)), (2, lambda: right(rig.open(whole), 9)))]
for t in threads: t.start()
def inherited():
    try:
        right(far)
    except rig.Lost as error:
        assert "it was opened before a fork and does not live in the child" in str(error)
    else:
        raise AssertionError("a device of the parent's works")
def all_of_it():
    use(); right(mine); inherited(); open_again()
for i in range(times):
    time.sleep(0.0007 * (i % 13))
    child(all_of_it)
    child(drop, leave=sys.exit)
stop = True
for t in threads: t.join()
assert all(runs), runs
use(); right(far)
print("good")
"""

A_POOL = """
import multiprocessing
use()
def task(number):
    right(model, number); right(mapped, number)
    if number % 5 == 0:
        right(rig.open(path), number)
    return number, os.getpid()
context = multiprocessing.get_context("fork")
for _ in range(max(1, times // 10)):
    with context.Pool(4) as pool:
        done = pool.map_async(task, range(200), chunksize=5).get(60)
    assert [number for number, _ in done] == list(range(200))
    assert os.getpid() not in {process for _, process in done}
    use()
print("good")
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("c14") / "model.rig"
    made.times_weight(np.arange(100_000, dtype="float32").tobytes()).save(path)
    return str(path)


@pytest.mark.parametrize(
    "script", [ONE_AFTER_THE_OTHER, WHILE_OTHERS_RUN, A_POOL], ids=["one after the other", "while others run", "a pool"]
)
@often
def test_models_and_forks(model: str, script: str, times: int) -> None:
    # A child of a process with threads: Python warns of it from 3.12 on, and that is what is tried here.
    processes.check(
        PRELUDE + script, "good\n", seconds=60 + times * 2, RIG_TEST_MODEL=model, RIG_TEST_TIMES=str(times),
        PYTHONWARNINGS="ignore::DeprecationWarning",
    )  # fmt: skip
