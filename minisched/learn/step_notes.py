"""Which steps a learner's loop launched and processed, noted turn by turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..engine.engine import Engine
from ..worker import Step
from .blame import Mistake


@dataclass
class StepNotes:
    """Steps that were launched and processed, and what the loop did with its turns."""

    launched: list[int] = field(default_factory=list)
    processed: set[int] = field(default_factory=set)
    deepest: tuple[int, int] = (0, 0)  # most steps in flight, and the first that made it so many
    calls: int = 0  # of run_batch, process_batch_result and on_idle
    empty_turns: int = 0  # with none of these

    @property
    def in_flight(self) -> list[int]:
        """Steps that were launched and have not been processed."""
        return [step for step in self.launched if step not in self.processed]

    def watch(self, engine: Engine) -> None:
        """Note the calls of an engine's phases, and refuse what no phase can do.

        Raises (where a phase is called):
            Mistake: there is nothing to run, or a step has been processed before.
        """
        run, process, on_idle = engine.run_batch, engine.process_batch_result, engine.on_idle

        def run_batch(batch: Any, *rest: Any, **options: Any) -> Step:
            self.calls += 1
            if not batch:
                raise Mistake(
                    f"`run_batch` got {batch!r}: there was nothing to run; test `batch` first"
                )
            pending = run(batch, *rest, **options)
            self.launched.append(pending.batch.step)
            count = len(self.in_flight)
            if count > self.deepest[0]:
                self.deepest = count, pending.batch.step
            return pending

        def process_batch_result(step: Step) -> None:
            self.calls += 1
            number = step.batch.step
            if number in self.processed:
                raise Mistake(f"step {number} has already been processed")
            process(step)
            self.processed.add(number)

        def idle() -> None:
            self.calls += 1
            on_idle()

        engine.run_batch = run_batch  # type: ignore[method-assign]
        engine.process_batch_result = process_batch_result  # type: ignore[method-assign]
        engine.on_idle = idle  # type: ignore[method-assign]
