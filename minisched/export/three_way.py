"""The written comparison of the designs, as Markdown; its figures come from runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from ..checks.overlap import measure
from ..core import Request, SamplingParams
from ..devices.registry import open_device
from ..loops.design import LOOPS
from ..loops.run import run_loop
from ..models.hash import HashModel
from .pictures.waits import refusal, run_with, run_without, time_lost, waits_for
from .recipes.recipe import Recipe, run_of, tokens
from .tables import table
from .units import MILLISECOND, ms

# -- What the designs do with one workload: the figures of the written comparison ------------------

LENGTHS = (4, 7, 10, 13)  # tokens of the requests whose ends are counted
SHORT, LONG = 12, 36  # tokens of the two runs whose difference is settled steps only


@dataclass(frozen=True)
class Figures:
    """One loop on sim; times in nanoseconds, a waste in rows for each end.

    ``token_time`` is settled: for one more token of each of four requests. ``makespan``,
    ``speedup`` over serial and the shares are of the common workload.
    """

    loop: str
    token_time: float
    makespan: int
    device_busy_percent: float
    host_hidden_percent: float
    speedup: float
    waste_of_stop: float
    waste_of_length: float


def figures_of(loop: str) -> Figures:
    """What one loop did."""
    trace = run_of(loop)
    report = measure(trace)
    return Figures(
        loop,
        token_time(loop),
        trace.end,
        report.device_busy_percent,
        report.host_hidden_percent,
        run_of("serial").end / trace.end,
        wasted_rows(loop, by_token=True),
        wasted_rows(loop, by_token=False),
    )


def token_time(loop: str) -> float:
    """Nanoseconds for one more token of each of four requests, once the run has settled."""
    ends = [Recipe(loop, four([tokens(count)] * 4)).run().end for count in (SHORT, LONG)]
    return (ends[1] - ends[0]) / (LONG - SHORT)


def wasted_rows(loop: str, by_token: bool) -> float:
    """Rows that were computed for nothing, for each request that ended by token or by length."""
    requests = four([tokens(count) for count in LENGTHS])
    if by_token:
        requests = four([stopping(tuple(req.prompt), req.params) for req in requests])
    marks = Recipe(loop, requests).run().marks
    return sum(mark.name == "wasted row" for mark in marks) / len(requests)


def four(params: Sequence[SamplingParams]) -> list[Request]:
    """Four requests that come together and share nothing."""
    return [Request(f"r{at}", range(20 * at, 20 * at + 6), each) for at, each in enumerate(params)]


def stopping(prompt: tuple[int, ...], params: SamplingParams) -> SamplingParams:
    """More room, and the token at which these parameters ended as the one that stops."""
    token = greedy_tokens(prompt)[params.max_new_tokens - 1]
    stop_token_ids = frozenset({token})
    return SamplingParams(max_new_tokens=LONG, stop_token_ids=stop_token_ids, ignore_eos=True)


@cache
def greedy_tokens(prompt: tuple[int, ...]) -> list[int]:
    """What a request alone says."""
    requests = [Request("r", prompt, tokens(LONG))]
    return run_loop("serial", open_device("sim"), HashModel(), requests).outputs["r"]


# -- How five designs answer the same questions; in words, from their sources ----------------------
#
# The columns are those of ``three_way.COLUMNS``. Numbers in parentheses are issues and pull
# requests of the project that heads the column, unless another is named.

ROWS: dict[str, tuple[str, str, str, str, str]] = {
    "Who schedules, and when": (
        "`EngineCore` fills `batch_queue` before it harvests it: step N+1 is scheduled and "
        "launched, then the host blocks on N.",
        "The scheduler's one thread: schedule and launch N, then process N-1 while N runs.",
        "Two layers. The C++ scheduler has one call outstanding at most; the Python plugin answers "
        "call N with the tokens of N-1, so N+1 is scheduled before N is known.",
        "The scheduler's one thread, as SGLang's; prompts go first.",
        "Nobody, while the chain holds: the same rows are committed once more. A waiting request "
        "or an end breaks it, and the next step is scheduled afresh.",
    ),
    "Depth": (
        "2 on one device with async scheduling, the default (#27614); with pipeline parallelism "
        "one step a stage, or one more. Without async scheduling 1.",
        "2.",
        "2 in Python; the C++ gate (`MAX_ASYNC_SCHEDULE_TIMES`) is 1.",
        "2.",
        "2 lazy graphs.",
    ),
    "Where the unknown token lives": (
        "On the device, in `prev_sampled_token_ids`; the host's copy has -1, and "
        "`num_output_placeholders` counts it.",
        "On the device, in the FutureMap, at the request's row (#25862); before that in a ring, "
        "and the input id was minus its place.",
        "On the device until it is copied; C++ has -1 at the end of the sequence, Python a hole in "
        "`input_ids` under a hit mask.",
        "On the device, in `token_pool[row, position]`.",
        "Nowhere: it is a node of a graph that nobody has evaluated.",
    ),
    "How it is filled in": (
        "When inputs are prepared: one slice if the batch is unchanged, else a scatter; new rows "
        "come from the host.",
        "The forward stream gathers it just before the forward pass.",
        "The host writes it into the inputs and advances positions and lengths; an experimental "
        "path scatters on the device.",
        "The engine's stream gathers it; the order of the streams is all the bookkeeping there is.",
        "It is an argument of the next graph.",
    ),
    "What waits for what": (
        "The host for the oldest step in the queue.",
        "The host for the copy of N-1, when N is launched.",
        "Step N for the tokens of N-1 on the host: the device idles for copy, fill and launch. The "
        "host waits for `launch_done` before it post-processes.",
        "The host for the copy of N-1; the engine's stream for the scheduler's stream, which "
        "uploads prompts.",
        "The host for the tokens of N (`tolist`), when graph N+1 was submitted.",
    ),
    "What a grammar waits for": (
        "Sampling, for the token before: if a structured request has output placeholders, the "
        "step is deferred. Its forward pass is launched, its sampling when the queue has been "
        "harvested and the bitmask built (#26866).",
        "Sampling of N, until N-1 was processed: `delay_sample_func` is what the loop calls last. "
        "The thread version launched it behind `sampling_info_done`.",
        "The forward pass, for the bitmask: `forward_loop` has sampled and read the tokens of N-1, "
        "and builds it before it launches N.",
        "There are no grammars at 20fcd7f.",
        "The whole next step: a batch with a grammar is never chained, so each step is launched "
        "when the token before is on the host and its mask can be built.",
    ),
    "What penalties wait for": (
        "The worker, just before it samples, for the copy of the last step's tokens, which it puts "
        "in the place of -1 (`update_async_output_token_ids`).",
        "Nothing: with overlap they count what is known when a step is prepared, one token late "
        "(`prepare_for_decode`).",
        "Nothing: they are built from a context that is one step behind, so one token late.",
        "There are no penalties.",
        "Nothing: they are ignored, with one warning.",
    ),
    "What speculation waits for": (
        "Nothing, with drafters on the device (EAGLE, MTP, a draft model, `ngram_gpu`): the host "
        "counts every draft as accepted and takes back what was rejected. `ngram` on the host "
        "needs the tokens, and is refused with async scheduling.",
        "Nothing, where the device drafts: lengths and drafts stay there (`new_seq_lens_buf`). "
        "Prompt lookup on the host waits for the tokens (#17260; before, it turned overlap off). "
        "With a grammar, a decode step waits until the one before it was processed.",
        "With MTP the inputs of N for the tokens of N-1, as ever; their number is known only then. "
        "Look-ahead and memory decoding are refused with asynchronous scheduling.",
        "There is no speculation.",
        "It is refused with overlap: it requires synchronous scheduling.",
    ),
    "A length stop": (
        "Foreseen, by counting placeholders: no row is wasted.",
        "Foreseen since 0.5.23 (`enable_skip_finishing_decode`): no row. Up to 0.5.21 seen when "
        "the token is processed: one row.",
        "Seen by post-processing, one step late: one row.",
        "Foreseen, because lengths advance at the launch: no row.",
        "Seen when the token is processed: one row of the chained step.",
    ),
    "A stop token": (
        "One row; its output is dropped.",
        "One row; its slot is freed when its own step is processed.",
        "One row: the round that ends only flags it, the next one drops the row.",
        "One row; at 20fcd7f its token is sent after the end.",
        "One row; the other rows of that step keep their tokens.",
    ),
    "When memory goes back": (
        "At once: whoever gets the blocks writes them on the same stream, so later. With external "
        "readers of KV, behind a fence (#45357).",
        "When the end is processed; a guard keeps the late row from freeing twice (#22416).",
        "One round after the end was flagged; an aborted request waits for its own clear (#42).",
        "When the end is processed; before e7d4f65 not while the running batch named it.",
        "Pages when the end is processed; what the runner keeps, at its next fresh launch.",
    ),
    "Preemption with a step in flight": (
        "Computed goes to 0 and the tokens in flight are counted as stale; each return drains its "
        "share, and nobody resumes before (#48245).",
        "The retracted request's late token is skipped; it waits and computes again.",
        "Recompute or swap; a preempted sequence must leave `last_sequence_ids`, or its row is "
        "filled wrongly (#75).",
        "There is none: the whole output is reserved at admission.",
        "As in SGLang; a waiting request stops the chain first.",
    ),
    "Threads and streams": (
        "The core's thread and the worker; a default stream and a copy stream.",
        "One thread; a forward stream and a copy stream. Before #11210 a second thread launched.",
        "The C++ scheduler's thread, the caller of the plugin, and `forward_loop`'s.",
        "One thread; the scheduler's stream and the engine's.",
        "One thread; MLX evaluates on a stream of its own.",
    ),
    "Bugs that teach it": (
        "a placeholder count below zero (#48245, #57562); a stale -1 that reaches the model "
        "(#46899); penalties that read -1 (#27910)",
        "a ring that laps a token nobody has read (#13713); KV freed twice (#22416); a tensor "
        "freed while another stream reads it (#18958)",
        "a flag read live when the result comes back (#233); two who free the same id (#42)",
        "an abort in flight that frees twice (#111); a pinned buffer rewritten too early (#102)",
        "a chained step that advances no length (sglang #30093)",
    ),
}


# -- What the designs wait for, and the time that they lose with it: counted in runs ---------------

WAITS_ABOUT = """\
## What each one waits for

