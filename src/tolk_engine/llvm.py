"""LLVM in this process, through llvmlite: a wheel, so that no compiler has to be installed."""

from __future__ import annotations

import threading
from threading import Event
from typing import Any, ClassVar

from rig.errors import Cancelled, Refused
from tolk_engine.compiler import Compiler
from tolk_engine.target import Target

__all__ = ["Llvmlite"]

_INSTALL = "pip install 'rig-runtime[tolk]'"
_initialized = threading.Lock()


class Llvmlite(Compiler):
    """The compiler that llvmlite brings along. Raises `Refused` with the command that installs it if it is missing."""

    _sources: ClassVar[tuple[str, ...]] = (*Compiler._sources, __file__)

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._llvm = _llvmlite()
        self.version = f"llvmlite {_version(self._llvm)}"
        self.processor = self._processor() if target.tuned else ""

    def _compile(self, source: str, what: str, stop: Event | None) -> bytes:
        llvm = self._llvm
        if stop is not None and stop.is_set():
            raise Cancelled(f"{what}: cancelled")
        machine = self._machine()
        try:
            module = llvm.parse_assembly(source, llvm.create_context())
            module.verify()
        except RuntimeError as e:
            raise Refused(f"{what}: {e}") from e
        module.data_layout = str(machine.target_data)
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = True
        options.slp_vectorization = True
        options.loop_unrolling = True
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        return bytes(machine.emit_object(module))

    def _machine(self) -> Any:
        made = self._llvm.Target.from_triple(self.triple)
        features = ",".join(self._features)
        return made.create_target_machine(cpu=self._cpu, features=features, opt=2, reloc="pic", codemodel="small")

    def _processor(self) -> str:
        here = self._llvm.get_process_triple().split("-")[0]
        mine = "arm64" if here in ("aarch64", "arm64") else "x86_64"
        return str(self._llvm.get_host_cpu_name()) if mine == self.target.instruction_set else ""


def _llvmlite() -> Any:
    try:
        import llvmlite.binding as llvm
    except Exception as e:  # a broken install raises OSError or RuntimeError too
        raise Refused(f"the host compiler needs llvmlite, which does not import ({e}); {_INSTALL}") from e
    with _initialized:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    return llvm


def _version(llvm: Any) -> str:
    import llvmlite

    return f"{llvmlite.__version__} (LLVM {'.'.join(map(str, llvm.llvm_version_info))})"
