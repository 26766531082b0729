"""Every rule that a description must keep before anything is made: the place, what was found, what is allowed."""

from __future__ import annotations

import time
from typing import Any

import pytest
from checks import (
    DEVICES,
    FAR,
    HOST,
    READ,
    UNORDERED,
    W32,
    W64,
    WRITE,
    FakeDevice,
    accepted,
    copy,
    fixed,
    hole,
    holes,
    launch,
    program,
    rails,
    refused,
    slot,
    submit,
    view,
)
from programs import nested

from rig.program import description as d
from rig.program.arch import runs
from rig.program.check import check
from rig.program.codec import of_bytes, to_bytes

# Devices.


@pytest.mark.spec("P-load-devices")
def test_as_many_devices_as_described() -> None:
    refused(program(), "devices", "2 were given", "is for 3", devices=DEVICES[:2])
    refused(d.Program(()), "devices", "3 were given", "is for 0")
    check(d.Program(()), ())


@pytest.mark.spec("P-load-devices")
def test_devices_of_one_machine() -> None:
    other = FakeDevice("there")
    refused(program(), "devices[2]", "there is of machine there", "host of machine host", devices=(HOST, FAR, other))


@pytest.mark.spec("P-load-devices")
def test_devices_run_the_arch() -> None:
    refused(
        program(devices=("x86-64-v4", "x86-64-v3", "sm_90")),
        "devices[0]",
        "'x86-64-v4'",
        "host runs",
        "up to x86-64-v3",
    )
    refused(program(devices=("x86-64-v3", "x86-64-v3", "sm_80")), "devices[2]", "'sm_80'", "gpu runs sm_90 only")
    check(program(devices=("x86-64-v1", "x86-64-v2", "sm_90")), DEVICES, rails)


@pytest.mark.spec("P-load-devices")
@pytest.mark.parametrize(
    ("have", "want", "good"),
    [
        ("x86-64-v3", "x86-64-v3", True),
        ("x86-64-v3", "x86-64-v1", True),
        ("x86-64-v3", "x86-64-v4", False),
        ("x86-64-v3", "x86-64-v0", False),
        ("x86-64-v3", "x86-64-v", False),
        ("x86-64-v3", "x86-64-v10", False),
        ("x86-64-v3", "arm64", False),
        ("arm64", "arm64", True),
        ("arm64+crc32+fp16", "arm64", True),
        ("arm64+crc32+fp16", "arm64+fp16", True),
        ("arm64+fp16", "arm64+crc32+fp16", False),
        ("arm64", "x86-64-v1", False),
        ("sm_90", "sm_80", False),
        ("", "", True),
        ("", "x86-64-v1", False),
    ],
)
def test_arch_rule(have: str, want: str, good: bool) -> None:
    assert runs(have, want) is good


# Memory, images, inputs, ints.


@pytest.mark.spec("P-load-index")
@pytest.mark.parametrize(
    ("changes", "place", "parts"),
    [
        ({"memory": (d.Alloc(3, 8),)}, "memory[0]", ["device is 3", "0 to 2 are allowed"]),
        ({"memory": (d.Alloc(-1, 8),)}, "memory[0]", ["device is -1", "0 to 2 are allowed"]),
        ({"memory": (d.Alloc(0, 8), d.Alloc(0, -1))}, "memory[1]", ["nbytes is -1", "0 and more"]),
        ({"memory": (d.Alloc(0, 2, d.Data(b"abc")),)}, "memory[0]", ["3 bytes", "more than its own 2"]),
        ({"images": (d.Image(9, d.Data()),)}, "images[0]", ["device is 9", "0 to 2 are allowed"]),
        ({"inputs": (d.Input(3, 8),)}, "inputs[0]", ["device is 3", "0 to 2"]),
        ({"inputs": (d.Input(0, -8),)}, "inputs[0]", ["nbytes is -8", "0 and more"]),
        ({"ints": -1}, "ints", ["-1 words", "0 to "]),
        ({"ints": 2**60}, "ints", [f"{2**60} words", f"0 to {2**60 - 1}"]),
    ],
)
def test_sizes_and_devices(changes: dict[str, Any], place: str, parts: list[str]) -> None:
    refused(program(**changes), place, *parts)


