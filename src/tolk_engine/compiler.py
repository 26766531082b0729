"""Compile kernels' LLVM IR for a host, in this process, through llvmlite.

One `Compiler` per target. The instruction level bounds what is emitted; tuning for this machine's processor chooses
among those instructions and adds none.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Sequence
from typing import Any

from rig.errors import Invalid, Refused
from tolk_engine.target import ARM64_FEATURES, Target

__all__ = ["Compiler", "compiler"]

_INSTALL = "pip install 'rig-runtime[tolk]'"
_TRIPLES = {"x86_64": "x86_64-none-unknown-elf", "arm64": "aarch64-none-unknown-elf"}
_WINDOWS_TRIPLE = "x86_64-pc-windows-msvc-elf"  # an ELF object whose functions follow Windows' calling convention
_DEFINE = re.compile(r"^(define .*?)\s*\{\s*$", re.M)
_DECLARE = re.compile(r"^declare .*\n?", re.M)
_RAISES_LEVEL = re.compile(
    r"\basm\b|\"target-(?:cpu|features)\"|\"tune-cpu\"|@llvm\.(?:x86|aarch64|arm)\.|^module asm", re.M
)
_initialized = threading.Lock()


@functools.cache
def compiler(target: Target) -> Compiler:
    """Return the compiler of `target`, made once per target. Raises as `Compiler`."""
    return Compiler(target)


class Compiler:
    """Compiles LLVM IR to relocatable objects for one host target.

    `target` is what it compiles for, `version` names the backend, and `processor` the resolved processor that code is
    tuned for, empty without tuning; these three are what its output depends on besides its input.

    Raises `Invalid` if the target is no host's, and `Refused` with the reason if llvmlite is not there.
    """

    def __init__(self, target: Target) -> None:
        if not target.on_host:
            raise Invalid(f"{target.device} {target.arch!r} is no host target; this compiler makes host code")
        self.target = target
        self._llvm = _llvmlite()
        self.version = f"llvmlite {_version(self._llvm)}"
        self.processor = self._processor() if target.tuned else ""
        self.triple = _WINDOWS_TRIPLE if target.windows else _TRIPLES[target.instruction_set]

    def object(self, texts: Sequence[str], *, first: int = 0) -> bytes:
        """Return the relocatable object of kernels `texts`; text i's wrapper is the global function ``f{first + i}``.

        The kernel itself is inlined into its wrapper. Equal texts give equal bytes.

        Raises `Refused` with LLVM's reason if a text does not compile, and if one asks for instructions by itself
        (inline assembly, a processor's own operations, target attributes), which could be above the level.
        """
        source = self.module(texts, first=first)
        llvm = self._llvm
        machine = self._machine()
        try:
            module = llvm.parse_assembly(source, llvm.create_context())
            module.verify()
        except RuntimeError as e:
            raise Refused(f"{self.version}: kernels f{first} to f{first + len(texts) - 1}: {e}") from e
        module.data_layout = str(machine.target_data)
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = True
        options.slp_vectorization = True
        options.loop_unrolling = True
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        return bytes(machine.emit_object(module))

    def module(self, texts: Sequence[str], *, first: int = 0) -> str:
        """Return the module of `texts` as `object` compiles it. Raises as `object` for texts that raise the level."""
        declared: dict[str, None] = {}
        bodies = []
        for i, text in enumerate(texts, first):
            found = _RAISES_LEVEL.search(text)
            if found:
                raise Refused(f"kernel f{i} uses {found[0]!r}, which may need instructions above {self.target.level}")
            declared.update(dict.fromkeys(line.strip() for line in _DECLARE.findall(text)))
            bodies.append(_DECLARE.sub("", text).replace("__K__", f"k{i}").replace("__W__", f"f{i}"))
        body = "\n".join((*declared, *bodies))
        if self.processor:
            body = _DEFINE.sub(rf'\1 "target-cpu"="{self._cpu}" "tune-cpu"="{self.processor}" {{', body)
        return f'target triple = "{self.triple}"\n{body}\n'

    @property
    def _cpu(self) -> str:
        return {"x86-64-v1": "x86-64"}.get(self.target.level, self.target.level)

    def _machine(self) -> Any:
        # Gathers are legal from level 3 on, but several times slower than single loads on many processors: not chosen.
        x86 = self.target.instruction_set == "x86_64"
        features = "+prefer-no-gather" if x86 else ",".join(f"+{ARM64_FEATURES[f]}" for f in self.target.features)
        made = self._llvm.Target.from_triple(self.triple)
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
