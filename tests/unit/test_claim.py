"""Claims: shared and exclusive, and giving memory away."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import rig
from rig import Buffer, Claim, Invalid
from tests.unit import kernels as k


@pytest.mark.spec("R-claim")
def test_holds_are_shared_and_refuse_an_exclusive_one() -> None:
    buffer = k.buffer(rig.host(), 1, 2)
    with Claim.hold(buffer), Claim.hold(buffer.view(0, 8)), pytest.raises(Invalid, match="memory has 2 shared holds"):
        Claim.exclusive(buffer)
    with Claim.exclusive(buffer):
        with pytest.raises(Invalid, match="the buffer's memory is held exclusive"):
            Claim.hold(buffer.view(8, 8))
        with pytest.raises(Invalid, match="held exclusive already"):
            Claim.exclusive(buffer)
    Claim.exclusive(buffer).release()


@pytest.mark.spec("R-claim")
def test_a_claim_ends_once() -> None:
    buffer = k.buffer(rig.host(), 1)
    first, second = Claim.hold(buffer), Claim.hold(buffer)
    first.release()
    first.release()
    with pytest.raises(Invalid, match="1 shared holds"):
        Claim.exclusive(buffer)
    del second  # an unreachable claim ends too
    gc.collect()
    with pytest.raises(KeyError), Claim.exclusive(buffer):
        raise KeyError
    Claim.hold(buffer).release()


@pytest.mark.spec("R-claim")
def test_an_exclusive_claim_needs_the_whole_memory() -> None:
    buffer = k.buffer(rig.host(), 1, 2)
    with pytest.raises(Invalid, match="needs the whole memory of 16 bytes, this buffer has 8"):
        Claim.exclusive(buffer.view(0, 8))
    Claim.exclusive(buffer.view(0, 16)).release()


@pytest.mark.spec("R-claim")
def test_memory_that_others_reach_is_never_exclusive() -> None:
    with pytest.raises(Invalid, match="something outside rig reaches is never exclusive"):
        Claim.exclusive(Buffer.of(bytearray(8), writable=True))
    Claim.hold(Buffer.of(b"12345678")).release()
    buffer = k.buffer(rig.host(), 1)
    view = memoryview(buffer)
    array = np.frombuffer(memoryview(buffer), dtype=np.uint64)
    for export in (view, array):
        with pytest.raises(Invalid, match="exported as an array or a memoryview"):
            Claim.exclusive(buffer)
        del export
    view.release()
    with pytest.raises(Invalid, match="exported as an array or a memoryview"):
        Claim.exclusive(buffer)
    del array
    claim = Claim.exclusive(buffer)
    view = memoryview(buffer)  # exported after the claim
    with pytest.raises(Invalid, match="it is not consumed meanwhile"):
        claim.consume("given away")
    assert buffer.live
    view.release()
    assert claim.consume("given away").live


@pytest.mark.spec("R-claim")
@k.on_each
def test_consumed_memory_lives_on_in_the_result(kind: str) -> None:
    with k.opened(kind) as device:
        before = device.memory_in_use
        buffer = k.buffer(device, 1, 2)
        view, address = buffer.view(8, 8), buffer.address
        heir = Claim.exclusive(buffer).consume("the run took it")
        assert not buffer.live and not view.live and heir.live
        assert (heir.device, heir.nbytes, heir.address) == (device, 16, address)
        assert k.values(heir) == [1, 2]
        with pytest.raises(Invalid, match="the buffer is dead: the run took it"):
            view.read()
        with pytest.raises(Invalid, match="the run took it"):
            Claim.exclusive(buffer)
        del buffer, view
        assert device.memory_in_use == before + 16
        second = Claim.exclusive(heir).consume("and again")
        assert k.values(second) == [1, 2]
        del heir, second
        assert device.memory_in_use == before


@pytest.mark.spec("R-claim")
def test_consuming_needs_an_exclusive_claim_and_ends_it() -> None:
    buffer = k.buffer(rig.host(), 1)
    with Claim.hold(buffer) as hold, pytest.raises(Invalid, match="needs an exclusive claim"):
        hold.consume("why")
    with Claim.exclusive(buffer) as claim:
        heir = claim.consume("why")
        with pytest.raises(Invalid, match="needs an exclusive claim"):
            claim.consume("twice")
    Claim.exclusive(heir).release()
    released = Claim.exclusive(heir)
    released.release()
    with pytest.raises(Invalid, match="needs an exclusive claim"):
        released.consume("late")
    assert heir.live


@pytest.mark.spec("R-claim")
def test_device_work_takes_no_claim_and_orders_the_result() -> None:
    words = k.Words()
    with k.memory_devices(1) as (device,):
        buffer = k.buffer(device, 5)
        gate = k.load([device], k.submit(0, k.launch("gate", words.at(0), words.at(1))))
        gate.run(gate.frame([]))
        step = k.submit(0, k.launch("addk", k.writes(0), k.reads(0), 1), slots=[k.given(0)])
        add = k.load([device], step, inputs=[(0, 8)])
        with Claim.hold(buffer):
            add.run(add.frame([buffer]))
        heir = Claim.exclusive(buffer).consume("with work in flight")  # claims never wait
        add.run(add.frame([heir]))
        words[1] = 1
        assert k.values(heir) == [7]


@pytest.mark.spec("R-claim")
def test_memory_given_away_under_a_run_stays_in_place() -> None:
    words = k.Words()
    step = k.submit(0, k.launch("gated_store", words.at(0), words.at(1), k.writes(0), 7), slots=[k.given(0)])
    program = k.load([rig.host()], step, inputs=[(0, 1 << 20)])
    before = rig.host().memory_in_use
    buffer = Buffer.create(rig.host(), 1 << 20)
    running = k.Background(program.run, program.frame([buffer]))
    assert words.wait(0)
    heir = Claim.exclusive(buffer).consume("given away")
    heir.free()
    del heir, buffer
    assert rig.host().memory_in_use == before + (1 << 20)
    words[1] = 1
    running.result()
    assert rig.host().memory_in_use == before
