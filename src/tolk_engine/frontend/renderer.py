"""Kernels as LLVM IR text for the host's calling form, through tinygrad's LLVM renderer and without compiling.

What differs from tinygrad's own renderer:

- around the kernel stands a wrapper ``void (ptr words, i64 begin, i64 end)`` that unpacks the parameter words once and
  calls the kernel, inlined, for each iteration of the range;
- loads and stores state the alignment of one element, so that any element offset is a legal start of a buffer;
- booleans are bytes in memory: zero is false and anything else is true;
- constants are exact bit patterns, and a quotient of floats is rounded once: no product with a reciprocal, which tips
  values that lie between two steps of a quantization;
- what a whole number computed from data may be does not decide whether the process lives: sums wrap, a division by zero
  gives zero (tinygrad's text leaves both undefined, and the processor traps), a shift by too many bits leaves none, and
  a float that no whole number holds becomes one all the same;
- an unsigned index stays unsigned in an address;
- the split into iterations does not depend on the machine that compiles.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar

from tinygrad.device import Compiler
from tinygrad.dtype import AddrSpace, dtypes
from tinygrad.renderer.llvmir import LLVMRenderer, base_rewrite, lcast, ldt
from tinygrad.uop.ops import GroupOp, Ops, PatternMatcher, UPat

from rig.errors import Invalid

__all__ = ["HostRenderer", "SplitHostRenderer", "value_word"]

_ATTRIBUTES = 'nounwind "no-builtins" "no-trapping-math"="true"'


class _NoCompiler(Compiler):  # type: ignore[misc]
    """Leaves the text as it is: the backend compiles all kernels of a schedule together."""

    def __init__(self) -> None:
        super().__init__(None)

    def compile(self, src: str) -> bytes:
        return b""


def _memory_type(dtype: Any) -> str:
    """Return the type of an element in memory, where a boolean is a byte."""
    return "i8" if dtype is dtypes.bool else str(ldt(dtype))


def _vector(element: str, count: int) -> str:
    return element if count == 1 else f"<{count} x {element}>"


def _splat(element: str, value: str, count: int) -> str:
    """Return a constant, or a vector of it."""
    return value if count == 1 else "<" + ", ".join([f"{element} {value}"] * count) + ">"


def _constant(value: Any, dtype: Any) -> str:
    """Return a constant; a float as the bits of a double, which every float type takes exactly."""
    if dtype in dtypes.fp8s:
        raise Invalid(f"dtype {dtype} is not supported on the host")
    if dtype in dtypes.floats:
        rounded = float("nan") if value != value else _round(float(value), dtype)
        return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
    if dtype is dtypes.bool:
        return "true" if value else "false"
    return str(int(value))


def _round(value: float, dtype: Any) -> float:
    from tinygrad.dtype import truncate

    return float(truncate[dtype](value))


def _load(ctx: dict[Any, str], x: Any, index: Any, name: str) -> list[str]:
    count, size = index.max_numel(), index.dtype.itemsize
    element = _vector(_memory_type(index.dtype), count)
    if index.dtype is not dtypes.bool:
        return [f"  {name} = load {element}, ptr {ctx[index]}, align {size}"]
    zero = "0" if count == 1 else "zeroinitializer"
    return [
        f"  {name}_byte = load {element}, ptr {ctx[index]}, align 1",
        f"  {name} = icmp ne {element} {name}_byte, {zero}",
    ]


def _gated_load(ctx: dict[Any, str], x: Any, index: Any, other: Any, mask: Any) -> str:
    name = ctx[x]
    label = name[1:]
    kind = ldt(x.dtype, x.max_numel())
    return "\n".join([
        f"  br label %{label}_entry", f"{label}_entry:",
        f"  br i1 {ctx[mask]}, label %{label}_load, label %{label}_exit", f"{label}_load:",
        *_load(ctx, x, index, f"{name}_yes"),
        f"  br label %{label}_exit", f"{label}_exit:",
        f"  {name} = phi {kind} [{name}_yes, %{label}_load], [{ctx[other]}, %{label}_entry]",
    ])  # fmt: skip


def _store(ctx: dict[Any, str], x: Any, index: Any, value: Any) -> str:
    count, size = index.max_numel(), index.dtype.itemsize
    element = _vector(_memory_type(index.dtype), count)
    if index.dtype is not dtypes.bool:
        return f"  store {element} {ctx[value]}, ptr {ctx[index]}, align {size}"
    byte, address = f"{ctx[x]}_byte", ctx[index]
    return "\n".join([
        f"  {byte} = zext {ldt(value.dtype, count)} {ctx[value]} to {element}",
        f"  store {element} {byte}, ptr {address}, align 1",
    ])  # fmt: skip


def _address(ctx: dict[Any, str], x: Any) -> str:
    base, index, name = ctx[x.src[0]], x.src[1], ctx[x]
    address = f"  {name} = getelementptr inbounds {_memory_type(x.dtype)}, ptr {base}"
    kind = ldt(index.dtype)
    if index.dtype in dtypes.sints or kind == "i64":
        return f"{address}, {kind} {ctx[index]}"
    # An address takes its index as signed: an unsigned one is made wider first.
    return f"  {name}_at = zext {kind} {ctx[index]} to i64\n{address}, i64 {name}_at"


def _convert(ctx: dict[Any, str], x: Any) -> str:
    """Render a cast of a number or a vector; to bool it asks whether it is not zero."""
    source, count = x.src[0], x.max_numel()
    given = ldt(source.dtype, count)
    if x.dtype is dtypes.bool:
        compare = "fcmp une" if source.dtype in dtypes.floats else "icmp ne"
        zero = "zeroinitializer" if count > 1 else "0x0000000000000000" if source.dtype in dtypes.floats else "0"
        return f"  {ctx[x]} = {compare} {given} {ctx[source]}, {zero}"
    if source.dtype in dtypes.floats and x.dtype in dtypes.ints:
        return _whole(ctx, x)
    return f"  {ctx[x]} = {lcast(source.dtype, x.dtype)} {given} {ctx[source]} to {ldt(x.dtype, count)}"


def _whole(ctx: dict[Any, str], x: Any) -> str:
    """Render a cast of a float to a whole number, which wraps where that is no more than dropping bits.

    What lies outside the conversion's own range is any number: for an optimizer it would be no number at all, and the
    check of an index that is computed from it would be dropped.
    """
    name, count, source = ctx[x], x.max_numel(), x.src[0]
    if x.dtype is dtypes.uint64 and source.dtype is not dtypes.half:
        return _high(ctx, x)
    by_way = "i64" if x.dtype in (dtypes.uint32, dtypes.uint64) else "i32" if x.dtype.itemsize < 4 else ldt(x.dtype)
    wide, kind = _vector(by_way, count), ldt(x.dtype, count)
    convert = f"  {name}_any = fptosi {ldt(source.dtype, count)} {ctx[source]} to {wide}"
    if wide == kind:
        return f"{convert}\n  {name} = freeze {wide} {name}_any"
    return f"{convert}\n  {name}_some = freeze {wide} {name}_any\n  {name} = trunc {wide} {name}_some to {kind}"


def _high(ctx: dict[Any, str], x: Any) -> str:
    """Render a cast of a float to uint64: the upper half of its range is converted less 2^63, and moved up again."""
    name, count, source = ctx[x], x.max_numel(), x.src[0]
    given, value = ldt(source.dtype, count), ctx[source]
    whole, truth = ldt(x.dtype, count), ldt(dtypes.bool, count)
    edge, none = _splat(ldt(source.dtype), "0x43E0000000000000", count), _splat("i64", "0", count)
    return "\n".join([
        f"  {name}_high = fcmp oge {given} {value}, {edge}",
        f"  {name}_less = fsub {given} {value}, {edge}",
        f"  {name}_from = select {truth} {name}_high, {given} {name}_less, {given} {value}",
        f"  {name}_any = fptosi {given} {name}_from to {whole}",
        f"  {name}_some = freeze {whole} {name}_any",
        f"  {name}_bit = select {truth} {name}_high, {whole} {_splat('i64', str(-(2**63)), count)}, {whole} {none}",
        f"  {name} = xor {whole} {name}_some, {name}_bit",
    ])  # fmt: skip


def _root(ctx: dict[Any, str], x: Any) -> str:
    kind = ldt(x.dtype)
    bits = {"half": "f16", "float": "f32", "double": "f64", "bfloat": "bf16"}[kind]
    return f"  {ctx[x]} = call {kind} @llvm.sqrt.{bits}({kind} {ctx[x.src[0]]})"


_ADDRESSES = (Ops.INDEX, Ops.SHRINK)
_REWRITE = PatternMatcher([
    (UPat(_ADDRESSES, src=(UPat((Ops.BUFFER, Ops.PARAM, Ops.AFTER)),), allow_any_len=True, name="x"), _address),
    (UPat(Ops.LOAD, src=(UPat.var("index"), UPat.var("other"), UPat.var("mask")), name="x"), _gated_load),
    (UPat.var("index").load(name="x"), lambda ctx, x, index: "\n".join(_load(ctx, x, index, ctx[x]))),
    (UPat(Ops.STORE, src=(UPat.var("index"), UPat.var("value")), name="x"), _store),
    (UPat(Ops.CAST, name="x"), _convert),
    (UPat(Ops.SQRT, name="x"), _root),
]) + base_rewrite  # fmt: skip


def _double_to_bfloat(x: Any) -> Any:
    """Round once: to a float first, but to one that is odd where it is not exact, so that no tie is made."""
    near = x.cast(dtypes.float)
    back, bits = near.cast(dtypes.double), near.bitcast(dtypes.uint)
    outside = (x < back) & (x >= 0) | (back < x) & (x < 0)  # farther from zero than it should be
    odd = (back.ne(x) & (bits & 1).eq(0)).where(outside.where(bits - 1, bits + 1), bits)
    return odd.bitcast(dtypes.float).cast(dtypes.bfloat16)


_EXTRA = PatternMatcher([
    (UPat(Ops.CAST, dtypes.bfloat16, (UPat.var("x", dtypes.double),)), _double_to_bfloat),
]) + LLVMRenderer.extra_matcher  # fmt: skip


def _divide(ctx: dict[Any, str], x: Any) -> str:
    """Render a quotient or remainder of data so that no divisor traps: by zero both are zero."""
    a, b, kind = ctx[x.src[0]], ctx[x.src[1]], ldt(x.dtype)
    name, signed = ctx[x], x.dtype in dtypes.sints
    op = {Ops.CDIV: "div", Ops.CMOD: "rem"}[x.op]
    lines = [f"  {name}_zero = icmp eq {kind} {b}, 0"]
    if not signed:
        lines += [
            f"  {name}_by = select i1 {name}_zero, {kind} 1, {kind} {b}",
            f"  {name}_some = u{op} {kind} {a}, {name}_by",
        ]
    else:  # the lowest number divided by -1 traps as well: negate instead
        other = f"{name}_negated" if x.op is Ops.CDIV else "0"
        lines += [
            f"  {name}_minus = icmp eq {kind} {b}, -1", f"  {name}_odd = or i1 {name}_zero, {name}_minus",
            f"  {name}_by = select i1 {name}_odd, {kind} 1, {kind} {b}",
            f"  {name}_plain = s{op} {kind} {a}, {name}_by",
            f"  {name}_negated = sub {kind} 0, {a}",
            f"  {name}_some = select i1 {name}_minus, {kind} {other}, {kind} {name}_plain",
        ]  # fmt: skip
    return "\n".join([*lines, f"  {name} = select i1 {name}_zero, {kind} 0, {kind} {name}_some"])


def _shift(ctx: dict[Any, str], x: Any) -> str:
    """Render a shift by a count from data: by as many bits as the type has, or more, all of them go."""
    a, b, kind, name = ctx[x.src[0]], ctx[x.src[1]], ldt(x.dtype), ctx[x]
    within = f"  {name}_in = icmp ult {kind} {b}, {8 * x.dtype.itemsize}"
    if x.op is Ops.SHR and x.dtype in dtypes.sints:  # to the right it is the sign that stays
        most = f"  {name}_by = select i1 {name}_in, {kind} {b}, {kind} {8 * x.dtype.itemsize - 1}"
        return f"{within}\n{most}\n  {name} = ashr {kind} {a}, {name}_by"
    op = "shl" if x.op is Ops.SHL else "lshr"
    return (
        f"{within}\n  {name}_some = {op} {kind} {a}, {b}\n  {name} = select i1 {name}_in, {kind} {name}_some, {kind} 0"
    )


class HostRenderer(LLVMRenderer):  # type: ignore[misc]
    """Renders a kernel that is one iteration."""

    has_local = False
    has_threads = False
    global_max = (1, 0, 0)
    string_rewrite = _REWRITE
    extra_matcher = _EXTRA
    code_for_op: ClassVar[dict[Any, Any]] = {**LLVMRenderer.code_for_op, Ops.SQRT: lambda: None}

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.compiler = _NoCompiler()

    def supported_dtypes(self) -> set[Any]:
        """Return the dtypes that kernels compute with; others are emulated in larger ones."""
        # Half too below the third level of x86-64, where its conversions are calls: an emulation that keeps values in
        # floats rounds where it stores and not after each operation.
        return {d for d in super().supported_dtypes() if d not in dtypes.fp8s}

    def render(self, uops: list[Any]) -> str:
        """Return the kernel and its wrapper as text."""
        names: dict[Any, str] = {}
        params: list[Any] = []
        lines: list[str] = []
        data: set[Any] = set()  # values that depend on what memory holds
        for u in uops:
            if any(s in data for s in u.src) or u.op is Ops.LOAD:
                data.add(u)
            if u.op in (Ops.NOOP, Ops.GROUP, Ops.CONST, Ops.SINK):
                continue
            if u.op is Ops.AFTER:
                names[u] = names[u.src[0]]
            elif u.op is Ops.PARAM:
                names[u] = f"%p{u.arg.slot}"
                params.append(u)
            elif u.op is Ops.BUFFER:
                names[u] = f"%m{len(names)}"
                lines.append(f"  {names[u]} = alloca [{u.max_numel()} x {_memory_type(u.dtype)}], align 64")
            elif u.op is Ops.CAST and u.src[0].op is Ops.CONST:
                names[u] = _constant(u.src[0].arg, u.dtype)
            elif u.op is Ops.CAST and ldt(u.dtype) == ldt(u.src[0].dtype):
                names[u] = names[u.src[0]]  # between signed and unsigned of one size
            else:
                names.setdefault(u, f"%v{len(names)}")
                lines.append(self._line(names, u, u in data))
        return _text(params, names, lines)

    def _line(self, names: dict[Any, str], u: Any, from_data: bool) -> str:
        if from_data and u.dtype in dtypes.ints and u.op in (Ops.CDIV, Ops.CMOD) and not _safe_divisor(u):
            return _divide(names, u)
        if from_data and u.op in (Ops.SHL, Ops.SHR) and not _is_constant(u.src[1]):
            return _shift(names, u)
        line: str | None = self.string_rewrite.rewrite(u, ctx=names)
        if line is None:
            raise Invalid(f"the host has no code for {u.op} of {u.dtype} from {[str(s.dtype) for s in u.src]}")
        if from_data and u.op in GroupOp.Binary:
            line = line.replace(" = add nsw ", " = add ")
        return line.replace(" arcp contract afn ", " contract ")


def _safe_divisor(u: Any) -> bool:
    divisor = u.src[1]
    return _is_constant(divisor) and int(divisor.src[0].arg) not in (0, -1)


def _is_constant(u: Any) -> bool:
    return bool(u.op is Ops.CAST and u.src[0].op is Ops.CONST)


class SplitHostRenderer(HostRenderer):
    """Renders a kernel whose outer loop may be cut into as many as 32 iterations."""

    has_threads = True
    global_max = (32, 0, 0)


def _text(params: list[Any], names: dict[Any, str], lines: list[str]) -> str:
    """Join the kernel's lines with its head and its wrapper."""
    pointers = sorted((p for p in params if p.addrspace is AddrSpace.GLOBAL), key=lambda p: p.arg.slot)
    scalars = sorted((p for p in params if p.addrspace is not AddrSpace.GLOBAL), key=lambda p: p.expr)
    unpack: list[str] = []
    arguments: list[str] = []
    per_iteration: list[str] = []
    for n, p in enumerate([*pointers, *scalars]):
        if n >= len(pointers) and p.expr == "core_id":
            per_iteration.append(_from_word(p, "%i", "%c"))
            arguments.append(f"{ldt(p.dtype)} %c")
            continue
        word = str(n) if n < len(pointers) else value_word(p.expr)
        unpack.append(f"  %g{n} = getelementptr inbounds i64, ptr %words, i64 {word}")
        unpack.append(f"  %w{n} = load i64, ptr %g{n}, align 8")
        unpack.append(
            f"  %a{n} = inttoptr i64 %w{n} to ptr" if n < len(pointers) else _from_word(p, f"%w{n}", f"%a{n}")
        )
        arguments.append(f"{'ptr' if n < len(pointers) else ldt(p.dtype)} %a{n}")
    head = ", ".join(f"{'ptr noalias' if p in pointers else ldt(p.dtype)} {names[p]}" for p in [*pointers, *scalars])
    return "\n".join([
        f"define internal void @__K__({head}) alwaysinline {_ATTRIBUTES} {{", "start:", *lines, "  ret void", "}",
        f"define void @__W__(ptr noalias readonly %words, i64 %begin, i64 %end) {_ATTRIBUTES} {{", "entry:", *unpack,
        "  %any = icmp ult i64 %begin, %end", "  br i1 %any, label %loop, label %done", "loop:",
        "  %i = phi i64 [ %begin, %entry ], [ %n, %loop ]", *per_iteration,
        f"  call void @__K__({', '.join(arguments)})", "  %n = add nuw i64 %i, 1", "  %more = icmp ult i64 %n, %end",
        "  br i1 %more, label %loop, label %done", "done:", "  ret void", "}", "",
    ])  # fmt: skip


def value_word(name: str) -> str:
    """Return what stands in the text for the number of the word that holds variable `name`."""
    return f"__V_{name}__"


def _from_word(param: Any, word: str, name: str) -> str:
    """Return the line that takes a whole number from a 64-bit word."""
    if param.dtype not in dtypes.ints:
        raise Invalid(f"variable {param.expr!r} is of {param.dtype}: only whole numbers are supported")
    kind = ldt(param.dtype)
    return f"  {name} = trunc i64 {word} to {kind}" if kind != "i64" else f"  {name} = add i64 {word}, 0"
