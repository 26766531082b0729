"""The rules of order: addresses and handles stand only where their memory is named; rails have an end."""

from __future__ import annotations

from typing import Any

import pytest
from checks import DEVICES, READ, accepted, hole, holes, launch, program, rails, refused, slot, submit, view

from rig.program import description as d
from rig.program.check import check

# Rails.


@pytest.mark.spec("P-rail-missing")
def test_rails_are_given() -> None:
    for given, why in ((rails, "gives none"), (None, "no rails were given")):
        missing = program(memory=(d.Rail(6, d.Area.OUTBOUND),))
        refused(missing, "memory[0]", "rail 6 has no end", why, given=given)
        fill = program(submit(d.Fill(d.Ready(7), d.Data())), memory=())
        refused(fill, "steps[0].parts[0].fill (fill)", "rail 7 has no end", why, given=given)
        held = program(memory=(d.Alloc(0, 64, holes(hole(d.Ready(6)))),))
        refused(held, "memory[0].init.holes[0].terms[0]", "rail 6 has no end", why, given=given)
    accepted(submit(d.Fill(d.Ready(5), d.Data())))


# Order.


@pytest.mark.spec("P-order-image-leaf")
@pytest.mark.parametrize("leaf", [d.Address(0, 0), d.Handle(0)])
def test_images_hold_no_address(leaf: d.Leaf) -> None:
    bad = program(submit(launch(), fixed=[view(0)]), images=(d.Image(0, holes(hole(leaf))),))
    found = f"an image holds the {type(leaf).__name__} of memory 0"
    refused(bad, "images[0].binary.holes[0].terms[0]", found, "not allowed in images")


def with_leaf(leaf: Any, device: int = 0, **more: Any) -> list[tuple[d.Program, str]]:
    """Return programs with a leaf at each place of a step's parts."""
    one = d.Fixed(1)
    image = {"image": device}
    return [
        (
            program(submit(launch(holes(hole(leaf)), **image), device=device, **more)),
            "steps[0].parts[0].params.holes[0].terms[0]",
        ),
        (
            program(submit(launch(groups=(leaf, one, one), **image), device=device, **more)),
            "steps[0].parts[0].groups[0]",
        ),
        (
            program(submit(launch(threads=(one, one, leaf), **image), device=device, **more)),
            "steps[0].parts[0].threads[2]",
        ),
        (program(submit(launch(shared=leaf, **image), device=device, **more)), "steps[0].parts[0].shared"),
        (
            program(submit(d.Fill(d.Ready(5), holes(hole(leaf))), device=device, **more)),
            "steps[0].parts[0].params.holes[0].terms[0] (fill)",
        ),
    ]


@pytest.mark.spec("P-order-address", "P-order-wholly")
def test_addresses_stand_where_their_memory_is_fixed_whole() -> None:
    address = d.Address(0, 0)
    for good, _ in with_leaf(address, fixed=[view(1), view(0)]):
        check(good, DEVICES, rails)
    for views in ([], [view(1)], [view(0, 0, 63)], [view(0, 1, 63)], [view(0, 0, 32), view(0, 32, 32)]):
        for bad, place in with_leaf(address, fixed=views):
            refused(bad, place, "memory 0", "not fixed whole", "all 64 bytes of memory 0")
    named = submit(launch(holes(hole(address, 8)), [d.Ref(0, 0, READ)]), slots=[slot(0)])
    refused(program(named), "steps[0].parts[0].params.holes[0].terms[0] (launch of 'f')", "not fixed whole")
    for bad, place in with_leaf(d.Address(0, 1), fixed=[view(0)]):
        refused(bad, place, "one of device 1 (far)", "runs on device 0 (host)")
    for good, _ in with_leaf(d.Address(0, 1), device=1, fixed=[view(0)]):
        check(good, DEVICES, rails)


@pytest.mark.spec("P-order-address")
def test_addresses_of_two_copies_and_of_rails_may_stand_in_steps() -> None:
    for memory in (2, 3):
        for good, _ in with_leaf(d.Address(memory, 0), fixed=[view(memory)]):
            check(good, DEVICES, rails)


