"""The native functions over plain bytes: checksum, read into place, the scan before decoding."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from rig import _core
from rig.errors import FormatError


def test_crc32c_of_known_bytes() -> None:
    assert _core.crc32c(b"") == 0
    assert _core.crc32c(b"123456789") == 0xE3069283
    assert _core.crc32c(bytearray(32)) == 0x8A9136AA
    assert _core.crc32c(memoryview(b"\xff" * 32)) == 0x62A8AB43


def test_crc32c_goes_on_from_a_seed() -> None:
    data = bytes(range(256)) * 1000
    whole = _core.crc32c(data)
    for cut in (0, 1, 4096, 100_001, len(data)):
        assert _core.crc32c(data[cut:], seed=_core.crc32c(data[:cut])) == whole


def test_crc32c_needs_a_buffer() -> None:
    with pytest.raises(TypeError):
        _core.crc32c("text")  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        _core.crc32c(memoryview(b"abcd")[::2])


def test_read_into_fills_and_sums(tmp_path: Path) -> None:
    data = os.urandom(5_000_011)
    path = tmp_path / "weights"
    path.write_bytes(data)
    with path.open("rb") as file:
        for offset, size in ((0, len(data)), (11, 3_000_000), (len(data), 0), (5, 1)):
            into = bytearray(size)
            assert _core.read_into(file.fileno(), offset, into) == _core.crc32c(data[offset : offset + size])
            assert into == data[offset : offset + size]
        assert file.tell() == 0


def test_read_into_refuses_a_short_file(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(bytes(100))
    with path.open("rb") as file:
        with pytest.raises(FormatError, match="ends after 40 of 41 bytes from byte 60") as caught:
            _core.read_into(file.fileno(), 60, bytearray(41))
        assert caught.value.where == "byte 100"
        with pytest.raises(FormatError, match="ends after 0 of 1 bytes from byte 500"):
            _core.read_into(file.fileno(), 500, bytearray(1))


def test_read_into_reports_what_the_system_says(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught:
        _core.read_into(-1, 0, bytearray(1))
    assert caught.value.errno == errno.EBADF
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    with path.open("rb") as file:
        with pytest.raises(OSError) as caught:
            _core.read_into(file.fileno(), 2**63, bytearray(1))
        assert caught.value.errno == errno.EOVERFLOW
        with pytest.raises(BufferError):
            _core.read_into(file.fileno(), 0, bytes(10))


@pytest.mark.spec("P-data-malformed")
def test_scan_tells_the_first_fault() -> None:
    assert _core.scan_msgpack(b"\x92\x01\xa1x", 4) is None
    assert _core.scan_msgpack(b"\x91\x91\x90", 3) is None
    position, reason = _core.scan_msgpack(b"\x91\x91\x90", 2) or (-1, "")
    assert (position, reason) == (2, "arrays are nested too deep")
    position, reason = _core.scan_msgpack(b"\x92\x01\xc4\x00", 4) or (-1, "")
    assert position == 2
    assert "does not use" in reason


@pytest.mark.spec("P-data-malformed")
def test_nonzero_gap_finds_the_first_byte() -> None:
    data = bytearray(200)
    assert _core.nonzero_gap(data, [10, 100, 199], 64) is None
    data[5] = data[64] = data[128] = 1  # none lies in a gap
    assert _core.nonzero_gap(data, [10, 100, 192], 64) is None
    data[101] = 1
    assert _core.nonzero_gap(data, [10, 100], 64) == 101
    assert _core.nonzero_gap(data, [10, 102], 64) is None
    with pytest.raises(ValueError, match="power of two"):
        _core.nonzero_gap(data, [1], 3)
    with pytest.raises(TypeError):
        _core.nonzero_gap(data, ["1"], 64)  # type: ignore[list-item]


def test_long_sums_let_other_threads_go_on() -> None:
    data = bytes(200_000_000)
    done = threading.Event()
    times: list[float] = []

    def count() -> None:
        while not done.is_set():
            times.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        began = time.perf_counter()
        for _ in range(5):
            _core.crc32c(data)
        ended = time.perf_counter()
    finally:
        done.set()
        thread.join()
    inside = [at for at in times if began < at < ended]
    assert len(inside) > 10  # with the lock held there is at most one chance between two calls
