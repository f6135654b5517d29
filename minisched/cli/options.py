"""The options of command lines: every ``setting`` is an option, described in one place.

A command's parameter is an option if its default is a ``setting``. A parameter with the type of an
``OptionGroup`` means all settings of that class::

    def replay(
        file: Path, scheduler: SchedulerOptions, loop: str | None = setting(None, "The loop.")
    ) -> int: ...
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import MISSING, Field, dataclass, fields
from functools import cached_property, wraps
from math import inf
from typing import Annotated, Any, ClassVar, get_type_hints

import typer

from ..core import Request, SamplingParams
from ..core.fields import setting as setting
from ..defaults import (
    MAX_NEW_TOKENS,
    MOST_REQUESTS,
    MOST_TOKENS,
    REPLAY,
    chat_codec,
    config_from,
    go_round,
    make_requests,
    overlapped_loop,
    published_loops,
    text_codec,
    usual_cost,
)
from ..devices.cost import MILLISECOND, CostModel
from ..engine.log import log_to
from ..loops.design import find_loop, loops_as_before
from ..models.base import Model
from ..models.checkpoint import AUTO
from ..models.registry import open_model
from ..own_loops import add_loop
from ..replay.profiles import PROFILES, find_profile
from ..scheduler import SchedulerConfig
from ..scheduler.config import too_long
from ..trace.files import UNPACKED_MIB
from .presets import preset_named

LOG = setting(False, "The scheduler's log, on stderr.")
JOBS = setting(None, "Processes; one for each core.", least=1)
BACKEND = setting("processes", "processes, or dask: a cluster.")
ADDRESS = setting("", "The cluster's address; without it one is started here.")
UNPACKED = setting(
    UNPACKED_MIB, "The most that a file in gzip may unpack to, in MiB.", least=1, most=1 << 20
)
MODEL_HELP = "hash, smollm2, a directory, or a Hugging Face id."
DTYPE_HELP = (
    "The numbers of a real model: auto (bfloat16 if the checkpoint is in bfloat16, otherwise "
    "float32), float32, bfloat16; float64 on thread and cuda."
)
PROFILE_HELP = f"{', '.join(PROFILES)}, or a file of calibrate."

# -- Settings become options -----------------------------------------------------------------------

Read = dict[str, tuple[Any, Callable[[Any], Any]]]


class OptionGroup:
    """Options of one panel of ``--help``: the fields of ``settings``, and the class's own.

    ``given`` are the settings that a command line names; its own fields always have a value.
    ``read`` makes a setting from what a command line gives, of another type.

    Raises:
        ValueError: an option is outside its limits; the sentence names both.
    """

    panel: ClassVar[str | None] = None
    settings: ClassVar[type[Any] | None] = None
    read: ClassVar[Read] = {}
    usual: ClassVar[dict[str, Any]] = {}  # defaults of the command line alone

    def __init__(self, **given: Any) -> None:
        for item in fields(self):  # type: ignore[arg-type]
            made = item.default if item.default_factory is MISSING else item.default_factory()
            setattr(self, item.name, given.pop(item.name, made))
        self.given = given
        self.check()

    def check(self) -> None:
        """Refuse options that exclude each other."""

    @classmethod
    def options(cls) -> Iterator[inspect.Parameter]:
        """Yield an option for each field with a help text."""
        for owner in filter(None, (cls, cls.settings)):
            types = get_type_hints(owner)
            for item in fields(owner):
                if "help" in item.metadata:
                    kind = cls.read.get(item.name, (types[item.name],))[0]
                    usual = cls.usual.get(item.name, item.default)
                    yield option(item.name, kind, item, usual, cls.panel)


def with_options(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Return the command for typer, with an option for each setting.

    typer reads a command's signature. This one contains options instead of settings and groups. A
    call builds each group from its options first, and forgets loops of one's own at its end.
    """
    own = inspect.signature(command, eval_str=True).parameters
    groups = {
        name: (item.annotation, list(item.annotation.options()))
        for name, item in own.items()
        if isinstance(item.annotation, type) and issubclass(item.annotation, OptionGroup)
    }

    @wraps(command)
    def call(**values: Any) -> int | None:
        """Collect the options of each group, and run the command."""
        for name, (group, options) in groups.items():
            found = [(it.name, values.pop(it.name), it.default) for it in options]
            values[name] = group(**{key: value for key, value, empty in found if value != empty})
        with loops_as_before():
            return command(**values)

    merged: list[inspect.Parameter] = []
    for name, item in own.items():
        if name in groups:
            merged += groups[name][1]
        elif isinstance(item.default, Field):
            merged.append(option(name, item.annotation, item.default, item.default.default))
        else:
            merged.append(item.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    call.__signature__ = inspect.Signature(merged)  # type: ignore[attr-defined]
    call.__annotations__ = {item.name: item.annotation for item in merged}
    return call


def option(
    name: str, kind: Any, said: Field[Any], usual: Any, panel: str | None = None
) -> inspect.Parameter:
    """Return the parameter that typer turns into an option.

    The default None means that the option was not given. An empty text stays ``""``, as the
    function declares it: ``--step ''`` and no ``--step`` are the same.
    """
    alias, shown, limits = (said.metadata[what] for what in ("alias", "shown", "limits"))
    spelled = f"--{name.replace('_', '-')}"
    is_list, is_flag = getattr(kind, "__origin__", None) is list, kind is bool and usual is False
    is_empty = any(usual is nothing for nothing in (MISSING, None, False)) or usual in ("", ())
    is_told = shown is None and not is_empty
    is_kept = is_told or kind is bool or usual == ""
    default = usual if is_kept else [] if is_list else None

    def within(value: Any) -> Any:
        """Refuse a value outside its limits."""
        if limits and value is not None and not limits[0] <= value <= limits[1]:
            least, most = limits
            upto = f"{most:g}" if isinstance(most, float) else most
            should = f"at least {least:g}" if most == inf else f"between {least:g} and {upto}"
            told = f"{value:g}" if isinstance(value, float) else value
            raise ValueError(f"{spelled} is {told}, but it must be {should}.")
        return value

    made = typer.Option(
        *([spelled, alias] if alias else [spelled] if is_flag else []),
        help=said.metadata["help"], rich_help_panel=panel, callback=within if limits else None,
        show_default=True if is_told else shown or False,
    )  # fmt: skip
    has_value = default is not None or type(None) in getattr(kind, "__args__", ())
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default,
        annotation=Annotated[kind if has_value else kind | None, made],
    )  # fmt: skip


