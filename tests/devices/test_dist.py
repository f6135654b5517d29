"""Ranks: messages come whole and in order, clocks are compared, and nobody waits for ever."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from minisched.devices.dist import (
    GATHERING,
    RankLost,
    Ranks,
    WrongRanks,
    join,
    rank_device,
    started,
)
from minisched.devices.registry import open_device
from minisched.trace.ranks import ClockOffset, rank_recorder

from . import dist_parts as parts

DEADLINE = 2.0


def test_two_ranks_talk_agree_on_the_time_and_part() -> None:
    with started(2, 10.0) as ranks:
        ranks.recorder = rank_recorder(0, 2)
        values = ["", "long " * 1000, {"a": (1, None)}]
        ranks.call(parts.echo, len(values))
        for number, value in enumerate(values):
            tensors = [torch.arange(number), torch.full((2, 3), number / 3, dtype=torch.float64)]
            ranks.send(1, "there", value, tensors)
            message = ranks.receive(1, "back")
            assert message.value == value
            assert all(map(torch.equal, message.tensors, tensors))
        acts = ranks.recorder.program.acts
        assert [act.kind for act in acts] == ["say", *["say", "wait"] * len(values)]
        assert {act.op % 2 for act in acts if act.kind == "say"} == {1}  # this rank's own ids
        ranks.call(parts.compare_clocks)
        ranks.compare_clocks()
        found = ranks.offsets[1]  # both ranks read the same clock: the true offset is 0
        assert abs(found.offset) <= found.error
    assert [process.poll() for process in ranks.processes] == [0]


def test_two_measurements_of_a_clock_make_one_that_holds_all_the_while() -> None:
    early, late = ClockOffset(100, 20), ClockOffset(130, 5)
    both = early.then(late)
    assert both.offset - both.error <= 80 and both.offset + both.error >= 135
    assert early.then(early) == early


def kill(ranks: Ranks) -> None:
    ranks.processes[0].kill()


def stall(ranks: Ranks) -> None:
    os.kill(ranks.processes[0].pid, signal.SIGSTOP)


def fail(ranks: Ranks) -> None:
    ranks.call(parts.fail)


def be_late(ranks: Ranks) -> None:
    ranks.call(parts.sleep, 4 * DEADLINE)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("does", "says"),
    [
        (kill, "rank 1 is lost, as rank 0 sees it: its connection is closed."),
        (stall, "rank 1 is lost, as rank 0 sees it: nothing came in 2 s."),
        (fail, "rank 1 is lost, as rank 0 sees it: ValueError: it has gone wrong."),
        (be_late, "rank 1 is lost, as rank 0 sees it: 'back' has not come in 2 s."),
    ],
)
def test_whoever_waits_for_a_lost_rank_hears_of_it_in_time(
    does: Callable[[Ranks], None], says: str
) -> None:
    with pytest.raises(RankLost) as lost, started(2, DEADLINE) as ranks:
        ranks.call(parts.echo, 1)
        ranks.send(1, "there")
        ranks.receive(1, "back")
        does(ranks)
        start = time.monotonic()
        try:
            ranks.receive(1, "back", patient=does is not be_late)
        finally:
            waited = time.monotonic() - start
    assert str(lost.value) == says
    assert waited < 3 * DEADLINE + 5  # the rest is the machine's load
    assert all(process.poll() is not None for process in ranks.processes)


def test_a_rank_that_ends_before_all_have_met_is_noticed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    start = time.monotonic()
    with (
        pytest.raises(RankLost, match=r"rank 1 has ended before all had met \(status 1\)"),
        started(2, DEADLINE),
    ):
        pass
    assert time.monotonic() - start < GATHERING / 2  # however busy the machine is


MEET = """
import sys
import torch.distributed as dist
from minisched.devices.dist import meet
meet(1, 2, float(sys.argv[2]), dist.TCPStore("127.0.0.1", int(sys.argv[1]), 2, False))
"""


def test_a_rank_that_dies_when_all_have_just_met_is_given_up_after_the_deadline() -> None:
    store = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
    command = [sys.executable, "-c", MEET, str(store.port), str(DEADLINE)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as other:
        store.wait(["here 1"])
        store.set("here 0", "")  # and nothing else comes of it
        start = time.monotonic()
        assert "RankLost: rank 1 has met the others, and lost them" in other.communicate()[1]
    assert time.monotonic() - start < GATHERING / 2  # however busy the machine is


def test_a_process_that_is_alone_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for ask in (rank_device, join, lambda: open_device("dist")):
        with pytest.raises(WrongRanks, match="torchrun --nproc-per-node 2"):
            ask()
    with pytest.raises(WrongRanks, match="at least 2 ranks, but --nproc is 1"), started(1):
        pass
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(WrongRanks, match="at least 2 ranks, but there is 1"):
        join()
