"""The simulator's speed, beside vidur's on the same trace, and its memory over a long run."""

from __future__ import annotations

import random
import resource
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..core import Request, SamplingParams
from ..devices.profiles import DEFAULT_PROFILE, find_profile
from ..models.fetch import model_home
from ..replay.replay import FlatMetrics, LengthModel, default_settings, play
from ..replay.trace_file import TraceFile
from ..scheduler import SchedulerConfig
from ..trace.files import write_whole
from .figures import (
    PEER_AIM,
    BenchCall,
    BenchPart,
    Figure,
    Measure,
    Report,
    contest,
    figure,
    ratio,
)
from .peers.peer import Answer, Peer, PeerError, serve

AZURE = Path("data/processed_traces/splitwise_conv.csv")  # in a checkout of vidur
REQUESTS = 2000
NO_CHECKOUT = "no checkout of vidur was named by --vidur"
PEER = "vidur, stand-in cost"
LONGEST = 16384  # tokens of a request; vidur cuts a prompt that makes one longer
SLOWER = (
    "of a step vidur has one event, which takes all of its time; here the host's five phases and "
    "the device's forward, sample and copy each begin and end on a clock that they share"
)


def simulator_rows(call: BenchCall) -> list[Figure]:
    """What a trace takes beside vidur, then the memory of long runs.

    The trace is Azure's, as vidur's checkout has it; without one, a made-up trace of its shape.
    vidur's own order is that of ``serial``. Reading the trace is in neither's time.

    Raises:
        ValueError: ``--vidur`` is no checkout.
    """
    checkout, limit = call.vidur, call.requests or REQUESTS
    if checkout is not None and not (checkout / "vidur" / "simulator.py").is_file():
        raise ValueError(
            f"--vidur {checkout} is no checkout of vidur: it lacks vidur/simulator.py."
        )
    with ExitStack() as stack:
        work = Path(stack.enter_context(TemporaryDirectory()))
        file = work / "trace.csv"
        if checkout is None or not (checkout / AZURE).is_file():
            make_trace(file, limit)
        else:
            with (checkout / AZURE).open(encoding="utf-8") as lines:
                write_whole(file, "".join(islice(lines, limit + 1)))
        trace, profile = TraceFile(file, limit), find_profile(DEFAULT_PROFILE)
        survey = trace.survey()
        settings: dict[str, Any] = {**default_settings(survey, profile, survey.format.page_size)}
        config = SchedulerConfig(**settings)
        steps: list[float] = []  # simulated a second, in the loop ``serial``

        def ours(loop: str) -> float:
            requests = list(trace.requests())
            model = LengthModel(survey.highest_id + 1, survey.requests, survey.longest)
            run = play(loop, model, iter(requests), config, profile.cost)
            if loop == "serial":
                steps.append(run.num_steps / run.host_seconds)
            return run.host_seconds

        arms: dict[str, Measure | str] = {"minisched serial": partial(ours, "serial"),
                                          PEER: NO_CHECKOUT}  # fmt: skip
        if checkout is not None:
            told = {
                "folder": str(checkout.resolve()), "work": str(work), "trace": str(file),
                "profile": profile.name, "max_running_requests": config.max_running_requests,
                "page_size": config.page_size, "num_pages": config.num_pages,
                "max_tokens": LONGEST,
            }  # fmt: skip
            try:
                script = f"{__package__}.peers.vidur"
                vidur = stack.enter_context(Peer.start(script, told, model_home(), call.report))
                arms[PEER] = lambda: float(vidur.ask({})["seconds"])
            except PeerError as error:
                arms[PEER] = str(error)
        arms["minisched overlap"] = partial(ours, "overlap")
        title = f"{survey.requests:,} requests"
        rows = contest(title, arms, "s", {PEER: PEER_AIM}, call, why=SLOWER)
        rows.append(figure(f"{title}: steps a second of minisched serial", steps, "1/s"))
        return rows + memory(call.report)