@contextmanager
def in_words_of_options(*more: str) -> Iterator[None]:
    """Spell the names of settings, and ``more`` names, in errors as the command line does.

    Raises:
        ValueError: something is.
    """
    try:
        yield
    except ValueError as error:
        names = [item.name for item in fields(SchedulerConfig) if "help" in item.metadata]
        known = rf"\b({'|'.join([*names, 'preset', *more])})\b"
        said = re.sub(known, lambda found: f"--{found[0].replace('_', '-')}", str(error))
        raise ValueError(said) from error


# -- The groups ------------------------------------------------------------------------------------


def read_biases(texts: Sequence[str]) -> dict[int, float]:
    """Return tokens and the biases of their logits, each from ``TOKEN=VALUE``.

    Raises:
        ValueError: a text is something else.
    """
    biases = {}
    for text in texts:
        token, _, value = text.partition("=")
        try:
            biases[int(token)] = float(value)
        except ValueError:
            example = "but it must be TOKEN=VALUE, such as 42=-5.5"
            raise ValueError(f"--logit-bias is {text!r}, {example}.") from None
    return biases


@dataclass(init=False)
class WorkloadOptions(OptionGroup):
    """The device, the model and the requests."""

    panel = "Workload"
    settings = SamplingParams
    usual: ClassVar[dict[str, Any]] = {"max_new_tokens": MAX_NEW_TOKENS}
    read: ClassVar[Read] = {
        "logit_bias": (list[str], read_biases),
        "stop": (list[str], tuple),
    }
    device: str = setting("sim", "sim, thread, cuda or mlx.")
    model: str = setting("hash", MODEL_HELP)
    dtype: str = setting(AUTO, DTYPE_HELP)
    requests: int | None = setting(None, "How many; prompts and priorities go round.", least=1)
    prompt: list[str] = setting(list, "A prompt; repeatable.")
    chat: bool = setting(False, "Prompts are a user's messages, in the model's chat template.")
    system: str = setting("", "The system's message before them, with --chat.")
    priority: list[int] = setting(list, "Higher is sooner; repeatable.")
    host_work: float = setting(
        0.0, "Milliseconds of host work to add to each step.", least=0, most=60_000
    )
    profile: str | None = setting(None, f"The cost of steps on sim: {PROFILE_HELP}")

    def check(self) -> None:
        """Refuse options that exclude each other."""
        if self.profile is not None and self.device != "sim":
            raise ValueError(f"--profile is for --device sim, but --device is {self.device}.")
        if self.requests is not None and self.requests > MOST_REQUESTS:
            raise ValueError(
                f"--requests is {self.requests}, but it must be at most {MOST_REQUESTS}; {REPLAY}."
            )
        if problem := self.sampling.problem():
            name, rest = problem.split(" ", 1)
            rest = rest.replace("return_logprob", "--return-logprob")
            raise ValueError(f"--{name.replace('_', '-')} {rest}")
        if self.system and not self.chat:
            raise ValueError(f"--system {self.system!r} needs --chat: it is a message of a chat.")
        if self.chat and self.model == "hash":
            raise ValueError(
                "--chat needs a real model, but model 'hash' has no chat template; add --device "
                "thread --model smollm2."
            )
        for text in (*self.prompt, self.system):
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise ValueError(f"--prompt {text!r} is not UTF-8 text.")

    @cached_property
    def sampling(self) -> SamplingParams:
        """Return the sampling and the length of every request."""
        as_given = {name: (self.read[name][1](value) if name in self.read else value)
                    for name, value in self.given.items()}  # fmt: skip
        return SamplingParams(**{**self.usual, **as_given})

    @property
    def says_which(self) -> bool:
        """Return whether the command line names requests, their sampling or their end."""
        return bool(self.given or self.prompt or self.priority) or self.requests is not None

    def open_model(self) -> Model:
        """Open the model for the device."""
        return open_model(self.model, self.device, self.dtype)

    def make_requests(self, model: Model) -> list[Request]:
        """Return the requests, tokenized; prompts repeat up to the wanted number."""
        texts = go_round(self.prompt, self.requests)
        each = min(self.sampling.max_new_tokens, model.context_len)
        if len(texts) * each > MOST_TOKENS:
            raise ValueError(
                f"{len(texts)} requests of {each} tokens each are {len(texts) * each} tokens, but "
                f"it must be at most {MOST_TOKENS}; lower --max-new-tokens or --requests."
            )
        codec = text_codec(model)
        if self.chat:
            codec = chat_codec(self.model, codec, self.system)
        return make_requests(texts, codec, self.sampling, self.priority or [0])

    def cost(self) -> CostModel:
        """Return the cost model of ``sim``, or none; with the added host work in either.

        Raises:
            ValueError: there is no such profile.
        """
        cost = usual_cost(self.device)
        if self.profile is not None:
            cost = find_profile(self.profile).cost
        return cost.with_host_work(2 * round(self.host_work * MILLISECOND / 2))


