"""Run a small schedule here and now: constants that a trace asks for, and kernels whose inputs are all constant.

Compiles in this process through llvmlite and calls the code directly; it does not need the runtime.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from rig.errors import Invalid, Refused
from rig.model.extents import value_of
from tolk_engine.frontend.lower import lower
from tolk_engine.schedule import Affine, Arg, Call, CopyCall, Foreign, Schedule, SlotRef, Step

__all__ = ["Evaluator", "evaluate"]


def evaluate(schedule: Schedule) -> list[bytes]:
    """Return the bytes of each output of a schedule without inputs."""
    if schedule.inputs:
        raise Invalid(f"schedule {schedule.name!r} has inputs: only constants are evaluated")
    return Evaluator(schedule).run()


class Evaluator:
    """A schedule with memory of its own, which keeps its state from run to run."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._slots = [_block(s.nbytes) for s in schedule.slots]
        self._storages = [_block(s.nbytes) for s in schedule.storages]
        for block, storage in zip(self._storages, schedule.storages, strict=True):
            if storage.init is not None:
                _fill(block, storage.init)
        self._code = _Code(schedule)

    def run(self, *inputs: bytes | memoryview, **variables: int) -> list[bytes]:
        """Run once on the bytes of each input; returns the bytes of each output, at the most where they vary."""
        schedule = self._schedule
        numbers = {v.name: v.default for v in schedule.variables} | variables
        for at, data in zip(schedule.inputs, inputs, strict=True):
            _fill(self._slots[at], data)
        numbers |= {w: value_of(w, {k: v or 0 for k, v in numbers.items()}) for w in schedule.words}
        self._steps(schedule.calls, numbers)
        return [ctypes.string_at(_start(self._slots[i]), schedule.slots[i].nbytes) for i in schedule.outputs]

    def _steps(self, steps: Sequence[Step], numbers: dict[str, int | None]) -> None:
        for step in steps:
            if isinstance(step, Call):
                self._code.run(step, [self._address(a, numbers) for a in step.args], numbers)
            elif isinstance(step, CopyCall):
                ctypes.memmove(self._address(step.dst, numbers), self._address(step.src, numbers), step.nbytes)
            else:
                trips = step.trips if isinstance(step.trips, int) else numbers[step.trips] or 0
                for trip in range(trips):
                    if step.flag is not None and ctypes.string_at(self._address(step.flag, numbers), 1) == b"\0":
                        break
                    self._steps(step.calls, numbers | {step.name: trip})

    def _address(self, arg: Arg, numbers: Mapping[str, int | None]) -> int:
        blocks = self._slots if isinstance(arg.node, SlotRef) else self._storages
        moved = sum((numbers[name] or 0) * factor for name, factor in arg.moves)
        return _start(blocks[arg.node.index]) + arg.offset + moved


def _block(nbytes: int) -> Any:
    return (ctypes.c_char * (nbytes + 64))()


def _fill(block: Any, data: bytes | memoryview) -> None:
    view = memoryview(data).cast("B")
    at = _start(block) - ctypes.addressof(block)
    memoryview(block).cast("B")[at : at + view.nbytes] = view


def _start(block: Any) -> int:
    """Return the first address in a block that is a multiple of 64."""
    return -(-ctypes.addressof(block) // 64) * 64


@functools.cache
def _host_arch() -> tuple[str, str]:
    """Return this machine's architecture as tinygrad spells it, and the processor that code is made for."""
    import platform

    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    if platform.machine() not in ("x86_64", "AMD64"):
        return "arm64,generic", "generic"
    features = llvm.get_host_cpu_features()
    needed = ("avx2", "bmi2", "f16c", "fma", "lzcnt", "movbe")
    level = "x86-64-v3" if all(features.get(f) for f in needed) else "x86-64-v2"
    return f"x86_64,{level}", level


_HELPERS = ("__truncsfhf2", "__extendhfsf2", "__truncdfhf2", "__truncsfbf2", "__truncdfbf2")
"""Conversions of narrow floats that a compiler calls where the processor has no instruction."""


@functools.cache
def _find_helpers() -> tuple[str, ...]:
    """Make the conversion helpers known to the compiler; returns those that this machine has not."""
    import llvmlite.binding as llvm

    missing = []
    try:
        library = ctypes.CDLL("libgcc_s.so.1")
    except OSError:
        library = ctypes.CDLL(None)
    for name in _HELPERS:
        if llvm.address_of_symbol(name) is None:
            function = getattr(library, name, None)
            if function is None:
                missing.append(name)
            else:
                llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    return tuple(missing)


class _Code:
    """The kernels of a schedule, compiled into this process."""

    def __init__(self, schedule: Schedule) -> None:
        import llvmlite.binding as llvm

        arch, processor = _host_arch()
        self._lowered = []
        for kernel in schedule.kernels:
            if isinstance(kernel, Foreign):
                raise Invalid(f"the function asks for a tensor's value that {kernel.symbol} makes, a foreign function")
            self._lowered.append(lower(kernel, arch))
        texts = [k.text.replace("__K__", f"k{i}").replace("__W__", f"f{i}") for i, k in enumerate(self._lowered)]
        module = llvm.parse_assembly("\n".join(texts))
        target = llvm.Target.from_triple(llvm.get_process_triple())
        machine = target.create_target_machine(cpu=processor, features="", opt=2, reloc="pic", codemodel="small")
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        module.verify()
        tuning = llvm.create_pipeline_tuning_options(speed_level=2)
        tuning.loop_vectorization = tuning.slp_vectorization = True
        passes = llvm.create_pass_builder(machine, tuning)
        passes.getModulePassManager().run(module, passes)
        missing = _find_helpers()
        if missing and any(name.encode() in machine.emit_object(module) for name in missing):
            raise Refused(f"a constant's type conversion needs one of {', '.join(missing)}, which this machine has not")
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()

    def run(self, call: Call, addresses: list[int], numbers: Mapping[str, int | None]) -> None:
        """Run one launch to its end; `numbers` are the variables' values."""
        kernel = self._lowered[call.kernel]
        words = [addresses[i] for i in kernel.arg_order]
        for v in call.values:
            moves = ((v, 1),) if isinstance(v, str) else v.moves if isinstance(v, Affine) else ()
            add = v.add if isinstance(v, Affine) else v if isinstance(v, int) else 0
            words.append(add + sum((numbers[name] or 0) * factor for name, factor in moves))
        block = (ctypes.c_uint64 * len(words))(*[word & (2**64 - 1) for word in words])
        form = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
        form(self._engine.get_function_address(f"f{call.kernel}"))(ctypes.addressof(block), 0, kernel.iterations)
