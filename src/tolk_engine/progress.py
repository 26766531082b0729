"""How far a long job is: the type of a callback, and a bar for a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TextIO, TypeAlias

__all__ = ["Bar", "Progress", "bar"]

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called as ``progress(done, total, what)``: `done` never falls and ends at `total`; `what` says what is done now.

An exception that it raises ends the job and reaches the caller unchanged.
"""

_WIDTH = 28
_EVERY = 0.1  # seconds between two drawings
_TICK = 0.5  # seconds between two signs of life of a step that does not say how far it is


class Bar:
    """A progress bar on one line of a terminal.

    Call it as a `Progress`; use it as a context manager, so that the line ends also when the job fails. `during` is for
    a step that does not say how far it is.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn = -1.0
        self._last = 0

    def __call__(self, done: int, total: int, what: str) -> None:
        now = time.monotonic()
        if done < total and now - self._drawn < _EVERY:
            return
        self._drawn = now
        share = done / total if total else 1.0
        filled = int(share * _WIDTH)
        self._draw(f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {done}/{total} {what}"[:100])

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Draw `what` and how long it takes, again and again until the block is left."""
        start = time.monotonic()
        ended = Event()

        def draw() -> None:
            while not ended.wait(_TICK):
                self._draw(f"{what}, {time.monotonic() - start:.0f} s"[:100])

        self._draw(what[:100])
        drawing = Thread(target=draw, name="tolk-bar", daemon=True)
        drawing.start()
        try:
            yield
        finally:
            ended.set()
            drawing.join()

    def _draw(self, line: str) -> None:
        self._stream.write("\r" + line.ljust(self._last))
        self._stream.flush()
        self._last = len(line)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._last:
            self._stream.write("\r" + " " * self._last + "\r")
            self._stream.flush()
            self._last = 0


class _Silent(Bar):
    def __call__(self, done: int, total: int, what: str) -> None:
        pass

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        yield


def bar(*, quiet: bool = False, stream: TextIO | None = None) -> Bar:
    """Return a bar on `stream`, standard error by default; it draws nothing if `quiet` or where that is no terminal."""
    stream = sys.stderr if stream is None else stream
    return _Silent(stream) if quiet or not stream.isatty() else Bar(stream)
