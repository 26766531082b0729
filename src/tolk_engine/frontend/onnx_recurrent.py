"""The recurrent operators of ONNX: LSTM, GRU and RNN, a step after the other; tinygrad's reader has none of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tinygrad import Tensor

__all__ = ["GRU", "LSTM", "RNN"]

Function: TypeAlias = Callable[[Any], Any]
Step: TypeAlias = Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]
"""From a step's projected input and the states to the next states; the first of them is the output."""

_FUNCTIONS: dict[str, Function] = {
    "relu": lambda x: x.relu(), "sigmoid": lambda x: x.sigmoid(), "softplus": lambda x: x.softplus(),
    "softsign": lambda x: x.softsign(), "tanh": lambda x: x.tanh(),
}  # fmt: skip


def _activations(given: Sequence[str] | None, defaults: Sequence[str], directions: int) -> list[list[Function]]:
    """Return the functions of each direction."""
    names = [n.lower() for n in given or list(defaults) * directions]
    unknown = [n for n in names if n not in _FUNCTIONS]
    if unknown:
        raise NotImplementedError(f"activation {unknown[0]!r} is not supported: these are {', '.join(_FUNCTIONS)}")
    if len(names) == len(defaults):
        names *= directions
    count = len(defaults)
    return [[_FUNCTIONS[n] for n in names[d * count : (d + 1) * count]] for d in range(directions)]


