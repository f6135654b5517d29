"""What to run: the options that ``compare`` and ``run`` share beside the scheduler's."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from ..core import Request, SamplingParams
from ..defaults import (
    CHUNK,
    MAX_NEW_TOKENS,
    check_room,
    go_round,
    make_requests,
    overlapped_loop,
    text_codec,
    usual_cost,
    whole_pages,
    with_room,
)
from ..devices.cost import MILLISECOND, CostModel
from ..devices.profiles import PROFILES, find_profile
from ..engine.log import log_to
from ..loops.design import LOOPS, find_loop
from ..memory.pool import RULES as FREE_RULES
from ..memory.radix_cache import POLICIES as EVICTION_POLICIES
from ..models.base import Model
from ..models.llama import AUTO
from ..models.registry import open_model
from ..policy.rules import RULES
from ..policy.waiting import POLICIES as SCHEDULE_POLICIES
from ..scheduler import SchedulerConfig
from ..scheduler.config import ALGORITHMS
from ..speculative.draft_model import DRAFT_MODELS
from ..trace.files import read_text
from .presets import preset_named

# -- Writes options once: a dataclass is a group of options that any command can take --------------


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Turn each parameter whose type is a dataclass into one option for each of its fields.

    typer asks a command for its signature; this one answers with the fields in the place of the
    parameter, and builds the dataclass when it is called.

        @app.command()
        @with_option_groups
        def replay(file: Path, scheduler: SchedulerOptions) -> None: ...
    """
    own = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: item.annotation for name, item in own.items() if is_dataclass(item.annotation)
    }

    @wraps(command)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{item.name: values.pop(item.name) for item in fields(group)})
        command(**values)

    merged = [
        parameter
        for name, item in own.items()
        for parameter in (options_of(groups[name]) if name in groups else [item])
    ]
    keyword_only = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in merged]
    call.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    call.__annotations__ = {item.name: item.annotation for item in merged}
    return call


def options_of(group: type[Any]) -> Iterator[inspect.Parameter]:
    """The fields of a dataclass as parameters of a command."""
    types = get_type_hints(group, include_extras=True)
    for item in fields(group):
        yield inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default_of(item),
            annotation=types[item.name],
        )


def default_of(item: Field[Any]) -> Any:
    """A field's default; a command's parameter without one is required."""
    if item.default_factory is not MISSING:
        return item.default_factory()
    return inspect.Parameter.empty if item.default is MISSING else item.default


# -- Options whose text means more than it says: a bias, a file ------------------------------------


def read_bias(text: str) -> tuple[int, float]:
    """A token and what is added to its logit, from ``TOKEN=VALUE``.

    Raises:
        ValueError: ``text`` is something else.
    """
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        example = "but it must be TOKEN=VALUE, such as 42=-5.5"
        raise ValueError(f"--logit-bias is {text!r}, {example}.") from None


def read_schema(file: Path) -> str:
    """The text of a JSON schema.

    Raises:
        ValueError: the file can't be read.
    """
    try:
        return read_text(file)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"--json-schema {file} can't be read: {reason}.") from error


# -- The prompts of a run: built in, from the command line, or from a file -------------------------


def read_prompts(texts: list[str], file: Path | None, count: int | None) -> list[str]:
    """``count`` prompts, going round again if there are fewer; without ``count``, each once.

    A file holds one prompt a line; empty lines are skipped.

    Raises:
        ValueError: the file can't be read or holds no prompt, or ``count`` is below 1.
    """
    if count is not None and count < 1:
        raise ValueError(f"--requests is {count}, but it must be at least 1.")
    prompts = list(texts)
    if file is not None:
        try:
            lines = read_text(file).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ValueError(f"--prompts {file} can't be read: {reason}.") from error
        prompts += [line for line in lines if line.strip()]
        if not prompts:
            raise ValueError(f"--prompts {file} holds no prompt; it needs one a line.")
    for text in prompts:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError(f"--prompt {text!r} is not UTF-8 text.")
    return go_round(prompts, count)


