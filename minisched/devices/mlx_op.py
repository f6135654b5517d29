"""An op of MLX: part of a lazy graph, until somebody sees its numbers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from .base import Label, OrNone, without_frames

if TYPE_CHECKING:
    from .mlx import MlxDevice


class MlxOp:
    """Part of a lazy graph: its arrays are there at once, their numbers later."""

    def __init__(
        self,
        device: MlxDevice,
        lane: str,
        name: str,
        label: Label,
        slice_id: int,
        after: MlxOp | None,
    ) -> None:
        self.device = device
        self.lane = lane
        self.name = name
        self.label = label
        self.slice_id = slice_id
        self.after = after
        self.value: Any = None
        self.error: Exception | None = None
        self.end = 0
        self.done: Future[None] = Future()

    def build(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Build the graph, or keep the error of ``fn`` or of the op that it builds upon."""
        try:
            for arg in args:
                if isinstance(arg, MlxOp) and arg.error is not None:
                    raise arg.error
            self.value = fn(
                *(arg.value if isinstance(arg, MlxOp | OrNone) else arg for arg in args)
            )
        except Exception as error:
            self.error = without_frames(error)

    def query(self) -> bool:
        """Whether it was seen to end; who hears that it has, comes after it."""
        if self.done.done():
            self.device.recorder.program.wait(self.slice_id)
        return self.done.done()

    def synchronize(self) -> Any:
        """Block until it has ended; return its value or raise its error."""
        if self in self.device.launched:
            self.device.flush(self)
        self.done.result()
        self.device.recorder.program.wait(self.slice_id)
        if self.error is not None:
            raise self.error
        return self.value


def fail(ops: list[MlxOp], error: BaseException) -> None:
    """Nobody will watch these end; whoever waits for one hears why."""
    for op in ops:
        if not op.done.done():
            op.error = op.error or RuntimeError(str(error))
            op.done.set_result(None)
