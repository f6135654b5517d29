"""``minisched presets``: the published classes of GPUs and what each is told."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..devices.registry import load
from ..engine.metrics import Metrics
from ..loops.run import Run
from ..scheduler import SchedulerConfig
from .layout import Fitted

# -- ``--preset auto``: the preset of the GPU that torch sees --------------------------------------

AUTO = "auto"
GIB = 1 << 30


def preset_named(text: str) -> Preset:
    """A preset by name or memory, or with ``auto`` that of the first GPU here, by itself.

    SGLang does as much when it starts (``server_args.py:_handle_gpu_memory_settings``).

    Raises:
        ValueError: there is no such preset, or torch is not there or sees no GPU.
    """
    if text.lower() != AUTO:
        return find_preset(text)
    wanted_by = "preset auto"  # ``in_words_of_options`` spells it as on the command line
    if not load("torch.cuda", "is_available", "torch", wanted_by)():
        raise ValueError(
            "preset is 'auto', but torch sees no GPU; say its name, or its memory as in 24GiB."
        )
    properties: Any = load("torch.cuda", "get_device_properties", "torch", wanted_by)
    return preset_for(properties(0).total_memory / GIB)


# -- Chunk size and largest captured decode batch for the published classes of GPUs ----------------
#
# The numbers are those of SGLang ``server_args.py:_handle_gpu_memory_settings``; the advice follows
# the chunked-prefill guide that is written about them. The guide's own table differs in two places:
# it gives the RTX 4090 a decode batch of 16 (an older default; today 24) and rounds 25.6 to 25.

MANY_GPUS = 4  # sharing a model: from here on, graphs for larger batches are worth their memory


@dataclass(frozen=True)
class Preset:
    """What a GPU with ``min_gib <= memory < below_gib`` should be told, in GiB of its memory."""

    name: str
    min_gib: float
    below_gib: float
    min_tensor_parallel: int  # GPUs that share the model; 1 where their number changes nothing
    chunked_prefill_size: int  # prompt tokens of one step
    cuda_graph_max_bs: int  # requests of the largest decode batch that is captured as a graph
    gpus: tuple[str, ...]  # examples
    recommendation: str

    @property
    def prefill_decode_ratio(self) -> float:
        """Prompt tokens for each token decoded, in a step with as much as possible of both."""
        return self.chunked_prefill_size / self.cuda_graph_max_bs

    @property
    def settings(self) -> dict[str, int]:
        """The fields of ``SchedulerConfig`` that it decides."""
        return {
            "chunked_prefill_size": self.chunked_prefill_size,
            "cuda_graph_max_bs": self.cuda_graph_max_bs,
        }


PRESETS = (
    Preset("t4", 0, 20, 1, 2048, 8, ("T4", "RTX 4080"),
           "Keep chunks small and capture few graphs: both take memory from the KV pool."),
    Preset("rtx4090", 20, 35, 1, 2048, 24, ("A10", "RTX 4090", "RTX 5090"),
           "Small chunks too. Mix them with decodes where long prompts meet many users; where "
           "prompts are short, leave them apart."),
    Preset("rtx4090-tp4", 20, 35, MANY_GPUS, 2048, 80, ("A10", "RTX 4090", "RTX 5090"),
           "A model shared by four GPUs or more leaves memory for graphs of larger batches, and "
           "without them decode would wait for launches."),
    Preset("a100-40gb", 35, 60, 1, 4096, 32, ("A100 40 GB", "L40"),
           "The balanced choice: mixed chunks of 4,096, and up to 256 requests at once."),
    Preset("a100-40gb-tp4", 35, 60, MANY_GPUS, 4096, 160, ("A100 40 GB", "L40"),
           "As for one GPU, with graphs for batches five times as large."),
    Preset("h100", 60, 160, 1, 8192, 256, ("A100 80 GB", "H100", "H200"),
           "Chunks of 8,192: half the steps for a long prompt, and none of them takes long."),
    Preset("h100-tp4", 60, 160, MANY_GPUS, 8192, 512, ("A100 80 GB", "H100", "H200"),
           "For many users at once: of all classes the one with the most decodes for a chunk."),
    Preset("b200", 160, inf, 1, 16384, 512, ("B200", "MI300"),
           "Chunks of 16,384, for the same reason; however many GPUs share a model."),
)  # fmt: skip


def preset_for(memory_gib: float, tensor_parallel: int = 1) -> Preset:
    """The preset of a GPU with so much memory, when ``tensor_parallel`` of them share a model.

    Raises:
        ValueError: there is no such GPU or no such number of them.
    """
    if not 0 < memory_gib < inf:
        raise ValueError(f"memory_gib is {memory_gib}, but it must be above 0 and finite.")
    if tensor_parallel < 1:
        raise ValueError(f"tensor_parallel is {tensor_parallel}, but it must be at least 1.")
    fits = [
        preset
        for preset in PRESETS
        if preset.min_gib <= memory_gib < preset.below_gib
        and preset.min_tensor_parallel <= tensor_parallel
    ]
    return max(fits, key=lambda preset: preset.min_tensor_parallel)


def find_preset(text: str) -> Preset:
    """A preset by its name, or by memory: ``24GiB`` is one such GPU, ``4x24GiB`` is four.

    Raises:
        ValueError: ``text`` is neither.
    """
    for preset in PRESETS:
        if preset.name == text.lower():
            return preset
    size = re.fullmatch(r"(?:([1-9]\d*)x)?(\d{1,6}(?:\.\d+)?) ?gib", text, re.IGNORECASE)
    if size and float(size[2]) > 0:
        return preset_for(float(size[2]), int(size[1] or 1))
    names = ", ".join(preset.name for preset in PRESETS)
    raise ValueError(
        f"preset is {text!r}, but it must be one of {names}, or an amount of GPU memory such as "
        "24GiB or 4x24GiB."
    )


COLUMNS = ("preset", "GiB", "TP", "chunk", "graphs", "ratio", "such as")
LEGEND = (
    "TP: GPUs that share a model. chunk: the most prompt tokens of one step. graphs: the largest "
    "decode batch that is captured. ratio: chunk / graphs, prompt tokens for each decoded token."
)


def presets(
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """List the classes of GPUs that --preset knows, with their sizes and what they are told."""

    run_presets(json)


def run_presets(as_json_only: bool) -> None:
    """Print the table, and below it the recommendations."""
    if as_json_only:
        print(json.dumps({"presets": [preset_json(preset) for preset in PRESETS]}))
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in COLUMNS:
        is_text = column in ("preset", "such as")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=True)
    for preset in PRESETS:
        table.add_row(*cells(preset))
    console = Console(highlight=False)
    console.print(Fitted(table))
    console.print(LEGEND)
    for preset in PRESETS:
        console.print(f"[bold]{preset.name}[/bold]: {preset.recommendation}")


def cells(preset: Preset) -> list[str]:
    """One row of the table."""
    return [
        preset.name,
        memory(preset),
        "any" if preset.min_tensor_parallel == 1 else f"{preset.min_tensor_parallel}+",
        str(preset.chunked_prefill_size),
        str(preset.cuda_graph_max_bs),
        f"{preset.prefill_decode_ratio:.1f}",
        ", ".join(preset.gpus),
    ]


def memory(preset: Preset) -> str:
    """The class's range of GPU memory."""
    if preset.min_gib == 0:
        return f"<{preset.below_gib:g}"
    if preset.below_gib == inf:
        return f"{preset.min_gib:g}+"
    return f"{preset.min_gib:g}-{preset.below_gib:g}"


