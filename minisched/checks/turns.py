"""The turns of a loop, a part of the law *progress*: it receives, decides and waits when it must.

- A turn receives the messages that have arrived before it decides on a step.
- The host is blocked on a step only if as many steps are in flight as the loop allows, if the
  scheduler has just found no further step, or if a mark names the reason. The newest step is laid
  out by then. A loop that only repeats steps (``REPEATS``) may also wait if the newest step can't
  be repeated, and repeats no such step. Whether it can is computed here a second time.
- A step that must not overlap (SGLang's two reasons, ``overlap.py``) is launched after the results.
- MLX's cached buffers are returned after every ``clear_cache_every`` decode steps.
- The host builds a mask, and lets a sampling wait for tokens, only for requests that need that.
- Where the host builds the ops, it has the result of the last step before it lays out a step with
  positions that depend on that result.
- The host processes no result while a thread of it builds a mask, because that reads the requests.
- The sampling is launched as soon as its mask is built, unless a thread of the host launches it.
- The prefill side of ``pd`` sends the KV of a chunk when it has processed the chunk's step.
- A step with an op that raised an error is processed as a failed one. The op that replaces the
  pass of a lost step raises none.
- MindIE's ledger lists the live requests alone. Once a step is launched, it has their tokens and a
  placeholder for each one in flight.

A loop of one's own may wait for other reasons, so of it only the first sentence is checked. Waits
are judged on a virtual clock alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from ..core import NoBatch, Outputs, Request, Result, ScheduleBatch
from ..devices.base import Label, Op, Stream
from ..engine.engine import Engine
from ..loops.design import LOOPS, find_loop
from ..loops.overlap import overlap
from ..loops.pd import PrefillEngine
from ..relay.placeholder_fill import PLACEHOLDER_TOKEN
from ..scheduler import Scheduler
from ..worker import Step
from .history import many
from .laws import STAND_IN


def can_repeat(scheduler: Scheduler, batch: ScheduleBatch) -> bool:
    """Return whether every request of a decode step may run once more, and has memory for it."""
    lacking, size = 0, scheduler.config.page_size
    for row in batch.rows:
        req, lease = row.req, row.lease
        last = min(scheduler.config.row_len, req.max_device_len - 1 + scheduler.decode.overrun)
        if req.lease is not lease or row.end >= last:
            return False
        if row.end >= req.known_len and not scheduler.decode.run_ahead:
            return False
        lacking += row.end >= len(lease.pages) * size
    return not batch.num_extend_reqs and lacking <= scheduler.leases.available_pages


def can_chain(scheduler: Scheduler, batch: ScheduleBatch) -> bool:
    """Return whether a decode step may be repeated, and no other request could join it."""
    joins = scheduler.waiting_queue or scheduler.prefill.chunked_req
    is_whole = batch.reqs == scheduler.running_batch
    return not joins and is_whole and can_repeat(scheduler, batch)


REPEATS: dict[str, Callable[[Scheduler, ScheduleBatch], bool]] = {
    "mlx_async": can_chain,
    "multi_step": can_repeat,
}
"""Loops that run ahead of a step only by repeating it, and the test of whether they can."""


def most_in_flight(loop: str, options: Mapping[str, Any]) -> int:
    """Return the steps that a loop has in flight before it has to wait."""
    return int(options.get("num_steps", find_loop(loop, options).in_flight))


def is_published(loop: str) -> bool:
    """Return whether a loop is one of this package, by its name."""
    design = LOOPS[loop]
    return design.source is None and design.run.__module__.startswith("minisched.loops.")


class LoopTurns:
    """Observes the phases of one engine; ``found`` has the first violation of each kind."""

    def __init__(self, engine: Engine, loop: str, options: Mapping[str, Any]) -> None:
        self.engine, self.scheduler = engine, engine.scheduler
        self.found: dict[str, str] = {}
        self.has_received = False  # in this turn
        self.builds_always = bool(options.get("delay_sample"))
        self.options = find_loop(loop, options).options
        self.overlaps = LOOPS[loop].run is overlap
        self.is_deciding = False
        self.is_after_prompts = False  # the step that was run last has prompts
        self.num_decodes, self.num_cleared = 0, 0  # steps that the host has read; calls
        self.can_repeat = REPEATS.get(loop)
        self.most = most_in_flight(loop, options)
        self.is_empty = deque[bool](maxlen=self.most)  # of each of the last decisions
        self.newest: ScheduleBatch | None = None  # step
        self.asked = False  # the scheduler found no step after the newest
        self.excused: set[int] = set()  # steps with a mark of why they wait, and lost ones
        self.aborted = set[str]()  # requests that ended when this turn received messages
        self.masked: Step | None = None  # the last step with a built mask
        self.launches_samples = False
        self.laid_out: Step | None = None  # the newest step that is laid out
        self.by_thread: Op | None = None  # the newest mask that a thread builds
        self.listen_to_decisions()
        if is_published(loop):
            self.listen_to_waits()
            self.listen_to_launches()
        if is_published(loop) and loop.startswith("mindie"):
            self.listen_to_ledger()
        if isinstance(engine, PrefillEngine):
            self.listen_to_transfers(engine)

    def end(self, engine: Engine) -> None:
        """End a turn of an engine."""
        self.has_received &= engine is not self.engine

    def listen_to_decisions(self) -> None:
        """Wrap what receives messages and what decides on a step."""
        engine, scheduler = self.engine, self.scheduler
        receive, next_batch = engine.recv_requests, scheduler.next_batch
        on_commit = scheduler.on_commit

        def received() -> None:
            """Record that this turn has received, and the requests that end by it."""
            self.has_received, before = True, {*scheduler.live}
            receive()
            self.aborted = before - scheduler.live.keys()

        def decided() -> ScheduleBatch | NoBatch:
            """Check that this turn has received, and record an empty decision."""
            if not self.has_received:
                after = f"after step {scheduler.leases.launched_step}"
                self.found.setdefault(
                    "receive", f"the turn {after} decides before it receives messages"
                )
            self.is_deciding = True
            batch = next_batch()
            self.is_deciding, self.asked = False, not batch
            self.is_empty.append(not batch)
            return batch

        def committed(batch: ScheduleBatch) -> None:
            """Record the newest step."""
            self.newest, self.asked = batch, False
            if on_commit is not None:
                on_commit(batch)

        engine.recv_requests = received  # type: ignore[method-assign]
        scheduler.next_batch, scheduler.on_commit = decided, committed  # type: ignore[method-assign]

    def listen_to_waits(self) -> None:
        """Wrap what waits, what gives the reason, and what builds a mask."""
        engine, recording = self.engine, self.engine.recording
        wait, must_wait = recording.wait, recording.must_wait
        update_vocab_mask, process_result = engine.update_vocab_mask, engine.process_result
        launch_sample, wait_for = engine.launch_batch_sample_if_needed, engine.wait_for

        def waited(start: int, label: Label) -> None:
            """Check a time in which the host was blocked."""
            is_blocked = engine.device.clock == "virtual" and engine.device.now() > start
            newest = self.newest.step if self.newest else 0
            laid_out = self.laid_out.batch.step if self.laid_out else 0
            if is_blocked and laid_out < newest and newest not in self.excused:
                self.found.setdefault(
                    "layout", f"the host is blocked on step {label.step} before it lays out step "
                    f"{newest}, which is decided",
                )  # fmt: skip
            if is_blocked and label.step not in self.excused and not self.may_wait():
                number = many(self.scheduler.batches_in_flight, "step")
                self.found.setdefault(
                    "wait", f"the host is blocked on step {label.step} with {number} in flight, "
                    f"but its loop has up to {self.most}, and another step could run",
                )  # fmt: skip
            wait(start, label)

        def waiting_for(step: Step) -> Result:
            """Excuse a step that the loop takes for one that has ended (``vllm.py:is_done``)."""
            if step.copy_done is None or getattr(step.copy_done, "done", False):
                self.excused.add(step.batch.step)
            return wait_for(step)

        def marked(batch: ScheduleBatch, reason: str, op: str) -> None:
            """Record that a step has a reason to wait; check a sampling's."""
            self.excused.add(batch.step)
            if op == "sample" and not any(map(self.lacks_tokens, batch.rows)):
                self.found.setdefault(
                    "delay", f"the sampling of step {batch.step} waits for a {reason}, but the "
                    "host knows every token that its requests depend on",
                )  # fmt: skip
            must_wait(batch, reason, op)

        def masks(step: Step, *newest: Any) -> None:
            """Check that a request of the step depends on earlier tokens."""
            needs = any(map(depends, step.batch.reqs))
            if not (needs or self.builds_always):
                self.found.setdefault(
                    "mask", f"the host builds a mask for step {step.batch.step}, but none of its "
                    "requests has a grammar or penalties",
                )  # fmt: skip
            update_vocab_mask(step, *newest)
            is_delayed = step.delay_sample_func is not None
            self.masked = step if is_delayed and self.launches_samples else None

        def launched(step: Step) -> None:
            """Record that the loop launches samplings itself, not by a thread."""
            self.launches_samples = True
            launch_sample(step)

        def processed(step: Step, result: Result) -> Outputs:
            """Check that a step with a built mask has been sampled, and what an error keeps."""
            late = self.masked
            if late is not None and late.delay_sample_func is not None and late.error is None:
                self.found.setdefault(
                    "sample", f"step {step.batch.step} is processed, but the sampling of step "
                    f"{late.batch.step} is not launched, although its mask is built",
                )  # fmt: skip
            if not getattr(self.by_thread, "done", True):
                self.found.setdefault(
                    "thread", f"step {step.batch.step} is processed, while a thread builds a mask "
                    "from the requests",
                )  # fmt: skip
            self.count_decode(step.batch, result)
            errors = [step.error, *(op.error for op in step.launched)]
            if engine.device.clock != "virtual":  # an op of a later step may raise it again now
                errors = []
            if not result.error and any(error is not None for error in errors):
                self.found.setdefault(
                    "error", f"step {step.batch.step} is processed without an error, but an op of "
                    "it has raised one",
                )  # fmt: skip
            if any(op.name == STAND_IN and op.error is not None for op in step.launched):
                self.found.setdefault(
                    "lost", f"step {step.batch.step} is lost, and the op that replaces its pass "
                    "has raised an error",
                )  # fmt: skip
            if any(error is not None and error.__traceback__ is not None for error in errors):
                self.found.setdefault(
                    "frames", f"the error of step {step.batch.step} keeps the frames of its "
                    "traceback, and their memory",
                )  # fmt: skip
            return process_result(step, result)

        lay_out = engine.worker.lay_out

        def laid_out(step: Step, previous: Step | None = None) -> None:
            """Check that a step that the host builds has known positions."""
            before, self.laid_out = self.laid_out, step
            lay_out(step, previous)
            is_late = before is not None and not before.has_result
            starts = getattr(step.batch, "start_unknown", ())  # of a step with drafts
            if engine.device.built_by_host and is_late and any(starts):
                self.found.setdefault(
                    "positions", f"the host builds step {step.batch.step} before it has the result "
                    "that the positions of the step depend on",
                )  # fmt: skip

        engine.worker.lay_out = laid_out  # type: ignore[method-assign]

        def opened(name: str) -> Stream:
            """Return a thread of the host, and record the masks that it builds."""
            lane = thread(name)
            if "launch" in vars(lane):
                return lane  # it was opened before
            launch = lane.launch

            def launched(fn: Callable[..., Any], *args: Any, **options: Any) -> Op:
                """Keep the op of a mask."""
                op: Op = launch(fn, *args, **options)
                self.by_thread = op if options["name"] == "mask" else self.by_thread
                return op

            lane.launch = launched  # type: ignore[method-assign]
            return lane

        thread = engine.device.thread
        engine.device.thread = opened  # type: ignore[method-assign]
        recording.wait, recording.must_wait = waited, marked  # type: ignore[method-assign]
        engine.wait_for = waiting_for  # type: ignore[method-assign]
        engine.update_vocab_mask = masks  # type: ignore[method-assign, assignment]
        engine.launch_batch_sample_if_needed = launched  # type: ignore[method-assign]
        engine.process_result = processed  # type: ignore[method-assign]

    def listen_to_launches(self) -> None:
        """Wrap what commits and runs a step, and what returns cached buffers."""
        engine, scheduler = self.engine, self.scheduler
        commit, run_batch = scheduler.commit, engine.run_batch
        clear_cache = engine.device.clear_cache

        def committed(prompts: Any, decodes: list[Request]) -> ScheduleBatch:
            """Check a step without a decision of its own, which repeats the newest one."""
            may_repeat = True
            if self.can_repeat and self.newest and not self.is_deciding:
                may_repeat = self.can_repeat(scheduler, self.newest)
            batch = commit(prompts, decodes)
            if not may_repeat:
                self.found.setdefault(
                    "repeat", f"step {batch.step} repeats the step before, in which a request has "
                    "ended, or has no room or no memory for one more token",
                )  # fmt: skip
            return batch

        def ran(
            batch: ScheduleBatch, previous: Step | None = None, delay_sample: bool = False
        ) -> Step:
            """Check that no result is in flight which the step must not overlap."""
            if self.overlaps and scheduler.batches_in_flight > 1 and self.must_be_alone(batch):
                self.found.setdefault(
                    "overlap", f"step {batch.step} is launched before the last result is "
                    "processed, but must not overlap with that step",
                )  # fmt: skip
            self.is_after_prompts = bool(batch.num_extend_reqs)
            return run_batch(batch, previous, delay_sample)

        def cleared() -> None:
            """Count a call."""
            self.num_cleared += 1
            clear_cache()

        scheduler.commit = committed  # type: ignore[method-assign]
        engine.run_batch = ran  # type: ignore[method-assign]
        engine.device.clear_cache = cleared  # type: ignore[method-assign]

    def must_be_alone(self, batch: ScheduleBatch) -> bool:
        """Return whether SGLang's overlap loop processes the last result before this step."""
        if batch.num_extend_reqs:
            return bool(
                self.options.get("disable_consecutive_prefill_overlap") and self.is_after_prompts
            )
        algorithm = self.scheduler.config.speculative_algorithm
        overlaps = algorithm != "NGRAM" and self.options.get("supports_grammar_overlap", True)
        return bool(algorithm and not overlaps and self.engine.missing_history(batch))

    def count_decode(self, batch: ScheduleBatch, result: Result) -> None:
        """Count a decode step that is read; check how often buffers were returned so far."""
        every = self.options.get("clear_cache_every", 0)
        self.num_decodes += not result.error and batch.num_extend_reqs < len(batch.reqs)
        if every and self.num_cleared != self.num_decodes // every:
            self.found.setdefault(
                "buffers", f"after {self.num_decodes} decode steps the cached buffers were "
                f"returned {self.num_cleared} times, but that is due every {every} steps",
            )  # fmt: skip

    def listen_to_ledger(self) -> None:
        """Wrap what marks the lists of MindIE's ledger."""
        recorder, live = self.engine.device.recorder, self.scheduler.live
        mark, has_beams = recorder.mark, self.scheduler.config.beam_width > 1

        def marked(name: str, **attrs: Any) -> None:
            """Compare the lists with the requests of the scheduler."""
            mark(name, **attrs)
            if name != "ledger":
                return
            tokens = iter(attrs["tokens"])
            pairs = zip(attrs["rids"], attrs["lengths"], strict=True)
            lists = {rid: [*islice(tokens, length)] for rid, length in pairs}
            expected = dict[str, list[int]]()
            is_all = attrs["after"] == "schedule" and not has_beams  # these change their outputs
            for rid, req in live.items() if is_all else ():
                expected[rid] = req.output_ids + [PLACEHOLDER_TOKEN] * req.num_output_placeholders
            wrong = lists.keys() - live.keys() - self.aborted
            wrong |= {rid for rid, ids in expected.items() if lists.get(rid, []) != ids}
            if wrong:
                self.found.setdefault(
                    "ledger", f"after the {attrs['after']} of step {attrs['step']} the ledger has "
                    f"{lists.get(min(wrong))} for {min(wrong)}, but {expected.get(min(wrong))} "
                    "follows from its requests",
                )  # fmt: skip

        recorder.mark = marked  # type: ignore[method-assign]

    def listen_to_transfers(self, engine: PrefillEngine) -> None:
        """Wrap what sends the KV of chunks."""
        process, page_size = engine.process_batch_result, engine.scheduler.config.page_size

        def processed(step: Step) -> None:
            """Check that whole pages of chunks are on their way, and none of a lost lease."""
            before = {room: sender.sent_len for room, sender in engine.senders.items()}
            process(step)
            for row in step.batch.rows:
                room, whole = row.req.rid, row.end - row.end % page_size
                sent = engine.senders[room].sent_len if room in engine.senders else whole
                if row.req.lease is not row.lease:
                    if sent != before.get(room, sent):
                        self.found.setdefault(
                            "send", f"the KV of {room} is sent after step {step.batch.step}, "
                            "although it has lost its memory since the launch",
                        )  # fmt: skip
                elif not row.deliver and sent < whole:
                    self.found.setdefault(
                        "send", f"step {step.batch.step} has computed {room} up to position "
                        f"{whole}, but its KV is sent up to {sent}",
                    )  # fmt: skip

        engine.process_batch_result = processed  # type: ignore[method-assign]

    def may_wait(self) -> bool:
        """Return whether the host may be blocked now."""
        newest = self.newest
        if self.scheduler.batches_in_flight >= self.most or self.asked or newest is None:
            return True
        if self.can_repeat is None:
            return any(self.is_empty) or newest.step in self.excused
        if not self.can_repeat(self.scheduler, newest):
            return True
        return bool(self.engine.missing_history(newest, steps_ahead=1))

    def lacks_tokens(self, row: Any) -> bool:
        """Return whether a row's next token depends on tokens that the host does not know."""
        req, late = row.req, self.scheduler.config.late_penalties
        missing = row.start + 1 - req.known_len
        needs = (req.params.has_grammar and missing > 0) or (
            req.params.has_penalties and missing > late
        )
        return bool(needs and row.deliver and req.lease is row.lease)


def depends(req: Request) -> bool:
    """Return whether the tokens of a request depend on the ones before, besides its KV."""
    return bool(req.params.has_grammar or req.params.has_penalties)