@dataclass(init=False)
class SchedulerOptions(OptionGroup):
    """``SchedulerConfig``'s fields, under SGLang's names."""

    panel = "Scheduler"
    settings = SchedulerConfig
    preset: str | None = setting(
        None, "Chunk and graph sizes for a GPU: a name that minisched presets lists, 24GiB, auto."
    )

    def check(self) -> None:
        """Refuse values outside their limits."""
        page = max(1, self.given.get("page_size", 1))
        with in_words_of_options():
            SchedulerConfig(**{"kv_tokens": page, "chunked_prefill_size": page, **self.over_preset})

    @property
    def serial_only(self) -> bool:
        """Return whether ``--disable-overlap-schedule`` was given."""
        return "disable_overlap_schedule" in self.given

    @property
    def over_preset(self) -> dict[str, Any]:
        """Return the given options over those of the preset."""
        if self.preset is None:
            return self.given
        found = preset_named(self.preset)
        decides = ("chunked_prefill_size", "cuda_graph_max_bs")
        return {**{name: getattr(found, name) for name in decides}, **self.given}

    def config_for(self, requests: list[Request], context_len: int) -> SchedulerConfig:
        """Return settings with room for all running requests, unless options set it.

        Raises:
            ValueError: a value is outside its limits, more memory is asked for than a run here
                should take, or every request is too long.
        """
        with in_words_of_options():
            config = config_from(self.over_preset, requests, context_len)
        problems = [too_long(config, req) for req in requests]
        if all(problems):
            raise ValueError(f"no request can run: {problems[0]}")
        return config


def log_if(is_wanted: bool) -> AbstractContextManager[None]:
    """Return a context with the log; begin it within a progress bar, which moves stderr."""
    return log_to(sys.stderr) if is_wanted else nullcontext()


def choose_loops(asked: Sequence[str], device: str, only_serial: bool) -> list[str]:
    """Return the names of the loops asked for; by default the one that overlaps on ``device``.

    ``LOOP:RELAY`` is a loop with another relay than its own, and ``FILE.py:NAME`` is a loop of
    one's own, which is registered. ``all`` stands for every design that runs on ``device``, except
    ``pd`` (two schedulers) and ``mixed`` (a policy). ``only_serial`` is
    ``--disable-overlap-schedule``.

    Raises:
        ValueError: a loop is unknown, or overlaps although only the serial one may run.
    """
    names = [every for name in asked
             for every in (published_loops(device) if name == "all" else [add_loop(name)])
             ]  # fmt: skip
    for name in names:
        find_loop(name).check_device(name, device)
        if only_serial and name != "serial":
            raise ValueError(
                f"--disable-overlap-schedule leaves only serial, but the loop {name} was asked for."
            )
    return list(dict.fromkeys(names)) or ["serial" if only_serial else overlapped_loop(device)]