# -- How much memory a run gets, where no option says so -------------------------------------------


def make_config(
    scheduler: SchedulerOptions, model: Model, requests: list[Request]
) -> SchedulerConfig:
    """Room for every request that may run at once, unless options say otherwise.

    Raises:
        ValueError: the options ask for more memory than a run here should take.
    """
    config = with_room(scheduler.make_config, requests, model.context_len)
    try:
        check_room(config)
    except ValueError as error:
        raise ValueError(in_words_of_options(str(error))) from error
    return config


# -- Which loops a command runs --------------------------------------------------------------------


def choose_loops(asked: Sequence[str], device: str, only_serial: bool) -> list[str]:
    """The loops asked for; if none were, the one that overlaps on ``device``.

    ``LOOP:RELAY`` is a loop with another relay than its own. ``all`` stands for every design that
    runs on ``device`` (but for ``pd``, which is two schedulers, and ``mixed``, which is a policy).
    ``only_serial`` is ``--disable-overlap-schedule``.

    Raises:
        ValueError: a loop is unknown, or overlaps although only the serial one may run.
    """
    names = [every for name in asked for every in (designs(device) if name == "all" else [name])]
    for name in names:
        find_loop(name).check_device(name, device)
    if not names:
        return ["serial" if only_serial else overlapped_loop(device)]
    for name in names:
        if only_serial and name != "serial":
            raise ValueError(
                f"--disable-overlap-schedule leaves only serial, but the loop {name} was asked for."
            )
    return list(dict.fromkeys(names))


def designs(device: str) -> list[str]:
    """The published loops that run on a device, in the order of the registry."""
    beside = ("pd", "mixed")
    return [name for name, spec in LOOPS.items() if device in spec.devices and name not in beside]


DTYPE_HELP = (
    "What a real model computes in: auto (bfloat16 where the checkpoint is in bfloat16, else "
    "float32), float32, bfloat16; float64 on thread and cuda."
)
MOST_HOST_WORK = 60_000  # milliseconds a step


def option(help: str) -> Any:
    """An option that ``--help`` lists under Workload."""
    return typer.Option(help=help, rich_help_panel="Workload")


