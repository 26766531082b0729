"""From kernels' text to a flat image that runs anywhere."""

from __future__ import annotations

import ctypes
import re
import shutil
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import hostcode
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rig.errors import FormatError, Invalid, Refused
from tolk_engine import elf, image, relocate
from tolk_engine.compiler import compiler
from tolk_engine.llvm import Llvmlite
from tolk_engine.target import parse, target

on_x86 = pytest.mark.skipif(
    sys.platform != "linux" or not Path("/proc/cpuinfo").read_text().count("avx2"), reason="runs x86-64-v3 code"
)

TEXTS = [hostcode.binary("fadd"), hostcode.binary("fmul"), hostcode.add_constant(3.5)]


def build(texts: list[str], arch: str = "x86-64-v3") -> bytes:
    t = parse(arch)
    return image.flat(compiler(t).object(texts), t.requires, calling=int(t.windows))


def disassemble(body: bytes, tmp_path: Path, machine: str = "i386:x86-64") -> str:
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("objdump is not here")
    raw = tmp_path / "body"
    raw.write_bytes(body)
    command = [objdump, "-D", "-b", "binary", "-m", machine, str(raw)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@on_x86
def test_every_kernel_of_an_image_runs() -> None:
    code = hostcode.Loaded(build(TEXTS))
    assert list(code.exports) == ["f0", "f1", "f2"]
    a, b, out = hostcode.floats([1, 2, 3, 4, 5]), hostcode.floats([10, 20, 30, 40, 50]), hostcode.floats([0] * 5)
    words = [ctypes.addressof(x) for x in (out, a, b)]
    code.call("f0", words, 0, 5)
    assert list(out) == [11, 22, 33, 44, 55]
    code.call("f1", words, 1, 4)
    assert list(out) == [11, 40, 90, 160, 55]
    code.call("f2", words, 0, 5)
    assert list(out) == [4.5, 5.5, 6.5, 7.5, 8.5]
    code.call("f0", words, 3, 3)
    assert list(out) == [4.5, 5.5, 6.5, 7.5, 8.5]


@on_x86
def test_objects_join_into_one_image() -> None:
    c = compiler(parse("x86-64-v3"))
    parts = [c.object(TEXTS[:1]), c.object(TEXTS[1:], first=1)]
    code = hostcode.Loaded(image.flat(parts, "x86-64-v3"))
    a, out = hostcode.floats([1, 2]), hostcode.floats([0, 0])
    code.call("f2", [ctypes.addressof(out), ctypes.addressof(a)], 0, 2)
    assert list(out) == [4.5, 5.5]
    with pytest.raises(Invalid, match="two objects define 'f0'"):
        image.flat([parts[0], parts[0]], "x86-64-v3")


@on_x86
def test_an_imported_function_is_called_through_its_slot() -> None:
    data = build([hostcode.calls("truncf"), hostcode.calls("floorf")])
    flat = image.parse(data)
    assert sorted(flat.imports) == ["floorf", "truncf"]
    assert all(at % 8 == 0 and flat.body[at : at + 8] == bytes(8) for at in flat.imports.values())
    code = hostcode.Loaded(data)
    x, out = hostcode.floats([1.5, -1.5]), hostcode.floats([0, 0])
    words = [ctypes.addressof(out), ctypes.addressof(x)]
    code.call("f0", words, 0, 2)
    assert list(out) == [1, -1]
    code.call("f1", words, 0, 2)
    assert list(out) == [1, -2]


def test_an_import_that_no_loader_has_is_named() -> None:
    with pytest.raises(Refused, match=r"calls 'expf', which no loader has; known are .*truncf"):
        build([hostcode.calls("expf")])


def test_writable_data_is_named() -> None:
    text = "@__K__.state = internal global i32 7\n" + hostcode.kernel(
        "state", 1, "  %v = load i32, ptr @__K__.state\n  %n = add i32 %v, 1\n  store i32 %n, ptr @__K__.state\n"
        "  store i32 %n, ptr %p0, align 4"
    )  # fmt: skip
    with pytest.raises(Refused, match=r"section \.data holds 4 bytes that may be written"):
        build([text])


def test_an_absolute_address_is_refused() -> None:
    text = (
        "@__K__.table = internal constant [2 x ptr] [ptr @__K__.table, ptr null]\n"
        + hostcode.kernel("table", 1, "  %e = getelementptr [2 x ptr], ptr @__K__.table, i64 0, i64 %i\n"
                          "  %v = load ptr, ptr %e\n  store ptr %v, ptr %p0, align 8")
    )  # fmt: skip
    with pytest.raises(Refused, match=r"\.data\.rel\.ro"):
        build([text])


@on_x86
@pytest.mark.parametrize("align", [4, 16, 64, 256])
def test_read_only_data_keeps_its_alignment(align: int) -> None:
    values = ", ".join(f"float {i}.0" for i in range(40))
    text = f"@__K__.t = internal constant [40 x float] [{values}], align {align}\n" + hostcode.kernel(
        "table", 2, "  %e = getelementptr [40 x float], ptr @__K__.t, i64 0, i64 %i\n  %v = load float, ptr %e\n"
        + hostcode.at("p0", "o") + "  store float %v, ptr %o, align 4\n"
        "  %a = ptrtoint ptr @__K__.t to i64\n  store i64 %a, ptr %p1, align 8"
    )  # fmt: skip
    code = hostcode.Loaded(build([TEXTS[2], text]))
    out, where = hostcode.floats([0] * 40), (ctypes.c_uint64 * 1)()
    code.call("f1", [ctypes.addressof(out), ctypes.addressof(where)], 0, 40)
    assert list(out) == [float(i) for i in range(40)]
    assert where[0] % align == 0


@pytest.mark.spec("E-target-portable")
@pytest.mark.case("C18")
@pytest.mark.parametrize("arch", ["x86-64-v3", "x86-64-v3,tune=native"])
def test_level_3_code_has_no_instruction_above_it(arch: str, tmp_path: Path) -> None:
    wide = [hostcode.binary(op) for op in ("fadd", "fmul", "fdiv")]
    code = disassemble(image.parse(build(wide, arch)).body, tmp_path)
    assert "ymm" in code  # the level's own registers are used
    assert not re.search(r"zmm|\{%?k[0-7]\}|[xy]mm(1[6-9]|2\d|3[01])", code)


@pytest.mark.spec("E-target-portable")
def test_level_1_code_has_no_avx_and_level_4_has(tmp_path: Path) -> None:
    wide = [hostcode.binary(op) for op in ("fadd", "fmul", "fdiv")]
    one = disassemble(image.parse(build(wide, "x86-64-v1")).body, tmp_path)
    assert "xmm" in one
    assert not re.search(r"\bv[a-z]+(ps|ss|pd|sd)\b|ymm", one)
    four = disassemble(image.parse(build(wide, "x86-64-v4")).body, tmp_path)
    assert re.search(r"zmm|[xy]mm(1[6-9]|2\d|3[01])|ymm", four)


@pytest.mark.parametrize("arch", ["x86-64-v3,tune=native", "x86-64-v4", "x86-64-v4,tune=native"])
def test_loads_far_apart_are_no_gathers(arch: str, tmp_path: Path) -> None:
    body = "  %s = mul i64 %i, 7\n  %x = getelementptr inbounds float, ptr %p1, i64 %s\n" + hostcode.at("p0", "o")
    body += "  %l = load float, ptr %x, align 4\n  %m = fmul float %l, 3.0\n  store float %m, ptr %o, align 4"
    code = disassemble(image.parse(build([hostcode.kernel("apart", 2, body)], arch)).body, tmp_path)
    assert "gather" not in code


def test_tuning_resolves_the_processor_and_changes_no_level() -> None:
    plain, tuned = compiler(parse("x86-64-v3")), compiler(parse("x86-64-v3,tune=native"))
    assert plain.processor == ""
    assert tuned.processor
    assert f'"target-cpu"="x86-64-v3" "tune-cpu"="{tuned.processor}"' in tuned.module(TEXTS)
    assert "tune-cpu" not in plain.module(TEXTS)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('  call void asm sideeffect "vzeroall", ""()', "asm"),
        ("  %q = call float @llvm.x86.avx512.whatever(float 0.0)", "@llvm.x86."),
    ],
)
def test_a_text_that_could_raise_the_level_is_refused(line: str, found: str) -> None:
    with pytest.raises(Refused, match=f"kernel f0 uses {found!r}.*above x86-64-v3"):
        build([hostcode.kernel("odd", 1, line)])


