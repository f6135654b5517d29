"""The defaults of a run: its requests, its memory, and its costs.

``minisched compare`` and ``minisched.compare`` take all of them from here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches

from .core import Request, SamplingParams
from .core.form import wrong_form
from .devices.cost import NO_COST, SIM_COST, CostModel
from .devices.registry import load, open_device
from .loops.design import LOOPS
from .models.base import Model
from .models.registry import find_model, open_model
from .models.tokenizer import ByteTokenizer, ChatTokenizer, TextCodec, Tokenizer, text_codec_of
from .policy.rules import SPARED
from .scheduler import SchedulerConfig

BUILT_IN = (
    "The capital of France is",
    "A scheduler decides which request runs next. Its first rule is",
    "To overlap two pieces of work means that",
    "Once upon a time, in a data centre far away, a GPU was idle because",
    "The three primary colours are",
    "def fibonacci(n):",
    "Water boils at one hundred degrees, but on a high mountain",
    "List three reasons to write tests before code:",
)
MAX_NEW_TOKENS = 64  # for each request
MOST_RUNNING = 16  # requests that run at the same time
MOST_REQUESTS = 10_000  # requests that are kept with their trace, and drawn
MOST_TOKENS = 500_000  # of all requests of a run, for the same reason
REPLAY = "minisched replay takes more of them, from a file"
MOST_CELLS = 2**24  # of the KV pool, and of the page table
LONGEST = 80  # characters of a value in a sentence
CHUNK = 128  # prompt tokens of one step, in whole pages


def go_round(prompts: Sequence[str], count: int | None = None) -> list[str]:
    """Return ``count`` prompts, from the first again after the last; by default each once.

    Raises:
        ValueError: they are more than pictures can show.
    """
    if count is not None and count > MOST_REQUESTS:
        raise ValueError(f"prompts is {count}, but it must be at most {MOST_REQUESTS}; {REPLAY}.")
    prompts = prompts or BUILT_IN
    return [prompts[at % len(prompts)] for at in range(len(prompts) if count is None else count)]


def make_requests(
    texts: Iterable[str], codec: TextCodec, params: SamplingParams, priorities: Sequence[int] = (0,)
) -> list[Request]:
    """Return a request for each text, named ``r0``, ``r1``, ..; priorities repeat in order."""
    return [
        Request(f"r{at}", codec.encode(text), params, priority=priorities[at % len(priorities)])
        for at, text in enumerate(texts)
    ]


def chat_codec(model: str, codec: TextCodec, system: str = "") -> TextCodec:
    """Return a codec that encodes a text as a user's message, by the model's chat template.

    Raises:
        ValueError: the model has no chat template, or transformers is not installed.
    """
    what = f"the chat template of {model!r}"
    directory = find_model(model)
    load("transformers", "AutoTokenizer", "torch", what)
    chat: TextCodec = ChatTokenizer(directory, codec, system)
    return chat


def text_codec(model: Model | str | tuple[object, object]) -> TextCodec:
    """Return the codec of a model's tokens; the hash model reads UTF-8 bytes.

    Of a named model only the tokenizer is read, and none of the weights.

    Raises:
        ValueError: there is no such model, or it came without a tokenizer.
    """
    if model == "hash":
        return ByteTokenizer()
    if isinstance(model, tuple):
        loaded: TextCodec = Tokenizer.from_loaded(model[1])
        return loaded
    if isinstance(model, str):
        directory = find_model(model)
        load("tokenizers", "Tokenizer", "torch", f"the tokenizer of {model!r}")
        codec: TextCodec | None = Tokenizer.from_directory(directory)
        name = model
    else:
        name, codec = model.name, text_codec_of(model.name, model.tokenizer)
    if codec is None:
        raise ValueError(f"model {name!r} has no tokenizer.json, so it can't read prompts.")
    return codec


def overlapped_loop(device: str) -> str:
    """Return the loop that overlaps on a device."""
    return "mlx_async" if device == "mlx" else "overlap"


def published_loops(device: str) -> list[str]:
    """Return the published loops that run on a device, in the order of the registry.

    ``pd``, which is two schedulers, and ``mixed``, which is a policy, are left out.
    """
    return [n for n, loop in LOOPS.items() if device in loop.devices and n not in ("pd", "mixed")]


def usual_cost(device: str) -> CostModel:
    """Return the usual costs on ``sim``; elsewhere a step takes its real time."""
    return SIM_COST if device == "sim" else NO_COST


def config_from(
    settings: Mapping[str, object], requests: Sequence[Request], context_len: int
) -> SchedulerConfig:
    """Return ``SchedulerConfig`` of settings by name, with room for all running requests.

    Rows of the page table are as long as the longest request, because real models pay for them. The
    scheduler refuses a request beyond the model's context. Admission needs a page more than each
    request, and one spare page.

    Raises:
        ValueError: there is no such setting, a value is outside its limits, or they ask for more
            memory than a run here should take.
    """
    known = [item.name for item in fields(SchedulerConfig)]
    for name in settings:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
            raise ValueError(f"config has no setting {name!r}; {hint}")
    size = settings.get("page_size", 1)
    page = size if isinstance(size, int) and size > 0 else 1  # otherwise it is refused, by its name

    def make(**defaults: int) -> SchedulerConfig:
        """Make the config; the settings replace ``defaults``."""
        given = {"chunked_prefill_size": -(-CHUNK // page) * page, **defaults, **settings}
        try:
            return SchedulerConfig(**given)  # type: ignore[arg-type]
        except TypeError as error:
            said = ", ".join(f"{name}={value!r}" for name, value in settings.items())
            raise ValueError(f"config has a value of a wrong type ({said}): {error}.") from error

    at_most = min(MOST_RUNNING, max(1, len(requests)))
    asked = make(kv_tokens=sys.maxsize, max_running_requests=at_most)
    lengths = [min(request.max_device_len, context_len) for request in requests] or [1]
    drafts = asked.num_draft_tokens  # which may lie past the end
    pages = sorted(-(-(length + drafts) // page) + 1 for length in lengths)
    config = make(
        max_running_requests=asked.max_running_requests,
        kv_tokens=(sum(pages[-asked.max_running_requests :]) + 1) * page,
        context_len=min(max(lengths) + SPARED, context_len),
    )
    cells = max(config.num_slots, config.max_running_requests * config.context_len)
    if cells > MOST_CELLS:
        raise ValueError(
            f"the KV pool or the page table would have {cells} cells, more than {MOST_CELLS}; "
            "lower kv_tokens, page_size or max_running_requests."
        )
    return config


def prepare(
    requests: Iterable[Request] | None,
    device: str,
    model: Model | str | tuple[object, object],
    dtype: str,
    config: SchedulerConfig | Mapping[str, object] | None,
    cost: CostModel | None,
) -> tuple[list[Request], Model, SchedulerConfig, CostModel]:
    """Return requests, opened model, settings and costs, with defaults for those that are None.

    Raises:
        ValueError: an argument has a wrong type or value, or is unavailable here.
    """
    asked = None if requests is None else check_requests(requests)
    open_device(device).close()  # refuses an unknown device before a model is opened
    opened = open_model(model, device, dtype) if isinstance(model, str | tuple) else model
    if asked is None:
        params = SamplingParams(max_new_tokens=MAX_NEW_TOKENS)
        asked = make_requests(BUILT_IN, text_codec(opened), params)
    if not isinstance(config, SchedulerConfig):
        config = config_from(config or {}, asked, opened.context_len)
    return asked, opened, config, usual_cost(device) if cost is None else cost


def check_requests(requests: Iterable[Request]) -> list[Request]:
    """Return the requests as a list, each with an id of its own.

    Raises:
        ValueError: they are something else, a prompt is a text, or two have one id.
    """
    should = "requests is a list of Request, such as minisched.requests(4)"
    if not isinstance(requests, Iterable):
        what, name = in_words(requests), getattr(requests, "__name__", "")
        if callable(requests) and name.isidentifier():
            what = f"the function {name}; name the loop as loop={name}"
        raise ValueError(f"{should}, but it is {what}.")
    found, rids = list(requests), set()
    if not found:
        raise ValueError(f"{should}, but it is empty; give at least one.")
    for item in found:
        if not isinstance(item, Request):
            raise ValueError(f"{should}, but it holds {in_words(item)}.")
        if isinstance(item.prompt, str):  # any other bad field ends that request alone
            raise ValueError(f"request {item.name}: {wrong_form(item)}")
        if item.rid in rids:
            raise ValueError(f"two requests have the id {item.rid!r}; each needs one of its own.")
        rids.add(item.rid)
    return found


def check_names(what: str, names: object, example: str) -> list[str]:
    """Return a list of texts, such as loops or prompts; a single text is refused.

    Raises:
        ValueError: it is something else.
    """
    should = f"{what} is a list of texts, such as [{example!r}]"
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ValueError(f"{should}, not {in_words(names)}.")
    found = list(names)
    for item in found:
        if not isinstance(item, str):
            raise ValueError(f"{should}, but it holds {in_words(item)}.")
    return found


def in_words(value: object) -> str:
    """Return a wrong value as words for a sentence; a long one by its type."""
    said = f"the string {value!r}" if isinstance(value, str) else repr(value)
    return said if len(said) <= LONGEST else f"a {type(value).__name__}"