def preset_json(preset: Preset) -> dict[str, object]:
    """A preset with its ratio; JSON knows no infinity, so no upper end is null."""
    below = None if preset.below_gib == inf else preset.below_gib
    ratio = preset.prefill_decode_ratio
    return {**asdict(preset), "below_gib": below, "prefill_decode_ratio": ratio}


# -- ``--advise``: a run beside the published targets ----------------------------------------------

# -- What a tuning guide would say about a run: four figures, their targets, what to change --------

TOKEN_USAGE = (60.0, 80.0)  # percent of the KV pool
RUNNING = (70.0, 80.0)  # percent of max_running_requests
MAX_TTFT = 1000.0  # milliseconds
MAX_ITL = 50.0
FINE = "Fine as it is."


@dataclass(frozen=True)
class Advice:
    """One figure beside its target.

    ``value`` and ``target`` are in ``unit``. ``verdict`` is met, below or above. ``sentence`` says
    which option to change, in which direction and why; or that it is fine.
    """

    name: str
    value: float
    unit: str
    target: str
    verdict: str
    sentence: str


def advise(metrics: Metrics, config: SchedulerConfig) -> list[Advice]:
    """A run against the targets of the tuning guides.

    Token usage and running requests are averages over the time in which anybody held memory; TTFT
    and ITL are 90th percentiles. A figure that the run does not have (nothing ran, nobody got a
    second token) is left out.
    """
    advice = []
    if metrics.load.busy_ns:
        usage = 100 * metrics.load.used_tokens / config.num_slots
        running = 100 * metrics.load.running / config.max_running_requests
        anyone_waits = metrics.load.waiting >= 1
        advice += [_token_usage(usage, running, anyone_waits, metrics)]
        advice += [_running(usage, running, anyone_waits)]
    if metrics.ttft is not None:
        advice.append(_ttft(metrics.ttft.p90, metrics, config))
    if metrics.itl is not None:
        advice.append(_itl(metrics.itl.p90, config))
    return advice


