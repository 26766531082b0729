"""The header of the weights: aligned tensors without gaps, as the format's own library wants them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rig.errors import FormatError
from rig.model import safetensors


def test_many_weights_stay_aligned() -> None:
    tensors = [(f"w{i}", "uint8", (i,), i) for i in range(1, 200)]
    head, entries = safetensors.header(tensors)
    assert len(head) % 64 == 0
    kept = [e for e in entries if not e.name.startswith(safetensors.PAD)]
    assert [e.name for e in kept] == [name for name, *_ in tensors]
    assert all(e.begin % 64 == 0 for e in kept)
    assert safetensors.parse(head, len(head) + entries[-1].end, "w") == entries


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}}, "tensor 'a' has the unknown dtype 'F31'"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "tensor 'a': 4 bytes do not hold float32"),
        (
            {"a": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}},
            "tensor 'a' starts at byte 2 of the data, expected 0",
        ),
        ({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}, "the tensors cover 2 bytes, but there are 4"),
        ({"a": {"dtype": "U8", "shape": [2**63] * 9, "data_offsets": [0, 4]}}, "tensor 'a': 4 bytes do not hold uint8"),
        ({"a": {"dtype": "U8", "shape": [-4], "data_offsets": [4, 0]}}, "tensor 'a': -4 bytes do not hold uint8"),
        ({"a": 1}, "the header of the weights is damaged"),
        ([], "the header of the weights is damaged"),
    ],
)
def test_a_header_that_cannot_be(header: Any, message: str) -> None:
    text = json.dumps(header).encode()
    head = len(text).to_bytes(8, "little") + text
    with pytest.raises(FormatError, match=r"^weights: ") as error:
        safetensors.parse(head, len(head) + 4, "weights")
    assert message in str(error.value)


def test_a_header_longer_than_the_file() -> None:
    with pytest.raises(FormatError, match=r"states 1008 bytes, but there are 100"):
        safetensors.header_size((1000).to_bytes(8, "little"), 100, "weights")
