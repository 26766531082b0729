"""The host's pool: how launches are split, what stays on the caller's thread, and that it sleeps when idle."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

import rig
from rig import _core
from tests.unit import kernels as k
from tests.unit import processes

# Which threads do the blocks.
WHO = """
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
void who(const uint64_t *w, uint64_t begin, uint64_t end) {
  for (uint64_t i = begin; i < end; i++) ((uint64_t *)w[0])[i] = (uint64_t)syscall(SYS_gettid);
  struct timespec t = {0, (long)w[1] * 1000};
  if (w[1]) nanosleep(&t, 0);
}
"""


@pytest.fixture
def threads() -> Iterator[None]:
    before = rig.host().threads
    rig.host(threads=4)
    yield
    rig.host(threads=before)


def who(blocks: int, sleep_us: int) -> tuple[rig.program.Loaded, k.Words]:
    words = k.Words(blocks)
    image = rig.program.description.Image(0, rig.program.description.Data(k.binary(WHO)))
    step = k.submit(0, k.launch("who", words.at(0), sleep_us, n=blocks, blocks=blocks, image=0))
    return k.load([rig.host()], step, images=(image,)), words


@pytest.mark.usefixtures("threads")
@k.on_host_code
def test_launches_split_by_the_rule(kind: str) -> None:
    rng = random.Random(7)
    cases = [(1, 1), (7, 3), (3, 7), (64, 8), (1000, 16), (5, 5), (0, 3), (3, 0)]
    cases += [(rng.randrange(1, 500), rng.randrange(1, 40)) for _ in range(10)]
    with k.opened(kind) as device:
        for iterations, blocks in cases:
            out = k.buffer(device, count=1 + 2 * max(blocks, 1))
            step = k.submit(0, k.launch("range", k.writes(0), n=iterations, blocks=blocks), slots=[k.given(0)])
            program = k.load([device], step, inputs=[(0, out.nbytes)])
            right = [(b * iterations // blocks, (b + 1) * iterations // blocks) for b in range(blocks)]
            expected = sorted((begin, end) for begin, end in right if begin < end)
            for _ in range(4):  # the first runs measure on one thread
                out.write(bytes(out.nbytes))
                k.run(program, [out])
                taken, *rest = k.values(out)
                assert sorted(zip(rest[: 2 * taken : 2], rest[1 : 2 * taken : 2], strict=True)) == expected


@pytest.mark.usefixtures("threads")
def test_long_launches_are_shared_and_short_ones_stay_with_the_caller() -> None:
    mine = threading.get_native_id()
    short, words = who(8, 0)
    for _ in range(50):
        k.run(short)
        assert {words[i] for i in range(8)} == {mine}
    long, words = who(8, 2000)
    for _ in range(50):
        k.run(long)
        seen = {words[i] for i in range(8)}
        if len(seen) > 1:
            break
    assert mine in seen and 1 < len(seen) <= 4
    rig.host(threads=1)
    for _ in range(5):
        k.run(long)
        assert {words[i] for i in range(8)} == {mine}


@pytest.mark.usefixtures("threads")
def test_callers_at_once_are_served() -> None:
    step = k.submit(0, k.launch("addk", k.writes(0), k.reads(0), 1, n=64, blocks=16), slots=[k.given(0)])

    def work() -> None:
        program, x = k.load([rig.host()], step, inputs=[(0, 512)]), k.buffer(rig.host(), count=64)
        for _ in range(300):
            k.run(program, [x])
        assert k.values(x) == [300] * 64

    for one in [k.Background(work) for _ in range(4)]:
        one.result()


@pytest.mark.usefixtures("threads")
def test_the_pool_makes_its_workers_once() -> None:
    long, words = who(8, 500)  # the kernels write the words at every run
    for _ in range(20):
        k.run(long)
    workers, alive = _core.pool_workers(), k.threads_alive()
    assert workers >= 3
    for count in (2, 3, 4, 2, 4):
        rig.host(threads=count)
        for _ in range(5):
            k.run(long)
    assert (_core.pool_workers(), k.threads_alive()) == (workers, alive)
    assert words[0] != 0


def test_an_idle_process_uses_no_cpu() -> None:
    processes.check(
        """
rig.host(threads=4)
devices = [rig.memory_device(f"m{i}") for i in range(3)]
spin = loaded(rig.host(), submit(call("spin_us", 200, n=8, blocks=8)))
model = counter(devices[0])
for i in range(30): run(spin)
run(model, [rig.Buffer.create(devices[0], 8)], [3])[0].wait()
time.sleep(0.05)
before = time.process_time()
time.sleep(1)
used = time.process_time() - before
assert used < 0.01, used
print("good")
""",
        "good\n",
    )