def _token_usage(usage: float, running: float, anyone_waits: bool, metrics: Metrics) -> Advice:
    retractions = metrics.num_retractions
    verdict, sentence = _within(usage, TOKEN_USAGE), FINE
    if verdict == "above" and retractions:
        sentence = (
            f"Raise --schedule-conservativeness or --kv-tokens: {retractions} retractions threw "
            "away what was computed, because more was admitted than memory could hold."
        )
    elif verdict == "above":
        sentence = "Raise --kv-tokens: memory is nearly full, and longer outputs would not fit."
    elif verdict == "below" and not anyone_waits:
        sentence = "Lower --kv-tokens or send more: nobody waits, and memory stays empty."
    elif verdict == "below" and running > RUNNING[1]:
        sentence = "Raise --max-running-requests: requests wait for a place beside free memory."
    elif verdict == "below":
        sentence = (
            "Lower --schedule-conservativeness: requests wait beside free memory, because too much "
            "of it is kept back for outputs that never come."
        )
    return Advice("token usage", usage, "%", _target(TOKEN_USAGE), verdict, sentence)


def _running(usage: float, running: float, anyone_waits: bool) -> Advice:
    verdict, sentence = _within(running, RUNNING), FINE
    if verdict == "above" and not anyone_waits:
        sentence = (
            "Raise --max-running-requests before more come: as yet, nobody waits for a place."
        )
    elif verdict == "above" and usage > TOKEN_USAGE[1]:
        sentence = "Raise --kv-tokens and then --max-running-requests: both are nearly used up."
    elif verdict == "above":
        sentence = "Raise --max-running-requests: nearly all places are taken beside free memory."
    elif verdict == "below" and not anyone_waits:
        sentence = "Lower --max-running-requests or send more: nobody waits, places stay empty."
    elif verdict == "below" and usage > TOKEN_USAGE[0]:
        sentence = "Raise --kv-tokens: those who wait would find a place, but no memory."
    elif verdict == "below":
        sentence = (
            "Lower --schedule-conservativeness or raise --chunked-prefill-size: requests wait "
            "beside free places and free memory, so they are admitted too slowly."
        )
    return Advice("running requests", running, "%", _target(RUNNING), verdict, sentence)


def _ttft(p90: int, metrics: Metrics, config: SchedulerConfig) -> Advice:
    verdict, sentence = _within(p90 / 1e6, (0.0, MAX_TTFT)), FINE
    if verdict == "above" and metrics.queue is not None and 2 * metrics.queue.p90 > p90:
        sentence = (
            "Raise --max-running-requests or --kv-tokens, or send less: most of the time to the "
            "first token went by in the waiting queue."
        )
    elif verdict == "above" and config.chunked_prefill_size != -1:
        sentence = (
            "Raise --chunked-prefill-size: most of the time to the first token went by after "
            "admission, and larger chunks get through a prompt in fewer steps."
        )
    elif verdict == "above":
        sentence = (
            "Set --chunked-prefill-size: most of the time to the first token went by after "
            "admission, while longer prompts were computed in one piece."
        )
    return Advice("TTFT", p90 / 1e6, "ms", f"at most {MAX_TTFT:g}", verdict, sentence)


def _itl(p90: int, config: SchedulerConfig) -> Advice:
    verdict, sentence = _within(p90 / 1e6, (0.0, MAX_ITL)), FINE
    prompts_first = config.in_force.run_first == "prefill"
    if verdict == "above" and prompts_first and not config.enable_mixed_chunk:
        sentence = (
            "Turn on --enable-mixed-chunk or lower --chunked-prefill-size: those who decode stand "
            "still while prompts are computed."
        )
    elif verdict == "above":
        sentence = (
            "Lower --chunked-prefill-size and then --max-running-requests: each step computes too "
            "many tokens."
        )
    return Advice("ITL", p90 / 1e6, "ms", f"at most {MAX_ITL:g}", verdict, sentence)


def _within(value: float, limits: tuple[float, float]) -> str:
    """The verdict; a value at a limit meets the target."""
    return "below" if value < limits[0] else "above" if value > limits[1] else "met"


def _target(limits: tuple[float, float]) -> str:
    return f"{limits[0]:g} to {limits[1]:g}"


def print_advice(console: Console, runs: Sequence[Run], config: SchedulerConfig) -> None:
    """One table for each run."""
    for run in runs:
        console.print(Fitted(table(run.loop, advise(run.metrics, config))))


def table(loop: str, advice: Sequence[Advice]) -> Table:
    """The figures, their targets, and what to change."""
    result = Table(
        box=SIMPLE_HEAD, pad_edge=False, title=f"Advice for {loop}", title_justify="left"
    )
    for column in ("figure", "here", "target", "", "advice"):
        result.add_column(column, justify="right" if column in ("here", "target") else "left")
    for item in advice:
        here = f"{item.value:.0f} {item.unit}"
        result.add_row(item.name, here, f"{item.target} {item.unit}", item.verdict, item.sentence)
    return result


def advice_json(run: Run, config: SchedulerConfig) -> list[dict[str, Any]]:
    """The same for ``--json``."""
    return [vars(item) for item in advise(run.metrics, config)]