def init(*items: d.Hole, **more: Any) -> tuple[d.Memory, ...]:
    return (d.Alloc(0, 64, holes(*items), **more), d.Alloc(0, 64, copies=d.Copies.TWO), d.Alloc(0, 64))


@pytest.mark.spec("P-load-index")
def test_indices_in_inits_and_images() -> None:
    at = "memory[0].init.holes[0].terms[0]"
    refused(program(memory=init(hole(d.Address(3, 0)))), at, "Address's memory is 3", "0 to 2 are allowed")
    refused(program(memory=init(hole(d.Address(2, 3)))), at, "Address's device is 3", "0 to 2 are allowed")
    refused(program(memory=init(hole(d.Handle(-1)))), at, "Handle's memory is -1", "0 to 2 are allowed")
    refused(program(memory=init(hole(d.Entry(3, "f")))), at, "Entry's image is 3", "0 to 2 are allowed")
    accepted(memory=init(hole(d.Entry(2, "f"), factor=-5, add=7, shift=62)))
    image = d.Image(0, holes(hole(d.Entry(7, "f"))))
    refused(program(images=(image,)), "images[0].binary.holes[0].terms[0]", "Entry's image is 7", "0 to 0 are allowed")


@pytest.mark.spec("P-load-index", "P-value-leaf")
def test_inits_and_images_hold_leaves_alone() -> None:
    at = "memory[0].init.holes[0].terms[0]"
    refused(program(memory=init(hole(d.Int(0)))), at, "Int stands in an init", "leaves alone")
    refused(program(memory=init(hole(d.Fixed(0)))), at, "Fixed stands in an init", "leaves alone")
    image = d.Image(0, holes(hole(d.Int(0))))
    refused(program(images=(image,)), "images[0].binary.holes[0].terms[0]", "Int stands in an image", "leaves alone")


@pytest.mark.spec("P-load-onecopy")
def test_one_copy_names_no_two_copies() -> None:
    step = submit(launch(), fixed=[view(0), view(1)])
    at = "memory[0].init.holes[0].terms[0]"
    for leaf in (d.Address(1, 0), d.Handle(1)):
        refused(
            program(step, memory=init(hole(leaf))), at, f"{type(leaf).__name__} of memory 1", "two copies", "one copy"
        )
        accepted(step, memory=init(hole(leaf), copies=d.Copies.TWO))


@pytest.mark.spec("P-load-onecopy", "P-image-order")
def test_images_name_entries_of_earlier_images() -> None:
    def images(named: int) -> tuple[d.Image, ...]:
        return d.Image(0, d.Data()), d.Image(0, holes(hole(d.Entry(named, "f")))), d.Image(0, d.Data())

    accepted(images=images(0))
    for later in (1, 2):
        at = "images[1].binary.holes[0].terms[0]"
        refused(program(images=images(later)), at, f"entry of image {later}", "before 1 are allowed")


# Holes, wherever they stand.

SHIFT = pytest.mark.spec("P-hole-shift")
OVERLAP = pytest.mark.spec("P-hole-overlap")
OUTSIDE = pytest.mark.spec("P-hole-outside")
WRAP = pytest.mark.spec("P-hole-wrap")

HOLDERS = {
    "images[0].binary": lambda data: program(images=(d.Image(0, data),)),
    "memory[0].init": lambda data: program(memory=(d.Alloc(0, 64, data),)),
    "steps[0].parts[0].params": lambda data: program(submit(launch(data))),
    "steps[1].body[0].parts[1].params": lambda data: program(
        submit(launch()),
        d.Loop(d.Fixed(1), (submit(launch(), d.Fill(d.Ready(5), data)),)),
    ),
}


