"""A small engine of nano-vllm's shape for lesson 14: scheduler, model runner, and a serial loop.

The shape is that of nano-vllm's ``LLMEngine.step``: schedule, run the model, postprocess. The
runner launches and waits in two calls, so that a learner's loop may do something between them. The
engine records itself with ``minisched.record``. Its clock is virtual: each run has the same times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..record import Recorder

MS = 1_000_000  # nanoseconds
VOCAB = 97
EOS = 5  # the end of an answer
SCHEDULE_MS, POSTPROCESS_MS, FORWARD_MS = 2, 3, 8  # of one step


@dataclass(eq=False)
class AnswerSequence:
    """A prompt and its answer: what nano-vllm calls a ``Sequence``."""

    rid: str
    prompt: list[int]
    max_tokens: int
    answer: list[int] = field(default_factory=list)
    slot: int = -1  # its row in the memory of the device, while it runs
    in_flight: int = 0  # tokens that were launched and have not come back
    is_finished: bool = False

    @property
    def last_token(self) -> int:
        """Return the newest token that the host knows."""
        return self.answer[-1]

    @property
    def may_run(self) -> bool:
        """Return whether it needs another step, besides those in flight."""
        return not self.is_finished and len(self.answer) + self.in_flight < self.max_tokens


@dataclass(frozen=True)
class LaunchedStep:
    """A step on the device: its number, its sequences and tokens, its op, and the end of the op."""

    step: int
    seqs: tuple[AnswerSequence, ...]
    tokens: tuple[int, ...]
    op: int
    end: int


class SmallEngine:
    """Scheduler, model runner and clock.

    ``schedule``, ``launch``, ``wait`` and ``postprocess`` are the parts of one step. For each slot
    the device keeps a state, made of all tokens that it has read, and its newest token.
    """

    def __init__(self, prompts: Sequence[tuple[list[int], int]], most: int = 3) -> None:
        self.now = self.free_at = 0
        self.rec = Recorder(now=lambda: self.now)
        self.waiting = deque(
            AnswerSequence("abcdefgh"[at], prompt, most_tokens)
            for at, (prompt, most_tokens) in enumerate(prompts)
        )
        self.all = tuple(self.waiting)
        self.running: list[AnswerSequence] = []
        self.free_slots = list(range(most))
        self.state, self.newest = [0] * most, [0] * most
        self.steps = 0

    @property
    def is_finished(self) -> bool:
        """Return whether every answer has ended."""
        return not self.waiting and not self.running

    def schedule(self) -> list[AnswerSequence]:
        """Return the sequences of the next step: new ones if there is a slot, or all that may run.

        The tokens of these sequences count as in flight from now on.
        """
        with self.rec.host("schedule", step=self.steps + 1):
            self.now += SCHEDULE_MS * MS
            seqs = [seq for seq in self.running if seq.may_run]
            if self.waiting and self.free_slots:
                seqs = [self.waiting.popleft() for _ in self.free_slots[: len(self.waiting)]]
                for seq in seqs:
                    seq.slot = self.free_slots.pop(0)
                    self.running.append(seq)
            for seq in seqs:
                seq.in_flight += 1
        return seqs

    def input_ids(self, seqs: Sequence[AnswerSequence]) -> list[int]:
        """Return the newest token of each sequence, or ``-1 - slot`` if it is still in flight.

        A new sequence has none; its 0 is not read.
        """
        ids = []
        for seq in seqs:
            known = seq.last_token if seq.answer else 0
            ids.append(-1 - seq.slot if seq.in_flight > 1 else known)
        return ids

    def launch(self, seqs: Sequence[AnswerSequence], ids: Sequence[int]) -> LaunchedStep:
        """Launch a step and return immediately.

        ``ids`` are the newest tokens, one for each sequence. A negative one, ``-1 - slot``, stands
        for the token that the step before leaves in that slot. A new sequence reads its prompt
        instead.
        """
        self.steps += 1
        rids, slots = [seq.rid for seq in seqs], [seq.slot for seq in seqs]
        with self.rec.host("launch", step=self.steps, rids=rids):
            begin = max(self.now, self.free_at)
            self.free_at = begin + FORWARD_MS * MS
            touches = [(kind, "newest token", slots) for kind in ("read", "write")]
            op = self.rec.launch("forward", self.steps, rids, touches=touches)
            self.rec.ended(op, begin, self.free_at)
        tokens = tuple(self._sample(seq, token) for seq, token in zip(seqs, ids, strict=True))
        return LaunchedStep(self.steps, tuple(seqs), tokens, op, self.free_at)

    def _sample(self, seq: AnswerSequence, token: int) -> int:
        """Read a prompt or a token into the state of a slot, and return the next token."""
        is_new = seq.in_flight == 1 and not seq.answer
        known = self.newest[-1 - token] if token < 0 else token
        state = 0 if is_new else self.state[seq.slot]
        for each in seq.prompt if is_new else [known]:
            state = (state * 31 + each + 7) % 10_007
        self.state[seq.slot], self.newest[seq.slot] = state, state % VOCAB
        return self.newest[seq.slot]

    def wait(self, step: LaunchedStep) -> tuple[int, ...]:
        """Wait for a step, and return its tokens."""
        with self.rec.host("wait", step=step.step):
            self.rec.wait(step.op)
            self.now = max(self.now, step.end)
        return step.tokens

    def postprocess(self, step: LaunchedStep, tokens: Sequence[int]) -> None:
        """Add the tokens to the answers, and end those with a last token.

        The token of a sequence that has ended already is dropped: its step was launched too early.
        """
        with self.rec.host("process", step=step.step):
            self.now += POSTPROCESS_MS * MS
            for seq, token in zip(step.seqs, tokens, strict=True):
                seq.in_flight -= 1
                if seq.is_finished:
                    continue
                seq.answer.append(token)
                self.rec.token(seq.rid, token, step.step)
                if token == EOS or len(seq.answer) == seq.max_tokens:
                    seq.is_finished = True
                    self.running.remove(seq)
                    self.free_slots.append(seq.slot)
                    self.rec.mark(
                        "finish", rid=seq.rid, reason="stop" if token == EOS else "length"
                    )


def generate_serial(engine: SmallEngine) -> None:
    """Run all sequences, one step after the other, as nano-vllm's ``LLMEngine.generate`` does."""
    while not engine.is_finished:
        seqs = engine.schedule()
        step = engine.launch(seqs, engine.input_ids(seqs))
        engine.postprocess(step, engine.wait(step))
