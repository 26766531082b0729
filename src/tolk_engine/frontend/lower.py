"""A kernel of a schedule as text for one target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tinygrad.codegen import to_program

from rig.errors import Error, Invalid, Refused
from tolk_engine.frontend import adapter, kernels
from tolk_engine.frontend.renderer import HostRenderer, SplitHostRenderer, value_word
from tolk_engine.frontend.symbolic import variable_names
from tolk_engine.schedule import Lowered

if TYPE_CHECKING:
    from tolk_engine.schedule import Kernel

__all__ = ["TargetLike", "lower"]

_WORTH_SPLITTING = 1 << 17
"""Below so many operations a launch is one block whatever its memory: there is nothing to split."""


class TargetLike(Protocol):
    """What `lower` needs to know of a target."""

    @property
    def arch(self) -> str:
        """The architecture as tinygrad's targets spell it, such as ``x86_64,x86-64-v3``."""


def lower(kernel: Kernel, target: TargetLike | str) -> Lowered:
    """Return `kernel` as LLVM IR text for host code of `target` (or of an arch string).

    The same kernel gives the same text in any process and on any machine. A kernel of more operations than bytes of
    memory is cut into iterations where that costs its inner loops nothing. Takes the process's lock of the compiler;
    raises `Invalid` for what the host has no code for and `Refused` where tinygrad fails, naming the kernel.
    """
    arch = portable_arch(target if isinstance(target, str) else target.arch)
    ast: Any = kernel.ast
    with adapter.pinned():
        try:
            return _lowered(ast, _program(ast, arch))
        except Error:
            raise
        except Exception as e:
            raise Refused(f"kernel {kernel.name}: no text for {arch}: {type(e).__name__}: {e}") from e


def _program(ast: Any, arch: str) -> Any:
    """Return tinygrad's program of a kernel, split where that pays."""
    target = adapter.make_target(arch)
    split = _worth_splitting(*kernels.rough_estimates(ast))
    program = to_program(ast, (SplitHostRenderer if split else HostRenderer)(target))
    # A wrong guess is rare and costs time only. A range whose length varies is not cut: its launch is fixed.
    if split and not all(isinstance(n, int) for n in program.arg.global_size):
        return to_program(ast, HostRenderer(target))
    if split != _worth_splitting(*kernels.estimates(program)):
        program = to_program(ast, (HostRenderer if split else SplitHostRenderer)(target))
    return program


def _worth_splitting(ops: int, mem: int) -> bool:
    return ops > mem and ops >= _WORTH_SPLITTING


def portable_arch(arch: str) -> str:
    """Return `arch` without what only tunes: it decides no instruction, so it must not change the text."""
    return ",".join(part for part in arch.split(",") if not part.startswith("tune="))


def _lowered(ast: Any, program: Any) -> Lowered:
    info = program.arg
    sizes = kernels.access(ast).itemsizes
    names = variable_names(ast)
    text = str(program.src[2].arg)
    for at, name in enumerate(names):
        text = text.replace(value_word(name), str(len(info.globals) + at))
    if "__V_" in text:
        raise Invalid(f"kernel {info.function_name} takes a variable that its description does not name")
    iterations, *others = (int(n) for n in info.launch_dims({})[0])
    if others != [1, 1]:
        raise Invalid(f"kernel {info.function_name} has a grid of {info.global_size}, host code has one dimension")
    ops, mem = kernels.estimates(program)
    return Lowered(
        text=text, name=str(info.function_name), iterations=iterations, ops=ops, mem=mem, n_values=len(names),
        arg_order=tuple(int(g) for g in info.globals), aligns=tuple(sizes[g] for g in info.globals),
    )  # fmt: skip