class _Layer:
    """What the three operators share: directions, layout, lengths of sequences."""

    def __init__(self, X: Any, direction: str, layout: int, lengths: Any, clip: float | None) -> None:
        if clip:
            raise NotImplementedError("attribute 'clip' is not supported")
        self.x = X.transpose(0, 1) if layout else X
        self.layout = layout
        self.lengths = lengths
        self.backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction.lower()]
        self.count = len(self.backwards)

    def start(self, given: Any, at: int, size: int) -> Any:
        """Return a state's first value for direction `at`."""
        if given is None:
            return Tensor.zeros(self.x.shape[1], size, dtype=self.x.dtype, device=self.x.device)
        return given[:, at] if self.layout else given[at]

    def run(self, at: int, projected: Any, states: tuple[Any, ...], step: Step) -> tuple[list[Any], tuple[Any, ...]]:
        """Return the output after each step of direction `at`, in order of time, and the last states."""
        times = range(projected.shape[0])
        outputs: list[Any] = [None] * len(times)
        for t in reversed(times) if self.backwards[at] else times:
            after = step(projected[t], states)
            shown = after[0]
            if self.lengths is not None:  # a sequence that has ended keeps its states and gives zeros
                goes_on = (self.lengths > t).reshape(-1, 1)
                after = tuple(goes_on.where(new, old) for new, old in zip(after, states, strict=True))
                shown = goes_on.where(shown, 0)
            states = tuple(s.contiguous() for s in after)
            outputs[t] = states[0] if self.lengths is None else shown
        return outputs, states

    def results(self, outputs: list[list[Any]], last: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Return all outputs [steps, directions, batch, size] and each last state [directions, batch, size]."""
        every = Tensor.stack(*(Tensor.stack(*steps, dim=0) for steps in outputs), dim=1)
        states = [Tensor.stack(*(s[i] for s in last), dim=0) for i in range(len(last[0]))]
        if self.layout:
            return (every.permute(2, 0, 1, 3), *(s.transpose(0, 1) for s in states))
        return (every, *states)


def LSTM(
    X: Any, W: Any, R: Any, B: Any = None, sequence_lens: Any = None, initial_h: Any = None, initial_c: Any = None,
    P: Any = None, activations: Sequence[str] | None = None, activation_alpha: Any = None, activation_beta: Any = None,
    clip: float | None = None, direction: str = "forward", hidden_size: int = 0, input_forget: int = 0, layout: int = 0,
) -> tuple[Any, ...]:  # fmt: skip
    """Return all outputs, the last output and the last cell state; the gates are in, out, forget, cell."""
    layer = _Layer(X, direction, layout, sequence_lens, clip)
    size = R.shape[-1]
    functions = _activations(activations, ("sigmoid", "tanh", "tanh"), layer.count)
    outputs, last = [], []
    for d in range(layer.count):
        f, g, h = functions[d]
        peep = [None] * 3 if P is None else list(P[d].split(size))
        weight = R[d].transpose(0, 1)

        def step(
            x: Any, states: tuple[Any, ...], f: Function = f, g: Function = g, h: Function = h,
            peep: list[Any] = peep, weight: Any = weight,
        ) -> tuple[Any, ...]:  # fmt: skip
            i, o, forget, c = (x + states[0] @ weight).split(size, -1)
            before = states[1]
            i = f(i if peep[0] is None else i + peep[0] * before)
            forget = 1 - i if input_forget else f(forget if peep[2] is None else forget + peep[2] * before)
            cell = forget * before + i * g(c)
            return f(o if peep[1] is None else o + peep[1] * cell) * h(cell), cell

        projected = layer.x @ W[d].transpose(0, 1)
        if B is not None:
            projected = projected + B[d][: 4 * size] + B[d][4 * size :]
        states = (layer.start(initial_h, d, size), layer.start(initial_c, d, size))
        found = layer.run(d, projected.contiguous(), states, step)
        outputs.append(found[0])
        last.append(found[1])
    return layer.results(outputs, last)


def GRU(
    X: Any, W: Any, R: Any, B: Any = None, sequence_lens: Any = None, initial_h: Any = None,
    activations: Sequence[str] | None = None, activation_alpha: Any = None, activation_beta: Any = None,
    clip: float | None = None, direction: str = "forward", hidden_size: int = 0, layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Any, ...]:  # fmt: skip
    """Return all outputs and the last one; the gates are update, reset, hidden."""
    layer = _Layer(X, direction, layout, sequence_lens, clip)
    size = R.shape[-1]
    functions = _activations(activations, ("sigmoid", "tanh"), layer.count)
    outputs, last = [], []
    for d in range(layer.count):
        f, g = functions[d]
        gates, hidden = R[d][: 2 * size].transpose(0, 1), R[d][2 * size :].transpose(0, 1)
        inner = None if B is None else B[d][5 * size :]

        def step(
            x: Any, states: tuple[Any, ...], f: Function = f, g: Function = g, gates: Any = gates, hidden: Any = hidden,
            inner: Any = inner,
        ) -> tuple[Any, ...]:  # fmt: skip
            before = states[0]
            z, r = f(x[:, : 2 * size] + before @ gates).split(size, -1)
            if linear_before_reset:
                part = before @ hidden
                part = r * (part if inner is None else part + inner)
            else:
                part = (r * before) @ hidden
                part = part if inner is None else part + inner
            return ((1 - z) * g(x[:, 2 * size :] + part) + z * before,)

        projected = layer.x @ W[d].transpose(0, 1)
        if B is not None:
            bias = B[d][: 3 * size]
            projected = projected + bias + B[d][3 * size : 5 * size].pad((0, size))
        found = layer.run(d, projected.contiguous(), (layer.start(initial_h, d, size),), step)
        outputs.append(found[0])
        last.append(found[1])
    return layer.results(outputs, last)


def RNN(
    X: Any, W: Any, R: Any, B: Any = None, sequence_lens: Any = None, initial_h: Any = None,
    activations: Sequence[str] | None = None, activation_alpha: Any = None, activation_beta: Any = None,
    clip: float | None = None, direction: str = "forward", hidden_size: int = 0, layout: int = 0,
) -> tuple[Any, ...]:  # fmt: skip
    """Return all outputs and the last one."""
    layer = _Layer(X, direction, layout, sequence_lens, clip)
    size = R.shape[-1]
    functions = _activations(activations, ("tanh",), layer.count)
    outputs, last = [], []
    for d in range(layer.count):
        f, weight = functions[d][0], R[d].transpose(0, 1)

        def step(x: Any, states: tuple[Any, ...], f: Function = f, weight: Any = weight) -> tuple[Any, ...]:
            return (f(x + states[0] @ weight),)

        projected = layer.x @ W[d].transpose(0, 1)
        if B is not None:
            projected = projected + B[d][:size] + B[d][size:]
        found = layer.run(d, projected.contiguous(), (layer.start(initial_h, d, size),), step)
        outputs.append(found[0])
        last.append(found[1])
    return layer.results(outputs, last)
