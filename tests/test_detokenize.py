"""One DetokenizeMsg for each token, in order; finished on the last one, and none after it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from minisched.core import FinishReason, Output, Result, ScheduleBatch
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.loops.mini_detokenize import DetokenizeMsg
from minisched.models.hash import HashModel
from tests.support import VOCAB, Broken, Workload, play, workloads

COST = CostModel({"schedule": 5, "launch": 1, "process": 5}, 20, 0, 2, 4)
LOOPS = pytest.mark.parametrize("loop", ["mini_normal", "mini_overlap"])


def check_messages(workload: Workload, replies: list[list[DetokenizeMsg]]) -> None:
    """The law, over everything that was sent; one reply has at most one message for a request."""
    for reply in replies:
        if len({message.uid for message in reply}) != len(reply):
            raise Broken("messages: two in one reply are one request's")
    for req in workload.requests:
        mine = [message for reply in replies for message in reply if message.uid == req.rid]
        if [message.next_token for message in mine] != req.output_ids:
            raise Broken(f"messages: {req.rid} produced {req.output_ids}, and {mine} was sent")
        told = req.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        finished = [message.finished for message in mine]
        if finished != [told and at == len(mine) for at in range(1, len(mine) + 1)]:
            raise Broken(f"messages: of {mine} the last one has to be finished, and only that")


@LOOPS
@given(workload=workloads())
@settings(max_examples=150, deadline=None)
def test_one_message_for_each_token_and_one_reply_for_each_step(
    loop: str, workload: Workload
) -> None:
    replies: list[list[DetokenizeMsg]] = []
    device, model = SimDevice(), HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, loop, "token_pool", {"send_result": replies.append}, device, model, COST)
    check_messages(workload, replies)
    trace = device.recorder.trace(loop, "sim", "hash", "virtual")
    assert len(replies) == sum(item.name == "process" for item in trace.slices)
    assert not [mark for mark in trace.marks if mark.name == "detokenize"]


@LOOPS
@given(workload=workloads())
@settings(max_examples=50, deadline=None)
def test_without_a_taker_the_messages_stand_in_the_trace(loop: str, workload: Workload) -> None:
    device, model = SimDevice(), HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, loop, "token_pool", {}, device, model, COST)
    marks = device.recorder.trace(loop, "sim", "hash", "virtual").marks
    told = [mark.attrs for mark in marks if mark.name == "detokenize"]
    check_messages(workload, [[DetokenizeMsg(**attrs)] for attrs in told])  # type: ignore[arg-type]


def test_the_law_catches_a_token_that_is_sent_after_the_end() -> None:
    """mini-sglang 20fcd7f: a wasted row's token is put into the reply like any other."""

    def zombies_speak(engine: Engine) -> None:
        scheduler, process = engine.scheduler, engine.scheduler.process

        def speaking(batch: ScheduleBatch, result: Result) -> list[Output]:
            late = [
                Output(req.rid, result.tokens[at])
                for at, req in enumerate(batch.reqs)
                if req.finished
            ]
            return process(batch, result) + late

        scheduler.process = speaking  # type: ignore[method-assign]

    caught = []

    @given(workload=workloads(with_aborts=False))
    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    def search(workload: Workload) -> None:
        replies: list[list[DetokenizeMsg]] = []
        device, model = SimDevice(), HashModel(VOCAB, eos_ids=workload.eos_ids)
        options = {"send_result": replies.append}
        play(workload, "mini_overlap", "token_pool", options, device, model, COST, zombies_speak)
        wasted = any("waste" in m.name for m in device.recorder.trace("", "", "", "").marks)
        try:
            check_messages(workload, replies)
        except Broken:
            caught.append(True)
            assert wasted

    search()
    assert caught
