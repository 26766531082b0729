"""Kernels as text, without a tensor compiler, and a small loader of flat images: the tests' own second opinion."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence

from tolk_engine import image

ATTRIBUTES = 'nounwind "no-builtins" "no-trapping-math"="true"'


def kernel(name: str, n_pointers: int, body: str, *, values: int = 0) -> str:
    """Return a kernel of `n_pointers` pointers ``%p0``, … and i64 values ``%v0``, … around `body`.

    `body` does iteration ``%i`` and may not branch. Nothing in it uses `name` but comments.
    """
    params = [f"ptr noalias %p{j}" for j in range(n_pointers)] + [f"i64 %v{j}" for j in range(values)]
    loads = []
    args = []
    for j in range(n_pointers + values):
        loads.append(
            f"  %g{j} = getelementptr inbounds i64, ptr %words, i64 {j}\n  %w{j} = load i64, ptr %g{j}, align 8"
        )
        if j < n_pointers:
            loads.append(f"  %a{j} = inttoptr i64 %w{j} to ptr")
        args.append(f"ptr %a{j}" if j < n_pointers else f"i64 %w{j}")
    head = "\n".join(loads)
    return f"""; {name}
define internal void @__K__({", ".join([*params, "i64 %i"])}) alwaysinline {ATTRIBUTES} {{
{body}
  ret void
}}
define void @__W__(ptr noalias readonly %words, i64 %begin, i64 %end) {ATTRIBUTES} {{
entry:
{head}
  %any = icmp ult i64 %begin, %end
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ %begin, %entry ], [ %n, %loop ]
  call void @__K__({", ".join([*args, "i64 %i"])})
  %n = add nuw i64 %i, 1
  %more = icmp ult i64 %n, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def at(pointer: str, name: str, type_: str = "float") -> str:
    """Return the line that sets ``%{name}`` to the address of element ``%i`` of `pointer`."""
    return f"  %{name} = getelementptr inbounds {type_}, ptr %{pointer}, i64 %i\n"


def binary(op: str) -> str:
    """Return the kernel ``p0[i] = p1[i] op p2[i]`` over floats."""
    body = at("p0", "o") + at("p1", "x") + at("p2", "y")
    body += "  %l = load float, ptr %x, align 4\n  %r = load float, ptr %y, align 4\n"
    return kernel(op, 3, body + f"  %s = {op} float %l, %r\n  store float %s, ptr %o, align 4")


def add_constant(value: float) -> str:
    """Return the kernel ``p0[i] = p1[i] + value`` over floats."""
    body = at("p0", "o") + at("p1", "x") + "  %l = load float, ptr %x, align 4\n"
    return kernel("add", 2, body + f"  %s = fadd float %l, {value}\n  store float %s, ptr %o, align 4")


def calls(function: str) -> str:
    """Return the kernel ``p0[i] = function(p1[i])`` over floats, a call that the image has to import."""
    body = at("p0", "o") + at("p1", "x") + "  %l = load float, ptr %x, align 4\n"
    body += f"  %s = call float @{function}(float %l)\n  store float %s, ptr %o, align 4"
    return f"declare float @{function}(float)\n" + kernel(function, 2, body)


class Loaded:
    """A flat image in executable memory; `call` runs one of its functions."""

    def __init__(self, data: bytes) -> None:
        flat = image.parse(data)
        nbytes = -(-len(flat.body) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = mmap.mmap(-1, nbytes, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self._memory[: len(flat.body)] = flat.body
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        libm = ctypes.CDLL("libm.so.6")
        for name, offset in flat.imports.items():
            address = ctypes.cast(getattr(libm, name), ctypes.c_void_p).value
            ctypes.c_uint64.from_address(self._base + offset).value = address or 0
        mprotect = ctypes.CDLL(None, use_errno=True).mprotect
        if mprotect(ctypes.c_void_p(self._base), ctypes.c_size_t(nbytes), mmap.PROT_READ | mmap.PROT_EXEC):
            raise OSError(ctypes.get_errno(), "mprotect")
        self.exports = flat.exports

    def function(self, name: str) -> Callable[..., None]:
        """Return the function `name` of the host's calling form."""
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
        return kind(self._base + self.exports[name])

    def call(self, name: str, words: Sequence[int], begin: int, end: int) -> None:
        """Run iterations `begin` to `end` of `name` over `words`."""
        array = (ctypes.c_uint64 * len(words))(*[w % 2**64 for w in words])
        self.function(name)(ctypes.addressof(array), begin, end)


def floats(values: Sequence[float]) -> ctypes.Array[ctypes.c_float]:
    """Return an array of floats; `ctypes.addressof` gives its address."""
    return (ctypes.c_float * len(values))(*values)
