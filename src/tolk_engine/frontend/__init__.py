"""From tensor functions and ONNX graphs to schedules and kernel text: the only part that imports tinygrad."""

from __future__ import annotations

from tolk_engine.frontend.capture import capture
from tolk_engine.frontend.control import fori_loop, scan, while_loop
from tolk_engine.frontend.evaluate import evaluate
from tolk_engine.frontend.fold import fold
from tolk_engine.frontend.foreign import CFunction
from tolk_engine.frontend.lower import lower
from tolk_engine.frontend.onnx import from_onnx
from tolk_engine.frontend.spec import Spec

__all__ = ["CFunction", "Spec", "capture", "evaluate", "fold", "fori_loop", "from_onnx", "lower", "scan", "while_loop"]