def test_a_text_that_is_no_code_carries_llvms_reason() -> None:
    with pytest.raises(Refused, match=r"(?s)llvmlite .*kernels f0 to f0.*undefined value .%nowhere"):
        build([hostcode.kernel("bad", 1, "  store float %nowhere, ptr %p0")])


def test_windows_code_takes_its_arguments_in_windows_registers(tmp_path: Path) -> None:
    data = build([hostcode.add_constant(1.0)], "x86_64_windows,x86-64-v3")
    assert image.parse(data).calling == 1
    assert "(%rcx)" in disassemble(image.parse(data).body, tmp_path)
    assert image.parse(build([hostcode.add_constant(1.0)])).calling == 0


@pytest.mark.case("C22")
def test_equal_texts_give_equal_bytes() -> None:
    t = parse("x86-64-v3")
    assert build(TEXTS) == image.flat(Llvmlite(t).object(TEXTS), "x86-64-v3")


# arm64: built and taken apart, not run


def arm_image(texts: list[str]) -> image.Flat:
    return image.parse(build(texts, "arm64+dotprod+fp16"))


def test_arm64_calls_and_constants_are_resolved(tmp_path: Path) -> None:
    values = ", ".join(f"float {i}.0" for i in range(40))
    table = f"@__K__.t = internal constant [40 x float] [{values}], align 16\n" + hostcode.kernel(
        "table", 1, "  %e = getelementptr [40 x float], ptr @__K__.t, i64 0, i64 %i\n  %v = load float, ptr %e\n"
        + hostcode.at("p0", "o") + "  store float %v, ptr %o, align 4"
    )  # fmt: skip
    texts = [*TEXTS, table, hostcode.calls("truncf")]
    flat = arm_image(texts)
    assert flat.requires == "arm64+dotprod+fp16"
    assert list(flat.exports) == [f"f{i}" for i in range(5)]
    obj = elf.parse(compiler(parse("arm64+dotprod+fp16")).object(texts))
    kinds = {r.kind for r in obj.relocations if obj.sections[r.section].flags & elf.EXEC}
    assert 275 in kinds and kinds <= {275, 277, 278, 282, 283, 284, 285, 286, 299}
    # Follow each adrp pair by hand to the table.
    start = flat.body.index(struct.pack("<4f", 0, 1, 2, 3))
    assert start % 16 == 0
    words = struct.unpack_from(f"<{len(flat.body) // 4}I", flat.body)
    reached = set()
    for at, (first, second) in enumerate(pairwise(words)):
        if first & 0x9F000000 == 0x90000000 and second & 0xFFC00000 == 0x91000000:  # adrp; add
            page = ((first >> 5 & 0x7FFFF) << 2 | first >> 29 & 3) - ((first >> 23 & 1) << 21)
            reached.add((at * 4 & ~0xFFF) + page * 4096 + (second >> 10 & 0xFFF))
    assert start in reached


