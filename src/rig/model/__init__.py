"""Models: a file with a signature, and the program in it."""

from __future__ import annotations

from rig.model.artifact import Artifact, Weight, read, save
from rig.model.model import Bound, Model, open
from rig.model.notes import KernelNote, Notes, PieceNote
from rig.model.signature import Signature, Tensor, Variable

__all__ = [
    "Artifact", "Bound", "KernelNote", "Model", "Notes", "PieceNote", "Signature", "Tensor", "Variable", "Weight",
    "open", "read", "save",
]  # fmt: skip
