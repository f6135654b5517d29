"""A recorded workload on disk: checked and measured in one pass, replayed in another."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import TextIOWrapper
from itertools import chain, islice, repeat
from pathlib import Path
from reprlib import repr as shown  # short, and text in quotes
from typing import Any, BinaryIO, NamedTuple, cast, overload

from ..core import Request, SamplingParams
from ..trace.files import Hear, unheard, unpacked

# -- One request of a recorded workload, and the checks that its numbers must pass -----------------

MOST_TOKENS = 10_000_000  # of one prompt, and of one answer: above any published context
LATEST = 10**19  # nanoseconds, about 300 years: seconds since 1970 still fit
SECOND, MILLISECOND = 1_000_000_000, 1_000_000
BLOCK = 512  # tokens to a hash id


class TraceRequest(NamedTuple):
    """A request as a trace describes it: when it came and how long it was, but not what it said.

    ``hash_ids`` names the prompt's blocks: equal names at the same place mean equal tokens. It is
    empty where the trace tells nothing about content; such a prompt shares nothing.
    """

    time: int  # nanoseconds
    prompt_len: int
    output_len: int
    hash_ids: tuple[int, ...] = ()


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


def token_count(name: str, value: object) -> int:
    """A length that is one.

    Raises:
        ValueError: it is none. Of the 31,397 requests in Azure's and Mooncake's conversation traces
            none has an empty prompt or an empty answer, so 0 is refused rather than guessed at.
    """
    return int(number(name, value, 1, MOST_TOKENS))


def nanoseconds(name: str, value: object, unit: int) -> int:
    """A time of so many ``unit`` (in nanoseconds), to the nearest nanosecond."""
    found: float = number(name, value, 0, LATEST // unit, is_whole=False)
    return round(found * unit)


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


# -- A prompt that is never written out: blocks of equal tokens, made into tokens where asked for


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

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...

    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        """One token, or a tuple of them."""
        if isinstance(index, slice):
            start, stop, step = index.indices(self.length)
            tokens = self._tokens(start, stop) if step > 0 else self._tokens(stop + 1, start + 1)
            return tokens if step == 1 else tokens[::step]
        if not -self.length <= index < self.length:
            raise IndexError(f"index {index} is outside a prompt of {self.length} tokens")
        return self.ids[index % self.length // self.block]

    def __iter__(self) -> Iterator[int]:
        """Every token, at the speed of ``itertools``: the scheduler looks for the highest."""
        last = self.length - (len(self.ids) - 1) * self.block
        counts = chain(repeat(self.block, len(self.ids) - 1), (last,))
        return chain.from_iterable(map(repeat, self.ids, counts))

    def _tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """The tokens from ``start`` to before ``stop``."""
        if start >= stop:
            return ()
        first, last = start // self.block, (stop - 1) // self.block
        if first == last:
            return (self.ids[first],) * (stop - start)
        tokens = [self.ids[first]] * ((first + 1) * self.block - start)
        for token in self.ids[first + 1 : last]:
            tokens += [token] * self.block
        tokens += [self.ids[last]] * (stop - last * self.block)
        return tuple(tokens)


# -- The lines of the formats ----------------------------------------------------------------------


class Format(NamedTuple):
    """A kind of file, and the page size that suits it; dates count from the first request's."""

    name: str
    page_size: int
    columns: tuple[str, ...]
    is_dated: bool = False


# JSON lines of Mooncake ("FAST25-release/traces"), with milliseconds. A hash id stands for 512
# tokens and everything before them; the last one may stand for fewer. A page for each is best.
MOONCAKE = Format("Mooncake", BLOCK, ("timestamp", "input_length", "output_length", "hash_ids"))
# CSV: Azure's own header (AzurePublicDataset, "AzureLLMInferenceDataset2023") has dates; the form
# in which simulators pass it on (Vidur) has seconds since the trace began, and is what one's own
# file has. Neither tells what the prompts said, so no prompt shares anything.
SECONDS = Format("CSV", 16, ("arrived_at", "num_prefill_tokens", "num_decode_tokens"))
DATES = Format("Azure", 16, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), is_dated=True)