# -- A made-up workload in the shape of Azure's conversation trace, where the trace is not at hand
#
# The medians and the spread are those of AzurePublicDataset's AzureLLMInferenceDataset2023 (conv):
# prompts of 1,020 tokens in the median, answers of 129, 5.5 requests a second.

PROMPT, PROMPT_SPREAD = 1020, 1.0  # median in tokens, and sigma of its logarithm
ANSWER, ANSWER_SPREAD = 129, 0.86
LONGEST_PROMPT, LONGEST_ANSWER = 14000, 1000
RATE = 5.5  # requests a second


def make_trace(path: Path, requests: int, seed: int = 0) -> None:
    """Write that many requests as CSV, the same for the same seed."""
    draw, time = random.Random(seed), 0.0
    with path.open("w", encoding="utf-8") as file:
        file.write("arrived_at,num_prefill_tokens,num_decode_tokens\n")
        for _ in range(requests):
            prompt = tokens(draw, PROMPT, PROMPT_SPREAD, LONGEST_PROMPT)
            answer = tokens(draw, ANSWER, ANSWER_SPREAD, LONGEST_ANSWER)
            file.write(f"{time:.6f},{prompt},{answer}\n")
            time += draw.expovariate(RATE)


def tokens(draw: random.Random, median: int, spread: float, most: int) -> int:
    """A length, log-normal."""
    return min(most, max(1, round(median * draw.lognormvariate(0, spread))))


# -- Memory: the most that a long run of ours ever had, in a process that nobody has used before ---

LENGTHS = (10_000, 100_000, 1_000_000)  # steps of the runs whose memory is looked at
FLAT = 1.1  # at most a tenth more memory for a hundred times the steps
SHORT, LONG = 64, 256  # tokens of a prompt, and of an answer
RUNNING = 4  # requests at any time
STEP = 6_600_000  # nanoseconds; a little more than a step takes, so that no queue grows
STATUS = Path("/proc/self/status")
MEBIBYTE = 1 << 20


def memory(report: Report) -> list[Figure]:
    """The most memory of runs, by length."""
    rows, most = [], []
    for steps in LENGTHS:
        name = f"memory, {steps} steps"
        report(name)
        with Peer.start(__name__, {}, model_home(), report) as peer:
            most.append(peer.ask({"steps": steps})["bytes"] / MEBIBYTE)
        rows.append(figure(name, [most[-1]], "MiB"))
    name = f"memory, {LENGTHS[-1]} steps / {LENGTHS[0]}"
    return [*rows, ratio(name, [most[-1]], [most[0]], FLAT)]


def long_run(asked: Answer) -> Answer:
    """The most bytes of a run of about so many steps."""
    number = asked["steps"] * RUNNING // LONG
    config = SchedulerConfig(max_running_requests=RUNNING, kv_tokens=8192, page_size=16)
    model = LengthModel(number, number, SHORT + LONG)
    cost = find_profile(DEFAULT_PROFILE).cost
    play("overlap", model, long_requests(number), config, cost, metrics=FlatMetrics())
    return {"bytes": most_memory()}


def long_requests(number: int) -> Iterator[Request]:
    """Prompts that share nothing, one behind the other, nearly as fast as they can be served."""
    for index in range(number):
        params = SamplingParams(max_new_tokens=LONG, ignore_eos=True, seed=index)
        yield Request(f"r{index}", (index,) * SHORT, params, index * LONG // RUNNING * STEP)


def most_memory() -> int:
    """The most bytes that this process has had.

    Linux's ``getrusage`` counts what the parent had when it started us; ``VmHWM`` does not.
    """
    if STATUS.exists():
        lines = STATUS.read_text(encoding="utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


PART = BenchPart(simulator_rows, ("requests", "vidur"))

if __name__ == "__main__":
    serve(lambda settings: long_run)
