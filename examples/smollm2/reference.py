"""What SmolLM2-135M answers by NumPy in single precision: a second opinion that shares no code with the model."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from weights import BASE, EPSILON, GROUPS, HEAD, HEADS, HIDDEN, LAYERS, WIDTH, Gguf

Floats = npt.NDArray[np.float32]


class Reference:
    """The model over weights that are floats, one token at a time."""

    def __init__(self, gguf: Gguf) -> None:
        self.w = {name: gguf.floats(name) for name in gguf.tensors}
        self.past: list[tuple[list[Floats], list[Floats]]] = [([], []) for _ in range(LAYERS)]

    def logits(self, token: int, position: int) -> Floats:
        """Return the logits behind `token`, the next one in order."""
        x = self.w["token_embd.weight"][token].copy()
        for i in range(LAYERS):
            x = self._layer(f"blk.{i}.", x, position, *self.past[i])
        return np.asarray(self.w["token_embd.weight"] @ _normed(x, self.w["output_norm.weight"]), np.float32)

    def _layer(self, of: str, x: Floats, position: int, keys: list[Floats], values: list[Floats]) -> Floats:
        h = _normed(x, self.w[of + "attn_norm.weight"])
        q = _rotated((self.w[of + "attn_q.weight"] @ h).reshape(HEADS, HEAD), position)
        keys.append(_rotated((self.w[of + "attn_k.weight"] @ h).reshape(GROUPS, HEAD), position))
        values.append((self.w[of + "attn_v.weight"] @ h).reshape(GROUPS, HEAD))
        k, v = np.stack(keys), np.stack(values)
        mixed = np.empty((HEADS, HEAD), np.float32)
        for head in range(HEADS):
            group = head // (HEADS // GROUPS)
            scores = k[:, group] @ q[head] * HEAD**-0.5
            share = np.exp(scores - scores.max())
            mixed[head] = share / share.sum() @ v[:, group]
        x = x + self.w[of + "attn_output.weight"] @ mixed.reshape(WIDTH)
        h = _normed(x, self.w[of + "ffn_norm.weight"])
        gate, up = self.w[of + "ffn_gate.weight"] @ h, self.w[of + "ffn_up.weight"] @ h
        assert gate.shape == (HIDDEN,)
        return np.asarray(x + self.w[of + "ffn_down.weight"] @ (gate / (1 + np.exp(-gate)) * up), np.float32)


def answer(gguf: Gguf, prompt: list[int], count: int) -> list[int]:
    """Return the `count` likeliest tokens behind a prompt, one after the other, without an early end."""
    model = Reference(gguf)
    tokens = list(prompt)
    for position in range(len(prompt) + count - 1):
        logits = model.logits(tokens[position], position)
        if position + 1 == len(tokens):
            tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def _normed(x: Floats, weight: Floats) -> Floats:
    return np.asarray(x / np.sqrt((x * x).mean() + EPSILON) * weight, np.float32)


def _rotated(x: Floats, position: int) -> Floats:
    angles = position * BASE ** (-np.arange(0, HEAD, 2) / HEAD)
    turn = np.exp(1j * angles) * (x[:, 0::2] + 1j * x[:, 1::2])
    return np.stack([turn.real, turn.imag], -1).reshape(x.shape).astype(np.float32)