@pytest.mark.parametrize("where", HOLDERS)
@pytest.mark.parametrize(
    ("items", "place", "parts"),
    [
        pytest.param([d.Hole(0, W64, (), 0, 63)], "holes[0]", ["shift is 63", "0 to 62"], marks=SHIFT),
        pytest.param([d.Hole(0, W64, (), 0, -1)], "holes[0]", ["shift is -1", "0 to 62"], marks=SHIFT),
        pytest.param([d.Hole(0, W64, ()), d.Hole(7, W32, ())], "holes[1]", ["byte 7", "holes[0]"], marks=OVERLAP),
        pytest.param(
            [d.Hole(16, W64, ()), d.Hole(4, W64, ()), d.Hole(0, W64, ())],
            "holes[2]",
            ["byte 4", "holes[1]"],
            marks=OVERLAP,
        ),
        pytest.param([d.Hole(17, W64, ())], "holes[0]", ["8 bytes at byte 17", "24 bytes"], marks=OUTSIDE),
        pytest.param([d.Hole(21, W32, ())], "holes[0]", ["4 bytes at byte 21", "24 bytes"], marks=OUTSIDE),
        pytest.param([d.Hole(-1, W32, ())], "holes[0]", ["4 bytes at byte -1", "24 bytes"], marks=OUTSIDE),
        pytest.param([d.Hole(0, W32, (), 2**63)], "holes[0]", ["add is 92", "64-bit"], marks=WRAP),
    ],
)
def test_holes(where: str, items: list[d.Hole], place: str, parts: list[str]) -> None:
    refused(HOLDERS[where](holes(*items)), f"{where}.{place}", *parts)


@pytest.mark.spec("P-hole-shift", "P-hole-overlap", "P-hole-outside")
@pytest.mark.parametrize("where", HOLDERS)
def test_good_holes(where: str) -> None:
    good = holes(d.Hole(16, W64, (), -1, 62), d.Hole(4, W32, ()), d.Hole(8, W64, (), 3, 0), d.Hole(0, W32, ()))
    check(HOLDERS[where](good), DEVICES, rails)


# Submits and parts.


@pytest.mark.spec("P-load-index")
@pytest.mark.parametrize(
    ("step", "place", "parts"),
    [
        (submit(device=3), "steps[0]", ["device is 3", "0 to 2 are allowed"]),
        (submit(launch(image=3)), "steps[0].parts[0] (launch of 'f')", ["image is 3", "0 to 2 are allowed"]),
        (submit(launch(image=-1)), "steps[0].parts[0] (launch of 'f')", ["image is -1", "0 to 2 are allowed"]),
        (submit(slots=[slot(4)]), "steps[0].slots[0]", ["memory is 4", "0 to 3 are allowed"]),
        (submit(slots=[slot(0, 1, 64)]), "steps[0].slots[0]", ["64 bytes at byte 1", "memory 0", "64 bytes"]),
        (submit(slots=[slot(0, -1, 4)]), "steps[0].slots[0]", ["4 bytes at byte -1", "memory 0"]),
        (submit(slots=[slot(0, 4, -1)]), "steps[0].slots[0]", ["-1 bytes at byte 4", "memory 0"]),
        (submit(slots=[slot(3, 0, 65)]), "steps[0].slots[0]", ["memory 3, which has 64 bytes"]),
        (submit(slots=[d.InputSlot(2)]), "steps[0].slots[0]", ["input is 2", "0 to 1 are allowed"]),
        (submit(fixed=[view(0), view(0, 60, 5)]), "steps[0].fixed[1]", ["5 bytes at byte 60", "64 bytes"]),
        (submit(d.Words(view(9))), "steps[0].parts[0] (words)", ["memory is 9", "0 to 3"]),
        (submit(d.Fill(d.Entry(3, "f"), d.Data())), "steps[0].parts[0].fill (fill)", ["image is 3", "0 to 2"]),
        (submit(launch(holes(hole(d.Handle(4))))), "steps[0].parts[0].params.holes[0].terms[0]", ["memory is 4"]),
        (submit(launch(shared=d.Entry(4, "g"))), "steps[0].parts[0].shared", ["image is 4"]),
        (submit(launch(groups=(d.Fixed(1), d.Handle(-1), d.Fixed(1)))), "steps[0].parts[0].groups[1]", ["is -1"]),
        (d.Move(slot(5), (), slot(), (), 1), "steps[0].src", ["memory is 5", "0 to 3"]),
        (d.Move(slot(), (), d.InputSlot(-1), (), 1), "steps[0].dst", ["input is -1", "0 to 1"]),
        (d.Loop(d.Fixed(1), (submit(device=-1),)), "steps[0].body[0]", ["device is -1", "0 to 2"]),
        (d.Loop(d.Entry(5, "f"), ()), "steps[0].trips", ["image is 5", "0 to 2"]),
        (d.Loop(d.Fixed(1), (), None, (slot(0, 0, 65), 0)), "steps[0].flag", ["65 bytes at byte 0"]),
    ],
)
def test_indices_in_steps(step: Any, place: str, parts: list[str]) -> None:
    refused(program(step), place, *parts)


