"""A program's images: loaded in order, an earlier one's entries standing in a later one's bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernels import (
    SOURCE,
    binary,
    buffer,
    given,
    in_use,
    launch,
    load,
    on_host_code,
    opened,
    reads,
    run,
    submit,
    values,
    writes,
)

import rig
from rig.errors import Invalid, Refused
from rig.program import description as d

MARK = 0x5249475F484F4C45
OVER = (
    SOURCE
    + f"""
/* A hole of the image: load puts an earlier image's function here. */
__attribute__((section(".data"))) volatile u64 below = {MARK:#x}ull;
KERNEL(through) {{ ((void (*)(const u64 *, u64, u64))below)(w, begin, end); }}
KERNEL(what) {{ AT(0)[0] = below; }}
"""
)


def over(entry: d.Entry, width: d.Width = d.Width.W64) -> d.Data:
    """Return an image with a hole that holds `entry`."""
    code = binary(OVER)
    mark = MARK.to_bytes(8, "little")
    assert code.count(mark) == 1
    at = code.index(mark)
    return d.Data(code.replace(mark, bytes(8)), (d.Hole(at, width, (d.Term(entry, 1),)),))


@pytest.mark.spec("P-image-order", "P-leaf-entry", "P-hole-load")
@on_host_code
def test_image_over_an_earlier_one(kind: str) -> None:
    with opened(kind) as device:
        out = buffer(device, 30, 4, count=4)
        step = submit(
            0,
            launch("through", writes(0, 16), reads(0), reads(0, 8), image=1),
            launch("through", writes(0), reads(0), reads(0, 8), image=2),
            launch("what", writes(0, 24), image=2),
            slots=(given(0),),
        )
        images = [
            d.Image(0, d.Data(binary())),
            d.Image(0, over(d.Entry(0, "add"))),
            d.Image(0, over(d.Entry(1, "through"))),
        ]
        run(load([device], step, images=images, inputs=[(0, 32)]), [out])
        assert values(out)[:3] == [34, 4, 34]
        assert values(out)[3] != 0


@pytest.mark.spec("P-image-order", "P-load-onecopy")
def test_entry_of_the_image_itself_or_a_later_one() -> None:
    for entry in (1, 2):
        images = [d.Image(0, d.Data(binary())), d.Image(0, over(d.Entry(entry, "add"))), d.Image(0, d.Data(binary()))]
        with pytest.raises(Invalid, match=rf"^images\[1\]\.binary\.holes\[0\].*image {entry}; images load in order"):
            load([rig.host()], images=images)


@pytest.mark.spec("P-image-order", "P-load-refused", "P-load-atomic")
@on_host_code
def test_refused_image_names_device_and_leaves_nothing(kind: str) -> None:
    with opened(kind) as device:
        before, mapped = in_use(device), _mappings()
        good = d.Image(0, d.Data(binary()))
        for bad, why in (
            (b"\x93RIGIMG\n" + bytes(30), "flat image of 38 bytes, cut within its header"),
            (b"\x7fELF" + bytes(100), "shared library that does not load"),
            (b"code", "image of 4 bytes that is neither a flat image nor a shared library"),
            (b"", "image of 0 bytes"),
        ):
            with pytest.raises(Refused) as caught:
                load([device], images=[good, d.Image(0, d.Data(bad)), good], memory=[d.Alloc(0, 4096)])
            assert str(caught.value).startswith(f"{device.name}: {why}"), caught.value
            assert (in_use(device), _mappings()) == (before, mapped)
        with pytest.raises(Refused, match=rf"^{device.name}: the image has no function named missing"):
            load([device], images=[good, d.Image(0, over(d.Entry(0, "missing")))])
        assert _mappings() == mapped


def _mappings() -> int:
    """Count what is mapped of images."""
    return sum("rig-image" in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.spec("P-image-order")
def test_images_of_two_devices_do_not_share_state() -> None:
    """Each image is loaded anew, so that its own memory is its own."""
    source = SOURCE + "static u64 count;\nKERNEL(next) { AT(0)[0] = ++count; }"
    host = rig.host()
    images = [d.Image(0, d.Data(binary(source)))] * 2
    out = buffer(host, 0, 0)
    step = submit(
        0,
        launch("next", writes(0), image=0),
        launch("next", writes(0), image=0),
        launch("next", writes(0, 8), image=1),
        slots=(given(0),),
    )
    run(load([host], step, images=images, inputs=[(0, 16)]), [out])
    assert values(out) == [2, 1]
