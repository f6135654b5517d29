"""What to run: the options that ``compare`` and ``run`` share beside the scheduler's."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..core import Request, SamplingParams
from ..defaults import MAX_NEW_TOKENS, make_requests, text_codec, usual_cost
from ..devices.cost import MILLISECOND, PROFILES, CostModel, find_profile
from ..engine.log import log_to
from ..models.base import Model
from ..models.registry import AUTO, open_model
from .option_values import read_bias, read_schema
from .prompts import read_prompts

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