Four requests with 24 tokens each; the first one has the grammar or the penalties, and with
speculation all of them carry three drafts a step. Each wait is a mark in the trace, and the time
lost is read off the device's intervals: a wait is charged the whole gap before the op that had to
wait, and what no wait explains is `host`: the device waited for the host's ordinary work. Behind a
device twice as fast less can be hidden. No run here waits for `speculation`: that arises on CUDA
and MLX only, where the host builds the ops and must know how many drafts were accepted; on `sim`
the device reads the lengths itself."""
WAITS_HEADS = ("loop", "what waits for what", "time lost by reason", "whole run", "without it",
         "time lost on a device twice as fast", "whole run", "without it")  # fmt: skip
TITLES = {
    "grammar": "A grammar",
    "penalties": "Penalties (here they wait, also where the original's are late or ignored)",
    "late penalties": "Penalties that do without the newest token",
    "NGRAM": "Speculation: prompt lookup on the host (`NGRAM`)",
    "NGRAM_GPU": "Speculation: prompt lookup on the device (`NGRAM_GPU`)",
    "STANDALONE": "Speculation: a draft model (`STANDALONE`)",
    "grammar with speculation": "A draft model, and a grammar",
}


def what_waits(names: Mapping[str, str]) -> Iterator[str]:
    """The section's lines; ``names`` are the loops, and how each is written."""
    yield WAITS_ABOUT
    for feature, title in TITLES.items():
        yield f"\n### {title}\n"
        yield table(WAITS_HEADS, [row_of(loop, name, feature) for loop, name in names.items()])


