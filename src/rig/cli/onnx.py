"""ONNX Runtime beside a model of rig: the same inputs, one thread unless told otherwise, memory bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rig.errors import Invalid, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rig.model.signature import Signature, Tensor

__all__ = ["Session"]


class Session:
    """An ONNX file ready to run: `run()` runs it once over bound memory; `version` is ONNX Runtime's."""

    def __init__(self, path: str, signature: Signature, inputs: Mapping[str, bytes | bytearray], threads: int) -> None:
        """Load `path` and bind `inputs`, by name where the names are the file's, else by position.

        `ImportError`: ONNX Runtime is not installed. `Invalid`: another number of inputs or outputs. `Refused`: what
        ONNX Runtime says no to.
        """
        try:
            import numpy as np
            import onnxruntime as ort  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            raise ImportError(
                f"--against onnx needs the package onnxruntime: pip install onnxruntime ({error})"
            ) from error
        self.version: str = ort.__version__
        self._np: Any = np
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        with open(path, "rb"):
            pass  # an OSError that names the file
        try:
            self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            self._binding = self._session.io_binding()
            self._kept: list[Any] = []
            for name, tensor in _matched(self._session.get_inputs(), signature.inputs, "inputs"):
                array = np.frombuffer(inputs[tensor.name], tensor.dtype).reshape(tensor.sizes)
                self._kept.append(array)
                self._binding.bind_cpu_input(name, array)
            self._outputs: dict[str, Any] = {}
            for name, tensor in _matched(self._session.get_outputs(), signature.outputs, "outputs"):
                array = self._outputs[tensor.name] = np.zeros(tensor.sizes, tensor.dtype)
                self._binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
            self.run()
        except Invalid:
            raise
        except Exception as error:  # ONNX Runtime has a class of its own for each of its codes
            raise Refused(f"{path}: ONNX Runtime does not run it with these inputs: {error}") from None

    def run(self) -> None:
        """Run once."""
        self._session.run_with_iobinding(self._binding)

    def difference(self, outputs: Mapping[str, bytearray]) -> float | None:
        """Return the largest difference of the outputs, as a part of the largest value; None if none is a number."""
        worst = 0.0
        for name, theirs in self._outputs.items():
            want = theirs.astype("float64")
            ours = self._np.frombuffer(outputs[name], theirs.dtype).reshape(theirs.shape).astype("float64")
            if theirs.size:
                largest = float(abs(want).max()) or 1.0
                worst = max(worst, float(abs(ours - want).max()) / largest)
        return None if worst != worst else worst


def _matched(theirs: Sequence[Any], tensors: Sequence[Tensor], kind: str) -> list[tuple[str, Tensor]]:
    """Pair the file's names with tensors: by name if all are there, else by position."""
    names = [one.name for one in theirs]
    if len(names) != len(tensors):
        raise Invalid(f"the ONNX file has {len(names)} {kind} ({', '.join(names)}), the model {len(tensors)}")
    by_name = {tensor.name: tensor for tensor in tensors}
    if set(names) == set(by_name):
        return [(name, by_name[name]) for name in names]
    return list(zip(names, tensors, strict=True))
