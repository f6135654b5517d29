"""Compare the outputs of two engines: the first different token, and the events before it.

A file contains answers as an engine gives them (JSON, or JSON Lines), or it is a recorded run. Each
answer has an id and tokens. These fields are known, the first that is there counts:

- id: ``rid``, ``request_id``, ``meta_info.id`` (SGLang), ``custom_id``, ``id``;
- tokens: ``output_ids`` (SGLang), ``output_token_ids``, ``token_ids``, and the same in the first of
  ``outputs`` (vLLM) or ``choices`` (an OpenAI server with ``return_token_ids``);
- text, if there are no tokens: ``text``, ``message.content``, in the same places. A position is
  then that of a character.

An object of lists, ``{"r0": [5, 7]}``, is read, too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..trace import Slice, Trace
from ..trace.events import is_forward
from ..trace.files import unpacked
from .answers import story_of
from .history import many, milliseconds
from .identity import Difference, differs, tokens_heard

IDS = ("rid", "request_id", "meta_info.id", "custom_id", "id")
INSIDE = ("", "outputs.0.", "choices.0.", "response.body.choices.0.")
TOKENS = ("output_ids", "output_token_ids", "token_ids")
TEXTS = ("text", "message.content")
MOST_EVENTS = 12  # before a difference
MOST_STEPS = 4  # of a request, before a difference
MOST_NAMED = 8  # requests of a step in a sentence, and tokens before a difference


@dataclass(frozen=True)
class EngineOutputs:
    """The outputs of one engine: tokens by request, or characters. A recorded run has a trace."""

    file: str
    tokens: Mapping[str, Sequence[Any]]
    unit: str  # token or character
    trace: Trace | None = None


@dataclass(frozen=True)
class OutputComparison:
    """The result of a comparison; ``holds`` is whether the outputs are identical."""

    holds: bool
    lines: tuple[str, ...]
    differences: tuple[Difference, ...]

    def __repr__(self) -> str:
        return "\n".join(self.lines)

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON, with each request's first difference."""
        return {
            "identical": self.holds,
            "lines": list(self.lines),
            "differences": [
                {"request": item.rid, "position": item.position, "expected": item.expected,
                 "got": item.got}
                for item in self.differences
            ],
        }  # fmt: skip


# -- Read the answers of an engine -----------------------------------------------------------------


def read_outputs(path: Path, unpacked_mib: int) -> EngineOutputs:
    """Return the answers in a file of JSON or JSON Lines, perhaps in gzip.

    Raises:
        ValueError: it has no answers, or an answer has no tokens; the message is one sentence.
        OSError: it can't be read.
    """
    with unpacked(path, most_mib=unpacked_mib) as file:
        data = file.read()
    try:
        text = data.decode()
        try:
            whole = json.loads(text)
        except json.JSONDecodeError:
            whole = [json.loads(line) for line in text.splitlines() if line.strip()]
    except RecursionError:
        raise ValueError(f"{path} is not a file of outputs: it is nested too deep.") from None
    except ValueError as error:
        raise ValueError(
            f"{path} is not a file of outputs: it is neither JSON nor JSON Lines ({error})."
        ) from None
    if isinstance(whole, dict) and whole and all(isinstance(it, list) for it in whole.values()):
        tokens = {str(rid): tuple(given) for rid, given in whole.items()}
        if all(isinstance(token, int) for given in tokens.values() for token in given):
            return EngineOutputs(str(path), tokens, "token")
    records = whole if isinstance(whole, list) else [whole]
    found, units = dict[str, Sequence[Any]](), set[str]()
    for number, record in enumerate(records):
        rid, given = _id_of(record, number), _output_of(record)
        if given is None:
            raise ValueError(
                f"{path} has no tokens and no text in answer {number}; tokens are a list "
                f"{', '.join(TOKENS)}, or in outputs[0] or choices[0]."
            )
        if rid in found:
            raise ValueError(f"{path} has two answers with the id {rid}.")
        found[rid] = given
        units.add("character" if isinstance(given, str) else "token")
    if len(units) != 1:
        lack = "has no answer" if not units else "has tokens of some answers and text of others"
        raise ValueError(f"{path} {lack}.")
    return EngineOutputs(str(path), found, units.pop())