@pytest.mark.spec("P-order-address", "P-order-wholly", "P-order-names")
def test_handles_stand_where_their_memory_is_named_whole() -> None:
    handle = d.Handle(0)
    for good, _ in with_leaf(handle, fixed=[view(0)]):
        check(good, DEVICES, rails)
    for bad, place in with_leaf(handle, fixed=[view(0, 0, 63)]):
        refused(bad, place, "memory 0", "Handle", "not named whole", "all 64 bytes of memory 0")
    params = holes(hole(handle, 8))
    accepted(submit(launch(params, [d.Ref(0, 0, READ)]), slots=[slot(0)]))
    accepted(submit(launch(params), d.Words(view(0))))
    for step in (
        submit(launch(params, [d.Ref(0, 0, READ)]), slots=[slot(0, 0, 32)]),
        submit(launch(params), d.Words(view(0, 32, 32))),
    ):
        refused(program(step), "steps[0].parts[0].params.holes[0].terms[0]", "not named whole")


@pytest.mark.spec("P-order-trips")
def test_trips_hold_no_address_and_handles_of_the_flag() -> None:
    def loop(trips: Any, flag: Any = None) -> d.Program:
        return program(submit(launch(), fixed=[view(0)]), d.Loop(trips, (), None, flag))

    refused(loop(d.Address(0, 0), (slot(0), 0)), "steps[1].trips", "Address of memory 0", "no Address is allowed")
    check(loop(d.Handle(0), (slot(0), 0)), DEVICES, rails)
    check(loop(d.Entry(0, "f")), DEVICES, rails)
    for flag in (None, (slot(0, 0, 63), 0), (slot(1), 0), (d.InputSlot(0), 0)):
        refused(
            loop(d.Handle(0), flag), "steps[1].trips", "memory 0", "not named whole by the loop's flag", "all 64 bytes"
        )


INIT = (
    d.Alloc(0, 64, holes(hole(d.Handle(1)), hole(d.Handle(2), 8), hole(d.Handle(0), 16))),
    d.Alloc(0, 64),
    d.Alloc(0, 64),
)


@pytest.mark.spec("P-order-init", "P-order-names")
def test_a_submit_names_whole_what_an_init_it_names_reaches() -> None:
    refs = [d.Ref(0, 0, READ)]
    namers = {
        "fixed": lambda *others: submit(launch(), fixed=[view(0, 4, 4), *others]),
        "slot": lambda *others: submit(launch(refs=refs), slots=[slot(0, 4, 4)], fixed=others),
        "words": lambda *others: submit(d.Words(view(0, 4, 4)), fixed=others),
    }
    for namer in namers.values():
        check(program(namer(view(1), view(2)), memory=INIT), DEVICES)
        for others, missing in (([], 1), ([view(1)], 2), ([view(1), view(2, 0, 32)], 2)):
            bad = program(d.Loop(d.Fixed(1), (namer(*others),)), memory=INIT)
            reason = f"init holds an Address or a Handle of memory {missing}"
            refused(bad, "steps[0].body[0]", "names memory 0", reason, f"all 64 bytes of memory {missing}")
    check(program(submit(launch(), fixed=[view(1)]), d.Move(slot(0), (), slot(1), (), 4), memory=INIT), DEVICES)


@pytest.mark.spec("P-order-init-address")
def test_an_address_in_an_init_is_of_memory_a_submit_of_that_device_fixes_whole() -> None:
    def memory(on: int) -> tuple[d.Memory, ...]:
        return d.Alloc(0, 64, holes(hole(d.Address(1, on)))), d.Alloc(0, 64)

    at = "memory[0].init.holes[0].terms[0]"
    far = submit(launch(image=1), device=1, fixed=[view(1)])
    here = submit(launch(), fixed=[view(1)])
    check(program(here, memory=memory(0)), DEVICES)
    check(program(d.Loop(d.Fixed(0), (far,)), memory=memory(1)), DEVICES)
    for steps, on, name in (
        ((), 0, "device 0 (host)"),
        ((far,), 0, "device 0 (host)"),
        ((here,), 1, "device 1 (far)"),
        ((submit(launch(), fixed=[view(1, 0, 32)]),), 0, "device 0 (host)"),
        ((submit(launch(refs=[d.Ref(0, 0, READ)]), slots=[slot(1)]),), 0, "device 0 (host)"),
    ):
        refused(program(*steps, memory=memory(on)), at, "memory 1", f"no submit on {name}", "all 64 bytes of memory 1")
    own = (d.Alloc(0, 64, holes(hole(d.Address(0, 0)))),)
    refused(program(memory=own), "memory[0].init.holes[0].terms[0]", "memory 0", "fixed whole by no submit")
    check(program(submit(launch(), fixed=[view(0)]), memory=own), DEVICES)


def test_structure_comes_before_order() -> None:
    broken = program(
        submit(launch(holes(hole(d.Address(0, 0))))),
        submit(device=9),
        images=(d.Image(0, holes(hole(d.Handle(0)))),),
    )
    refused(broken, "steps[1]", "device is 9")