@pytest.mark.spec("P-load-index")
def test_empty_arrays_have_no_index() -> None:
    refused(
        d.Program(("x86-64-v3",), steps=(submit(launch()),)),
        "steps[0].parts[0]",
        "image is 0",
        "has none",
        devices=(HOST,),
    )
    step = submit(launch(refs=[d.Ref(0, 0, READ)]))
    refused(program(step), "steps[0].parts[0].refs[0] (launch of 'f')", "slot is 0", "the submit has none")


@pytest.mark.spec("P-load-ints", "P-value-int")
def test_ints_are_inside_the_ints() -> None:
    for index in (4, -1):
        found = [f"Int {index}", "the program has 4"]
        bad = d.Int(index)
        refused(program(submit(launch(holes(hole(bad))))), "steps[0].parts[0].params.holes[0].terms[0]", *found)
        refused(program(submit(launch(threads=(d.Fixed(1), d.Fixed(1), bad)))), "steps[0].parts[0].threads[2]", *found)
        refused(program(submit(launch(shared=bad))), "steps[0].parts[0].shared", *found)
        refused(program(d.Loop(bad, ())), "steps[0].trips", *found)
        moved = d.Move(slot(0), (d.Term(d.Fixed(0), 1), d.Term(bad, 1)), slot(1), (), 1)
        refused(program(moved), "steps[0].src_offset[1]", *found)
        both = submit(copy(dst_offset=(d.Term(bad, 1),)), slots=[slot(0), slot(1)])
        refused(program(both), "steps[0].parts[0].dst_offset[0] (copy)", *found)
        refused(program(d.Loop(d.Fixed(1), (), index)), "steps[0].trip", f"word {index}", "the program has 4")
    accepted(submit(launch(holes(hole(d.Int(3))), groups=(d.Int(0), d.Int(1), d.Int(2)))), d.Loop(d.Int(3), (), 3))


@pytest.mark.spec("P-part-image-device")
def test_a_launch_runs_an_image_of_its_device() -> None:
    step = submit(launch(image=1, name="add"))
    place = "steps[0].parts[0] (launch of 'add')"
    refused(program(step), place, "image 1 is code of device 1 (far)", "runs on device 0 (host)")
    accepted(submit(launch(image=1), device=1))


@pytest.mark.spec("P-part-params")
@pytest.mark.parametrize("size", [1, 2, 3, 5, 23])
def test_params_are_whole_words(size: int) -> None:
    step = submit(launch(), launch(bytes(size)))
    refused(program(step), "steps[0].parts[1].params (launch of 'f')", f"{size} bytes", "whole number of 32-bit words")
    step = submit(d.Fill(d.Ready(5), d.Data(bytes(size))))
    refused(program(step), "steps[0].parts[0].params (fill)", f"{size} bytes", "whole number of 32-bit words")


def test_params_of_32_bit_words_are_good() -> None:
    accepted(submit(launch(b""), launch(bytes(4)), launch(bytes(12))))