@dataclass(frozen=True)
class WorkloadOptions:
    """The device, the model and the requests.

    Raises:
        ValueError: an option is outside its limits; the sentence names the option and the limit.
    """

    device: Annotated[str, option("sim, thread, cuda or mlx.")] = "sim"
    model: Annotated[str, option("hash, smollm2, a directory, or a Hugging Face id.")] = "hash"
    dtype: Annotated[str, option(DTYPE_HELP)] = AUTO
    requests: Annotated[int | None, option("How many; prompts and priorities go round.")] = None
    prompt: Annotated[list[str], option("A prompt; repeatable.")] = field(default_factory=list)
    prompts: Annotated[Path | None, option("A file, one prompt a line.")] = None
    priority: Annotated[list[int], option("Higher is sooner; repeatable.")] = field(
        default_factory=list
    )
    max_new_tokens: Annotated[int, option("The most tokens that a request may produce.")] = (
        MAX_NEW_TOKENS
    )
    temperature: Annotated[float, option("0 is greedy.")] = 0.0
    top_p: Annotated[float, option("Keep the tokens that make up this probability.")] = 1.0
    top_k: Annotated[int, option("Keep this many tokens; -1 keeps all.")] = -1
    seed: Annotated[int, option("Decides every draw, if temperature is above 0.")] = 0
    frequency_penalty: Annotated[
        float, option("Taken off a logit, for each time that its token was said; -2 to 2.")
    ] = 0.0
    presence_penalty: Annotated[
        float, option("Taken off a logit once, if its token was said; -2 to 2.")
    ] = 0.0
    repetition_penalty: Annotated[
        float, option("Divides the logit of what was said or asked; 1 is none, at most 2.")
    ] = 1.0
    logit_bias: Annotated[list[str], option("TOKEN=VALUE, added to a logit; repeatable.")] = field(
        default_factory=list
    )
    stop: Annotated[list[str], option("A text that ends a request; repeatable.")] = field(
        default_factory=list
    )
    regex: Annotated[
        str | None, option("What the whole output has to match, as in Python's re over ASCII.")
    ] = None
    json_schema: Annotated[
        Path | None, option("A file; the output has to be JSON that follows this schema.")
    ] = None
    return_logprob: Annotated[
        bool, typer.Option("--return-logprob", help="Say how likely each token was.",
                           rich_help_panel="Workload")
    ] = False  # fmt: skip
    top_logprobs_num: Annotated[int, option("With this many of the most likely tokens.")] = 0
    logprob_start_len: Annotated[
        int, option("From this token of the prompt on; -1 is none of it.")
    ] = -1
    host_work: Annotated[float, option("Milliseconds of host work to add to each step.")] = 0.0
    profile: Annotated[
        str | None,
        option(f"What steps cost on sim: {', '.join(PROFILES)}, or a file of calibrate."),
    ] = None

    def __post_init__(self) -> None:
        if not 0 <= self.host_work <= MOST_HOST_WORK:
            raise ValueError(
                f"--host-work is {self.host_work}, but it must be between 0 and {MOST_HOST_WORK}."
            )
        if self.profile is not None and self.device != "sim":
            raise ValueError(f"--profile is for --device sim, but --device is {self.device}.")
        if problem := self.sampling.problem():
            name, rest = problem.split(" ", 1)
            rest = rest.replace("return_logprob", "--return-logprob")
            raise ValueError(f"--{name.replace('_', '-')} {rest}")
        self.read_prompts()

    @property
    def sampling(self) -> SamplingParams:
        """How every request samples, and how long."""
        return SamplingParams(
            self.temperature, self.top_k, self.top_p, self.seed, self.max_new_tokens,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=dict(map(read_bias, self.logit_bias)),
            stop=tuple(self.stop),
            regex=self.regex,
            json_schema=read_schema(self.json_schema) if self.json_schema else None,
            return_logprob=self.return_logprob,
            top_logprobs_num=self.top_logprobs_num,
            logprob_start_len=self.logprob_start_len,
        )  # fmt: skip

    def read_prompts(self) -> list[str]:
        """The prompts, as text."""
        return read_prompts(self.prompt, self.prompts, self.requests)

    def open_model(self) -> Model:
        """The model, for the device."""
        return open_model(self.model, self.device, self.dtype)

    def make_requests(self, model: Model, ignore_eos: bool = False) -> list[Request]:
        """The requests, tokenized; with ``ignore_eos`` every one runs to its length."""
        params = replace(self.sampling, ignore_eos=ignore_eos)
        codec, texts = text_codec(model), self.read_prompts()
        return make_requests(texts, codec, params, self.priority or [0])

    def cost(self) -> CostModel:
        """The cost model of ``sim``, or none; with the added host work in either.

        Raises:
            ValueError: there is no such profile.
        """
        cost = usual_cost(self.device)
        if self.profile is not None:
            cost = find_profile(self.profile).cost
        return cost.with_host_work(2 * round(self.host_work * MILLISECOND / 2))


@dataclass(frozen=True)
class ReportOptions:
    """What to say about a run."""

    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False
    log: Annotated[bool, typer.Option("--log", help="The scheduler's log, on stderr.")] = False
    advise: Annotated[
        bool, typer.Option("--advise", help="Compare the run with published targets.")
    ] = False

    def logging(self) -> AbstractContextManager[None]:
        """The log, as long as this lasts; begin it within a progress bar, which moves stderr."""
        return log_to(sys.stderr) if self.log else nullcontext()


# -- The scheduler's options, which ``run``, ``compare`` and ``replay`` share ----------------------


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
