"""A program's memory over a run, as an SVG picture: what lies where, from which part to which."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rig.cli.devices import size
from rig.model.summary import kinds, lives
from rig.program.description import Alloc
from rig.program.parts import parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rig.model.artifact import Artifact
    from rig.model.summary import Life
    from rig.program.parts import Found

__all__ = ["draw"]

_LEFT, _RIGHT, _TOP = 230, 64, 104
_COLOURS = {
    "input": "#2f6fb0", "output": "#2a8f5b", "arena": "#e08a1e", "weight": "#7a5aa6", "constant": "#7d8590",
    "state": "#c0392b", "launch": "#39424e", "copy": "#a9b4c0", "move": "#a9b4c0", "fill": "#39424e",
    "words": "#39424e",
}  # fmt: skip
_SHADES = ("#e08a1e", "#f2b45c", "#c46f0e", "#f7cd8f")
_ARENA_HEIGHT = 330
_ROWS_HEIGHT = 1000
_MANY_ROWS_HEIGHT = 440
_WIDE = 15  # from so many pixels a part on, it has its name written over it


class _Row:
    """A row: its label, its bytes, its colour, where it is live, and at which parts it is used."""

    __slots__ = ("colour", "first", "label", "last", "nbytes", "used")

    def __init__(self, label: str, nbytes: int, colour: str, first: int, last: int, used: Sequence[int]) -> None:
        self.label = label
        self.nbytes = nbytes
        self.colour = colour
        self.first = first
        self.last = last
        self.used = used


class _Canvas:
    """Collects an SVG's elements from the top down; `y` is where the next section starts."""

    def __init__(self, count: int) -> None:
        self.count = max(count, 1)
        self.width = max(760, min(1500, 44 * self.count))
        self.cell = self.width / self.count
        self.y: float = _TOP
        self._under: list[str] = []
        self._elements: list[str] = []

    def x(self, part: float) -> float:
        """Return where part number `part` begins."""
        return _LEFT + part * self.cell

    def rect(self, x: float, y: float, width: float, height: float, fill: str, title: str = "", more: str = "") -> None:
        """Add a rectangle, with a text that viewers show under the pointer."""
        inner = f"><title>{_escaped(title)}</title></rect>" if title else "/>"
        self._elements.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{fill}"{more}{inner}'
        )

    def text(self, x: float, y: float, text: str, style: str = "", more: str = "") -> None:
        """Add a line of text."""
        kind = f' class="{style}"' if style else ""
        self._elements.append(f'<text x="{x:.2f}" y="{y:.2f}"{kind}{more}>{_escaped(text)}</text>')

    def line(self, x: float, top: float, bottom: float) -> None:
        """Add a vertical line under everything else."""
        self._under.append(f'<path d="M{x:.2f} {top:.2f}V{bottom:.2f}" stroke="#e3e7ec" stroke-width="1"/>')

    def heading(self, text: str, note: str = "") -> None:
        """Start a section."""
        self.y += 30
        self.text(16, self.y - 8, text, "h")
        if note:
            self.text(_LEFT, self.y - 8, note, "n")

    def finish(self) -> str:
        """Return the picture."""
        width, height = _LEFT + self.width + _RIGHT, self.y + 24
        style = (
            "text{font:11px 'DejaVu Sans',Helvetica,Arial,sans-serif;fill:#2b323a}"
            ".h{font-size:13px;font-weight:bold}.t{font-size:17px;font-weight:bold}.n{fill:#68727d}"
            ".s{font-size:9px}.e{text-anchor:end}.m{text-anchor:middle}.w{fill:#fff}"
        )
        return "\n".join((
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}">',
            f"<style>{style}</style>", f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>',
            *self._under, *self._elements, "</svg>", "",
        ))  # fmt: skip


def draw(artifact: Artifact) -> str:
    """Return the picture of `artifact` as SVG text."""
    found = list(parts(artifact.program))
    canvas = _Canvas(len(found))
    _head(canvas, artifact, found)
    top = canvas.y
    _work(canvas, artifact, found)
    _ports(canvas, artifact, found)
    pieces = lives(artifact, found)
    for number, kind in enumerate(kinds(artifact)):
        if kind == "arena":
            _arena(canvas, artifact, number, [life for life in pieces if life.number == number])
    for kind, title in (("state", "state"), ("constant", "constants"), ("weight", "weights")):
        _memories(canvas, artifact, found, kind, title)
    for tick in _ticks(len(found)):
        canvas.line(canvas.x(tick), top, canvas.y + 6)
    return canvas.finish()