@pytest.mark.spec("P-part-fill-leaf")
def test_a_fill_calls_an_entry_or_a_ready() -> None:
    for leaf in (d.Address(0, 0), d.Handle(0), d.Fixed(1)):
        step = submit(d.Fill(leaf, d.Data()), fixed=[view(0)])  # type: ignore[arg-type]
        refused(program(step), "steps[0].parts[0].fill (fill)", type(leaf).__name__, "an Entry or a Ready is allowed")
    gpu = submit(d.Fill(d.Entry(2, "f"), d.Data()), device=2)
    refused(program(gpu), "steps[0].parts[0].fill", "image 2 is code of device 2 (gpu)", "host code")
    accepted(submit(d.Fill(d.Entry(0, "f"), d.Data()), d.Fill(d.Entry(1, "f"), d.Data()), d.Fill(d.Ready(5), d.Data())))


@pytest.mark.spec("P-part-slots")
def test_every_slot_is_named_and_in_one_way() -> None:
    def step(*uses: tuple[int, d.Use], parts: Any = ()) -> d.Submit:
        refs = [d.Ref(index, 8 * at, use) for at, (index, use) in enumerate(uses)]
        return submit(launch(bytes(64), refs), *parts, slots=[slot(0), slot(1, 0, 32)])

    accepted(step((0, READ), (1, UNORDERED)))
    accepted(step((0, READ), (0, WRITE), (1, UNORDERED), (1, UNORDERED)))
    accepted(step(parts=[copy()]))
    refused(program(step((0, READ))), "steps[0].slots[1]", "no ref and no copy")
    refused(program(step()), "steps[0].slots[0]", "no ref and no copy")
    for other in (READ, WRITE):
        mixed = step((0, READ), (1, UNORDERED), (1, other))
        refused(program(mixed), "steps[0].slots[1]", "an UNORDERED ref and", "one or the other is allowed")
    refused(program(step((0, UNORDERED), parts=[copy()])), "steps[0].slots[0]", "UNORDERED", "a copy")
    refused(program(step((0, READ), (2, READ))), "steps[0].parts[0].refs[1]", "slot is 2", "0 to 1 are allowed")
    refused(program(step((0, READ), (-1, READ))), "steps[0].parts[0].refs[1]", "slot is -1", "0 to 1 are allowed")
    refused(program(step(parts=[copy(src=2)])), "steps[0].parts[1] (copy)", "src is 2", "0 to 1 are allowed")
    refused(program(step(parts=[copy(dst=-1)])), "steps[0].parts[1] (copy)", "dst is -1", "0 to 1 are allowed")


@pytest.mark.spec("P-part-ref")
def test_refs_lie_in_the_parameters_apart() -> None:
    def step(*at: int, size: int = 24) -> d.Program:
        return program(submit(launch(bytes(size), [d.Ref(0, one, READ) for one in at]), slots=[slot(0)]))

    check(step(16, 0, 8), DEVICES, rails)
    check(step(4, 12), DEVICES, rails)
    refused(step(0, 17), "steps[0].parts[0].refs[1]", "8 bytes at byte 17", "24 bytes")
    refused(step(-4), "steps[0].parts[0].refs[0]", "8 bytes at byte -4", "24 bytes")
    refused(step(0, size=4), "steps[0].parts[0].refs[0]", "8 bytes at byte 0", "4 bytes")
    refused(step(0, 7), "steps[0].parts[0].refs[1]", "share byte 7 with refs[0]", "may not overlap")
    refused(step(16, 0, 12), "steps[0].parts[0].refs[2]", "share byte 16 with refs[0]", "may not overlap")
    refused(step(8, 8), "steps[0].parts[0].refs[1]", "share byte 8 with refs[0]")