def format_of(line: str) -> tuple[Format, list[str]]:
    """The format that a file's first line says, with the columns of CSV.

    Raises:
        ValueError: it is none of them.
    """
    header = [] if line.startswith("{") else cells(line)
    for format in (SECONDS, DATES) if header else (MOONCAKE,):
        if not header or set(format.columns) <= set(header):
            return format, header
    raise ValueError(
        f"it begins with {shown(line)}, but a trace has the columns {','.join(SECONDS.columns)} "
        f"or {','.join(DATES.columns)}, or is a JSON object on each line."
    )


def cells(line: str) -> list[str]:
    """What is between the commas of a line, without quotes and the space around it.

    Raises:
        ValueError: it is no CSV.
    """
    try:
        return [field.strip() for field in next(csv.reader([line], skipinitialspace=True), [])]
    except csv.Error as error:
        raise ValueError(f"it is not CSV: {error}.") from error


def read_csv(format: Format, header: list[str], line: str) -> TraceRequest:
    """A line under a ``header`` that has the format's columns and perhaps others.

    Raises:
        ValueError: it is not what it should be.
    """
    row = cells(line)
    if len(row) != len(header):
        raise ValueError(f"it has {len(row)} fields, but it must have {','.join(header)}.")
    name, prompt, output = format.columns
    time, *lengths = (row[header.index(name)] for name in format.columns)
    came = date(name, time) if format.is_dated else nanoseconds(name, time, SECOND)
    return TraceRequest(came, token_count(prompt, lengths[0]), token_count(output, lengths[1]))


def read_mooncake(line: str) -> TraceRequest:
    """A JSON object; further fields are left alone.

    Raises:
        ValueError: it is not what it should be.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        why = str(error)
        if isinstance(error, json.JSONDecodeError):
            why = f"{error.msg} at column {error.colno}"
        raise ValueError(f"it is not JSON: {why}.") from error
    if not isinstance(record, dict):
        raise ValueError(f"it is not a JSON object but {shown(record)}.")
    for name in MOONCAKE.columns:
        if name not in record:
            raise ValueError(
                f"the field {name!r} is missing; a Mooncake line has {', '.join(MOONCAKE.columns)}."
            )
    length, ids = token_count("input_length", record["input_length"]), record["hash_ids"]
    if not isinstance(ids, list) or not all(type(item) is int and item >= 0 for item in ids):
        raise ValueError(
            f"hash_ids is {shown(ids)}, but it must be a list of whole numbers from 0 on."
        )
    if len(ids) != (needed := -(-length // BLOCK)):
        raise ValueError(
            f"hash_ids has {len(ids)} ids, but {length} tokens take {needed} of {BLOCK} each."
        )
    time = nanoseconds("timestamp", record["timestamp"], MILLISECOND)
    output = token_count("output_length", record["output_length"])
    return TraceRequest(time, length, output, tuple(ids))


# -- A file of them --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Survey:
    """What a first pass over a trace learns."""

    format: Format
    requests: int
    longest: int  # tokens, prompt and answer together
    highest_id: int  # the highest token id in a prompt


class TraceFile:
    """A Mooncake or CSV file, perhaps in gzip, read line by line as often as needed and never kept.

    ``limit`` takes only the first requests; what follows them is not read.

    Raises:
        ValueError: in one sentence with the line's number: the file is not what it claims to be,
            or can't be read. Reading raises it, making a ``TraceFile`` only for the limit.
    """

    def __init__(self, path: Path, limit: int | None = None) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"--requests is {limit}, but it must be at least 1.")
        self.path = path
        self.limit = limit

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
            if at == 0 and format.is_dated:
                start = arrival.time
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
                arrival = read_csv(format, header, line) if header else read_mooncake(line)
                if arrival.time < last:
                    raise ValueError(
                        f"it is {(last - arrival.time) / 1e6} ms earlier than the request before "
                        "it, but requests must be in order of arrival: sort it first."
                    )
            except ValueError as error:
                raise ValueError(f"{self.path}, line {at}: {error}") from error
            last = arrival.time
            yield format, arrival
