"""Ranks that are killed, or stopped, at random moments: does everybody end, and with a reason?

``python -m tests.devices.killed_ranks 200`` tries it 200 times over all scenarios, and says how
long it took until every rank had ended. A stopped rank (``--stop``) stands for a link that stalls:
its connections stay open, and nothing comes. When the others have ended it may go on, and must end
too.

Ranks are forks of a process that has imported torch already, which saves seconds each; this one has
the store at which they meet, as torchrun's agent would.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from minisched.core import Request, SamplingParams
from minisched.loops.design import find_loop
from minisched.models.llama import write_tiny_llama
from minisched.scheduler import SchedulerConfig
from tests.support import prompt

DEADLINE = 2.0  # seconds
NO_REPORT = "ended without a report"
SLACK = 10.0  # seconds: the machine may be busy
SCENARIOS = [
    loop for loop in ("pd", "vllm_pp2", "serial:tp=2", "overlap:tp=2") if find_loop(loop).on_ranks
]


@dataclass
class Report:
    """What a rank says at its end."""

    requests: list[tuple[str, str, str]] = field(default_factory=list)  # id, reason, error
    stopped_by: str = ""
    threads: list[str] = field(default_factory=list)


def some_requests(seed: int) -> list[Request]:
    rng = Random(seed)
    return [
        Request(
            f"r{at}",
            prompt(at, rng.randint(1, 60)),
            SamplingParams(max_new_tokens=rng.randint(5, 25), ignore_eos=True),
            arrival_time=rng.randrange(300_000_000),
        )
        for at in range(8)
    ]


# -- A rank ----------------------------------------------------------------------------------------


def be_rank(
    rank: int, size: int, port: int, scenario: str, folder: str, seed: int, said: Connection
) -> None:
    """Meet the others, say so, run, and report."""
    import torch

    from minisched.devices.base import RankLost
    from minisched.devices.dist import join
    from minisched.loops import tp_ranks

    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
    }  # fmt: skip
    report, engines, turn = Report(), list[Any](), tp_ranks.turn
    here = set(threading.enumerate())

    def keep_engine(*args: Any) -> Any:
        engines.append(turn(*args))
        return engines[-1]

    tp_ranks.turn = keep_engine
    requests: Any = some_requests(seed)
    try:
        with join(DEADLINE) as ranks:
            said.send("met")
            if rank == 0:
                run(scenario, folder, requests)
            else:
                ranks.serve()
    except RankLost as lost:
        report.stopped_by = str(lost)
    if rank and engines:
        requests = engines[-1].received
    if rank == 0 or engines:
        report.requests = [
            (req.rid, req.finish_reason.value if req.finish_reason else "", req.error)
            for req in requests
        ]
    time.sleep(0.05)  # a thread that is told to end takes a moment
    report.threads = [it.name for it in threading.enumerate() if it not in here]
    said.send(report)
    said.close()


def run(scenario: str, folder: str, requests: list[Request]) -> None:
    """Rank 0's part."""
    from minisched.devices.registry import open_device
    from minisched.loops.run import run_loop
    from minisched.models.registry import open_model

    config = SchedulerConfig(chunked_prefill_size=32, page_size=4, context_len=128)
    model = open_model(folder, "dist", split=":tp=" in scenario)
    run_loop(scenario, open_device("dist"), model, requests, config)


# -- A trial ---------------------------------------------------------------------------------------


@dataclass
class Trial:
    """What came of it; ``took`` is from the signal until the last of the others had ended."""

    scenario: str
    victim: int
    moment: float  # seconds after all had met; -1: nobody was killed
    took: float
    reports: dict[int, Report]  # of those who ended by themselves
    hanging: list[int] = field(default_factory=list)

    def problems(self, num_requests: int = 8) -> Iterator[str]:
        """What is wrong with it."""
        for rank in self.hanging:
            yield f"rank {rank} has not ended"
        for rank, report in self.reports.items():
            if report.stopped_by == NO_REPORT:
                yield f"rank {rank} {NO_REPORT}"
            if report.threads:
                yield f"rank {rank} has threads left: {report.threads}"
            if rank == 0 and len(report.requests) != num_requests:
                yield f"rank 0 tells of {len(report.requests)} requests"
            for rid, reason, error in report.requests:
                if not reason or (reason not in ("length", "stop") and not error):
                    yield f"rank {rank}: {rid} has ended as {reason!r} with the error {error!r}"