def row_of(loop: str, name: str, feature: str) -> Sequence[str]:
    """One loop's line; a loop that does not do this says why."""
    if reason := refusal(loop, feature):
        return [name, f"refused: {reason}", *[""] * (len(WAITS_HEADS) - 2)]
    cells = [name, waits_for(run_with(loop, feature))]
    for cost in ("usual", "fast"):
        trace, without = run_with(loop, feature, cost), run_without(loop, feature, cost)
        cells += [time_lost(trace), f"{ms(trace.end)} ms", f"{ms(without.end)} ms"]
    return cells


COLUMNS = {  # the head of each column, and the loop that it is
    "vLLM": "vllm_async",
    "SGLang": "overlap",
    "MindIE": "mindie_dual",
    "mini-sglang": "mini_overlap",
    "SGLang on MLX": "mlx_async",
}
HEADS = ("loop", "ms for one more token each", "device busy", "host hidden", "speed-up over serial",
         "rows wasted by a stop token", "rows wasted by a length stop", "whole run")  # fmt: skip
ABOUT = """\
# Asynchronous scheduling: vLLM, SGLang and MindIE side by side

Made by `minisched diagrams`; the figures are read off runs on the simulated device. mini-sglang and
MLX stand beside the three as further columns.

| | |
|---|---|
| the three on one time axis | \
[three_way_async_scheduling_compare](three_way_async_scheduling_compare.svg) |
| against no overlap | [compare_cpu_gpu_overlap](compare_cpu_gpu_overlap.svg) |
| vLLM | [batch queue](vllm_cpu_gpu_overlap_batch_queue.svg), \
[dependency points](vllm_cpu_gpu_overlap_dependency_points.svg) |
| SGLang | [event loop](sglang_cpu_gpu_overlap_event_loop.svg), \
[FutureMap](sglang_futuremap_overlap.svg) |
| MindIE | [plugin pipeline](mindie_async_plugin_manager_pipeline.svg), \
[placeholders](mindie_scheduler_placeholder_async.svg), \
[two layers and one](mindie_pipeline_refactor_compare.svg) |
| MLX | [two lazy graphs](mlx_two_graph_chain.svg) |
| what a grammar keeps waiting | [each of them](wait_grammar.svg) |
| and what else waits | [prefills](wait_prefill.svg), [penalties](wait_penalties.svg), \
[drafts](wait_speculation_drafts.svg), [drafts with a grammar](wait_speculation_grammar.svg) |

## How each one does it
"""
FIGURES = """\

## What each one costs

The same five requests through every loop: prompts that are chunked, greedy and sampled tokens, one
stop token, one late arrival. Device, host and speed-up are of that whole run. The first figure is
the settled time in which four requests get one more token each. The rows wasted are counted in runs
of four requests that all end in the same way, for each end. Where there are several devices
(pipeline stages, `pd`), busy is the mean of them.
"""
EVERY = """\

## Every loop

"""


