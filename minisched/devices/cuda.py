"""Streams of a GPU: a launch queues work on the GPU, and the host goes on immediately.

A launch calls the op's function, and torch's operations queue kernels on the stream. So the value
exists immediately, as a tensor that the GPU fills later. Events on the stream give the times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..record_torch import Timing, Timings
from ..trace import Recorder, Touch
from .base import NO_LABEL, Event, Label, Op, value_of, without_frames
from .thread import TorchDevice

IDLE: defaultdict[tuple[int, str], list[torch.cuda.Stream]] = defaultdict(list)  # by GPU and name


class CudaOp(Op):
    """The work that a function queued on a stream, between two timed events."""

    def __init__(self, slice_id: int, recorder: Recorder) -> None:
        self.slice_id = slice_id
        self.recorder = recorder
        self.named: tuple[Any, ...] = ()
        self.start = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)

    def run(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Queue the work on the current stream; pass an argument's error on.

        The op keeps its arguments and ``fn``'s object until the host has waited for it. Their
        memory belongs to other streams, which would reuse it while this stream still reads it.
        """
        self.named = fn, *args
        self.start.record()
        try:
            self.value = fn(*map(value_of, args))
        except Exception as error:
            self.error = without_frames(error)
        self.end.record()

    def _has_ended(self) -> bool:
        return bool(self.end.query())

    def _wait(self) -> None:
        self.end.synchronize()
        self.named = ()


class CudaStream:
    """A ``torch.cuda.Stream``."""

    def __init__(self, device: CudaDevice, name: str, stream: torch.cuda.Stream) -> None:
        self.device = device
        self.name = name
        self.stream = stream

    def launch(
        self,
        fn: Callable[..., Any],
        *args: Any,
        name: str,
        cost: int = 0,
        label: Label = NO_LABEL,
        touches: Sequence[Touch] = (),
    ) -> CudaOp:
        """Queue ``fn``'s kernels after the stream's work, and after all inputs shipped."""
        recorder = self.device.recorder
        sources = (getattr(arg, "slice_id", 0) for arg in args)  # read only if it records
        slice_id = recorder.launch(
            name, lane=self.name, touches=touches, uses=sources, **vars(label)
        )
        op, timings = CudaOp(slice_id, recorder), self.device.timings
        zero = timings.clock.zero
        self.stream.wait_stream(torch.cuda.current_stream())  # the stream that ships the inputs
        with torch.cuda.stream(self.stream), torch.inference_mode():
            op.run(fn, args)
        timings.pending.append(Timing(self.name, slice_id, op.start, op.end, zero))
        return op

    def wait(self, op: Event) -> None:
        """Start later launches only after the GPU has passed ``op``."""
        assert isinstance(op, CudaOp)
        self.device.recorder.wait(op.slice_id, self.name)
        self.stream.wait_event(op.end)


class CudaDevice(TorchDevice):
    """One GPU, as torch sees it (``devices/base.py:Device``).

    An op's slice lasts from the moment at which the GPU reaches it until it is done. If the host
    queues kernels slowly, the gaps between them are part of the slice.

    CUDA has few streams, and memory that was used on a stream is reused on that stream only. So a
    device takes the streams of closed devices.

    Raises:
        ValueError: torch sees no GPU.
    """

    name = "cuda"
    built_by_host = True

    def __init__(self, recorder: Recorder | None = None) -> None:
        if not torch.cuda.is_available():
            raise ValueError("torch sees no GPU, which device 'cuda' needs; use device 'thread'.")
        super().__init__(recorder, torch.device("cuda", torch.cuda.current_device()))
        self._streams: dict[str, CudaStream] = {}
        self.timings = Timings(self.recorder, self.now, self.stream("clock").stream)

    def stream(self, name: str) -> CudaStream:
        """Return the stream of that name."""
        if name not in self._streams:
            idle = IDLE[self.xp.device.index, name]
            self._streams[name] = CudaStream(
                self, name, idle.pop() if idle else torch.cuda.Stream()
            )
        return self._streams[name]

    def on_thread(self) -> AbstractContextManager[Any]:
        """Return a context with this GPU; a new thread would use the first one."""
        on_it: AbstractContextManager[Any] = torch.cuda.device(self.xp.device)
        return on_it

    def clear_cache(self) -> None:
        """Release cached memory to the GPU, and mark the moment."""
        torch.cuda.empty_cache()
        self.recorder.mark("clear cache")

    def flush(self, *ops: Op) -> None:
        """Record the ops that have ended, unless another thread does; no op waits for a flush."""
        self.timings.flush()

    def close(self) -> None:
        """Wait for the GPU, and record the remaining ops."""
        self.close_threads()
        torch.cuda.synchronize()
        self.flush()
        for name, stream in self._streams.items():
            IDLE[self.xp.device.index, name].append(stream.stream)
        self._streams.clear()
