"""The simulator's speed, beside vidur's on the same trace, and its memory over a long run."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..devices.profiles import DEFAULT_PROFILE, find_profile
from ..models.fetch import model_home
from ..replay.replay import LengthModel, default_settings, play
from ..replay.trace_file import Survey, TraceFile
from ..scheduler import SchedulerConfig
from ..trace.files import write_whole
from .figures import PEER_AIM, Figure, figure, interleave, not_measured, ratio
from .peers.environment import clean_env, environment
from .peers.peer import Peer, PeerError

AZURE = Path("data/processed_traces/splitwise_conv.csv")  # in a checkout of vidur
REQUESTS = 2000
NO_CHECKOUT = "no checkout of vidur was named by --vidur"


def simulator_figures(
    checkout: Path | None, limit: int, repetitions: int, report: Callable[[str], None]
) -> list[Figure]:
    """Speed beside vidur, then the memory of long runs.

    The trace is Azure's, as vidur's checkout has it; without one, a made-up trace of its shape.

    Raises:
        ValueError: ``checkout`` is none.
    """
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
        replays = Replays(file, limit)
        theirs, reason = None, NO_CHECKOUT
        try:
            if checkout is not None:
                python = environment("vidur", model_home(), report)
                settings = {"work": str(work), **replays.settings()}
                folder = checkout.resolve()
                theirs, reason = open_vidur(stack, folder, python, clean_env(), settings)
            figures = speed(replays, theirs, reason, repetitions, report)
        except PeerError as error:  # it can't be had, or broke off midway: ours alone
            figures = speed(replays, None, str(error).rstrip("."), repetitions, report)
        ask = partial(ask_alone, "long_run", Path(sys.executable), clean_env(), work)
        return figures + memory(ask, LENGTHS, report)


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
            prompt = length(draw, PROMPT, PROMPT_SPREAD, LONGEST_PROMPT)
            answer = length(draw, ANSWER, ANSWER_SPREAD, LONGEST_ANSWER)
            file.write(f"{time:.6f},{prompt},{answer}\n")
            time += draw.expovariate(RATE)


def length(draw: random.Random, median: int, spread: float, most: int) -> int:
    """Tokens, log-normal."""
    return min(most, max(1, round(median * draw.lognormvariate(0, spread))))


Ask = Callable[[Mapping[str, Any]], Mapping[str, Any]]  # one question to a process of its own
Answer = Mapping[str, Any]

PEER = "vidur, stand-in cost"
UNITS = ("requests", "steps")
LOOPS = ("serial", "overlap")  # vidur's own order is serial's
LONGEST = 16384  # tokens of a request; vidur cuts a prompt that makes one longer
LENGTHS = (10_000, 100_000, 1_000_000)  # steps of the runs whose memory is looked at
SLOWER = (  # where it is
    "of a step vidur has one event, which takes all of its time; here the host's five phases and "
    "the device's forward, sample and copy each begin and end on a clock that they share"
)
FLAT = 1.1  # at most a tenth more memory for a hundred times the steps


class Replays:
    """One workload, for us and for the peer."""

    def __init__(self, file: Path, limit: int) -> None:
        self.file = file
        self.trace = TraceFile(file, limit)
        self.survey: Survey = self.trace.survey()
        self.profile = find_profile(DEFAULT_PROFILE)
        page_size = self.survey.format.page_size
        settings: dict[str, Any] = {**default_settings(self.survey, self.profile, page_size)}
        self.config = SchedulerConfig(**settings)

    def ours(self, loop: str) -> Answer:
        """Seconds, steps and requests of our simulation."""
        survey, requests = self.survey, list(self.trace.requests())
        model = LengthModel(survey.highest_id + 1, survey.requests, survey.longest)
        run = play(loop, model, iter(requests), self.config, self.profile.cost)
        return {"seconds": run.host_seconds, "steps": run.num_steps, "requests": survey.requests}

    def settings(self) -> dict[str, Any]:
        """What a peer needs to do the same."""
        return {
            "trace": str(self.file),
            "profile": self.profile.name,
            "max_running_requests": self.config.max_running_requests,
            "page_size": self.config.page_size,
            "num_pages": self.config.num_pages,
            "max_tokens": LONGEST,
        }


def speed(
    replays: Replays,
    theirs: Ask | None,
    reason: str,
    repetitions: int,
    report: Callable[[str], None],
) -> list[Figure]:
    """Requests and steps simulated a second: our loops', the peer's, and what ours take of its.

    ``reason`` says why ``theirs`` is None. Reading the trace is in neither.
    """
    answers: dict[str, list[Answer]] = {}

    def taken(name: str, ask: Callable[[], Answer]) -> float:
        answers.setdefault(name, []).append(ask())
        return float(answers[name][-1]["seconds"])

    measures = {
        f"minisched {loop}": partial(taken, f"minisched {loop}", partial(replays.ours, loop))
        for loop in LOOPS
    }
    if theirs is not None:
        measures[PEER] = partial(taken, PEER, partial(theirs, {}))
    values = interleave(measures, repetitions, report)
    rates = {
        (name, unit): [a[unit] / s for a, s in zip(answers[name], values[name], strict=True)]
        for name in measures
        for unit in UNITS
    }
    figures = [figure(f"{name}: {unit}", rate, "1/s") for (name, unit), rate in rates.items()]
    return [*figures, *beside(rates, reason)]


def beside(rates: Mapping[tuple[str, str], list[float]], reason: str) -> list[Figure]:
    """How many times the peer's time for a request and for a step is ours."""
    rows = []
    for unit in UNITS:
        name = f"minisched serial / {PEER}: time for {unit}"
        if (PEER, unit) in rates:
            ours = rates["minisched serial", unit]
            rows.append(ratio(name, rates[PEER, unit], ours, PEER_AIM).because(SLOWER))
        else:
            rows.append(not_measured(f"{PEER}: {unit}", "1/s", reason))
            rows.append(not_measured(name, "ratio", reason, PEER_AIM))
    return rows


def memory(
    ask: Callable[[int], Answer], lengths: tuple[int, ...], report: Callable[[str], None]
) -> list[Figure]:
    """The most memory of runs recorded into a file, by length; each in a process of its own."""
    figures, most = [], []
    for steps in lengths:
        report(f"memory, {steps} steps recorded into a file")
        answer = ask(steps)
        most.append(float(answer["mib"]))
        name = f"memory, {steps} steps recorded into a file"
        figures.append(figure(name, [most[-1]], "MiB"))
        figures.append(figure(f"file of {steps} steps", [answer["bytes"] / 2**20], "MiB"))
    name = f"memory, {lengths[-1]} steps / {lengths[0]}"
    return [*figures, ratio(name, [most[-1]], [most[0]], FLAT)]


def ask_alone(script: str, python: Path, env: Mapping[str, str], work: Path, steps: int) -> Answer:
    """Ask a script of ``peers`` one question, in a process that nobody has used before."""
    with Peer(python, script, {"work": str(work)}, env) as peer:
        return peer.ask({"steps": steps})


def open_vidur(
    stack: ExitStack, folder: Path, python: Path, env: Mapping[str, str], settings: Answer
) -> tuple[Ask | None, str]:
    """What asks vidur, or the reason why nobody can."""
    try:
        peer = stack.enter_context(Peer(python, "vidur", {"folder": str(folder), **settings}, env))
    except PeerError as error:
        return None, str(error)
    return peer.ask, ""