def _head(canvas: _Canvas, artifact: Artifact, found: Sequence[Found]) -> None:
    signature = artifact.signature
    canvas.text(16, 30, f"{signature.name or 'model'}: memory over one run", "t")
    about = f"{len(found)} parts, for {', '.join(dict.fromkeys(artifact.program.devices))}"
    canvas.text(16, 50, f"{about}; {signature.compiler}" if signature.compiler else about, "n")
    x = 16.0
    present = {"input", "output", *kinds(artifact)}
    for kind in ("input", "output", "arena", "state", "constant", "weight"):
        if kind not in present:
            continue
        canvas.rect(x, 66, 12, 12, _COLOURS[kind])
        canvas.text(x + 17, 76, kind)
        x += 34 + 7 * len(kind)
    canvas.text(x + 6, 76, "pale: kept, dark: used by that part", "n")


def _work(canvas: _Canvas, artifact: Artifact, found: Sequence[Found]) -> None:
    """Draw the parts themselves, with their numbers, and their names where there is room."""
    names = {k.symbol: k.name for k in artifact.notes.kernels} if artifact.notes else {}
    labels = [names.get(part.name) or part.name or part.kind for part in found]
    if canvas.cell >= _WIDE and found:
        room = min(max(map(len, labels)), 22) * 5.2
        canvas.y += room
        for i, label in enumerate(labels):
            x, y = canvas.x(i + 0.5) + 3, canvas.y - 2
            canvas.text(x, y, _short(label, 22), "s", f' transform="rotate(-62 {x:.2f} {y:.2f})"')
    canvas.y += 4
    for i, (part, label) in enumerate(zip(found, labels, strict=True)):
        gap = min(1.0, canvas.cell / 6)
        times = "" if part.times == 1 else f", {'as often as the run says' if part.times is None else part.times}"
        title = f"{i}: {part.kind} {label if part.name else ''} ({part.where}{times})"
        canvas.rect(canvas.x(i), canvas.y, canvas.cell - gap, 14, _COLOURS[part.kind], title)
    canvas.text(_LEFT - 10, canvas.y + 11, "launches (dark), copies (pale)", "e")
    canvas.y += 28
    for tick in _ticks(len(found)):
        canvas.text(canvas.x(tick) + 2, canvas.y - 2, str(tick), "s n")
    canvas.y += 2


def _ports(canvas: _Canvas, artifact: Artifact, found: Sequence[Found]) -> None:
    rows = []
    end = max(len(found) - 1, 0)
    largest = artifact.signature.largest()
    for kind, tensors in (("input", largest.inputs), ("output", largest.outputs)):
        for tensor in tensors:
            used = [i for i, p in enumerate(found) if any(not t.memory and t.number == tensor.slot for t in p.touches)]
            rows.append(_Row(tensor.name, tensor.nbytes, _COLOURS[kind], 0, end, used))
    if rows:
        canvas.heading("inputs and outputs", size(sum(row.nbytes for row in rows)))
        _rows(canvas, rows)


def _memories(canvas: _Canvas, artifact: Artifact, found: Sequence[Found], kind: str, title: str) -> None:
    names = {w.memory: w.name for w in artifact.weights}
    used: dict[int, list[int]] = {}
    for i, part in enumerate(found):
        for number in {t.number for t in part.touches if t.memory}:
            used.setdefault(number, []).append(i)
    rows = []
    for number, (m, its) in enumerate(zip(artifact.program.memory, kinds(artifact), strict=True)):
        if its == kind and isinstance(m, Alloc):
            label = names.get(number, f"memory {number}")
            rows.append(_Row(label, m.nbytes, _COLOURS[kind], 0, max(len(found) - 1, 0), used.get(number, ())))
    if rows:
        total = size(sum(row.nbytes for row in rows))
        canvas.heading(title, total if len(rows) == 1 else f"{len(rows)} of together {total}")
        _rows(canvas, rows)


