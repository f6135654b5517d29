"""Faults of who works beside the host: a thread of its own that dies, or one of the device's."""

from __future__ import annotations

from typing import Any, ClassVar

from ...engine.engine import Engine
from ...worker import Step
from ...worker.worker import SAMPLE
from .fault import EVERYBODY, Fault, wrap

THREAD_OF = {
    "overlap_thread": "worker thread",
    "mindie_plugin": "forward thread",
    "mindie_dual": "forward thread",
    "pd": "kv transfer",
}


class Death(RuntimeError):
    """What kills a thread."""


class Poison:
    """Something in a thread's queue that it can't run, nor survive."""

    @property
    def slice_id(self) -> int:
        """Nobody reads it and lives."""
        raise Death("it was killed")

    def drop(self, error: BaseException) -> None:
        """Nobody waits for it."""

    def run(self) -> None:
        """Or runs it."""
        raise Death("it was killed")


class ThreadDies(Fault):
    """The loop's own thread dies when the ``at``-th call for it has been queued."""

    name: ClassVar[str] = "worker thread dies"
    says: ClassVar[str] = "has died"

    @classmethod
    def fits(cls, loop: str, device: str) -> bool:
        """Only some loops have one."""
        return loop in THREAD_OF

    def put_in(self, engine: Engine) -> None:
        """Wrap the way to the thread, wherever the loop takes it."""
        wrap(engine.device, "thread", self.around)
        if engine.device.clock == "virtual":
            self.signals: list[Any] = []
            wrap(engine.device, "signal", self.around_signal)

    def around_signal(self, signal: Any, name: str) -> Any:
        """Know what might be waited for."""
        self.signals.append(signal(name))
        return self.signals[-1]

    def around(self, thread: Any, name: str) -> Any:
        """The thread, which dies with time."""
        found = thread(name)
        if "launch" not in vars(found):
            self.kill(found)
        return found

    def kill(self, lane: Any) -> None:
        """Let a lane die at the ``at``-th launch; on ``sim`` all fails that it is to run then."""
        if hasattr(lane, "thread"):
            wrap(
                lane, "launch", lambda launch, *args, **more: self.poison(lane, launch, args, more)
            )
        else:
            wrap(lane, "launch", self.launch_dead)

    def poison(self, lane: Any, launch: Any, args: Any, more: Any) -> Any:
        """What is queued before the poison is still run."""
        op = launch(*args, **more)
        if self.is_due():
            self.hit(*EVERYBODY)
            lane.queue.put(Poison())
        return op

    def launch_dead(self, launch: Any, fn: Any, *args: Any, **more: Any) -> Any:
        """On ``sim``: run, or fail as a thread does that is dead."""
        if self.is_due():
            self.hit(*EVERYBODY)
        return launch(self.fail if self.is_hit else fn, *args, **more)

    def fail(self, *args: Any) -> Any:
        """Say what the thread would have said, and nothing else."""
        for signal in getattr(self, "signals", ()):
            signal.set()
        raise Death("the thread has died: it was killed")


class ThreadRaises(Fault):
    """A call of the loop's own thread raises before it has launched anything."""

    name: ClassVar[str] = "worker call raises"
    says: ClassVar[str] = "the thread is out of luck"

    @classmethod
    def fits(cls, loop: str, device: str) -> bool:
        """Where it is a thread that launches."""
        return loop in THREAD_OF and loop != "pd"

    def put_in(self, engine: Engine) -> None:
        """Wrap what the thread does first for a step."""
        wrap(engine.worker, "launch", self.around)

    def around(self, launch: Any, step: Step, *args: Any) -> Any:
        """Raise instead, once."""
        if not step.launched and self.is_due():
            self.hit(*step.batch.rids)
            raise Death(self.says)
        return launch(step, *args)


class StreamDies(ThreadDies):
    """The forward stream stops: its thread dies, on ``mlx`` that which evaluates, or watches."""

    name: ClassVar[str] = "stream dies"

    @classmethod
    def fits(cls, loop: str, device: str) -> bool:
        """CUDA's streams are no threads."""
        return device != "cuda"

    def put_in(self, engine: Engine) -> None:
        """Wrap the stream's launch, or on ``mlx`` what hands steps over."""
        if engine.device.name == "mlx":
            self.runner: Any = vars(engine.device)["_runner"]
            wrap(self.runner, "submit", self.around_submit)
        else:
            stream = next(op.stream for op in engine.worker.recipe if op.name == SAMPLE.name)
            self.kill(engine.device.stream(stream))

    def around_submit(self, submit: Any, *args: Any) -> None:
        """End one of its two threads before a step."""
        if self.is_due():
            self.hit(*EVERYBODY)
            executor: Any = vars(self.runner)["_watcher" if self.pick % 2 else "_evaluator"]
            executor.shutdown()
        submit(*args)
