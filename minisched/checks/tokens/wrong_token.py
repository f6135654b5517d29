"""The story of a wrong token: from where it was heard back to the first thing that was wrong.

It walks backwards through a trace's program: the step that sampled the token, what its ops read,
who wrote that last, the steps these writers belong to, what they read, and so on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from ...trace import Trace
from ..happens_before import Past
from ..offence import Offence
from .ends import misdeliveries
from .identity import Difference, tokens_heard
from .step_reads import Fault, Source, StepReads
from .wrong_buffers import faults_of_inputs, faults_of_output
from .wrong_memory import faults_of_kv, faults_of_table
from .wrong_relay import faults_of_relay


@dataclass(frozen=True)
class Link:
    """One thing that happened on the way to a wrong token; ``slices`` are those that did it."""

    sentence: str
    slices: tuple[int, ...] = ()


@dataclass(frozen=True)
class Story:
    """Why a token is wrong: the culprit, and the chain from the token back to it.

    ``is_known`` is False where all that the trace tells is as it should be: then what is wrong is
    inside an op. ``missing`` is the edge that should have been there, from slice to slice.
    """

    difference: Difference
    culprit: Link
    chain: tuple[Link, ...]
    is_known: bool = True
    missing: tuple[int, int] | None = None

    def __str__(self) -> str:
        return "\n".join([self.culprit.sentence, *(f"  {link.sentence}" for link in self.chain)])


def token_offence(story: Story) -> Offence:
    """What a picture of the story shows in red."""
    return Offence(story.culprit.slices, story.culprit.sentence, story.missing)


def explain(difference: Difference, trace: Trace) -> Story:
    """The chain of events that produced a wrong token, the culprit first.

    Raises:
        ValueError: the trace does not say which tokens were delivered, or what its lanes did.
    """
    if not trace.program:
        raise ValueError(
            f"The trace of {trace.loop} has no program, so nobody can tell who wrote what."
        )
    heard = tokens_heard(trace).get(difference.rid, [])
    is_heard = difference.position < len(heard)
    step = heard[difference.position].step if is_heard else heard[-1].step if heard else 0
    side = "decode" if any("side" in mark.attrs for mark in trace.marks) else ""
    reads = StepReads(trace, Past(trace), step, difference.rid, side)
    begin = _begin(difference, reads)
    for item in misdeliveries(trace, side):
        if item.rid == difference.rid and (item.step <= step or not is_heard):
            culprit = Link(item.sentence, reads.samples_of(item.step))
            return Story(difference, culprit, (begin,))
    return _walk(difference, reads, begin) if is_heard else _silence(difference, reads, begin)


def _walk(difference: Difference, first: StepReads, begin: Link) -> Story:
    """Breadth first: what is nearest to the token is told first."""
    seen = {(first.step, first.rid)}
    waiting: deque[tuple[StepReads, tuple[Link, ...]]] = deque([(first, (begin,))])
    relayed: Link | None = None
    while waiting:
        reads, chain = waiting.popleft()
        if fault := first_fault(reads, is_token=reads is first):
            culprit = Link(fault.sentence, fault.slices)
            return Story(difference, culprit, chain, missing=fault.missing)
        for found in reads.sources:
            link = _read(reads, found)
            if relayed is None and found.is_token:
                relayed = link
            if found.step and (found.step, found.rid) not in seen:
                seen.add((found.step, found.rid))
                source = replace(reads, step=found.step, rid=found.rid, sources=[])
                waiting.append((source, (*chain, link)))
    return _nothing_found(difference, first, begin, relayed)


def first_fault(reads: StepReads, is_token: bool = True) -> Fault | None:
    """The first thing that a step read and that is not as it should be.

    With ``is_token`` the way of its tokens to the host is looked at, too.
    """
    rules = [faults_of_inputs, faults_of_relay, faults_of_table, faults_of_kv]
    for rule in [faults_of_output, *rules] if is_token else rules:
        for fault in rule(reads):
            return fault
    return None


def _begin(difference: Difference, reads: StepReads) -> Link:
    """Where the story begins: the token, and the step that sampled it."""
    rid, at, step = reads.rid, difference.position, reads.step
    if difference.got is None:
        where = f"after output {at - 1}, from step {step}, {rid} heard nothing more"
        words = f"{where if step else f'{rid} heard nothing'}, although {difference.expected}"
        return Link(f"{words} should have followed", reads.samples_of(step))
    wanted = "nothing" if difference.expected is None else str(difference.expected)
    words = f"{rid}'s output {at} is {difference.got} instead of {wanted}; step {step} sampled it"
    return Link(words, reads.samples_of(step))


def _read(reads: StepReads, found: Source) -> Link:
    """What a step was built upon."""
    ops = [item for item in reads.trace.slices if item.step == found.step]
    name = "sample" if found.is_token else "forward"
    return Link(
        f"step {reads.step} read {found.where} for {reads.rid}, which step {found.step} had "
        f"written for {found.rid}",
        tuple(item.id for item in ops if item.name == name),
    )


def _nothing_found(
    difference: Difference, reads: StepReads, begin: Link, relayed: Link | None
) -> Story:
    """All that was read is as it should be, so an op made something wrong of it."""
    where = f"an op of step {reads.step}, or of a step before it"
    words = "everything that was read for this token is as it should be, as far as the trace tells"
    forward = tuple(item.id for item in reads.ops if item.name == "forward")
    if relayed is None:
        culprit = Link(f"{words}, so {where}, made something wrong of it", forward)
        return Story(difference, culprit, (begin,), is_known=False)
    culprit = Link(
        f"{words}, so {where}, made something wrong of it; the first to look at is what the "
        f"forward pass made of the token from the device: {relayed.sentence}",
        (*relayed.slices, *forward),
    )
    return Story(difference, culprit, (begin, relayed), is_known=False)


def _silence(difference: Difference, reads: StepReads, begin: Link) -> Story:
    """A token that never came."""
    rid, finish = difference.rid, "finish"
    ends = (mark for mark in reads.trace.marks if mark.name == finish and mark.attrs["rid"] == rid)
    end = next(ends, None)
    fate = f"it ended too early ({end.attrs['reason']})" if end else "the run stopped before it"
    text = f"output {difference.position} of {rid} was never delivered: {fate}"
    return Story(difference, Link(text, begin.slices), (begin,), is_known=False)