def word(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


@pytest.mark.spec("P-part-ref")
def test_known_offsets_of_refs_lie_in_their_slot() -> None:
    def step(params: d.Data | bytes, one: Any) -> d.Program:
        return program(submit(launch(params, [d.Ref(0, 0, WRITE)]), slots=[one]))

    at = "steps[0].parts[0].refs[0] (launch of 'f')"
    part = slot(0, 8, 32)
    for good in (0, 32):
        check(step(word(good), part), DEVICES, rails)
        check(step(word(good), d.IntsSlot()), DEVICES, rails)
    refused(step(word(33), part), at, "offset 33 into slot 0", "0 to 32")
    refused(step(word(-1), part), at, "offset -1 into slot 0", "0 to 32")
    refused(step(word(33), d.IntsSlot()), at, "offset 33", "0 to 32")
    refused(step(word(-8), d.InputSlot(0)), at, "offset -8", "0 and more")
    check(step(word(10**9), d.InputSlot(0)), DEVICES, rails)


@pytest.mark.spec("P-part-ref", "P-hole-formula")
def test_offsets_of_refs_behind_holes() -> None:
    def step(*items: d.Hole, constant: bytes = bytes(8)) -> d.Program:
        return program(submit(launch(d.Data(constant, items), [d.Ref(0, 0, WRITE)]), slots=[slot(0, 0, 32)]))

    at = "steps[0].parts[0].refs[0]"
    check(step(hole(d.Int(0), factor=1000)), DEVICES, rails)
    check(step(hole(d.Fixed(4), factor=8)), DEVICES, rails)
    refused(step(hole(d.Fixed(4), factor=8, add=1)), at, "offset 33", "0 to 32")
    check(step(hole(d.Fixed(66), shift=1, add=-2)), DEVICES, rails)
    refused(step(hole(d.Fixed(1), 4, W32)), at, f"offset {2**32}")
    refused(step(hole(d.Fixed(32), width=W32), constant=word(1)), at, "offset 33")
    refused(step(hole(d.Fixed(-1), 4, W32)), at, f"offset {-(2**32)}")
    check(step(hole(d.Fixed(-1), width=W32, shift=60, add=17), constant=bytes(8)), DEVICES, rails)


# Copies and moves.


def both_ways(
    src: Any, dst: Any, length: int, src_offset: Any = (), dst_offset: Any = ()
) -> list[tuple[d.Program, str]]:
    """Return the same transfer as a copy part and as a move, each with its place."""
    part = submit(launch(), copy(length, src_offset, dst_offset), slots=[src, dst])
    return [
        (program(part), "steps[0].parts[1]"),
        (program(d.Move(src, src_offset, dst, dst_offset, length)), "steps[0]"),
    ]


@pytest.mark.spec("P-load-offset", "P-part-copy-offset", "P-move-copy")
@pytest.mark.parametrize(
    ("arguments", "field", "parts"),
    [
        ((slot(0), slot(1), -1), "", ["length is -1", "0 and more"]),
        ((slot(0), slot(1), 4, fixed(-1)), ".src_offset", ["offset is -1", "not be negative"]),
        ((slot(0), slot(1), 4, (), fixed(61)), ".dst_offset", ["4 bytes at byte 61", "64 bytes"]),
        ((slot(0, 8, 16), slot(1), 4, fixed(13)), ".src_offset", ["4 bytes at byte 13", "16 bytes"]),
        ((slot(0), slot(1), 65), ".src_offset", ["65 bytes at byte 0", "64 bytes"]),
        ((slot(0), d.IntsSlot(), 8, (), fixed(25)), ".dst_offset", ["8 bytes at byte 25", "32 bytes"]),
        ((d.InputSlot(0), slot(1), 4, fixed(-4)), ".src_offset", ["offset is -4", "not be negative"]),
        ((d.InputSlot(0), slot(1), 4, fixed(2**62, 2)), ".src_offset[0]", ["past a signed 64-bit integer"]),
        (
            (d.InputSlot(0), slot(1), 4, (*fixed(2**62), *fixed(2**62), *fixed(-(2**62)))),
            ".src_offset[1]",
            ["past a signed"],
        ),
        ((d.InputSlot(0), slot(1), 4, (*fixed(-(2**63)), *fixed(-1))), ".src_offset[1]", ["past a signed"]),
        ((d.InputSlot(0), slot(1), 8, fixed(2**63 - 8)), ".src_offset", ["8 bytes at byte", "64 bits"]),
        ((slot(0), slot(1), 4, fixed(1, 2**63)), ".src_offset[0]", ["factor is", "64-bit"]),
        (
            (slot(0), slot(1), 4, (d.Term(d.Handle(0), 1),)),
            ".src_offset[0]",
            ["Handle stands", "Fixed and Int are allowed"],
        ),
        ((slot(0), slot(1), 4, (), (*fixed(0), d.Term(d.Address(0, 0), 1))), ".dst_offset[1]", ["Address stands"]),
    ],
)
def test_offsets(arguments: tuple[Any, ...], field: str, parts: list[str]) -> None:
    for bad, place in both_ways(*arguments):
        refused(bad, place + field, *parts)


@pytest.mark.spec("P-load-offset", "P-part-copy-end", "P-part-copy-offset")
@pytest.mark.parametrize(
    "arguments",
    [
        (slot(0), slot(1), 64),
        (slot(0), slot(1), 0, fixed(64)),
        (slot(0, 8, 16), slot(1), 4, fixed(12)),
        (d.InputSlot(0), slot(1), 4, fixed(10**12)),
        (slot(0), slot(1), 4, (d.Term(d.Int(0), 2**62), *fixed(10**6))),
        (slot(0), slot(1), 4, (*fixed(2**62), *fixed(-(2**62)), *fixed(3, 4))),
        (slot(0), d.IntsSlot(), 8, (), fixed(24)),
    ],
)
def test_good_offsets(arguments: tuple[Any, ...]) -> None:
    for good, _ in both_ways(*arguments):
        check(good, DEVICES, rails)


@pytest.mark.spec("P-move-overlap")
@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ((slot(0), slot(0), 8), ["8 bytes at bytes 0 and 0 of memory 0"]),
        ((slot(0), slot(0), 8, fixed(7)), ["8 bytes at bytes 7 and 0 of memory 0"]),
        ((slot(0, 0, 32), slot(0, 16, 32), 20), ["20 bytes at bytes 0 and 16 of memory 0"]),
        ((slot(2, 8, 8), slot(2, 0, 16), 8, (), fixed(1)), ["8 bytes at bytes 8 and 1 of memory 2"]),
        ((d.IntsSlot(), d.IntsSlot(), 9, (), fixed(8)), ["9 bytes at bytes 0 and 8 of the ints"]),
        ((d.InputSlot(1), d.InputSlot(1), 8, fixed(100), fixed(104)), ["8 bytes at bytes 100 and 104 of input 1"]),
    ],
)
def test_ends_share_no_byte(arguments: tuple[Any, ...], parts: list[str]) -> None:
    for bad, place in both_ways(*arguments):
        refused(bad, place, *parts, "may not share a byte")


