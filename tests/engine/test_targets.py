"""Code for each target, taken apart: nothing in it is above the level that the image says it needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import hostcode
import pytest

from tolk_engine import image
from tolk_engine.compile import compile
from tolk_engine.compiler import compiler
from tolk_engine.target import parse

pytest.importorskip("tinygrad")
capstone = pytest.importorskip("capstone")

import corpus  # noqa: E402

# By the disassembler's names of extensions. Fused products and BMI's like have none of their own: these are told by
# their encoding, which begins with a byte that means nothing else in 64-bit code.
_ALWAYS = {"mode64", "branch_relative", "jump", "call", "ret", "cmov", "fpu", "sse1", "sse2"}
_V2 = _ALWAYS | {"sse3", "ssse3", "sse41", "sse42"}
_V3 = _V2 | {"avx", "avx2", "novlx", "bmi", "bmi2", "fc16", "fma"}
_V4 = _V3 | {"avx512", "vlx", "dqi", "bwi", "cdi"}
X86 = {"x86-64-v1": _ALWAYS, "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}
_FROM_V2, _FROM_V3 = {"popcnt", "cmpxchg16b", "lahf", "sahf"}, {"lzcnt", "tzcnt", "movbe", "andn", "bextr"}
_LEGACY = bytes([0x66, 0xF2, 0xF3, 0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, 0x67, 0xF0])
_VEX, _EVEX = (0xC4, 0xC5), 0x62
_ARM = {"jump", "branch_relative", "call", "return", "neon", "fparmv8"}
_ARM_FEATURES = {
    "bf16": r"bf\w+ ", "crc": r"crc32\w+ ", "dotprod": r"[us]dot ", "i8mm": r"(us|su|[us]m)(dot|mmla) ",
    "lse": r"(cas|swp|ld(add|clr|eor|set|[us]max|[us]min))\w* ", "rdm": r"sqrdml\w+ ", "sve": r".*\b[zp]\d+\b",
    "fp16": r"(?!fcvt[ln]?2? )(f|scvtf|ucvtf)\w* .*(\bh\d+\b|\.[48]h)",
}  # fmt: skip
"""What tells an instruction of a feature; conversions between half and the larger types are no feature."""


def functions(flat: image.Flat) -> Iterator[tuple[str, bytes]]:
    """Give each function's bytes, up to the next one or the first stub of an import."""
    starts = sorted((*flat.exports.values(), *(slot - 8 for slot in flat.imports.values()), len(flat.body)))
    for name, start in flat.exports.items():
        yield name, flat.body[start : next(at for at in starts if at > start)]


