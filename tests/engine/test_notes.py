"""What the compiler notes in a file for people, as `rig inspect` and `rig verify` find it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tinygrad import Tensor

import tolk_engine
from rig.cli.picture import draw
from rig.model import Artifact, save
from rig.model.summary import lives, summary
from rig.model.verify import verify
from rig.program.images import look
from rig.program.parts import parts
from tolk_engine.image import parse


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = [Tensor(np.full((64, 64), 0.01, np.float32), device="CPU") for _ in range(4)]

    def net(x: Tensor) -> Tensor:
        for w in weights:
            x = (x.contiguous() @ w).relu().contiguous()
        return x

    compiled = tolk_engine.compile(tolk_engine.capture(net, tolk_engine.Spec((8, 64))), jobs=1)
    path = tmp_path_factory.mktemp("notes") / "net.rig"
    compiled.save(path)
    return path


def test_names_estimates_and_sizes(path: Path) -> None:
    with Artifact(path) as artifact:
        kernels = summary(artifact)["kernels"]
        binary = bytes(artifact.program.images[0].binary.bytes)
    assert sum(k["launches"] for k in kernels) >= 4
    for kernel in kernels:
        assert kernel["name"] and kernel["mem"] > 0
        assert 0 < kernel["code"] < len(binary)
    assert max(k["ops"] for k in kernels) >= 2 * 8 * 64 * 64
    found, flat = look(binary), parse(binary)
    assert (found.requires, found.code, found.functions.keys()) == (flat.requires, len(flat.body), flat.exports.keys())
    assert all(flat.exports[name] + size <= len(flat.body) for name, size in found.functions.items())


def test_pieces_live_as_planned(path: Path) -> None:
    with Artifact(path) as artifact:
        all_parts = list(parts(artifact.program))
        pieces = lives(artifact, all_parts)
        assert len(pieces) >= 3
        assert all(p.exact for p in pieces)
        for piece in pieces:  # the parts that begin and end a life touch it
            for at in (piece.first, piece.last):
                touched = [t.offset for t in all_parts[at].touches if t.memory and t.number == piece.number]
                assert any(o is not None and piece.offset <= o < piece.offset + piece.nbytes for o in touched)
        for i, a in enumerate(pieces):
            for b in pieces[:i]:
                apart = a.last < b.first or b.last < a.first
                assert apart or a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
        svg = draw(artifact)
    assert "; at most " in svg


def test_the_file_is_whole_and_its_notes_are_kept(path: Path, tmp_path: Path) -> None:
    assert verify(path).weights == 4
    with Artifact(path) as artifact:
        weights = []
        for weight in artifact.weights:
            data = bytearray(artifact.initial[weight.memory].nbytes)
            artifact.initial[weight.memory].read_into(memoryview(data))
            weights.append((weight, data))
        save(tmp_path / "again.rig", artifact.program, artifact.signature, weights, notes=artifact.notes)
    assert (tmp_path / "again.rig").read_bytes() == path.read_bytes()
