"""The simulator's speed, beside vidur's on the same trace, and its memory over a long run."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..core import Request, SamplingParams
from ..devices.profiles import DEFAULT_PROFILE, find_profile
from ..export.native import StreamRecorder
from ..models.fetch import model_home
from ..replay.replay import FlatMetrics, LengthModel, RecordedTally, default_settings, play
from ..replay.trace_file import Survey, TraceFile
from ..scheduler import SchedulerConfig
from ..trace.files import write_whole
from .figures import PEER_AIM, Figure, figure, interleave, not_measured, ratio
from .peers.peer import Answer, Peer, PeerError, serve

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
        try:
            vidur, reason = None, NO_CHECKOUT
            if checkout is not None:
                settings = {"folder": str(checkout.resolve()), "work": str(work)}
                vidur = stack.enter_context(
                    Peer.start(
                        f"{__package__}.peers.vidur", settings | replays.settings(),
                        model_home(), report,
                    )
                )  # fmt: skip
            figures = speed(replays, vidur, reason, repetitions, report)
        except PeerError as error:  # it can't be had, or broke off midway: ours alone
            figures = speed(replays, None, str(error).rstrip("."), repetitions, report)
        return figures + memory(work, report)


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


# -- The speed -------------------------------------------------------------------------------------

PEER = "vidur, stand-in cost"
UNITS = ("requests", "steps")
LOOPS = ("serial", "overlap")  # vidur's own order is serial's
LONGEST = 16384  # tokens of a request; vidur cuts a prompt that makes one longer
SLOWER = (  # where it is
    "of a step vidur has one event, which takes all of its time; here the host's five phases and "
    "the device's forward, sample and copy each begin and end on a clock that they share"
)


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

    def settings(self) -> Answer:
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
    vidur: Peer | None,
    reason: str,
    repetitions: int,
    report: Callable[[str], None],
) -> list[Figure]:
    """Requests and steps simulated a second: our loops', the peer's, and what ours take of its.

    ``reason`` says why ``vidur`` is None. Reading the trace is in neither.
    """
    asks: dict[str, Callable[[], Answer]] = {
        f"minisched {loop}": partial(replays.ours, loop) for loop in LOOPS
    }
    if vidur is not None:
        asks[PEER] = partial(vidur.ask, {})
    answers: dict[str, list[Answer]] = {name: [] for name in asks}

    def taken(name: str) -> float:
        answers[name].append(asks[name]())
        return float(answers[name][-1]["seconds"])

    values = interleave({name: partial(taken, name) for name in asks}, repetitions, report)
    rates = {
        (name, unit): [a[unit] / s for a, s in zip(answers[name], values[name], strict=True)]
        for name in asks
        for unit in UNITS
    }
    rows = [figure(f"{name}: {unit}", rate, "1/s") for (name, unit), rate in rates.items()]
    for unit in UNITS:
        name = f"minisched serial / {PEER}: time for {unit}"
        if vidur is None:
            rows.append(not_measured(f"{PEER}: {unit}", "1/s", reason))
            rows.append(not_measured(name, "ratio", reason, PEER_AIM))
        else:
            both = rates[PEER, unit], rates["minisched serial", unit]
            rows.append(ratio(name, *both, PEER_AIM).because(SLOWER))
    return rows


# -- Memory: the most that a long run of ours ever had, in a process that nobody has used before ---

LENGTHS = (10_000, 100_000, 1_000_000)  # steps of the runs whose memory is looked at
FLAT = 1.1  # at most a tenth more memory for a hundred times the steps
SHORT, LONG = 64, 256  # tokens of a prompt, and of an answer
RUNNING = 4  # requests at any time
STEP = 6_600_000  # nanoseconds; a little more than a step takes, so that no queue grows
STATUS = Path("/proc/self/status")
MEBIBYTE = 1 << 20


def memory(work: Path, report: Callable[[str], None]) -> list[Figure]:
    """The most memory of runs that are recorded into a file below ``work``, by length."""
    figures, most = [], []
    for steps in LENGTHS:
        name = f"memory, {steps} steps recorded into a file"
        report(name)
        with Peer.start(__name__, {"work": str(work)}, model_home(), report) as peer:
            answer = peer.ask({"steps": steps})
        most.append(answer["bytes"] / MEBIBYTE)
        figures.append(figure(name, [most[-1]], "MiB"))
        figures.append(figure(f"file of {steps} steps", [answer["file"] / MEBIBYTE], "MiB"))
    name = f"memory, {LENGTHS[-1]} steps / {LENGTHS[0]}"
    return [*figures, ratio(name, [most[-1]], [most[0]], FLAT)]


def long_run(steps: int, folder: Path) -> Answer:
    """The most bytes of a run of about so many, and those of its file, which goes away again."""
    path = folder / "long.json"
    number = steps * RUNNING // LONG
    config = SchedulerConfig(max_running_requests=RUNNING, kv_tokens=8192, page_size=16)
    recorder = StreamRecorder(path, "overlap", "sim", "length")
    try:
        play(
            "overlap", LengthModel(number, number, SHORT + LONG), long_requests(number), config,
            find_profile(DEFAULT_PROFILE).cost, tally=RecordedTally(recorder),
            metrics=FlatMetrics(),
        )  # fmt: skip
        recorder.close()
        return {"bytes": most_memory(), "file": path.stat().st_size}
    finally:
        path.unlink()


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


if __name__ == "__main__":
    serve(lambda settings: lambda asked: long_run(asked["steps"], Path(settings["work"])))