def _rows(canvas: _Canvas, rows: Sequence[_Row]) -> None:
    height = 15.0 if len(rows) * 15 <= _ROWS_HEIGHT else max(2.0, _MANY_ROWS_HEIGHT / len(rows))
    every = math.ceil(11 / height)  # so many rows have one label
    for i, row in enumerate(rows):
        title = f"{row.label}: {size(row.nbytes)}"
        bar = height - 3 if height > 6 else height
        x, width = canvas.x(row.first), (row.last - row.first + 1) * canvas.cell
        canvas.rect(x, canvas.y, width, bar, row.colour, title, ' fill-opacity="0.16"')
        for begin, end in _spans(row.used):
            canvas.rect(canvas.x(begin), canvas.y, max((end - begin + 1) * canvas.cell, 1.5), bar, row.colour, title)
        if i % every == 0:
            canvas.text(_LEFT - 10, canvas.y + min(bar + 1, 9), f"{_short(row.label, 26)} · {size(row.nbytes)}", "s e")
        canvas.y += height


def _arena(canvas: _Canvas, artifact: Artifact, number: int, pieces: Sequence[Life]) -> None:
    """Draw an arena as a map: bytes from top to bottom, parts from left to right."""
    m = artifact.program.memory[number]
    if not isinstance(m, Alloc) or not m.nbytes:
        return
    changes: dict[int, int] = {}
    for life in pieces:
        changes[life.first] = changes.get(life.first, 0) + life.nbytes
        changes[life.last + 1] = changes.get(life.last + 1, 0) - life.nbytes
    now = most = 0
    for at in sorted(changes):
        now += changes[at]
        most = max(most, now)
    exact = all(life.exact for life in pieces)
    note = f"{len(pieces)} pieces in {size(m.nbytes)}"
    note += f"; at most {size(most)} are live at once" if exact else "; sizes are guessed from addresses"
    canvas.heading(f"arena (memory {number})", note)
    height = float(_ARENA_HEIGHT if len(pieces) > 1 else 30)
    canvas.rect(_LEFT, canvas.y, canvas.width, height, "#faf6ef", more=' stroke="#d9cfbf" stroke-width="0.5"')
    for quarter in range(5 if height > 60 else 1):
        y = canvas.y + height * quarter / 4
        canvas.text(_LEFT - 10, y + (9 if quarter == 0 else 4), size(m.nbytes * quarter // 4), "s e")
    for life, shade in _shaded(pieces):
        _piece(canvas, life, m.nbytes, height, _SHADES[shade])
    canvas.y += height


def _shaded(pieces: Sequence[Life]) -> list[tuple[Life, int]]:
    """Give each piece a shade that its neighbours in time and place do not have, as far as there are enough."""
    done: list[tuple[Life, int]] = []
    for life in sorted(pieces, key=lambda life: (life.first, life.offset)):
        near = {
            shade
            for other, shade in done
            if other.last + 1 >= life.first
            and other.offset <= life.offset + life.nbytes + 64
            and life.offset <= other.offset + other.nbytes + 64
        }
        done.append((life, next((s for s in range(len(_SHADES)) if s not in near), len(done) % len(_SHADES))))
    return done


def _piece(canvas: _Canvas, life: Life, whole: int, height: float, colour: str) -> None:
    x, width = canvas.x(life.first), (life.last - life.first + 1) * canvas.cell
    y, tall = canvas.y + height * life.offset / whole, max(height * life.nbytes / whole, 1.2)
    gap = min(0.5, tall / 8)
    title = f"{size(life.nbytes)} at {life.offset}, parts {life.first} to {life.last}"
    edge = ' stroke="#8a5208" stroke-width="0.4"' if tall > 3 else ""
    canvas.rect(x + gap, y, max(width - 2 * gap, 1), tall - gap, colour, title, edge)
    label = size(life.nbytes)
    if tall >= 12 and width >= 6.2 * len(label) + 4:
        canvas.text(x + width / 2, y + tall / 2 + 4, label, "s m")


def _spans(parts_used: Sequence[int]) -> list[tuple[int, int]]:
    """Join consecutive numbers."""
    spans: list[tuple[int, int]] = []
    for i in parts_used:
        if spans and spans[-1][1] == i - 1:
            spans[-1] = (spans[-1][0], i)
        else:
            spans.append((i, i))
    return spans


def _ticks(count: int) -> list[int]:
    """Return the numbers of the parts that are marked: at most some 25, at round distances."""
    step = next((s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if count <= 25 * s), 5000)
    return list(range(0, count, step))


def _short(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most // 2 - 1]}…{text[len(text) - most // 2 :]}"


def _escaped(text: str) -> str:
    plain = "".join(c if c.isprintable() else "?" for c in text)
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