def instructions(flat: image.Flat) -> Iterator[Any]:
    """Give every instruction of the image; no byte of a function is anything else."""
    arm = flat.requires.startswith("arm64")
    mode = (capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM) if arm else (capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    decoder = capstone.Cs(*mode)
    decoder.detail = True
    for name, code in functions(flat):
        at = 0
        for found in decoder.disasm(code, 0):
            at += found.size
            yield found
        rest = code[at:]  # zeros up to the first stub of an import, if anything
        assert len(rest) < 16 and not any(rest), f"{name}: {rest[:8].hex()} at {at} is no instruction"


def above(flat: image.Flat) -> set[str]:
    """Return the instructions that are above what the image says it needs."""
    base, *features = flat.requires.split("+")
    if base == "arm64":
        return {text(i) for i in instructions(flat) if not names(i) <= _ARM or not needs(i) <= set(features)}
    return {text(i) for i in instructions(flat) if not names(i) <= X86[base] or encoding(i) > base or least(i) > base}


def text(i: Any) -> str:
    return f"{i.mnemonic} {i.op_str}"


def needs(i: Any) -> set[str]:
    """Return the features that an arm64 instruction needs."""
    return {feature for feature, form in _ARM_FEATURES.items() if re.match(form, text(i))}


def names(i: Any) -> set[str]:
    return {i.group_name(group) for group in i.groups}


def encoding(i: Any) -> str:
    """Return the level that the form of an x86 instruction needs."""
    first = bytes(i.bytes).lstrip(_LEGACY)[0]
    return "x86-64-v4" if first == _EVEX else "x86-64-v3" if first in _VEX else "x86-64-v1"


def least(i: Any) -> str:
    """Return the level that an x86 instruction's name and registers need."""
    registers = i.op_str.replace("{", " ").replace("}", " ").replace(",", " ").replace("[", " ").split()
    if any(r.startswith("zmm") or r in {f"k{n}" for n in range(8)} for r in registers):
        return "x86-64-v4"
    return "x86-64-v3" if i.mnemonic in _FROM_V3 else "x86-64-v2" if i.mnemonic in _FROM_V2 else "x86-64-v1"


@pytest.mark.case("C18")
@pytest.mark.parametrize(
    "arch", [*X86, "x86-64-v2,tune=native", "x86-64-v3,tune=native", "arm64", "arm64+dotprod+fp16"]
)
def test_no_instruction_is_above_the_target(arch: str) -> None:
    seen = 0
    names_ = ("numbers",) if "tune" in arch else ("casts", "numbers", "whole", "quantized", "half")
    for schedule in (corpus.several(), *map(corpus.schedule, names_)):
        flat = image.parse(compile(schedule, arch).image)
        assert flat.requires == arch.split(",")[0]
        assert above(flat) == set()
        seen += sum(1 for _ in instructions(flat))
    assert seen > 2000


@pytest.mark.case("C18")
def test_each_level_uses_what_it_has() -> None:
    """So that the test above does not pass because nothing of a level is ever chosen."""
    schedule = corpus.several()
    flats = {arch: image.parse(compile(schedule, arch).image) for arch in X86}
    used = {arch: {level for i in instructions(flat) for level in (encoding(i),)} for arch, flat in flats.items()}
    assert used["x86-64-v1"] == used["x86-64-v2"] == {"x86-64-v1"}
    assert used["x86-64-v3"] == {"x86-64-v1", "x86-64-v3"}
    assert used["x86-64-v4"] >= {"x86-64-v1", "x86-64-v4"}
    assert any("sse41" in names(i) for i in instructions(flats["x86-64-v2"]))


@pytest.mark.case("C18")
@pytest.mark.parametrize(("made", "said"), [("x86-64-v2", "x86-64-v1"), ("x86-64-v3", "x86-64-v2"),
                                            ("x86-64-v4", "x86-64-v3")])  # fmt: skip
def test_code_above_what_is_said_is_found(made: str, said: str) -> None:
    from tolk_engine.frontend import lower

    texts = [lower(kernel, parse(made)).text for kernel in corpus.several().kernels]
    assert above(image.parse(image.flat(compiler(parse(made)).object(texts), said)))


@pytest.mark.case("C18")
def test_arm_code_above_what_is_said_is_found() -> None:
    half = hostcode.binary("fadd").replace("float", "half").replace("align 4", "align 2")
    with_feature, without = (compiler(parse(arch)).object([half]) for arch in ("arm64+fp16", "arm64"))
    assert above(image.parse(image.flat(with_feature, "arm64")))
    assert above(image.parse(image.flat(with_feature, "arm64+dotprod")))
    assert above(image.parse(image.flat(with_feature, "arm64+fp16"))) == set()
    assert above(image.parse(image.flat(without, "arm64"))) == set()
    scalable = compiler(parse("arm64+sve")).object([hostcode.binary("fadd")])
    assert above(image.parse(image.flat(scalable, "arm64")))


@pytest.mark.case("C18")
def test_code_of_clang_is_not_above_the_target_either() -> None:
    from rig.errors import Refused
    from tolk_engine.clang import command

    try:
        command()
    except Refused as e:
        pytest.skip(str(e))
    for arch in (*X86, "x86-64-v2,tune=native", "arm64"):
        assert above(image.parse(compile(corpus.several(), arch, backend="clang").image)) == set()
