"""Running: a loaded program, its frames, and frames that are bound once."""

from __future__ import annotations

from rig._core import Bound, StepPoints
from rig.program.packed import described

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rig import _core
    from rig._core import Buffer, Device, Point
    from rig.program.description import Input, Program
    from rig.program.packed import Packed

__all__ = ["Bound", "Frame", "Loaded", "StepPoints"]


class Frame:
    """What changes from one run to the next: the inputs, the first words of the ints, and where points are reported.

    `run` reads the lists once, before its first step; they may be changed between runs.
    """

    __slots__ = ("inputs", "ints", "step_points")

    def __init__(
        self, inputs: Sequence[Buffer], ints: Sequence[int] = (), step_points: StepPoints | None = None
    ) -> None:
        self.inputs = list(inputs)
        self.ints = list(ints)
        self.step_points = step_points


class Loaded:
    """A loaded program: runs any number of times, and keeps its memory and images while it is reachable.

    Once it is unreachable they return after the work of its last run. Runs from several threads are serialised before
    their first step; different programs run at once.
    """

    __slots__ = ("__weakref__", "_native", "_program", "_state", "devices")

    def __init__(
        self,
        native: _core.Program,
        program: Program | Packed,
        devices: tuple[Device, ...],
        state: Sequence[tuple[Buffer, bytes]] = (),
    ) -> None:
        """Keep what `rig.program.load` made; `state` is memory that runs write, each with its first bytes."""
        self._native = native
        self._state = state
        self._program = program
        self.devices = devices

    @property
    def description(self) -> Program:
        """The program that was loaded; decoded when it is first asked for, where a load did without."""
        return described(self._program)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The device and the least bytes of each input."""
        return self._program.inputs

    @property
    def submit_steps(self) -> int:
        """The number of Submit steps, a loop's body counted once."""
        return self._native.submit_steps

    @property
    def host_only(self) -> bool:
        """Whether only the host works for it, so that each run is done when it returns."""
        return self._native.host_only

    def input_written(self, index: int) -> bool:
        """Whether a run writes input `index`, so that it takes no read-only memory there."""
        return self._native.input_written(index)

    def step_points(self) -> StepPoints:
        """Make the `step_points` of this program's frames: one element per Submit step, each reached."""
        return self._native.step_points()

    def frame(self, inputs: Sequence[Buffer], ints: Sequence[int] = (), step_points: StepPoints | None = None) -> Frame:
        """Make a frame; `run` checks it."""
        return Frame(inputs, ints, step_points)

    def run(self, frame: Frame, *, waits: Sequence[Point] = ()) -> tuple[Point, ...]:
        """Run the steps once, in order, over `frame`, and give the run's ends.

        The ends are, for each device that ran a submission or a move, in the order of the program's devices, the point
        of its last one. Each device's first submission, and each move, follows the points of `waits` and the device's
        earlier work. Work on the host is done when this returns. Run n uses copy n mod 2 of memory that has two, after
        the work of run n - 2 on it; ints beyond the frame's hold what run n - 2 left there, at first 0.

        Raises Invalid before any step runs for another number of inputs, more ints, another number of step points, an
        input on another device, too small, dead, not to be borrowed, or read-only where the run writes; on the thread
        that runs this program already; and from a callback that rig makes inside a lock. Raises Invalid at a step,
        after the earlier ones ran, for geometry, a parameter, an offset or a flag that the ints make wrong; the program
        runs again afterwards. Raises Lost if a device is lost, or memory waits for work that a lost device never did.
        """
        return self._native.run(frame.inputs, frame.ints, frame.step_points, waits)

    def reset(self) -> None:
        """Write the first bytes of what runs write once more: the next run finds what the first one found.

        That is memory with an init or initial data, in each copy, and the ints, which become 0. It follows the work of
        earlier runs; runs of other threads wait meanwhile. Memory without first bytes stays as it is.

        Raises Invalid within a run of this program, and Lost if a device is lost.
        """
        ends = self._native.pause()
        try:
            for point in ends:
                point.wait()
            for buffer, data in self._state:
                buffer.view(0, len(data)).write(data)
        finally:
            self._native.resume()

    def bound(self, frame: Frame) -> Bound:
        """Prepare `frame`'s inputs and ints once: ``bound.run()`` then costs little more than its kernels."""
        return self._native.bind(frame.inputs, frame.ints)