def outputs_of(trace: Trace, file: str) -> EngineOutputs:
    """Return the tokens that clients received in a recorded run.

    Raises:
        ValueError: the run has no mark of delivered tokens.
    """
    heard = tokens_heard(trace)
    if not heard:
        raise ValueError(f"{file} has no mark 'tokens', so its outputs are not known.")
    tokens = {rid: tuple(item.token for item in items) for rid, items in heard.items()}
    return EngineOutputs(file, tokens, "token", trace)


def _field(record: Any, path: str) -> Any:
    """Return the value at a path of keys and indices, such as ``outputs.0.text``; or None."""
    for key in path.split("."):
        if isinstance(record, list) and key.isdecimal() and int(key) < len(record):
            record = record[int(key)]
        elif isinstance(record, dict):
            record = record.get(key)
        else:
            return None
    return record


def _id_of(record: Any, number: int) -> str:
    """Return the id of an answer; without one, its number in the file."""
    ids = (_field(record, name) for name in IDS)
    return str(next((item for item in ids if isinstance(item, str | int)), number))


def _output_of(record: Any) -> Sequence[Any] | None:
    """Return the tokens of an answer, or its text; None if it has neither."""
    for name in TOKENS:
        for where in INSIDE:
            given = _field(record, where + name)
            if isinstance(given, list) and all(type(token) is int for token in given):
                return tuple(given)
    for name in TEXTS:
        for where in INSIDE:
            text = _field(record, where + name)
            if isinstance(text, str):
                return text
    return None


# -- Compare two files -----------------------------------------------------------------------------


def compare_outputs(one: EngineOutputs, other: EngineOutputs) -> OutputComparison:
    """Compare the outputs of two engines; the first of them is the baseline.

    Raises:
        ValueError: they have no request in common, or one has tokens and the other text.
    """
    if one.unit != other.unit:
        raise ValueError(
            f"{one.file} has {one.unit}s and {other.file} has {other.unit}s: record tokens of both."
        )
    expected, got, matched = _matched(one, other)
    if not (shared := [rid for rid in expected if rid in got]):
        raise ValueError(
            f"{one.file} and {other.file} have no request in common; ids are one of "
            f"{', '.join(IDS)}."
        )
    each = (differs(other.file, rid, expected[rid], got[rid]) for rid in shared)
    found = sorted(filter(None, each), key=lambda item: item.position)
    alone = [*(expected.keys() - got.keys()), *(got.keys() - expected.keys())]
    lines = [f"{other.file}, compared with {one.file}:", *matched]
    if not found:
        count = sum(len(expected[rid]) for rid in shared)
        lines.append(f"  ✓ The same {many(count, one.unit)} of {many(len(shared), 'request')}.")
    else:
        lines += _difference_lines(found, one, other, expected, got, len(shared))
    if alone:
        named = ", ".join(sorted(alone)[:MOST_NAMED])
        lines.append(f"  ✗ {many(len(alone), 'request')} in one file alone: {named}.")
    return OutputComparison(not found and not alone, tuple(lines), tuple(found))


def _matched(
    one: EngineOutputs, other: EngineOutputs
) -> tuple[Mapping[str, Sequence[Any]], Mapping[str, Sequence[Any]], list[str]]:
    """Match the requests of two files by id; or by their order, if no id is in both."""
    expected, got = one.tokens, other.tokens
    if expected.keys() & got.keys() or len(expected) != len(got) or other.trace or one.trace:
        return expected, got, []
    renamed = dict(zip(expected, got.values(), strict=True))
    return expected, renamed, ["  No id is in both files, so answers are matched by their order."]


