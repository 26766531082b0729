"""DLPack out of buffers and into models, with whatever libraries are installed."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import made
import numpy as np
import pytest

import rig
from rig.errors import Invalid, Refused


def buffer(data: bytes = bytes(range(64))) -> rig.Buffer:
    made_ = rig.Buffer.create(rig.host(), len(data))
    made_.write(data)
    return made_


def test_out_shares_the_memory() -> None:
    b = buffer()
    array = np.from_dlpack(b)
    assert (array.dtype, array.shape, array.flags.writeable) == (np.uint8, (64,), True)
    assert array.tolist() == list(range(64))
    array[3] = 200
    assert b.read()[3] == 200
    b.write(bytes(64))
    assert not array.any()
    assert array.__array_interface__["data"][0] == b.address
    assert b.__dlpack_device__() == (1, 0)
    assert np.from_dlpack(b.view(8, 4)).shape == (4,)
    assert np.from_dlpack(buffer(b"")).shape == (0,)


def test_out_keeps_the_memory_in_place() -> None:
    b = buffer()
    array = np.from_dlpack(b)
    b.free()
    assert array.tolist() == list(range(64))
    with pytest.raises(Invalid, match="it was freed"):
        np.from_dlpack(b)
    source = np.ones(4, "uint8")
    gone = weakref.ref(source)
    over = np.from_dlpack(rig.Buffer.of(source, writable=True))
    del source
    gc.collect()
    assert gone() is not None
    del over
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_capsule_that_nobody_takes_gives_the_memory_back(version: Any) -> None:
    source = np.ones(4, "uint8")
    gone = weakref.ref(source)
    capsule = rig.Buffer.of(source, writable=True).__dlpack__(max_version=version)
    del source
    gc.collect()
    assert gone() is not None
    del capsule
    gc.collect()
    assert gone() is None


def test_a_capsule_is_used_once() -> None:
    class Once:
        def __init__(self) -> None:
            self.capsule = buffer().__dlpack__()

        def __dlpack__(self, **_: Any) -> Any:
            return self.capsule

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    once = Once()
    array = np.from_dlpack(once)
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    assert name(once.capsule) == b"used_dltensor"
    del once
    gc.collect()
    assert array.tolist() == list(range(64))


def test_read_only_memory_says_so() -> None:
    b = rig.Buffer.of(b"abcd")
    array = np.from_dlpack(b)
    assert array.tobytes() == b"abcd"
    assert not array.flags.writeable
    with pytest.raises(BufferError, match=r"read-only memory needs a consumer of DLPack 1\.0"):
        b.__dlpack__()


@pytest.mark.parametrize(
    ("wish", "reason"),
    [({"stream": 1}, "stream must be None"), ({"copy": True}, "without a copy"), ({"dl_device": (2, 0)}, "on its own")],
)
def test_what_cannot_be_had(wish: dict[str, Any], reason: str) -> None:
    with pytest.raises(BufferError, match=reason):
        buffer().__dlpack__(**wish)
    assert buffer().__dlpack__(dl_device=(1, 0), copy=False) is not None


def test_memory_that_the_host_does_not_address() -> None:
    far = rig.Buffer.create(rig.memory_device("far", borrows=False), 8)
    for ask in (far.__dlpack__, far.__dlpack_device__):
        with pytest.raises(Refused, match="far: the host does not address its memory"):
            ask()
    near = rig.Buffer.create(rig.memory_device("near"), 8)
    near.write(b"12345678")
    assert np.from_dlpack(near).tobytes() == b"12345678"


class Wrapped:
    """An array of another library: DLPack and nothing else."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.dtype, self.shape = array.dtype, array.shape

    def __dlpack__(self, **more: Any) -> Any:
        return self.array.__dlpack__(**more)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_in_by_a_call_and_by_bind() -> None:
    model = made.same_and_next().load()
    x = np.array([1, 2, 3, 4], "float32")
    assert model(Wrapped(x)).next.tolist() == [2, 3, 4, 5]
    assert model(Wrapped(np.repeat(x, 2)[::2])).next.tolist() == [2, 3, 4, 5]
    same, following = np.zeros(4, "float32"), np.zeros(4, "float32")
    model.bind({"x": Wrapped(x)}, {"same": Wrapped(same), "next": Wrapped(following)}).run()
    assert following.tolist() == [2, 3, 4, 5]
    with pytest.raises(Invalid, match=r"input 'x' \(position 0\): expected float32 of shape \(4,\), found float64"):
        model(Wrapped(x.astype("float64")))
    with pytest.raises(Invalid, match=r"input 'x'.*with strides \(8,\): its elements must be dense"):
        model.bind({"x": Wrapped(np.repeat(x, 2)[::2])}, {"same": same, "next": following})
    with pytest.raises(Invalid, match=r"output 'next'.*that is read-only"):
        following.flags.writeable = False
        model.bind({"x": x}, {"same": same, "next": Wrapped(following)})


def test_in_that_is_refused_says_why() -> None:
    class Elsewhere(Wrapped):
        def __dlpack__(self, **more: Any) -> Any:
            raise BufferError("it is on a GPU")

    model = made.add_one(4).load()
    value = Elsewhere(np.ones(4, "float32"))
    with pytest.raises(Invalid, match=r"input 'x' \(position 0\): .*that NumPy cannot take: it is on a GPU"):
        model(value)
    with pytest.raises(Invalid, match=r"input 'x' .*does not export its memory: it is on a GPU"):
        model.bind({"x": value}, {"y": bytearray(16)})


@pytest.mark.parametrize("library", ["torch", "jax.numpy"])
def test_in_and_out_of_other_libraries(library: str) -> None:
    other = pytest.importorskip(library)
    model = made.add_one(4).load()
    x = other.asarray([1.0, 2.0, 3.0, 4.0], dtype=other.float32)
    assert model(x).tolist() == [2, 3, 4, 5]
    y = bytearray(16)
    model.bind({"x": x}, {"y": y}).run()
    assert np.frombuffer(y, "float32").tolist() == [2, 3, 4, 5]
    assert other.from_dlpack(buffer()).tolist() == list(range(64))
    with pytest.raises(Invalid, match=r"expected float32 of shape \(4,\), found .*int32"):
        model(other.asarray([1, 2, 3, 4], dtype=other.int32))