def play(
    scenario: str, folder: str, seed: int, moment: float | None, how: signal.Signals, size: int = 2
) -> Trial:
    """One trial; with ``moment`` None nobody is killed."""
    import torch.distributed as dist

    fork = get_context("forkserver")
    fork.set_forkserver_preload(["minisched.loops.tp_ranks"])
    store = dist.TCPStore("127.0.0.1", 0, size, True, timedelta(seconds=60), wait_for_workers=False)
    ends, processes = [], []
    for rank in range(size):
        mine, theirs = fork.Pipe()
        args = (rank, size, store.port, scenario, folder, seed, theirs)
        process = fork.Process(target=be_rank, args=args)
        process.start()
        theirs.close()
        ends.append(mine)
        processes.append(process)
    victim = Random(f"victim {seed}").randrange(size)
    trial = Trial(scenario, victim, -1 if moment is None else moment, 0, {})
    try:
        for end in ends:
            assert end.poll(60) and end.recv() == "met"
        start = time.monotonic()
        if moment is not None:
            time.sleep(moment)
            start = time.monotonic()
            if processes[victim].is_alive():
                os.kill(processes[victim].pid, how)
            else:  # it was quicker this time
                trial.moment, moment = -1, None
        others = [at for at in range(size) if moment is None or at != victim]
        await_ends(trial, processes, ends, others, start)
        trial.took = time.monotonic() - start
        if moment is not None and how is signal.SIGSTOP and processes[victim].is_alive():
            os.kill(processes[victim].pid, signal.SIGCONT)
            await_ends(trial, processes, ends, [victim], time.monotonic())
    finally:
        for process in processes:
            process.kill()
            process.join()
    return trial


def await_ends(
    trial: Trial, processes: list[Any], ends: list[Connection], ranks: list[int], start: float
) -> None:
    """Wait for some ranks' reports and ends, but not for ever."""
    limit = start + DEADLINE * 2 + SLACK
    for rank in ranks:
        if ends[rank].poll(max(0, limit - time.monotonic())):
            try:
                trial.reports[rank] = ends[rank].recv()
            except EOFError:
                trial.reports[rank] = Report(stopped_by=NO_REPORT)
        if not wait([processes[rank].sentinel], max(0, limit - time.monotonic())):
            trial.hanging.append(rank)


def trials(count: int, how: signal.Signals = signal.SIGKILL, seed: int = 0) -> Iterator[Trial]:
    """So many of them, over the scenarios in turn: at a moment of a run that would have been whole.

    The first of each scenario is left whole, to see how long it takes. Where a run had ended
    before its moment came, there is another one.
    """
    with TemporaryDirectory() as at:
        folder = str(write_tiny_llama(Path(at) / "tiny"))
        whole = {name: play(name, folder, seed, None, how) for name in SCENARIOS}
        yield from whole.values()
        for number in range(count):
            scenario = SCENARIOS[number % len(SCENARIOS)]
            rng = Random(f"moment {seed + number}")
            came_too_late = True
            while came_too_late:
                moment = rng.random() * whole[scenario].took
                trial = play(scenario, folder, seed + number, moment, how)
                came_too_late = trial.moment < 0
                yield trial


def main() -> None:
    """Try, and say how long it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, help="how often")
    parser.add_argument("--stop", action="store_true", help="SIGSTOP instead of SIGKILL")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    how = signal.SIGSTOP if given.stop else signal.SIGKILL
    times: dict[str, list[float]] = {}
    wrong = 0
    for trial in trials(given.count, how, given.seed):
        found = list(trial.problems())
        wrong += bool(found)
        for problem in found:
            print(f"{trial.scenario}, rank {trial.victim} at {trial.moment:.3f} s: {problem}")
        if trial.moment >= 0:
            times.setdefault(trial.scenario, []).append(trial.took)
        if sys.stderr.isatty():
            print(f"\r{sum(map(len, times.values()))} of {given.count}", end="", file=sys.stderr)
    print(f"\n{how.name}, deadline {DEADLINE:g} s; {wrong} trials with a problem")
    for scenario, taken in times.items():
        print(
            f"{scenario:13} {len(taken):4} times: all ended {median(taken):.2f} s after it at the "
            f"median, {max(taken):.2f} s at most"
        )
    sys.exit(wrong > 0)


if __name__ == "__main__":
    from tests.devices import killed_ranks  # as the forks know it

    killed_ranks.main()
