"""What ``run`` and ``compare`` say of log-probabilities: as SGLang's JSON, and in a few lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ..core import Request, TokenLogprob
from ..models.base import Model


def logprobs_json(requests: Iterable[Request]) -> dict[str, dict[str, Any]]:
    """By id of who wanted some: pairs of log-probability and token (SGLang ``meta_info``)."""
    return {
        req.rid: {
            **lists("input", req.input_token_logprobs),
            **lists("output", req.output_token_logprobs),
        }
        for req in requests
        if req.params.return_logprob
    }


def lists(kind: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """One list of the tokens themselves, and one of the most likely ones at each place."""
    return {
        f"{kind}_token_logprobs": [[item.logprob, item.token_id] for item in logprobs],
        f"{kind}_top_logprobs": [list(map(list, item.top_logprobs)) for item in logprobs],
    }


def print_logprobs(console: Console, model: Model, requests: Iterable[Request]) -> None:
    """Two lines for each request that wanted some: its prompt, and what it said."""
    for req in requests:
        for kind, found in (
            ("prompt", req.input_token_logprobs),
            ("output", req.output_token_logprobs),
        ):
            if found:
                console.print(line(f"{req.rid} {kind}:", found, model), soft_wrap=True)


def line(title: str, found: Sequence[TokenLogprob], model: Model) -> Text:
    """``'The' - ' capital' -5.12 (' first' -3.40)``: behind a token its log-probability, and what
    would have been likeliest, if that is another one.
    """
    text = Text(title, "bold")
    for logprob, token, top in found:
        text.append(f" {spelled(token, model)} ", "not bold")
        text.append("-" if logprob is None else f"{logprob:.2f}", "dim not bold")
        if top and top[0][1] != token:
            best, other = top[0]
            text.append(f" ({spelled(other, model)} {best:.2f})", "dim not bold")
    return text


def spelled(token: int, model: Model) -> str:
    """A token as text, or as its id where it has none."""
    text = model.tokenizer.decode([token]) if model.tokenizer else ""
    return repr(text) if text else str(token)
