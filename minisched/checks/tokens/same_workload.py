"""Whether two recorded runs are of one workload, as far as their traces can tell."""

from __future__ import annotations

from ...trace import Trace
from .identity import Difference, tokens_heard


def another_workload(baseline: Trace, run: Trace) -> str:
    """Why two runs can't be compared, in a sentence; nothing where nothing speaks against it.

    A run that has ended all that it knows of and never heard of a request was not asked for it.
    How many tokens a request may have is in no trace: see ``only_lengths_differ``.
    """
    for one, other in ((baseline, run), (run, baseline)):
        absent = sorted(requests_of(one) - requests_of(other))
        if absent and requests_of(other) <= ended(other):
            return f"Another workload: only one of the two runs has the request {absent[0]}."
    theirs = prompt_lens(baseline)
    for rid, size in prompt_lens(run).items():
        if theirs.get(rid, size) != size:
            return (
                f"Another workload: the prompt of {rid} has {size} tokens, and {theirs[rid]} in "
                "the baseline."
            )
    return ""


def requests_of(trace: Trace) -> set[str]:
    """Every request that a trace names."""
    named = {str(mark.attrs["rid"]) for mark in trace.marks if mark.attrs.get("rid")}
    says_tokens = any(mark.name == "tokens" for mark in trace.marks)
    return named | set(tokens_heard(trace) if says_tokens else ())


def ended(trace: Trace) -> set[str]:
    """The requests whose end a trace has."""
    return {str(mark.attrs["rid"]) for mark in trace.marks if mark.name == "finish"}


def prompt_lens(trace: Trace) -> dict[str, int]:
    """Tokens of each request's prompt, from the first time it was looked up in the cache."""
    sizes: dict[str, int] = {}
    for mark in trace.marks:
        if mark.name == "match" and "prompt_len" in mark.attrs:
            sizes.setdefault(str(mark.attrs["rid"]), int(mark.attrs["prompt_len"]))
    return sizes


def only_lengths_differ(found: list[Difference], baseline: Trace, run: Trace) -> bool:
    """Whether all that both runs gave is the same, and whoever differs reached its length in both.

    Then a bug ended requests too early or too late, or the runs were asked for other lengths.
    """
    both = reached_length(baseline) & reached_length(run)
    return all(item.total is not None and item.rid in both for item in found)


def reached_length(trace: Trace) -> set[str]:
    """The requests that ended because they had all the tokens that they may have."""
    return {
        str(mark.attrs["rid"])
        for mark in trace.marks
        if mark.name == "finish" and mark.attrs.get("reason") == "length"
    }
