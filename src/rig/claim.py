"""Claims: what a caller says about memory, so that nothing else takes it away meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from rig._core import Buffer

__all__ = ["Claim"]


class Claim:
    """A claim on the whole memory that a buffer is of: shared and counted, or exclusive. A context manager.

    Claims never wait, and device work takes none. Memory that something outside rig reaches, such as an array given by
    `Buffer.of`, is never exclusive.
    """

    __slots__ = ("_buffer", "_exclusive", "_held")

    def __init__(self, buffer: Buffer, *, exclusive: bool) -> None:
        self._buffer = buffer
        self._exclusive = exclusive
        if exclusive:
            buffer._exclude()
        else:
            buffer._hold()
        self._held = True

    @classmethod
    def hold(cls, buffer: Buffer) -> Claim:
        """Claim `buffer`'s memory together with others, so that no call consumes it.

        Raises Invalid if the memory is dead or held exclusive.
        """
        return cls(buffer, exclusive=False)

    @classmethod
    def exclusive(cls, buffer: Buffer) -> Claim:
        """Claim `buffer`'s memory alone: `buffer` must be the whole of it.

        Raises Invalid if the memory is dead, has another claim, or is reached by something outside rig.
        """
        return cls(buffer, exclusive=True)

    def consume(self, why: str) -> Buffer:
        """End every buffer over this exclusively claimed memory made so far, and give the live one; ends the claim.

        A later use of a dead buffer raises Invalid with `why`.
        """
        from rig.errors import Invalid

        if not self._held or not self._exclusive:
            raise Invalid("consuming a buffer needs an exclusive claim on its memory")
        heir = self._buffer._consume(why)
        self._held = False
        return heir

    def release(self) -> None:
        """End the claim; a second call does nothing."""
        if self._held:
            self._held = False
            if self._exclusive:
                self._buffer._unexclude()
            else:
                self._buffer._unhold()

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_held", False):
            self.release()
