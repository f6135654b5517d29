"""The written comparison of the designs, as Markdown; its figures come from runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..loops.design import LOOPS
from .figures import Figures, figures_of
from .markdown import table
from .three_way_rows import ROWS
from .three_way_waits import what_waits
from .units import MILLISECOND, ms

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
| what a grammar keeps waiting | [SGLang](wait_grammar_delay_sample.svg), \
[its thread](wait_grammar_sampling_info_done.svg), [vLLM](wait_grammar_deferred.svg), \
[MindIE](wait_grammar_forward_loop.svg), [MLX](wait_grammar_no_chain.svg) |
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
