"""The scheduler's options, which ``run``, ``compare`` and ``replay`` share."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from ..defaults import CHUNK, whole_pages
from ..memory.pool import RULES as FREE_RULES
from ..memory.radix_cache import POLICIES as EVICTION_POLICIES
from ..policy.rules import RULES
from ..policy.waiting import POLICIES as SCHEDULE_POLICIES
from ..scheduler import SchedulerConfig
from ..scheduler.config import ALGORITHMS
from ..speculative.draft_model import DRAFT_MODELS
from .preset_here import preset_named


def scheduler_option(help: str, *names: str, default: str = "") -> Any:
    """An option that ``--help`` lists under Scheduler.

    ``default`` says what holds without it; left out where that differs from command to command.
    """
    return typer.Option(
        *names, help=help, rich_help_panel="Scheduler", show_default=default or False
    )


@dataclass(frozen=True)
class SchedulerOptions:
    """``SchedulerConfig``'s fields, under SGLang's names; None or False: not given.

    Raises:
        ValueError: an option is outside its limits; the sentence names the option and the limit.
    """

    chunked_prefill_size: Annotated[
        int | None,
        scheduler_option("The most prompt tokens of one step; -1: no limit.",
               "--chunked-prefill-size", "--chunk"),
    ] = None  # fmt: skip
    enable_mixed_chunk: Annotated[
        bool, scheduler_option("Decode beside the prompts, in one batch.", "--enable-mixed-chunk")
    ] = False
    max_prefill_tokens: Annotated[
        int | None, scheduler_option("Over this a batch takes no further prompt.", default="16384")
    ] = None
    max_running_requests: Annotated[int | None, scheduler_option("Requests that run at once.")] = (
        None
    )
    cuda_graph_max_bs: Annotated[
        int | None,
        scheduler_option("Larger decode batches are launched op by op.", default="no limit"),
    ] = None
    page_size: Annotated[int | None, scheduler_option("KV slots to a page.")] = None
    kv_tokens: Annotated[int | None, scheduler_option("KV slots in all.")] = None
    schedule_policy: Annotated[
        str | None,
        scheduler_option(f"Who is admitted first: {', '.join(SCHEDULE_POLICIES)}.", default="fcfs"),
    ] = None
    enable_priority_scheduling: Annotated[
        bool,
        scheduler_option(
            "Higher priorities first, before fcfs or lof.", "--enable-priority-scheduling"
        ),
    ] = False
    priority_scheduling_preemption_threshold: Annotated[
        int | None,
        scheduler_option("With priorities: preempt who is lower by more than this.", default="10"),
    ] = None
    schedule_conservativeness: Annotated[
        float | None,
        scheduler_option("Scales the memory kept back for running requests.", default="1"),
    ] = None
    random_seed: Annotated[int | None, scheduler_option("Of the policy random.", default="0")] = (
        None
    )
    rules: Annotated[
        str | None,
        scheduler_option(
            f"Whose rules: {', '.join(RULES)}; with some changed: sglang,free_rule=at_once.",
            default="those of the loop's system",
        ),
    ] = None
    run_first: Annotated[
        str | None,
        scheduler_option(
            "prefill, decode, or unified: one budget for both.", default="as the rules say"
        ),
    ] = None
    disable_radix_cache: Annotated[
        bool, scheduler_option("Share no prefixes between requests.", "--disable-radix-cache")
    ] = False
    radix_eviction_policy: Annotated[
        str | None,
        scheduler_option(
            f"Which prefix is evicted first: {', '.join(EVICTION_POLICIES)}.", default="lru"
        ),
    ] = None
    free_rule: Annotated[
        str | None,
        scheduler_option(
            f"When a finished request's memory goes back: {', '.join(FREE_RULES)}. Only the first "
            "is right with any loop and relay.",
            default="as the rules say",
        ),
    ] = None
    speculative_algorithm: Annotated[
        str | None,
        scheduler_option(f"How to draft: {', '.join(ALGORITHMS)}.", default="no speculation"),
    ] = None
    speculative_num_draft_tokens: Annotated[
        int | None, scheduler_option("Drafts that a step may carry for a request.", default="4")
    ] = None
    speculative_draft_model_path: Annotated[
        str | None, scheduler_option(f"Of STANDALONE: {DRAFT_MODELS}.")
    ] = None
    late_penalties: Annotated[
        bool,
        scheduler_option(
            "Penalties do without the newest token; nothing waits.", "--late-penalties"
        ),
    ] = False
    late_stop_strings: Annotated[
        bool,
        scheduler_option(
            "A request goes on for a token after its stop text.", "--late-stop-strings"
        ),
    ] = False
    disable_overlap_schedule: Annotated[
        bool, scheduler_option("Run the serial loop and no other.", "--disable-overlap-schedule")
    ] = False
    preset: Annotated[
        str | None,
        scheduler_option(
            "Chunk and graph sizes for a GPU: a name that minisched presets lists, 24GiB, auto."
        ),
    ] = None

    def __post_init__(self) -> None:
        self.make_config(kv_tokens=max(1, self.page_size or 1))

    def make_config(self, **defaults: Any) -> SchedulerConfig:
        """``defaults``; over them what the preset says, and over that what was given.

        Raises:
            ValueError: a value is outside its limits.
        """
        preset: dict[str, Any] = {}
        chunk = {"chunked_prefill_size": whole_pages(CHUNK, self.page_size or 1)}
        try:
            if self.preset is not None:
                preset.update(preset_named(self.preset).settings)
            return SchedulerConfig(**{**chunk, **defaults, **preset, **self.given()})
        except ValueError as error:
            raise ValueError(in_words_of_options(str(error))) from error

    def given(self) -> dict[str, Any]:
        """Fields of ``SchedulerConfig`` that the command line sets."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        del values["preset"]
        return {
            name: value
            for name, value in values.items()
            if value is not None and value is not False
        }


def in_words_of_options(sentence: str) -> str:
    """A sentence about settings, with their names as they are spelled on the command line."""
    names = "|".join(item.name for item in fields(SchedulerOptions))
    return re.sub(rf"\b({names})\b", lambda found: f"--{found[0].replace('_', '-')}", sentence)
