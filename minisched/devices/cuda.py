"""Streams of a GPU: what is launched is queued on the GPU, and the host goes on at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

from ..trace import Program, Recorder, Touch
from .base import NO_LABEL, Label, Op
from .torch_device import TorchDevice


class CudaOp:
    """What a function put on a stream, between two timed events.

    The value is there at once, as a tensor that the GPU has yet to fill; the events tell when.
    """

    def __init__(self, slice_id: int, program: Program) -> None:
        self.slice_id = slice_id
        self.program = program
        self.value: Any = None
        self.error: Exception | None = None
        self.named: tuple[Any, ...] = ()
        self.start = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)

    def query(self) -> bool:
        """Whether the GPU has got past it; who hears that it has, comes after it."""
        if is_done := bool(self.end.query()):
            self.program.wait(self.slice_id)
        return is_done

    def synchronize(self) -> Any:
        """Block the host until the GPU has got past it; return its value or raise its error."""
        self.end.synchronize()
        self.program.wait(self.slice_id)
        self.named = ()
        if self.error is not None:
            raise self.error
        return self.value

    def run(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Queue the work on the current stream; an argument's error is passed on.

        The op keeps its arguments, and what ``fn`` is bound to, until the host has waited for it:
        their memory belongs to other streams, which would hand it out again while this one still
        reads it.
        """
        self.named = fn, *args
        self.start.record()
        try:
            for arg in args:
                if isinstance(arg, CudaOp) and arg.error is not None:
                    raise arg.error
            self.value = fn(*(arg.value if isinstance(arg, CudaOp) else arg for arg in args))
        except Exception as error:
            self.error = error
        self.end.record()


class Timing(NamedTuple):
    """What a slice is made of once the GPU has got past ``end``; it holds no tensor."""

    lane: str
    name: str
    label: Label
    slice_id: int
    start: torch.cuda.Event
    end: torch.cuda.Event


class CudaStream:
    """A ``torch.cuda.Stream``."""

    def __init__(self, device: CudaDevice, name: str) -> None:
        self.device = device
        self.name = name
        self.stream = torch.cuda.Stream()

    def launch(
        self,
        fn: Callable[..., Any],
        *args: Any,
        name: str,
        cost: int = 0,
        label: Label = NO_LABEL,
        touches: Sequence[Touch] = (),
    ) -> CudaOp:
        """Queue ``fn``'s kernels behind what is on the stream, and behind all inputs shipped."""
        recorder = self.device.recorder
        op = CudaOp(recorder.new_id(), recorder.program)
        recorder.program.launch(self.name, op.slice_id, args, touches)
        self.stream.wait_stream(torch.cuda.current_stream())  # which carries the inputs
        with torch.cuda.stream(self.stream), torch.inference_mode():
            op.run(fn, args)
        self.device.timings.append(Timing(self.name, name, label, op.slice_id, op.start, op.end))
        return op

    def wait(self, op: CudaOp) -> None:
        """Hold back what follows until the GPU has got past ``op``."""
        self.device.recorder.program.wait(op.slice_id, self.name)
        self.stream.wait_event(op.end)


class CudaDevice(TorchDevice):
    """One GPU, as torch sees it (``devices/base.py:Device``).

    An op's slice lasts from the moment the GPU reaches it until it is done, so where the host is
    slow to queue kernels, the gaps between them count as the op's.

    Raises:
        ValueError: torch sees no GPU.
    """

    name = "cuda"
    built_by_host = True

    def __init__(self, recorder: Recorder | None = None) -> None:
        if not torch.cuda.is_available():
            raise ValueError("torch sees no GPU, which device 'cuda' needs; use device 'thread'.")
        super().__init__(recorder, torch.device("cuda", torch.cuda.current_device()))
        self.timings: deque[Timing] = deque()  # of ops that may still run
        self._streams: dict[str, CudaStream] = {}
        self._zero = torch.cuda.Event(enable_timing=True)
        self._zero.record()
        self._zero.synchronize()
        self._zero_at = self.now()

    def stream(self, name: str) -> CudaStream:
        """The stream of that name."""
        if name not in self._streams:
            self._streams[name] = CudaStream(self, name)
        return self._streams[name]

    def on_thread(self) -> AbstractContextManager[Any]:
        """A new thread would be on the first GPU: let it be on this one."""
        on_it: AbstractContextManager[Any] = torch.cuda.device(self.xp.device)
        return on_it

    def clear_cache(self) -> None:
        """Give cached memory back to the GPU, and mark the moment."""
        torch.cuda.empty_cache()
        self.recorder.mark("clear cache")

    def flush(self, *ops: Op) -> None:
        """Nothing to hand over; a good moment to record what has ended."""
        while self.timings and self.timings[0].end.query():
            lane, name, label, slice_id, start, end = self.timings.popleft()
            self.record(lane, name, self._time(start), self._time(end), label, slice_id)

    def close(self) -> None:
        """Let the GPU finish, and record the rest."""
        self.close_threads()
        torch.cuda.synchronize()
        self.flush()

    def _time(self, event: torch.cuda.Event) -> int:
        """When the GPU reached ``event``, in nanoseconds on the host's clock."""
        milliseconds = float(self._zero.elapsed_time(event))
        return self._zero_at + round(milliseconds * 1_000_000)
