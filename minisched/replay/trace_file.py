"""A recorded workload on disk: checked and measured in one pass, replayed in another."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from reprlib import repr as shown  # short, and text in quotes
from typing import Any, BinaryIO, NamedTuple, cast

from ..core import Request, SamplingParams
from ..trace.files import Hear, unheard, unpacked

# -- A prompt that is never written out: blocks of equal tokens, made into tokens where asked for --

BLOCK = 512  # tokens to a hash id


class BlockPrompt(Sequence[int]):
    """A sequence of ``length`` tokens of which each block repeats one id.

    The scheduler only asks whether tokens are equal, and a block's tokens equal another's exactly
    where their hash ids do: so a block's id can stand for each of its tokens. 100,000 tokens take
    196 ids, and a slice is made at the speed of copying.
    """

    __slots__ = ("block", "ids", "length")

    def __init__(self, ids: tuple[int, ...], length: int, block: int) -> None:
        self.ids = ids  # [ceil(length / block)]
        self.length = length
        self.block = block  # tokens to an id; the last one may have fewer

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        """One token, or a tuple of them."""
        places = range(self.length)[index]
        if isinstance(places, int):
            return self.ids[places // self.block]
        if places.step != 1:
            return tuple(self.ids[place // self.block] for place in places)
        first, tokens = places.start // self.block, list[int]()
        for token in self.ids[first : -(-places.stop // self.block)]:
            tokens += [token] * self.block
        skipped = first * self.block
        return tuple(tokens[places.start - skipped : places.stop - skipped])

    def __iter__(self) -> Iterator[int]:
        """Every token; the scheduler looks for the highest."""
        return iter(self[:])


# -- The formats, and one request of them ----------------------------------------------------------

MOST_TOKENS = 10_000_000  # of one prompt, and of one answer: above any published context
LATEST = 10**19  # nanoseconds, about 300 years: seconds since 1970 still fit


class TraceRequest(NamedTuple):
    """A request as a trace describes it: when it came and how long it was, but not what it said.

    ``hash_ids`` names the prompt's blocks: equal names at the same place mean equal tokens. It is
    empty where the trace tells nothing about content; such a prompt shares nothing.
    """

    time: int  # nanoseconds
    prompt_len: int
    output_len: int
    hash_ids: tuple[int, ...] = ()


class Format(NamedTuple):
    """A kind of file: what it calls time, prompt, output (and blocks), and the page that suits it.

    ``unit`` is what its times count, in nanoseconds; 0: they are dates, and count from the first.
    """

    name: str
    page_size: int
    unit: int
    fields: tuple[str, ...]


# JSON lines of Mooncake ("FAST25-release/traces"). A hash id stands for 512 tokens and everything
# before them; the last one may stand for fewer. A page for each is best.
MOONCAKE = Format(
    "Mooncake", BLOCK, 10**6, ("timestamp", "input_length", "output_length", "hash_ids")
)
# CSV: Azure's own header (AzurePublicDataset, "AzureLLMInferenceDataset2023") has dates; the form
# in which simulators pass it on (Vidur) has seconds since the trace began, and is what one's own
# file has. Neither tells what the prompts said, so no prompt shares anything.
SECONDS = Format("CSV", 16, 10**9, ("arrived_at", "num_prefill_tokens", "num_decode_tokens"))
DATES = Format("Azure", 16, 0, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"))


def format_of(line: str) -> tuple[Format, list[str]]:
    """The format that a file's first line says, with the columns of CSV.

    Raises:
        ValueError: it is none of them.
    """
    if line.startswith("{"):
        return MOONCAKE, []
    header = cells(line)
    for format in (SECONDS, DATES):
        if set(format.fields) <= set(header):
            return format, header
    raise ValueError(
        f"it begins with {shown(line)}, but a trace has the columns {','.join(SECONDS.fields)} "
        f"or {','.join(DATES.fields)}, or is a JSON object on each line."
    )


def cells(line: str) -> list[str]:
    """What is between the commas of a line, without quotes and the space around it."""
    return [field.strip() for field in next(csv.reader([line], skipinitialspace=True), [])]


def fields_of(line: str, header: Sequence[str]) -> dict[str, Any]:
    """What a line says, by name: a row below a ``header``, or without one a JSON object.

    Raises:
        ValueError: it is not what it should be.
    """
    if header:
        row = cells(line)
        if len(row) != len(header):
            raise ValueError(f"it has {len(row)} fields, but it must have {','.join(header)}.")
        return dict(reversed([*zip(header, row, strict=True)]))  # of a name twice the first
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        why = str(error)
        if isinstance(error, json.JSONDecodeError):
            why = f"{error.msg} at column {error.colno}"
        raise ValueError(f"it is not JSON: {why}.") from error
    if not isinstance(record, dict):
        raise ValueError(f"it is not a JSON object but {shown(record)}.")
    for name in MOONCAKE.fields:
        if name not in record:
            needed = ", ".join(MOONCAKE.fields)
            raise ValueError(f"the field {name!r} is missing; a Mooncake line has {needed}.")
    return record


def request_of(format: Format, said: Mapping[str, Any]) -> TraceRequest:
    """The request that a line's fields describe; further ones are left alone.

    Raises:
        ValueError: a value is outside its limits. Of the 31,397 requests in Azure's and Mooncake's
            conversation traces none has an empty prompt or an empty answer, so 0 is refused rather
            than guessed at.
    """
    name, *lengths = format.fields[:3]
    if format.unit:
        latest = LATEST // format.unit
        time = round(number(name, said[name], 0, latest, is_whole=False) * format.unit)
    else:
        time = date(name, said[name])
    prompt, output = (number(each, said[each], 1, MOST_TOKENS) for each in lengths)
    ids = said["hash_ids"] if format is MOONCAKE else []
    if not isinstance(ids, list) or not all(type(item) is int and item >= 0 for item in ids):
        should = "a list of whole numbers from 0 on"
        raise ValueError(f"hash_ids is {shown(ids)}, but it must be {should}.")
    if format is MOONCAKE and len(ids) != (needed := -(-prompt // BLOCK)):
        should = f"{prompt} tokens take {needed} of {BLOCK} each"
        raise ValueError(f"hash_ids has {len(ids)} ids, but {should}.")
    return TraceRequest(time, prompt, output, tuple(ids))


def number(name: str, value: object, least: int, most: int, is_whole: bool = True) -> Any:
    """What a field says, text or not.

    Raises:
        ValueError: it is no number, or outside its limits.
    """
    found: Any = value
    if isinstance(value, str):
        try:
            found = int(value) if is_whole else float(value)
        except ValueError:
            found = None
    if type(found) not in ((int,) if is_whole else (int, float)) or not least <= found <= most:
        kind = "a whole number" if is_whole else "a number"
        raise ValueError(f"{name} is {shown(value)}, but it must be {kind} from {least} to {most}.")
    return found


def date(name: str, text: str) -> int:
    """Nanoseconds since 1970 of a date such as ``2023-11-16 18:17:03.9799600``, to the microsecond.

    Raises:
        ValueError: it is none.
    """
    try:
        if ":" not in text:
            raise ValueError(text)  # a day alone is no time
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        example = "2023-11-16 18:17:03.9799600"
        raise ValueError(f"{name} is {shown(text)}, but it must be like {example}.") from error
    since = moment.replace(tzinfo=moment.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1) * 1000


# -- A file of them --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Survey:
    """What a first pass over a trace learns."""

    format: Format
    requests: int
    longest: int  # tokens, prompt and answer together
    highest_id: int  # the highest token id in a prompt


@dataclass(frozen=True)
class TraceFile:
    """A Mooncake or CSV file, perhaps in gzip, read line by line as often as needed and never kept.

    ``limit`` takes only the first requests; what follows them is not read. Reading raises a
    ``ValueError`` of one sentence, with the line's number, if the file is not what it claims to be
    or can't be read.
    """

    path: Path
    limit: int | None = None

    def survey(self, hear: Hear = unheard) -> Survey:
        """Check every line and find the sizes; ``hear`` is told how many bytes were read."""
        known, count, longest, highest = MOONCAKE, 0, 0, 0
        for format, arrival in self._read(hear):
            known = format
            longest = max(longest, arrival.prompt_len + arrival.output_len)
            highest = max(highest, *(arrival.hash_ids or (count,)))
            count += 1
        if not count:
            raise ValueError(f"{self.path} is empty, but it needs at least one request.")
        return Survey(known, count, longest, highest)

    def requests(self) -> Iterator[Request]:
        """The requests, ``r0`` first, in order of arrival.

        A prompt is made of its block hashes; without any, of its number, so that it shares nothing.
        The seed is its number too: by that the length model tells answers apart.
        """
        start = 0
        for at, (format, arrival) in enumerate(self._read()):
            start = start if at or format.unit else arrival.time
            block = BLOCK if arrival.hash_ids else arrival.prompt_len
            prompt = BlockPrompt(arrival.hash_ids or (at,), arrival.prompt_len, block)
            params = SamplingParams(max_new_tokens=arrival.output_len, ignore_eos=True, seed=at)
            yield Request(f"r{at}", prompt, params, arrival.time - start)

    def _read(self, hear: Hear = unheard) -> Iterator[tuple[Format, TraceRequest]]:
        """The requests, each checked when it is reached, and how they are read."""
        if self.path.exists() and not self.path.is_file() and not self.path.is_dir():
            raise ValueError(f"{self.path} is read twice, so it must be a regular file.")
        try:
            with unpacked(self.path, hear) as file:
                lines = TextIOWrapper(cast(BinaryIO, file), "utf-8-sig")
                yield from islice(self._parsed(lines), self.limit)
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.path} is not UTF-8 text, so it is no trace.") from error
        except OSError as error:
            raise ValueError(f"{self.path} can't be read: {error.strerror}.") from error

    def _parsed(self, lines: Iterable[str]) -> Iterator[tuple[Format, TraceRequest]]:
        format, header, last = None, list[str](), 0
        for at, line in enumerate(map(str.strip, lines), 1):
            if not line:
                continue
            try:
                if format is None:
                    format, header = format_of(line)
                    if header:
                        continue
                arrival = request_of(format, fields_of(line, header))
                if arrival.time < last:
                    raise ValueError(
                        f"it is {(last - arrival.time) / 1e6} ms earlier than the request before "
                        "it, but requests must be in order of arrival: sort it first."
                    )
            except csv.Error as error:
                raise ValueError(f"{self.path}, line {at}, is no CSV: {error}.") from error
            except ValueError as error:
                raise ValueError(f"{self.path}, line {at}: {error}") from error
            last = arrival.time
            yield format, arrival
