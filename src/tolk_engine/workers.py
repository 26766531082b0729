"""Write kernels' text in processes of our own, since the tensor compiler is Python under one lock.

A worker is a fresh interpreter that reads kernels from its standard input and answers with their text, each a pickle
behind its length. It ends when its input does, so that none outlives the process that started it.
"""

from __future__ import annotations

import os
import pickle
import queue
import struct
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

from rig.errors import Error, Refused
from tolk_engine.schedule import Kernel, Lowered
from tolk_engine.target import Target

__all__ = ["Workers", "serve"]

_LENGTH = struct.Struct("<Q")
_COMMAND = "from tolk_engine.workers import serve; serve()"


class Workers:
    """`count` processes that lower kernels for `target`; a context manager that leaves none behind."""

    def __init__(self, count: int, target: Target) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._target = target
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", _COMMAND],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # an interrupt of the terminal is ours to handle
            )
            for _ in range(count)
        ]
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(count, "tolk-worker")

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.communicate()

    def lower(self, kernels: Sequence[Kernel]) -> list[Future[Lowered]]:
        """Start to lower `kernels`; a future raises what lowering raised, `Refused` if the worker ended."""
        return [self._threads.submit(self._ask, kernel) for kernel in kernels]

    def _ask(self, kernel: Kernel) -> Lowered:
        process = self._idle.get()
        try:
            assert process.stdin is not None and process.stdout is not None
            try:
                _send(process.stdin, (kernel, self._target))
                answer = _receive(process.stdout)
            except OSError as e:
                answer = Refused(f"kernel {kernel.name}: its compiler's process cannot be reached: {e}")
            if answer is None:
                answer = Refused(f"kernel {kernel.name}: its compiler's process ended (status {process.poll()})")
        finally:
            self._idle.put(process)
        if isinstance(answer, Lowered):
            return answer
        raise answer


def serve() -> None:
    """Answer requests on the standard input until it ends: what a worker does."""
    from tolk_engine.renderer import of_target

    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not come between the answers
    while True:
        request = _receive(requests)
        if request is None:
            return
        kernel, target = request
        try:
            answer: object = of_target(target).render(kernel)
        except Error as e:
            answer = type(e)(str(e))
        except Exception as e:
            answer = Refused(f"kernel {kernel.name}: {type(e).__name__}: {e}")
        _send(answers, answer)


def _send(stream: IO[bytes], value: object) -> None:
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    """Return the next value, None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    data = stream.read(size)
    return pickle.loads(data) if len(data) == size else None