def test_arm64_features_bound_the_code() -> None:
    c = compiler(parse("arm64+fp16"))
    assert c.object(TEXTS) == Llvmlite(parse("arm64+fp16")).object(TEXTS)
    assert elf.parse(c.object(TEXTS)).machine == "arm64"
    with pytest.raises(Invalid, match="object 0 is code for arm64, but the image is to need 'x86-64-v3'"):
        image.flat(c.object(TEXTS), "x86-64-v3")


@given(at=st.integers(0, 1 << 20).map(lambda n: n * 4), to=st.integers(0, 1 << 22))
def test_arm64_page_addresses_add_up(at: int, to: int) -> None:
    body = bytearray(at + 8)
    struct.pack_into("<II", body, at, 0x90000001, 0x91000021)  # adrp x1; add x1, x1
    relocate.apply("arm64", 275, body, at, to, "x")
    relocate.apply("arm64", 277, body, at + 4, to, "x")
    first, second = struct.unpack_from("<II", body, at)
    assert (first & 0x9F00001F, second & 0xFFC003FF) == (0x90000001, 0x91000021)
    page = ((first >> 5 & 0x7FFFF) << 2 | first >> 29 & 3) - ((first >> 23 & 1) << 21)
    assert (at & ~0xFFF) + page * 4096 + (second >> 10 & 0xFFF) == to


def test_arm64_branches_reach_both_ways() -> None:
    body = bytearray(4096)
    struct.pack_into("<I", body, 2048, 0x94000000)  # bl
    for to in (0, 2048, 4092):
        relocate.apply("arm64", 283, body, 2048, to, "x")
        (word,) = struct.unpack_from("<I", body, 2048)
        offset = (word & 0x3FFFFFF) - ((word >> 25 & 1) << 26)
        assert (word >> 26, 2048 + offset * 4) == (0x25, to)
    with pytest.raises(Refused, match="'far' is out of reach"):
        relocate.apply("arm64", 283, body, 0, 1 << 28, "far")
    with pytest.raises(Refused, match="'odd' at 6 is not the start"):
        relocate.apply("arm64", 282, body, 0, 6, "odd")


@pytest.mark.parametrize(("kind", "unit"), [(278, 1), (284, 2), (285, 4), (286, 8), (299, 16)])
def test_arm64_loads_count_in_their_own_units(kind: int, unit: int) -> None:
    body = bytearray(b"\x20\x00\x40\x3d")
    relocate.apply("arm64", kind, body, 0, 4096 + 48, "x")
    (word,) = struct.unpack("<I", body)
    assert (word >> 10 & 0xFFF) * unit == 48
    assert word & ~0x003FFC00 == 0x3D400020
    if unit > 1:
        with pytest.raises(Refused, match=f"'x' at 49 is not aligned to {unit}"):
            relocate.apply("arm64", kind, body, 0, 49, "x")


