"""SmolLM2-135M over tinygrad tensors, with its token loop: one run reads a prompt and answers.

Weights stay quantised in memory and become floats inside the kernels. The caches of keys and values, and the tokens so
far, are the model's state: a run continues where the last one stopped, so that an answer can be shown as it comes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tinygrad import Tensor, dtypes
from weights import (
    EPSILON,
    GROUPS,
    HEAD,
    HEADS,
    HIDDEN,
    LAYERS,
    PANEL,
    VOCABULARY,
    WIDTH,
    Array,
    rotations,
)

import tolk_engine
from tolk_engine import Spec, Var

END = 2  # <|im_end|>


def halves(words: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two halves that 32-bit words hold, as floats."""
    low, high = words & 0xFFFF, words >> 16
    return tuple(w.cast(dtypes.uint16).bitcast(dtypes.float16).float() for w in (low, high))  # type: ignore[return-value]


def shifts(*counts: int) -> Tensor:
    """Return numbers of bits as unsigned words."""
    return Tensor(np.array(counts, np.uint32), device="CPU")


class SmolLM2:
    """The model over packed weights, for a context of so many tokens."""

    def __init__(self, packed: dict[str, Array], context: int) -> None:
        self.w = {name: Tensor(value, device="CPU") for name, value in packed.items()}
        self.context = context
        self.rotations = Tensor(rotations(context), device="CPU")
        # A word holds the nibbles of four numbers and, four bits up, of the four that come sixteen later.
        self.nibble = shifts(*(4 * half + 8 * byte for half in range(2) for byte in range(4))).reshape(1, 1, 2, 1, 4, 1)
        self.byte = shifts(0, 8, 16, 24)

    def times(self, name: str, x: Tensor, rows: int) -> Tensor:
        """Return a Q4_1 matrix of `rows` rows times vector x."""
        w, n, k = self.w[name], rows // PANEL, x.numel() // 32
        numbers = (w[:, :, 1:].reshape(n, k, 1, 4, 1, PANEL) >> self.nibble) & 15
        q = numbers.cast(dtypes.int32).float().reshape(n, k, 32, PANEL)
        scale, least = halves(w[:, :, 0])
        parts = x.reshape(1, k, 32, 1)
        sums = x.reshape(k, 32).sum(1).contiguous().reshape(1, k, 1)
        return ((q * parts).sum(2) * scale + least * sums).sum(1).reshape(rows).contiguous()

    def logits(self, x: Tensor) -> Tensor:
        """Return the Q8_0 embedding's rows times vector x."""
        n, k = VOCABULARY // PANEL, WIDTH // 32
        numbers = (self.w["bytes"].reshape(n, k, 8, 1, PANEL) >> self.byte.reshape(1, 1, 1, 4, 1)) & 255
        q = numbers.cast(dtypes.int32).float().reshape(n, k, 32, PANEL)
        bias = (x.reshape(k, 32).sum(1) * -128).contiguous().reshape(1, k, 1)
        return (((q * x.reshape(1, k, 32, 1)).sum(2) + bias) * self.w["scales"].float()).sum(1).reshape(VOCABULARY)

    def embedded(self, token: Tensor) -> Tensor:
        """Return the embedding's row of a token."""
        panel, row = token.reshape(1) // PANEL, token.reshape(1) % PANEL
        words = self.w["bytes"].permute(0, 3, 1, 2)[panel, row].reshape(WIDTH // 32, 8, 1)
        scales = self.w["scales"].permute(0, 2, 1)[panel, row].float().reshape(WIDTH // 32, 1)
        numbers = ((words >> self.byte.reshape(1, 1, 4)) & 255).cast(dtypes.int32).float().reshape(WIDTH // 32, 32)
        return ((numbers - 128) * scales).reshape(WIDTH).contiguous()

    def normed(self, name: str, x: Tensor) -> Tensor:
        """Return x over its root mean square, scaled."""
        return (x * (x.square().mean() + EPSILON).rsqrt() * self.w[name]).contiguous()

    def rotated(self, x: Tensor, at: Any) -> Tensor:
        """Return heads turned by their position: pairs are (0, 1), (2, 3), ..."""
        turn = self.rotations[at : at + 1].reshape(2, HEAD // 2)
        pairs = x.reshape(-1, HEAD // 2, 2)
        a, b = pairs[..., 0], pairs[..., 1]
        return Tensor.stack(a * turn[0] - b * turn[1], a * turn[1] + b * turn[0], dim=-1).reshape(-1, HEAD)

    def layer(self, i: int, x: Tensor, at: Any, keys: Tensor, values: Tensor) -> Tensor:
        """Return a layer's output for the token at position `at`, whose key and value are added to the caches."""
        h = self.times(f"qkv{i}", self.normed(f"attention_norm{i}", x), (HEADS + 2 * GROUPS) * HEAD)
        q, k, v = h.split([HEADS * HEAD, GROUPS * HEAD, GROUPS * HEAD])
        q = self.rotated(q, at).contiguous().reshape(GROUPS, HEADS // GROUPS, 1, HEAD)
        keys[:, at : at + 1] = self.rotated(k, at).reshape(GROUPS, 1, HEAD).contiguous()
        values[:, at : at + 1] = v.reshape(GROUPS, 1, HEAD).contiguous()
        scores = (q * keys.reshape(GROUPS, 1, self.context, HEAD)).sum(-1) * HEAD**-0.5
        past = Tensor.arange(self.context).reshape(1, 1, self.context) <= at
        share = past.where(scores, -1e30).softmax(-1).contiguous()
        mixed = (share.reshape(GROUPS, -1, self.context, 1) * values.reshape(GROUPS, 1, self.context, HEAD)).sum(2)
        x = (x + self.times(f"out{i}", mixed.reshape(WIDTH).contiguous(), WIDTH)).contiguous()
        gate, up = self.times(f"up{i}", self.normed(f"hidden_norm{i}", x), 2 * HIDDEN).split(HIDDEN)
        return (x + self.times(f"down{i}", (gate.silu() * up).contiguous(), WIDTH)).contiguous()

    def next(self, token: Tensor, at: Any, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """Return the likeliest token behind the one at position `at`."""
        x = self.embedded(token)
        for i in range(LAYERS):
            x = self.layer(i, x, at, keys[i], values[i])
        return self.logits(self.normed("norm", x)).contiguous().argmax().cast(dtypes.int32)


def schedule(packed: dict[str, Array], context: int) -> tolk_engine.Schedule:
    """Capture ``answer(tokens, begin, prompt, end) -> tokens``.

    `tokens` are the prompt's first `prompt` and what was answered so far. Positions `begin` to `end` - 1 are read, and
    what follows the prompt is written behind each; an end of the answer ends the run.
    """
    model = SmolLM2(packed, context)
    caches = [
        [Tensor(np.zeros((GROUPS, context, HEAD), np.float32), device="CPU") for _ in range(LAYERS)] for _ in range(2)
    ]

    def answer(tokens: Tensor, begin: Any, prompt: Any, end: Any) -> Tensor:
        def step(at: Any, carried: Any) -> Any:
            so_far, _, keys, values = carried
            best = model.next(so_far[at : at + 1], at, keys, values).reshape(1)
            behind = so_far[at + 1 : at + 2]
            given = Tensor(0) + (at + 1) < prompt
            new = given.where(behind, best).contiguous()
            new.realize(*keys, *values)  # else what they are computed from would be computed anew behind the write
            so_far[at + 1 : at + 2] = new
            return so_far, given.where(-1, new).cast(dtypes.int32), keys, values

        start = (tokens, Tensor(np.int32([-1]), device="CPU"), *caches)
        out, _, keys, values = tolk_engine.fori_loop(begin, end, step, start, cond=lambda c: c[1] != END)
        for kept, new in zip((*caches[0], *caches[1]), (*keys, *values), strict=True):
            kept.assign(new)
        return out

    places = [Var(name, 0, context - 1) for name in ("begin", "prompt", "end")]
    return tolk_engine.capture(answer, Spec((context,), "int32"), *places)
