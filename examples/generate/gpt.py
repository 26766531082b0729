"""A small GPT whose whole generation, token by token, is one loop of one program.

The weights are random: what matters here is the form. `generate` takes the tokens so far, padded to the context's
length, and how many to continue to; each trip of the loop reads one token, adds a row to the caches of keys and values
in place, and writes the likeliest next token behind the prompt.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tinygrad import Tensor

import tolk_engine
from tolk_engine import Spec, Var

LAYERS, WIDTH, HEADS, VOCABULARY, CONTEXT = 4, 128, 4, 256, 128
HEAD = WIDTH // HEADS

Weights = dict[str, npt.NDArray[np.float32]]


def weights(seed: int = 0) -> Weights:
    """Return random weights, the same for one seed."""
    chance = np.random.default_rng(seed)

    def normal(*shape: int, scale: float) -> npt.NDArray[np.float32]:
        return (chance.standard_normal(shape) * scale).astype(np.float32)

    found = {
        "tokens": normal(VOCABULARY, WIDTH, scale=1.0), "positions": normal(CONTEXT, WIDTH, scale=1.0),
        "head": normal(WIDTH, VOCABULARY, scale=WIDTH**-0.5),
    }  # fmt: skip
    for i in range(LAYERS):
        found[f"qkv{i}"] = normal(WIDTH, 3 * WIDTH, scale=WIDTH**-0.5)
        found[f"out{i}"] = normal(WIDTH, WIDTH, scale=WIDTH**-0.5)
        found[f"up{i}"] = normal(WIDTH, 4 * WIDTH, scale=WIDTH**-0.5)
        found[f"down{i}"] = normal(4 * WIDTH, WIDTH, scale=(4 * WIDTH) ** -0.5)
    return found


def schedule(given: Weights) -> tolk_engine.Schedule:
    """Capture ``generate(tokens, prompt, length) -> tokens``."""
    w = {name: Tensor(value, device="CPU") for name, value in given.items()}

    def normed(x: Tensor) -> Tensor:
        centred = x - x.mean()
        return (centred * (centred.square().mean() + 1e-5).rsqrt()).contiguous()

    def layer(i: int, x: Tensor, at: Any, keys: Tensor, values: Tensor) -> Tensor:
        q, k, v = (normed(x) @ w[f"qkv{i}"]).contiguous().reshape(3, HEADS, HEAD).chunk(3)
        keys[at : at + 1] = k
        values[at : at + 1] = v
        past = Tensor.arange(CONTEXT).reshape(CONTEXT, 1) <= at
        scores = (keys * q).sum(2) * HEAD**-0.5
        share = past.where(scores, -1e30).softmax(0).contiguous()
        mixed = (share.reshape(CONTEXT, HEADS, 1) * values).sum(0).reshape(WIDTH)
        x = (x + mixed.contiguous() @ w[f"out{i}"]).contiguous()
        hidden = (normed(x) @ w[f"up{i}"]).gelu().contiguous()
        return (x + hidden @ w[f"down{i}"]).contiguous()

    def generate(tokens: Tensor, prompt: Any, length: Any) -> Tensor:
        def step(at: Any, carried: tuple[Tensor, list[Tensor], list[Tensor]]) -> Any:
            so_far, keys, values = carried
            x = (w["tokens"][so_far[at : at + 1].reshape(1)].reshape(WIDTH) + w["positions"][at]).contiguous()
            for i in range(LAYERS):
                x = layer(i, x, at, keys[i], values[i])
            best = (normed(x) @ w["head"]).contiguous().argmax().cast("int32").reshape(1)
            behind = so_far[at + 1 : at + 2]
            new = (Tensor(0) + (at + 1) < prompt).where(behind, best).contiguous()
            new.realize(*keys, *values)  # else what they are computed from would be computed anew behind the write
            so_far[at + 1 : at + 2] = new
            return so_far, keys, values

        caches = [[Tensor.zeros(CONTEXT, HEADS, HEAD, device="CPU") for _ in range(LAYERS)] for _ in range(2)]
        return tolk_engine.fori_loop(0, length - 1, step, (tokens, *caches))[0]

    lengths = Var("prompt", 1, CONTEXT), Var("length", 1, CONTEXT)
    return tolk_engine.capture(generate, Spec((CONTEXT,), "int32"), *lengths)


def reference(w: Weights, tokens: list[int], length: int) -> list[int]:
    """Return what NumPy generates, with all tokens so far in each step."""
    out = list(tokens)

    def normed(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        centred = x - x.mean(-1, keepdims=True)
        return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5), np.float32)

    while len(out) < length:
        x = w["tokens"][out] + w["positions"][: len(out)]
        for i in range(LAYERS):
            q, k, v = (normed(x) @ w[f"qkv{i}"]).reshape(-1, 3, HEADS, HEAD).transpose(1, 2, 0, 3)
            scores = q @ k.transpose(0, 2, 1) * HEAD**-0.5
            scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
            share = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (share / share.sum(-1, keepdims=True)) @ v
            x = x + mixed.transpose(1, 0, 2).reshape(-1, WIDTH) @ w[f"out{i}"]
            h = normed(x) @ w[f"up{i}"]
            x = x + (0.5 * h * (1 + np.tanh(0.7978845608 * (h + 0.044715 * h**3)))) @ w[f"down{i}"]
        out.append(int((normed(x)[-1] @ w["head"]).argmax()))
    return out
