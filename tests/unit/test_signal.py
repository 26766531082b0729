"""Signals during long runs and waits: they are answered in bounded time, and programs run again."""

from __future__ import annotations

import pytest

from tests.unit import processes

# Sends a signal to this process after a while and notes when.
SEND = """
sent = []
def send(seconds, number=signal.SIGINT):
    def later():
        time.sleep(seconds)
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)
    threading.Thread(target=later, daemon=True).start()
def interrupted(work, *args):
    "The seconds from the signal to the KeyboardInterrupt."
    try:
        work(*args)
    except KeyboardInterrupt:
        return time.monotonic() - sent.pop()
    raise AssertionError("it was not interrupted")
def in_time(seconds):
    assert seconds < 2, seconds
"""


@pytest.mark.spec("R-signal")
@pytest.mark.case("C15")
def test_interrupt_during_a_loop_of_a_billion_trips() -> None:
    processes.check(
        SEND
        + """
model = counter(rig.host())
x = rig.Buffer.create(rig.host(), 8)
nothing = loaded(rig.host(), d.Loop(d.Fixed(10**9), (submit(call("nothing")),)))
for i in range(2):
    send(0.3)
    in_time(interrupted(run, model, [x], [10**9]))
    x.write(bytes(8))
    run(model, [x], [3])
    assert word(x) == 3, word(x)
    bound = model.bound(model.frame([x], [10**9]))
    send(0.1)
    in_time(interrupted(bound.run))
    send(0.1)
    in_time(interrupted(run, nothing))
before = time.process_time()
time.sleep(0.3)
assert time.process_time() - before < 0.015, "it works on"
print("good")
""",
        "good\n",
    )


@pytest.mark.spec("R-signal")
@pytest.mark.case("C15")
def test_interrupt_during_waits_on_a_memory_device() -> None:
    processes.check(
        SEND
        + """
device = rig.memory_device("slow", delay=3000)
model = counter(device)
x, y = rig.Buffer.create(device, 8), rig.Buffer.create(rig.host(), 8)
(point,) = run(model, [x], [1])
host = loaded(rig.host(), submit(call("bump", 0, refs=WRITES), slots=(d.InputSlot(0),)), inputs=(d.Input(0, 8),))
waits = {
    "a wait": point.wait,
    "a wait with a bound": lambda: point.wait(60),
    "a read": x.read,
    "a write": lambda: x.write(bytes(8)),
    "a view": lambda: memoryview(x),
    "a run that follows it": lambda: run(host, [x.borrow(rig.host())]),
    "a run that waits": lambda: host.run(host.frame([y]), waits=[point]),
}
for name, wait in waits.items():
    send(0.05)
    in_time(interrupted(wait))
run(host, [y])
assert word(y) == 1
assert not point.wait(0.01)
print("good", flush=True)
os._exit(0)
""",
        "good\n",
    )


@pytest.mark.spec("R-signal")
@pytest.mark.case("C15")
def test_interrupt_among_slow_kernels() -> None:
    processes.check(
        SEND
        + """
slow = loaded(rig.host(), submit(*(call("sleep_us", 10_000) for _ in range(400))))
names = ["nothing"] * 500 + ["sleep_us"] * 400
mixed = loaded(rig.host(), submit(*(call(name, 10_000) for name in names)))
for program in (slow, mixed):
    send(0.2)
    in_time(interrupted(run, program))
print("good")
""",
        "good\n",
    )


@pytest.mark.spec("R-signal")
def test_handlers_run_during_long_runs_and_the_run_goes_on() -> None:
    processes.check(
        """
model = counter(rig.host())
x = rig.Buffer.create(rig.host(), 8)
seen = []
signal.signal(signal.SIGALRM, lambda *a: seen.append(word(x)))
slow = loaded(rig.host(), d.Loop(d.Fixed(1000), (submit(call("spin_us", 1000)),)))
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
run(slow)
signal.setitimer(signal.ITIMER_REAL, 0)
assert len(seen) >= 5, len(seen)
def reenter(*a):
    try:
        run(model, [x], [1])
    except rig.Invalid as error:
        seen.append(str(error))
signal.signal(signal.SIGALRM, reenter)
signal.setitimer(signal.ITIMER_REAL, 0.05)
run(model, [x], [3_000_000])
assert "running on this thread already" in seen[-1], seen[-1]
assert word(x) == 3_000_000
print("good")
""",
        "good\n",
    )


@pytest.mark.spec("R-signal")
def test_an_ignored_interrupt_is_ignored_and_a_handler_that_returns_lets_the_run_go_on() -> None:
    processes.check(
        SEND
        + """
body = submit(call("spin_us", 1000), call("bump", 0, refs=WRITES), slots=(d.InputSlot(0),))
slow = loaded(rig.host(), d.Loop(d.Int(0), (body,)), ints=1, inputs=(d.Input(0, 8),))
x = rig.Buffer.create(rig.host(), 8)
signal.signal(signal.SIGINT, signal.SIG_IGN)
send(0.1)
run(slow, [x], [300])
assert sent and word(x) == 300
count = []
signal.signal(signal.SIGINT, lambda *a: count.append(1))
send(0.1)
run(slow, [x], [300])
assert count == [1] and word(x) == 600
device = rig.memory_device("slow", delay=0.3)
on_device = counter(device)
send(0.1)
assert run(on_device, [rig.Buffer.create(device, 8)], [1])[0].wait(20)
assert count == [1, 1]
print("good")
""",
        "good\n",
    )


@pytest.mark.spec("R-signal")
def test_a_handlers_own_error_ends_the_run() -> None:
    processes.check(
        """
class Stop(Exception): pass
def stop(*a): raise Stop("now")
signal.signal(signal.SIGALRM, stop)
model = counter(rig.host())
x = rig.Buffer.create(rig.host(), 8)
for i in range(3):
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        run(model, [x], [10**9])
    except Stop as error:
        assert str(error) == "now"
    else:
        raise AssertionError
x.write(bytes(8))
run(model, [x], [4])
assert word(x) == 4
print("good")
""",
        "good\n",
    )


@pytest.mark.spec("R-signal")
def test_interrupt_reaches_the_main_thread_while_another_runs() -> None:
    processes.check(
        SEND
        + """
model = counter(rig.host())
x = rig.Buffer.create(rig.host(), 8)
thread = threading.Thread(target=run, args=(model, [x], [5_000_000]))
thread.start()
send(0.05)
in_time(interrupted(time.sleep, 20))
thread.join()
assert word(x) == 5_000_000
print("good")
""",
        "good\n",
    )