@pytest.mark.parametrize(("machine", "kind"), [("x86_64", 1), ("x86_64", 42), ("arm64", 257), ("arm64", 9999)])
def test_other_relocations_are_refused_by_kind(machine: str, kind: int) -> None:
    with pytest.raises(Refused, match="of 'thing' is not position independent or unknown"):
        relocate.apply(machine, kind, bytearray(16), 0, 8, "thing")


@pytest.mark.parametrize(("to", "fits"), [((1 << 31) - 1, True), (1 << 31, False), (-(1 << 31), True)])
def test_x86_reach_is_32_bits(to: int, fits: bool) -> None:
    body = bytearray(8)
    if fits:
        relocate.apply("x86_64", 2, body, 0, to, "x")
        assert struct.unpack_from("<i", body)[0] == to
    else:
        with pytest.raises(Refused, match="out of reach"):
            relocate.apply("x86_64", 2, body, 0, to, "x")


# damaged input


@pytest.fixture(scope="module")
def object_file() -> bytes:
    return compiler(parse("x86-64-v3")).object(TEXTS)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_damaged_object_is_an_error_or_an_image(object_file: bytes, data: st.DataObject) -> None:
    raw = bytearray(object_file)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.one_of(st.just(len(raw)), st.integers(0, len(raw))))
    try:
        image.parse(image.flat(bytes(raw[:cut]), "x86-64-v3"))
    except (FormatError, Invalid, Refused) as e:
        assert str(e)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [(0, b"PE", "not an ELF object"), (4, b"\x01", "need \\(2, 1, 1\\)"), (16, b"\x03\x00", "type is 3, need 1"),
     (18, b"\x08\x00", "machine is 8"), (40, b"\xff\xff\xff\x7f", "do not fit")],
)  # fmt: skip
def test_a_foreign_object_says_what_differs(object_file: bytes, at: int, value: bytes, message: str) -> None:
    raw = bytearray(object_file)
    raw[at : at + len(value)] = value
    with pytest.raises(FormatError, match=message):
        elf.parse(bytes(raw))


def test_a_damaged_image_is_noticed() -> None:
    data = build(TEXTS)
    for at in (64, len(data) // 2, len(data) - 1):
        bad = bytearray(data)
        bad[at] ^= 1
        with pytest.raises(FormatError, match="checksum differs"):
            image.parse(bytes(bad))
    with pytest.raises(FormatError, match="not a flat image"):
        image.parse(b"")
    with pytest.raises(FormatError, match="version is 2, known is 1"):
        image.parse(data[:8] + b"\x02" + data[9:])
    with pytest.raises(FormatError, match="do not make"):
        image.parse(data[:-1])


def test_the_image_follows_its_description() -> None:
    """Read the header byte by byte, as a loader written from the description would."""
    data = build(TEXTS)
    flat = image.parse(data)
    assert data[:8] == b"\x93RIGIMG\n"
    (version, start, size, exports, imports, strings) = struct.unpack_from("<IIQIII", data, 8)
    assert (version, exports, imports) == (1, 3, 0)
    assert start % 64 == 0 and start + size == len(data)
    (need, n) = struct.unpack_from("<II", data, 36)
    table = data[64 + 16 * exports :][:strings]
    assert table[need : need + n] == b"x86-64-v3"
    assert data[52:64] == bytes(12)
    assert not any(data[64 + 16 * exports + strings : start])
    for i, name in enumerate([b"f0", b"f1", b"f2"]):
        at, length, offset = struct.unpack_from("<IIQ", data, 64 + 16 * i)
        assert table[at : at + length] == name
        assert flat.exports[name.decode()] == offset < size


# the compiler that is not there


@pytest.mark.spec("E-renderer")
def test_a_missing_llvmlite_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    with pytest.raises(Refused, match=r"needs llvmlite.*pip install 'rig-runtime\[tolk\]'"):
        Llvmlite(parse("x86-64-v3"))


@pytest.mark.spec("E-renderer")
def test_one_compiler_per_target() -> None:
    assert compiler(parse("x86-64-v3")) is compiler(parse("x86_64,x86-64-v3"))
    assert compiler(parse("x86-64-v3")) is not compiler(parse("x86-64-v2"))
    with pytest.raises(Invalid, match="CUDA 'sm_90' is no host target"):
        from test_target import X86, Record

        Llvmlite(target(Record("cuda", "sm_90", of=X86)))
