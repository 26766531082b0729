"""All rules in their order: those of devices, memory, images and inputs here, then those of steps, then of order."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rig.errors import Invalid

from .arch import runs, runs_what
from .description import Alloc, Rail
from .facts import Facts, fail, require_index, root
from .limits import I64_MAX
from .rules_data import check_data, image_values, init_values, require_blob
from .rules_order import check_order
from .rules_steps import check_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .description import Program
    from .facts import DeviceLike, Rails

__all__ = ["keep_rules"]


def keep_rules(p: Program, devices: Sequence[DeviceLike], rails: Rails | None) -> None:
    """Raise Invalid for the first rule that `p` breaks; see `rig.program.check`."""
    try:
        facts = Facts(p, devices, rails)
        _check_devices(facts)
        _check_memory(facts)
        _check_images(facts)
        _check_inputs(facts)
        check_steps(facts)
    except Invalid:
        raise
    except (AttributeError, OverflowError, TypeError, ValueError, struct.error):
        _raise_mistyped(p)
        raise
    check_order(facts)


def _raise_mistyped(p: object) -> None:
    """Raise Invalid if `p` holds a value that is not of its field's type, as only one made by hand can."""
    from .schema import mistyped

    found = mistyped(p)
    if found is not None:
        raise Invalid(f"{found[0]}: {found[1]}") from None


def _check_devices(facts: Facts) -> None:
    wanted, devices = facts.program.devices, facts.devices
    if len(devices) != len(wanted):
        raise Invalid(f"devices: {len(devices)} were given, the program is for {len(wanted)}")
    for index, (arch, device) in enumerate(zip(wanted, devices, strict=True)):
        first = devices[0]
        if device.host is not first.host and device.host != first.host:
            fail(
                root("devices", index),
                f"{device.name} is of machine {device.host.name}, {first.name} of machine {first.host.name}; "
                "devices of one machine are allowed",
            )
        if not runs(device.arch, arch):
            what = f"the code is for {arch!r}, but {device.name} runs {runs_what(device.arch)}"
            fail(root("devices", index), what)


def _check_memory(facts: Facts) -> None:
    memory = facts.program.memory
    for index, one in enumerate(memory):
        place = root("memory", index)
        if type(one) is Alloc:
            require_index(one.device, len(facts.devices), "its device", place)
            if not 0 <= one.nbytes <= I64_MAX:
                fail(place, f"nbytes is {one.nbytes}; 0 and more is allowed")
            require_blob(one.init.bytes)
            if len(one.init.bytes) > one.nbytes:
                fail(place, f"its init has {len(one.init.bytes)} bytes, more than its own {one.nbytes}")
            if one.copies != 1 and one.copies != 2:
                fail(place, f"copies is {one.copies}; ONE and TWO are allowed")
            if one.kind not in (0, 1, 2):
                fail(place, f"kind is {one.kind}; DEVICE, PINNED and MAPPED are allowed")
            facts.memory_sizes.append(one.nbytes)
            facts.two_copies.append(one.copies == 2)
        elif type(one) is Rail:
            if one.area not in (0, 1, 2):
                fail(place, f"area is {one.area}; OUTBOUND, INBOUND and COUNTS are allowed")
            facts.memory_sizes.append(facts.require_rail(one.rail, place).nbytes(one.area))
            facts.two_copies.append(False)  # a rail's own two copies are both inside its memory
        else:
            raise TypeError("not a memory")
    for index, one in enumerate(memory):
        if type(one) is Alloc and one.init.holes:
            check_data(facts, one.init, (root("memory", index), "init", None, None), init_values(facts, index))


def _check_images(facts: Facts) -> None:
    for index, image in enumerate(facts.program.images):
        place = root("images", index)
        require_index(image.device, len(facts.devices), "its device", place)
        require_blob(image.binary.bytes)
        facts.image_devices.append(image.device)
        if image.binary.holes:
            check_data(facts, image.binary, (place, "binary", None, None), image_values(facts, index))


def _check_inputs(facts: Facts) -> None:
    program = facts.program
    for index, one in enumerate(program.inputs):
        place = root("inputs", index)
        require_index(one.device, len(facts.devices), "its device", place)
        if not 0 <= one.nbytes <= I64_MAX:
            fail(place, f"nbytes is {one.nbytes}; 0 and more is allowed")
    if not 0 <= program.ints <= I64_MAX // 8:
        fail(root("ints"), f"{program.ints} words; 0 to {I64_MAX // 8} are allowed")