@pytest.mark.spec("P-move-overlap")
@pytest.mark.parametrize(
    "arguments",
    [
        (slot(0), slot(0), 8, fixed(8)),
        (slot(0, 0, 32), slot(0, 16, 32), 16),
        (slot(0), slot(0), 0),
        (slot(0), slot(0), 8, (d.Term(d.Int(0), 1),)),
        (slot(0), slot(2), 8),
        (d.InputSlot(0), d.InputSlot(1), 8),
        (d.IntsSlot(), d.IntsSlot(), 8, (), fixed(8)),
    ],
)
def test_ends_that_share_none(arguments: tuple[Any, ...]) -> None:
    for good, _ in both_ways(*arguments):
        check(good, DEVICES, rails)


# Loops.


@pytest.mark.spec("P-loop-flag-range")
def test_flags_lie_in_their_slot() -> None:
    def loop(one: Any, at: int) -> d.Program:
        return program(d.Loop(d.Fixed(1), (d.Loop(d.Fixed(1), (), None, (one, at)),)))

    for one, at in [(slot(0, 8, 16), 15), (d.IntsSlot(), 31), (d.InputSlot(0), 10**9)]:
        check(loop(one, at), DEVICES, rails)
    place = "steps[0].body[0].flag"
    refused(loop(slot(0, 8, 16), 16), place, "byte 16", "16 bytes")
    refused(loop(slot(0, 8, 16), -1), place, "byte -1", "16 bytes")
    refused(loop(slot(0, 8, 0), 0), place, "byte 0", "0 bytes")
    refused(loop(d.IntsSlot(), 32), place, "byte 32", "32 bytes")
    refused(loop(d.InputSlot(0), -1), place, "byte -1", "0 and more")