def to_three_way() -> str:
    """The comparison's text."""
    figures = {loop: figures_of(loop) for loop in LOOPS}
    five = [figures["serial"], *(figures[loop] for loop in COLUMNS.values())]
    names = {"serial": "no overlap (`serial`)"}
    names |= {loop: f"{name} (`{loop}`)" for name, loop in COLUMNS.items()}
    return "\n".join(
        [
            ABOUT,
            table(["", *COLUMNS], designs()),
            FIGURES,
            table(HEADS, [figure_row(each, names[each.loop]) for each in five]),
            "",
            *what_waits(names),
            EVERY.rstrip("\n"),
            "",
            table(HEADS, [figure_row(each, f"`{loop}`") for loop, each in figures.items()]),
            "",
        ]
    )


def designs() -> Iterator[Sequence[str]]:
    """A row for each question; the first one says what was read."""
    yield ["**Read from**", *(LOOPS[loop].follows for loop in COLUMNS.values())]
    for question, answers in ROWS.items():
        yield [f"**{question}**", *answers]


def figure_row(figures: Figures, name: str) -> list[str]:
    """One loop's figures as they are written."""
    return [
        name,
        f"{figures.token_time / MILLISECOND:.2f}",
        f"{figures.device_busy_percent:.0f} %",
        f"{figures.host_hidden_percent:.0f} %",
        f"{figures.speedup:.2f}×",
        f"{figures.waste_of_stop:g}",
        f"{figures.waste_of_length:g}",
        f"{ms(figures.makespan)} ms",
    ]