def _difference_lines(
    found: Sequence[Difference], one: EngineOutputs, other: EngineOutputs,
    expected: Mapping[str, Sequence[Any]], got: Mapping[str, Sequence[Any]], count: int,
) -> Iterator[str]:  # fmt: skip
    """Yield the first difference, the tokens before it, and the events of each recorded run."""
    first = found[0]
    yield f"  ✗ {len(found)} of {many(count, 'request')} got other {one.unit}s."
    rid, at = first.rid, first.position
    if first.got is None or first.expected is None:
        yield (
            f"    First: {rid} has {many(len(got[rid]), one.unit)} instead of {len(expected[rid])}."
        )
    else:
        yield f"    First: {one.unit} {at} of {rid} is {first.got!r} instead of {first.expected!r}."
    before = list(expected[rid][max(0, at - MOST_NAMED) : at])
    if before:
        text = "".join(before) if one.unit == "character" else " ".join(map(str, before))
        yield f"    Before it, both have: {text!r}." if one.unit == "character" else (
            f"    Before it, both have: {text}."
        )  # fmt: skip
    for side in (other, one):
        if side.trace is None:
            continue
        yield f"    Events of {rid} in {side.file} before it:"
        yield from (f"      {line}" for line in events_before(side.trace, rid, at))
    if other.trace is not None and other.trace.program:
        yield "    The reason in the recorded run:"
        yield from (f"      {line}" for line in story_of(first, other.trace)[0])
    if one.trace is None and other.trace is None:
        yield (
            "    For the events before it, record the engine (traces/README.md), and name the "
            "trace instead of the outputs."
        )


# -- The events of a request before one of its tokens ----------------------------------------------

WORDS = {  # of marks that name the request
    "row alloc": "{rid} gets row {row}",
    "page alloc": "{rid} gets {pages}",
    "admit": "{rid} is admitted",
    "match": "{rid} is looked up in the prefix cache",
    "insert": "{rid} is put into the prefix cache",
    "retraction": "{rid} is retracted and loses its memory",
    "stale output": "a stale token of step {step} is delivered to {rid}",
    "finish": "{rid} ends ({reason})",
    "wrong token": "step {step} takes a token of {rid} that is not its newest one",
    "verified": "{accepted} of {drafts} drafts of {rid} are accepted",
}


def events_before(trace: Trace, rid: str, position: int) -> list[str]:
    """Return the events of a request up to one of its tokens, the newest last."""
    heard = tokens_heard(trace).get(rid, [])
    sampled = heard[min(position, len(heard) - 1)].step if heard else 0
    runs = [
        item for item in trace.slices
        if item.name == "forward" and is_forward(item.lane) and rid in item.rids
        and (not sampled or item.step <= sampled)
    ]  # fmt: skip
    end = max((item.end for item in runs), default=trace.end)
    events = [(item.start, _ran(item, sampled)) for item in runs[-MOST_STEPS:]]
    for mark in trace.marks:
        if str(mark.attrs.get("rid", "")) == rid and mark.time <= end and mark.name in WORDS:
            known = defaultdict[str, Any](lambda: "?", mark.attrs)
            pages = mark.attrs.get("pages", 0)
            known["pages"] = many(pages if isinstance(pages, int) else len(pages), "page")
            events.append((mark.time, WORDS[mark.name].format_map(known)))
    lines = [f"{milliseconds(time)}: {text}." for time, text in sorted(events)]
    return lines[-MOST_EVENTS:] or ["No event names this request."]


def _ran(item: Slice, sampled: int) -> str:
    """Describe a step of a request, and whether it sampled the token."""
    others = " ".join(item.rids[:MOST_NAMED])
    others += f" and {len(item.rids) - MOST_NAMED} more" if len(item.rids) > MOST_NAMED else ""
    mode = f" ({item.mode})" if item.mode else ""
    words = f"step {item.step}{mode} runs with {others}"
    return f"{words}, and samples the token" if item.step == sampled else words