@pytest.mark.spec("P-loop-nested")
def test_loops_nest_to_a_bound() -> None:
    check(nested(64), (HOST,))
    refused(nested(65), "steps[0]" + ".body[0]" * 64, "64 other loops", "at most 64", devices=(HOST,))
    refused(nested(5000), "steps[0]" + ".body[0]" * 64, "at most 64", devices=(HOST,))


# Descriptions made by hand.


@pytest.mark.spec("P-load-index")
@pytest.mark.parametrize(
    ("bad", "place", "part"),
    [
        (program(submit(launch(image=0.0))), "steps[0].parts[0].image", "float 0.0, not an integer"),
        (program(submit("x")), "steps[0].parts[0]", "str 'x', not one of"),
        (program("x"), "steps[0]", "str 'x', not one of"),
        (program(submit(launch(name=b"f"))), "steps[0].parts[0].name", "not a string"),
        (program(submit(launch(d.Data([1, 2])))), "steps[0].parts[0].params.bytes", "not bytes"),  # type: ignore[arg-type]
        (program(submit(launch(groups=(d.Fixed(1),)))), "steps[0].parts[0].groups", "a tuple of 1, not of 3"),
        (program(submit(launch(shared=3))), "steps[0].parts[0].shared", "int 3"),
        (program(memory=(d.Alloc(0, 9, d.Data(bytearray(4))),)), "memory[0].init.bytes", "bytearray"),  # type: ignore[arg-type]
        (program(memory=("m",)), "memory[0]", "str 'm', not one of Alloc, Rail"),
        (program(images=(d.Image(0, d.Data("s")),)), "images[0].binary.bytes", "str 's'"),  # type: ignore[arg-type]
        (program(ints=None), "ints", "NoneType None"),
        ("program", "program", "str 'program', not Program"),
    ],
)
def test_values_of_other_types(bad: Any, place: str, part: str) -> None:
    refused(bad, place, part)


@pytest.mark.parametrize(
    ("step", "place", "part"),
    [
        (submit(launch(refs=[d.Ref(0, 0, 3)]), slots=[slot()]), "steps[0].parts[0].refs[0]", "use is 3"),  # type: ignore[arg-type]
        (d.Submit(0, (), (), ((view(), 2),)), "steps[0].fixed[0]", "access is 2"),  # type: ignore[arg-type]
        (submit(launch(holes(d.Hole(0, 16, ())))), "steps[0].parts[0].params.holes[0]", "width is 16"),  # type: ignore[arg-type]
        (submit(launch(shared=d.Fixed(2**63))), "steps[0].parts[0].shared", "past a signed 64-bit"),
    ],
)
def test_values_out_of_their_type(step: Any, place: str, part: str) -> None:
    refused(program(step), place, part)


@pytest.mark.parametrize(
    ("memory", "part"),
    [
        (d.Alloc(0, 8, copies=3), "copies is 3"),  # type: ignore[arg-type]
        (d.Alloc(0, 8, kind=3), "kind is 3"),  # type: ignore[arg-type]
        (d.Alloc(0, 2**63), "nbytes is 9223372036854775808"),
        (d.Rail(5, 3), "area is 3"),  # type: ignore[arg-type]
    ],
)
def test_memory_out_of_its_type(memory: d.Memory, part: str) -> None:
    refused(program(memory=(memory,)), "memory[0]", part)


# Speed: a load of many kernels must cost little.


def test_a_check_of_2000_kernels_is_quick() -> None:
    refs = (d.Ref(0, 0, READ), d.Ref(1, 8, READ), d.Ref(2, 16, WRITE))
    size = d.Fixed(16), d.Fixed(1), d.Fixed(1)
    parts = tuple(launch(bytes(24), refs, name=f"f{index}", threads=size) for index in range(2000))
    p = of_bytes(to_bytes(program(submit(*parts, slots=[slot(0), slot(1), d.InputSlot(0)]))))
    best = 1.0
    for _ in range(5):
        began = time.thread_time()
        check(p, DEVICES, rails)
        best = min(best, time.thread_time() - began)
    assert best < 0.060  # the goal is 6 us a kernel; five times that is a fault and no slow machine
