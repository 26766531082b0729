"""The kernels and programs that the works run, made by hand: no compiler of tensors is involved."""

from __future__ import annotations

from rig.program.description import (
    Access,
    Address,
    Alloc,
    Data,
    Fixed,
    Hole,
    Image,
    Input,
    InputSlot,
    Launch,
    Program,
    Ref,
    Submit,
    Term,
    Use,
    View,
    Width,
)

FLOATS = 16
NBYTES = 4 * FLOATS

_KERNEL = """
void k{i}(const uint64_t *words, uint64_t begin, uint64_t end) {{
    float *restrict out = (float *)words[0];
    const float *restrict in = (const float *)words[1];
    (void)begin, (void)end;
    for (int i = 0; i < 16; i++)
        out[i] = in[i] * 0.999f + {add}f;
}}
"""
_NOTHING = """
void k{i}(const uint64_t *words, uint64_t begin, uint64_t end) {{
    (void)words, (void)begin, (void)end;
}}
"""
_BUSY = """#include <stdint.h>
void k0(const uint64_t *words, uint64_t begin, uint64_t end) {
    volatile float x = *(const float *)words[1];
    for (uint64_t i = begin * 20000; i < end * 20000; i++)
        x = x * 0.5f + 1;
}
"""


def busy() -> str:
    """Return the C text of a kernel k0 that works for tens of microseconds an iteration and writes nothing."""
    return _BUSY


def kernels(count: int, *, empty: bool = False) -> str:
    """Return the C text of `count` kernels k0, k1, ... of 16 floats, each of its own; or of kernels that do nothing."""
    text = _NOTHING if empty else _KERNEL
    return "#include <stdint.h>\n" + "".join(text.format(i=i, add=f"{i + 1}e-3") for i in range(count))


def pointers(*memories: int) -> Data:
    """Return parameters that are the addresses of these memories, one word each, as the host sees them."""
    return Data(
        bytes(8 * len(memories)),
        tuple(Hole(8 * i, Width.W64, (Term(Address(m, 0), 1),)) for i, m in enumerate(memories)),
    )


def chain(arch: str, image: bytes, launches: int, distinct: int) -> Program:
    """Return a program of dependent kernels over two buffers, the last of which writes the run's input 0."""
    parts = [Launch(0, f"k{i % distinct}", pointers((i + 1) % 2, i % 2)) for i in range(launches - 1)]
    last = launches - 1
    source = last % 2
    to_input = Data(bytes(16), (Hole(8, Width.W64, (Term(Address(source, 0), 1),)),))
    parts.append(Launch(0, f"k{last % distinct}", to_input, (Ref(0, 0, Use.WRITE),)))
    both = tuple((View(m, 0, NBYTES), Access.READ_WRITE) for m in range(2))
    used = both if launches > 1 else both[:1]
    return Program(
        devices=(arch,),
        memory=(Alloc(0, NBYTES), Alloc(0, NBYTES))[: len(used)],
        images=(Image(0, Data(image)),),
        inputs=(Input(0, NBYTES),),
        steps=(Submit(0, tuple(parts), (InputSlot(0),), used),),
    )


def single(arch: str, image: bytes) -> Program:
    """Return a program of one kernel, k0, from input 1 to input 0."""
    refs = (Ref(0, 0, Use.WRITE), Ref(1, 8, Use.READ))
    launch = Launch(0, "k0", Data(bytes(16)), refs)
    return Program(
        devices=(arch,),
        images=(Image(0, Data(image)),),
        inputs=(Input(0, NBYTES), Input(0, NBYTES)),
        steps=(Submit(0, (launch,), (InputSlot(0), InputSlot(1))),),
    )


def relay(archs: tuple[str, str], images: tuple[bytes, bytes], steps: int) -> Program:
    """Return a program whose steps take turns on two devices over one memory, so that each waits for the one before."""

    def step(device: int) -> Submit:
        return Submit(
            device,
            (
                Launch(
                    device,
                    "k0",
                    Data(bytes(16), tuple(Hole(8 * i, Width.W64, (Term(Address(0, device), 1),)) for i in range(2))),
                ),
            ),
            (),
            ((View(0, 0, NBYTES), Access.READ_WRITE),),
        )

    return Program(
        devices=archs,
        memory=(Alloc(0, NBYTES),),
        images=tuple(Image(device, Data(image)) for device, image in enumerate(images)),
        steps=tuple(step(i % 2) for i in range(steps)),
    )


def split(arch: str, image: bytes, blocks: int) -> Program:
    """Return a program of one launch of k0 in `blocks` blocks over its own memory."""
    launch = Launch(
        0, "k0", pointers(0, 1), (), (Fixed(blocks), Fixed(1), Fixed(1)), (Fixed(blocks), Fixed(1), Fixed(1))
    )
    return Program(
        devices=(arch,),
        memory=(Alloc(0, NBYTES), Alloc(0, NBYTES)),
        images=(Image(0, Data(image)),),
        steps=(Submit(0, (launch,), (), tuple((View(m, 0, NBYTES), Access.READ_WRITE) for m in range(2))),),
    )
