"""Programs as bytes: one encoding for each description, and a place for each fault."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from programs import PREAMBLE, body_of, everything, nested, sealed

from rig.errors import FormatError, Invalid
from rig.program.codec import FORMAT_VERSION, of_bytes, to_bytes
from rig.program.description import (
    Address,
    Alloc,
    Area,
    Copy,
    Data,
    Fixed,
    Hole,
    Image,
    Input,
    InputSlot,
    Int,
    Launch,
    Loop,
    MemorySlot,
    Move,
    Program,
    Rail,
    Ref,
    Submit,
    Term,
    Use,
    View,
    Width,
)


def submit(*parts: Any) -> Program:
    return Program(("x86-64-v3",), steps=(Submit(0, parts),))


def launch(**changes: Any) -> Launch:
    return Launch(**{"image": 0, "name": "f", "params": Data(bytes(8)), **changes})


@pytest.mark.spec("P-data-bytes", "P-data-index")
def test_round_trip_of_every_type() -> None:
    program = everything()
    encoded = to_bytes(program)
    decoded = of_bytes(encoded)
    assert decoded == program
    assert hash(decoded) == hash(program)
    assert to_bytes(decoded) == encoded
    assert of_bytes(bytearray(encoded)) == program


@pytest.mark.spec("P-data-bytes")
def test_equal_descriptions_give_equal_bytes() -> None:
    code = b"code" * 40
    one = Program(("a",), images=(Image(0, Data(code)),))
    two = Program(("a",), images=(Image(0, Data(memoryview(b"xx" + code)[2:])),))
    assert one == two
    assert to_bytes(one) == to_bytes(two)
    other = Program(("a",), images=(Image(0, Data(code[:-1] + b"!")),))
    assert to_bytes(other) != to_bytes(one)


@pytest.mark.spec("P-data-bytes")
def test_another_process_gives_the_same_bytes() -> None:
    encoded = to_bytes(everything())
    script = (
        "import sys, hashlib\n"
        "from rig.program.codec import of_bytes, to_bytes\n"
        "data = sys.stdin.buffer.read()\n"
        "program = of_bytes(data)\n"
        "assert to_bytes(program) == data\n"
        "print(len(program.steps), hashlib.sha256(to_bytes(program)).hexdigest())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], input=encoded, capture_output=True, check=True)
    assert done.stdout.split() == [
        str(len(everything().steps)).encode(),
        hashlib.sha256(encoded).hexdigest().encode(),
    ]


@pytest.mark.spec("P-data-bytes")
def test_blobs_are_views_of_the_bytes_at_multiples_of_64() -> None:
    first, second = b"\x01" * 65, b"\x02" * 3
    encoded = to_bytes(Program(("a",), images=(Image(0, Data(first)), Image(0, Data()), Image(0, Data(second)))))
    decoded = of_bytes(encoded)
    views = [image.binary.bytes for image in decoded.images]
    assert [bytes(view) for view in views] == [first, b"", second]
    assert isinstance(views[0], memoryview) and views[0].obj is encoded and views[0].readonly
    at = [encoded.index(first), encoded.index(second)]
    assert at[0] % 64 == 0 and at[1] == at[0] + 128
    assert len(encoded) == at[1] + len(second)


@pytest.mark.spec("P-data-version")
def test_another_version_is_refused_before_anything_else() -> None:
    encoded = bytearray(to_bytes(everything()))
    encoded[8:12] = (7).to_bytes(4, "little")
    for data in (encoded, encoded[:12], encoded[:-5]):
        with pytest.raises(FormatError, match=rf"version 7 .* version {FORMAT_VERSION}") as caught:
            of_bytes(data)
        assert caught.value.where == "byte 8"


@pytest.mark.spec("P-data-malformed")
@pytest.mark.parametrize("data", [b"PK\x03\x04" + bytes(100), b"x", bytes(64)])
def test_other_files_are_no_programs(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"no program: they start with .*, a program with .*RIGPRG") as caught:
        of_bytes(data)
    assert caught.value.where == "byte 0"


@pytest.mark.spec("P-data-malformed")
def test_every_cut_is_noticed() -> None:
    encoded = to_bytes(everything())
    for size in range(len(encoded)):
        with pytest.raises(FormatError) as caught:
            of_bytes(encoded[:size])
        assert caught.value.where == (f"byte {size}" if size < 64 else "byte 16")
    with pytest.raises(FormatError, match=f"has {len(encoded)} bytes, but {len(encoded) + 1} are here"):
        of_bytes(encoded + b"\0")


@pytest.mark.spec("P-data-malformed")
def test_every_flipped_byte_is_noticed() -> None:
    encoded = bytearray(to_bytes(everything()))
    for at in range(len(encoded)):
        encoded[at] ^= 0x10
        with pytest.raises(FormatError):
            of_bytes(encoded)
        encoded[at] ^= 0x10
    assert of_bytes(encoded) == everything()


PLAIN: list[Any] = [["x86-64-v3"], [], [], [], 0, []]


def with_steps(*steps: Any) -> list[Any]:
    return [*PLAIN[:5], list(steps)]


LAUNCH: list[Any] = [3, 0, "f", [[0, 0], []], [], [[4, 1]] * 3, [[4, 1]] * 3, [4, 0]]


@pytest.mark.spec("P-data-malformed")
@pytest.mark.parametrize(
    ("raw", "where", "part"),
    [
        ([], "program", "at least length 1"),
        ([*PLAIN, 1], "program", "at most length 6"),
        (7, "program", "Expected `array`, got `int`"),
        ([["a", 3], *PLAIN[1:]], "devices[1]", "Expected `str`, got `int`"),
        ([["a"], [[9, 0, 0]], [], [], 0, []], "memory[0]", "no kind has the tag 9"),
        ([["a"], [[1, 0, 5]], [], [], 0, []], "memory[0].area", "Invalid enum value 5"),
        ([["a"], [[0, 0, 1, [[0, 0], []], 3, 0]], [], [], 0, []], "memory[0].copies", "Invalid enum value 3"),
        ([["a"], [], [[0, [[0], []]]], [], 0, []], "images[0].binary.bytes", "[offset, length]"),
        ([["a"], [], [[0, ["x", []]]], [], 0, []], "images[0].binary.bytes", "[offset, length]"),
        ([["a"], [], [[0, [[64, 1], []]]], [], 0, []], "images[0].binary.bytes", "next blob is at 0"),
        ([["a"], [], [[0, [[64, 0], []]]], [], 0, []], "images[0].binary.bytes", "next blob is at 0"),
        ([["a"], [], [[0, [[0, -1], []]]], [], 0, []], "images[0].binary.bytes", "-1 bytes at 0"),
        ([["a"], [], [[0, [[0, 2**60], []]]], [], 0, []], "images[0].binary.bytes", "but the blobs have 0 bytes"),
        ([["a"], [], [], [[0]], 0, []], "inputs[0]", "length 2, got 1"),
        ([["a"], [], [], [], None, []], "ints", "Expected `int`, got `None`"),
        (with_steps([0, 0, [[*LAUNCH[:3], 7]]]), "steps[0].parts[0].params", "Expected `array`, got `int`"),
        (with_steps([0, 0, [[3, 0, "f", [[0, 0], [[0, 33, []]]]]]]), "steps[0].parts[0].params.holes[0].width", "33"),
        (with_steps([0, 0, [[*LAUNCH[:4], [[0, 0, 9]]]]]), "steps[0].parts[0].refs[0].use", "Invalid enum value 9"),
        (with_steps([0, 0, [[*LAUNCH[:5], [[4, 1]] * 2]]]), "steps[0].parts[0].groups", "length 3, got 2"),
        (with_steps([0, 0, [[*LAUNCH[:7], [8, 0]]]]), "steps[0].parts[0].shared", "no kind has the tag 8"),
        (with_steps([0, 0, [[1, [4, 0], [[0, 0], []]]]]), "steps[0].parts[0].fill", "no kind has the tag 4"),
        (with_steps([0, 0, [], [[0, [0, 0]]]]), "steps[0].slots[0].view", "length 3, got 2"),
        (with_steps([0, 0, [], [], [[[0, 0, "x"], 0]]]), "steps[0].fixed[0][0].length", "Expected `int`"),
        (with_steps([1, [2], [[[4, "x"], 1]], [2], [], 0]), "steps[0].src_offset[0].value.value", "Expected `int`"),
        (with_steps([2, [4, 1], [[2, [4, 1], [[5, 0]]]]]), "steps[0].body[0].body[0]", "no kind has the tag 5"),
        (with_steps([2, [4, 1], [], None, [[1, "x"], 0]]), "steps[0].flag[0].index", "Expected `int`, got `str`"),
    ],
)
def test_faults_name_their_place(raw: Any, where: str, part: str) -> None:
    with pytest.raises(FormatError) as caught:
        of_bytes(sealed(msgspec.msgpack.encode(raw)))
    assert caught.value.where == where
    assert part in str(caught.value)
    assert str(caught.value).startswith(where)


@pytest.mark.spec("P-data-malformed")
@pytest.mark.parametrize(
    ("body", "where", "part"),
    [
        (b"", "byte 64", "end inside"),
        (b"\x96\x90\x90\x90\x90\xcd\x00\x00\x90", "byte 69", "shortest form"),
        (b"\x96\x90\x90\x90\x90\xcf" + b"\xff" * 8 + b"\x90", "byte 69", "past signed 64 bits"),
        (b"\x96\x90\x90\x90\x90\xca\x00\x00\x00\x00\x90", "byte 69", "does not use"),
        (b"\x96\x90\x90\x90\x90\xc3\x90", "byte 69", "does not use"),
        (b"\x96\x90\x90\x90\x90\x00\x80", "byte 70", "does not use"),
        (b"\x91\xdd\xff\xff\xff\xff", "byte 65", "more elements than bytes are left"),
        (b"\x96\x91\xdb\xff\xff\xff\xff", "byte 66", "longer than the bytes that are left"),
        (b"\x96\x91\xa1\xff\x90\x90\x90\x00\x90", "byte 66", "not UTF-8"),
        (b"\x96\x90\x90\x90\x90\x00\x90\x90", "byte 71", "left over"),
        (b"\x91" * 1000 + b"\x90", "byte 203", "nested too deep"),
        (b"\x91\x90", "byte 64", "fields are left out"),
        (b"\x95\x90\x90\x90\x90\x00", "byte 64", "fields are left out"),
    ],
)
def test_bytes_that_are_no_one_encoding(body: bytes, where: str, part: str) -> None:
    with pytest.raises(FormatError) as caught:
        of_bytes(sealed(body))
    assert caught.value.where == where
    assert part in str(caught.value)


@pytest.mark.spec("P-data-malformed")
def test_gaps_are_zero_and_blobs_end_the_bytes() -> None:
    program = Program(("a",), images=(Image(0, Data(b"\x01" * 3)), Image(0, Data(b"\x02" * 3))))
    encoded = to_bytes(program)
    body = body_of(encoded)
    blobs = encoded[-67:]
    assert sealed(body, blobs) == encoded
    with pytest.raises(FormatError, match="the gap before the next blob holds 9, not zero") as caught:
        of_bytes(sealed(body, blobs[:10] + b"\x09" + blobs[11:]))
    assert caught.value.where == f"byte {len(encoded) - 67 + 10}"
    with pytest.raises(FormatError, match="gap") as caught:
        of_bytes(sealed(body, blobs, gap=b"\x01"))
    assert caught.value.where == f"byte {64 + len(body)}"
    with pytest.raises(FormatError, match="1 bytes follow the last blob") as caught:
        of_bytes(sealed(body, blobs + b"\0"))
    assert caught.value.where == f"byte {len(encoded)}"
    with pytest.raises(FormatError, match="but the blobs have 66 bytes") as caught:
        of_bytes(sealed(body, blobs[:-1]))
    assert caught.value.where == "images[1].binary.bytes"


@pytest.mark.spec("P-data-malformed")
def test_the_preamble_agrees_with_the_bytes() -> None:
    good = to_bytes(everything())
    magic, version, crc, total, length, blobs = PREAMBLE.unpack_from(good)
    for fields, where, part in [
        ((magic, version, crc ^ 1, total, length, blobs), "byte 12", "CRC-32C"),
        ((magic, version, crc, total + 1, length, blobs), "byte 16", "has"),
        ((magic, version, crc, total, 2**64 - 1, blobs), "byte 24", "does not fit"),
        ((magic, version, crc, total, length, blobs + 64), "byte 32", "after the body they start at"),
    ]:
        with pytest.raises(FormatError, match=part) as caught:
            of_bytes(PREAMBLE.pack(*fields) + good[64:])
        assert caught.value.where == where
    with pytest.raises(FormatError, match="unused end of the preamble") as caught:
        of_bytes(sealed(body_of(good), good[blobs:], reserved=b"\x01"))
    assert caught.value.where == "byte 40"


@pytest.mark.spec("P-data-malformed")
def test_loops_nest_to_a_bound() -> None:
    deepest = nested(64, launch(params=Data(bytes(8), (Hole(0, Width.W64, (Term(Int(0), 1),)),))))
    assert of_bytes(to_bytes(deepest)) == deepest
    with pytest.raises(Invalid, match=r"steps\[0\](\.body\[0\]){64}: a loop inside 64 others; at most 64"):
        to_bytes(nested(65))
    raw = msgspec.msgpack.encode(nested(65))
    with pytest.raises(FormatError, match="more than 64 loops") as caught:
        of_bytes(sealed(raw))
    assert caught.value.where == "steps"
    with pytest.raises(FormatError, match="nested too deep"):
        of_bytes(sealed(msgspec.msgpack.encode(nested(200))))


@pytest.mark.spec("P-data-malformed")
def test_decoding_needs_contiguous_bytes() -> None:
    with pytest.raises(Invalid, match="contiguous bytes, not from str"):
        of_bytes("text")
    with pytest.raises(Invalid, match="contiguous bytes"):
        of_bytes(memoryview(to_bytes(everything()))[::2])


@pytest.mark.spec("P-data-malformed")
def test_decoding_does_not_check_meaning() -> None:
    nonsense = Program((), ints=-5, inputs=(Input(9, -1),), steps=(Submit(77, (Copy(8, (), 9, (), -1),)),))
    assert of_bytes(to_bytes(nonsense)) == nonsense


HALVES = memoryview(b"abcd").cast("H")


@pytest.mark.spec("P-data-bytes")
@pytest.mark.parametrize(
    ("program", "place", "part"),
    [
        (Program(("a",), ints=2**63), "ints", "9223372036854775808 is past a signed 64-bit integer"),
        (Program(("a",), ints=2**70), "ints", "past a signed 64-bit integer"),
        (Program(("a",), ints=-(2**63) - 1), "ints", "past a signed 64-bit integer"),
        (Program(("a",), ints=True), "ints", "bool True, not an integer"),
        (Program(("a",), ints=1.0), "ints", "float 1.0, not an integer"),  # type: ignore[arg-type]
        (Program(("a", b"b")), "devices[1]", "bytes b'b', not a string"),  # type: ignore[arg-type]
        (Program(("\ud800",)), "devices[0]", "lone surrogates"),
        (Program(["a"]), "program.devices"[8:], "list ['a'], not a tuple"),  # type: ignore[arg-type]
        (Program(("a",), steps=[]), "steps", "list [], not a tuple"),  # type: ignore[arg-type]
        (Program(("a",), memory=(Rail(0, 7),)), "memory[0].area", "7 is none of Area's [0, 1, 2]"),  # type: ignore[arg-type]
        (Program(("a",), memory=(None,)), "memory[0]", "NoneType None, not one of Alloc, Rail"),  # type: ignore[arg-type]
        (Program(("a",), images=(Image(0, Data(bytearray(3))),)), "images[0].binary.bytes", "bytearray"),  # type: ignore[arg-type]
        (Program(("a",), images=(Image(0, Data(memoryview(b"abcd")[::2])),)), "images[0].binary.bytes", "contiguous"),
        (Program(("a",), images=(Image(0, Data(HALVES)),)), "images[0].binary.bytes", "format 'H'"),
        (submit(launch(refs=(Ref(0, 0, 5),))), "steps[0].parts[0].refs[0].use", "none of Use's"),
        (submit(launch(groups=(Fixed(1), Fixed(1)))), "steps[0].parts[0].groups", "a tuple of 2, not of 3"),
        (submit(launch(shared=1)), "steps[0].parts[0].shared", "not one of Address, Handle, Entry, Ready, Fixed, Int"),
        (submit(launch(params=b"x")), "steps[0].parts[0].params", "bytes b'x', not Data"),
        (submit("part"), "steps[0].parts[0]", "str 'part', not one of Words, Fill, Copy, Launch"),
        (Program(("a",), steps=(Loop(Fixed(1), (), 1.5),)), "steps[0].trip", "float 1.5"),  # type: ignore[arg-type]
        (Program(("a",), steps=(Loop(Fixed(1), (), None, (InputSlot(0),)),)), "steps[0].flag", "a tuple of 1"),  # type: ignore[arg-type]
        (Program(("a",), steps=(Move(InputSlot(0), [], InputSlot(1), (), 1),)), "steps[0].src_offset", "list"),  # type: ignore[arg-type]
        (3, "program", "int 3, not Program"),
    ],
)
def test_what_cannot_be_encoded(program: Any, place: str, part: str) -> None:
    with pytest.raises(Invalid) as caught:
        to_bytes(program)
    assert str(caught.value).startswith(f"{place}: ")
    assert part in str(caught.value)
    assert not isinstance(caught.value, FormatError)


@pytest.mark.spec("P-data-index")
def test_extreme_integers_round_trip() -> None:
    numbers = [0, 31, 32, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1]
    numbers += [-n - 1 for n in numbers]
    program = Program(
        ("a",),
        (
            Alloc(0, 8, Data(b"", tuple(Hole(n, Width.W32, (Term(Address(n, n), n),), n, n) for n in numbers))),
            Rail(7, Area.COUNTS),
        ),
        steps=(Move(MemorySlot(View(0, 0, 1)), tuple(Term(Fixed(n), n) for n in numbers), InputSlot(0), (), 1),),
    )
    assert of_bytes(to_bytes(program)) == program
    assert Use.UNORDERED == 2


def test_long_strings_and_arrays_round_trip() -> None:
    names = (*("n" * size for size in (0, 31, 32, 255, 256, 65535, 65536)), "é€😀")
    program = Program(names, inputs=tuple(Input(i, 0) for i in range(70000)))
    assert of_bytes(to_bytes(program)) == program
