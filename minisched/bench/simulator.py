"""The simulator's speed, beside vidur's on the same trace."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from ..devices.profiles import DEFAULT_PROFILE, find_profile
from ..replay.replay import LengthModel, config_for, play
from ..replay.trace_file import TraceFile
from .figures import PEER_AIM, BenchCall, BenchPart, Figure, Measure, contest, no_peer, peer_asked

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
    """What a trace takes beside vidur.

    The trace is Azure's, as vidur's checkout has it; without one, a made-up trace of its shape.
    vidur's own order is that of ``serial``. Reading the trace is in neither's time.

    Raises:
        ValueError: ``--vidur`` is no checkout.
    """
    checkout, limit = call.vidur, call.requests or REQUESTS
    if checkout is not None and not (checkout / AZURE).is_file():
        raise ValueError(f"--vidur {checkout} is no checkout of vidur: it lacks {AZURE}.")
    with ExitStack() as stack:
        work = Path(stack.enter_context(TemporaryDirectory()))
        file = work / "trace.csv"
        with file.open("w", encoding="utf-8") as out:
            if checkout is None:
                out.writelines(made_up_trace(limit))
            else:
                lines = stack.enter_context((checkout / AZURE).open(encoding="utf-8"))
                out.writelines(islice(lines, limit + 1))
        trace, profile = TraceFile(file, limit), find_profile(DEFAULT_PROFILE)
        survey = trace.survey()
        config = config_for(survey, profile, {})
        steps: list[float] = []  # simulated a second, in the loop ``serial``

        def ours(loop: str) -> float:
            requests = list(trace.requests())
            model = LengthModel(survey.highest_id + 1, survey.requests, survey.longest)
            run = play(loop, model, iter(requests), config, profile.cost)
            if loop == "serial":
                steps.append(run.num_steps / run.host_seconds)
            return run.host_seconds

        ask = no_peer(NO_CHECKOUT)
        if checkout is not None:
            told = {
                "folder": str(checkout.resolve()), "work": str(work), "trace": str(file),
                "profile": profile.name, "max_running_requests": config.max_running_requests,
                "page_size": config.page_size, "num_pages": config.num_pages,
                "max_tokens": LONGEST,
            }  # fmt: skip
            ask = peer_asked(f"{__package__}.peers.vidur", told, call, stack)
        arms: dict[str, Measure] = {
            "minisched serial": partial(ours, "serial"),
            PEER: lambda: float(ask({})["seconds"]),
            "minisched overlap": partial(ours, "overlap"),
        }
        title = f"{survey.requests:,} requests"
        rows = contest(title, arms, "s", {PEER: PEER_AIM}, call, why=SLOWER)
        rows.append(Figure(f"{title}: steps a second of minisched serial", steps, "1/s"))
        return rows


def made_up_trace(requests: int) -> Iterator[str]:
    """Lines of CSV in the shape of Azure's conversations, always the same ones.

    The medians, the spread and the rate are those of AzurePublicDataset's
    AzureLLMInferenceDataset2023 (conv): prompts of 1,020 tokens, answers of 129, 5.5 a second.
    """
    draw, now = random.Random(0), 0.0
    yield "arrived_at,num_prefill_tokens,num_decode_tokens\n"
    for _ in range(requests):
        prompt = min(14000, max(1, round(1020 * draw.lognormvariate(0, 1.0))))
        answer = min(1000, max(1, round(129 * draw.lognormvariate(0, 0.86))))
        yield f"{now:.6f},{prompt},{answer}\n"
        now += draw.expovariate(5.5)


PART = BenchPart(simulator_rows, ("requests", "vidur"))
