"""A recorded workload on disk: checked and measured in one pass, replayed in another."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from reprlib import repr as shown  # short, and text in quotes
from typing import NamedTuple, overload

from ..core import Request, SamplingParams
from ..trace.files import Hear, unheard, unpacked

# -- One line of a recorded workload, and the checks that its numbers must pass --------------------

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


def token_count(name: str, value: object) -> int:
    """A length that is one.

    Raises:
        ValueError: it is no whole number, or outside its limits. Of the 31,397 requests in Azure's
            and Mooncake's conversation traces none has an empty prompt or an empty answer, so 0 is
            refused rather than guessed at.
    """
    if type(value) is not int or not 1 <= value <= MOST_TOKENS:
        raise ValueError(
            f"{name} is {shown(value)}, but it must be a whole number from 1 to {MOST_TOKENS}."
        )
    return value


def nanoseconds(name: str, value: object, unit: int) -> int:
    """A time of so many ``unit`` (in nanoseconds), to the nearest nanosecond.

    Raises:
        ValueError: it is no number, negative, or later than ``LATEST``.
    """
    if type(value) not in (int, float) or not 0 <= value <= LATEST // unit:  # type: ignore[operator]
        raise ValueError(
            f"{name} is {shown(value)}, but it must be a number from 0 to {LATEST // unit}."
        )
    return round(value * unit)  # type: ignore[operator]


# -- The lines of a text file with their numbers, or one sentence on why it has none ---------------

LONGEST = 16 * 2**20  # bytes of a line; a Mooncake line of a million tokens has a thousandth of it


def numbered_lines(path: Path, hear: Hear = unheard) -> Iterator[tuple[int, str]]:
    """Line number, from 1, and text of every line that is not blank; one line is held at a time.

    The file may be in gzip; ``hear`` is told how many bytes of it were read.

    Raises:
        ValueError: the file can't be read, or a line is no text.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError(f"{path} can't be read: it is read twice, so it must be a regular file.")
    try:
        with unpacked(path, hear) as file:
            for number, raw in enumerate(iter(lambda: file.readline(LONGEST + 1), b""), 1):
                if text := as_text(raw, f"{path}, line {number}"):
                    yield number, text
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}.") from error


def as_text(raw: bytes, where: str) -> str:
    """A line's text without the space around it, and without the mark that may open a file.

    Raises:
        ValueError: it is binary, or too long to be a line.
    """
    if len(raw) > LONGEST:
        raise ValueError(f"{where}: it is longer than {LONGEST} bytes, so this is no trace.")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: it is not UTF-8 text, so this is no trace.") from error
    if "\0" in text:
        raise ValueError(f"{where}: it has a zero byte, so this is a binary file and no trace.")
    return text.removeprefix("\ufeff").strip()


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


# -- Lengths as CSV, one's own or Azure's: arrival time and two lengths a line ---------------------
#
# Two headers are in use. Azure's own (AzurePublicDataset, "AzureLLMInferenceDataset2023") has dates
# with seven fractional digits; the form in which simulators pass it on (Vidur) has seconds since
# the trace began, and is what one's own file has. Columns may be quoted and in any order, and
# further ones are left alone. Neither tells what the prompts said, so no prompt shares anything
# with another.

SECONDS_HEADER = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
DATES_HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
SECOND = 1_000_000_000
NUMBER = re.compile(r"[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")


def read_csv(line: str, names: tuple[str, ...], header: tuple[str, ...]) -> TraceRequest:
    """A line under a ``header`` that has the columns ``names`` and perhaps others.

    A date counts from 1970, in UTC unless it says otherwise.

    Raises:
        ValueError: it is not what it should be.
    """
    found = cells(line)
    if len(found) != len(header):
        raise ValueError(f"it has {len(found)} fields, but it must have {','.join(header)}.")
    time, *lengths = (found[header.index(name)] for name in names)
    is_date = names == DATES_HEADER
    came = date(time) if is_date else nanoseconds(names[0], number(time), SECOND)
    prompt, output = map(token_count, names[1:], map(number, lengths))
    return TraceRequest(came, prompt, output)


def cells(line: str) -> list[str]:
    """What is between the commas of a line, without quotes and the space around it.

    Raises:
        ValueError: it is no CSV.
    """
    try:
        return [field.strip() for field in next(csv.reader([line], skipinitialspace=True), [])]
    except csv.Error as error:
        raise ValueError(f"it is not CSV: {error}.") from error


def number(text: str) -> int | float | str:
    """The number that a field is; a field that is none stays as it is, to be named."""
    if text.isascii() and text.isdecimal():
        return int(text)
    return float(text) if NUMBER.fullmatch(text) else text


def date(text: str) -> int:
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
        raise ValueError(f"TIMESTAMP is {shown(text)}, but it must be like {example}.") from error
    since = moment.replace(tzinfo=moment.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1) * 1000


# -- Mooncake's traces: JSON lines in which prompts are lists of block hashes ----------------------
#
# Mooncake, "FAST25-release/traces": ``{"timestamp": 27482, "input_length": 6955, "output_length":
# 52, "hash_ids": [46, 47, ...]}``. A hash id stands for 512 tokens and everything before them; the
# last one may stand for fewer.

BLOCK = 512  # tokens to a hash id
FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
MILLISECOND = 1_000_000


def read_mooncake(line: str) -> TraceRequest:
    """One line. Times are milliseconds, not necessarily whole; further fields are left alone.

    Raises:
        ValueError: it is not what it should be.
    """
    record = read_object(line)
    for name in FIELDS:
        if name not in record:
            raise ValueError(f"the field {name!r} is missing; a Mooncake line has {list(FIELDS)}.")
    length = token_count("input_length", record["input_length"])
    return TraceRequest(
        nanoseconds("timestamp", record["timestamp"], MILLISECOND),
        length,
        token_count("output_length", record["output_length"]),
        block_hashes(record["hash_ids"], length),
    )


def read_object(line: str) -> dict[str, object]:
    """The JSON object that a line is.

    Raises:
        ValueError: it is something else.
    """
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error.msg} at column {error.colno}.") from error
    except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
        raise ValueError(f"it is not a Mooncake line but {shown(line)}.") from error
    if not isinstance(record, dict):
        raise ValueError(f"it is not a JSON object but {shown(record)}.")
    return record


def block_hashes(value: object, length: int) -> tuple[int, ...]:
    """The hash ids of a prompt of ``length`` tokens.

    Raises:
        ValueError: they are no list of whole numbers, or not one for each 512 tokens begun.
    """
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        raise ValueError(
            f"hash_ids is {shown(value)}, but it must be a list of whole numbers from 0 on."
        )
    needed = -(-length // BLOCK)
    if len(value) != needed:
        raise ValueError(
            f"hash_ids has {len(value)} ids, but {length} tokens take {needed} of {BLOCK} each."
        )
    return tuple(value)


@dataclass(frozen=True)
class Format:
    """How a kind of file is read, and the page size that suits it."""

    name: str
    header: tuple[str, ...]  # columns that it needs; empty: its first line is a request already
    from_first: bool  # its times are dates, so they count from the first request's
    page_size: int


MOONCAKE = Format("Mooncake", (), False, BLOCK)  # one page for each hash id
SECONDS = Format("CSV", SECONDS_HEADER, False, 16)
DATES = Format("Azure", DATES_HEADER, True, 16)


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
        format, arrivals = self._read(hear)
        count, longest, highest = 0, 0, 0
        for count, arrival in enumerate(arrivals, 1):
            longest = max(longest, arrival.prompt_len + arrival.output_len)
            highest = max(highest, *(arrival.hash_ids or (count - 1,)))
        if not count:
            raise ValueError(f"{self.path} holds no request after its header, line 1.")
        return Survey(format, count, longest, highest)

    def requests(self) -> Iterator[Request]:
        """The requests, ``r0`` first, in order of arrival."""
        format, arrivals = self._read()
        start = None
        for index, arrival in enumerate(arrivals):
            if start is None:
                start = arrival.time if format.from_first else 0
            yield make_request(index, arrival, arrival.time - start)

    def _read(self, hear: Hear = unheard) -> tuple[Format, Iterator[TraceRequest]]:
        """The file's format and its requests, each checked when it is reached."""
        lines = numbered_lines(self.path, hear)
        first = next(lines, None)
        if first is None:
            raise ValueError(f"{self.path} is empty, but it needs at least one request.")
        try:
            header = tuple(cells(first[1]))
        except ValueError:
            header = ()  # no CSV, so it has no columns
        for format in (SECONDS, DATES):
            if set(format.header) <= set(header):
                read = partial(read_csv, names=format.header, header=header)
                return format, islice(self._arrivals(read, lines), self.limit)
        if first[1].startswith("{"):
            every = chain([first], lines)
            return MOONCAKE, islice(self._arrivals(read_mooncake, every), self.limit)
        raise ValueError(
            f"{self.path}, line {first[0]}: it begins with {shown(first[1])}, but a trace has the "
            f"columns {','.join(SECONDS.header)} or {','.join(DATES.header)}, or is a JSON object "
            "on each line."
        )

    def _arrivals(
        self, read: Callable[[str], TraceRequest], lines: Iterable[tuple[int, str]]
    ) -> Iterator[TraceRequest]:
        last = 0
        for number, line in lines:
            try:
                arrival = read(line)
                if arrival.time < last:
                    raise ValueError(
                        f"it is {(last - arrival.time) / 1e6} ms earlier than the request before "
                        "it, but requests must be in order of arrival: sort it first."
                    )
            except ValueError as error:
                raise ValueError(f"{self.path}, line {number}: {error}") from error
            last = arrival.time
            yield arrival


def make_request(index: int, arrival: TraceRequest, time: int) -> Request:
    """The request with that number, arriving at ``time``.

    Its prompt is made of its block hashes; without any, of its number, so that it shares nothing.
    The seed is its number too: by that the length model tells answers apart.
    """
    if arrival.hash_ids:
        prompt = BlockPrompt(arrival.hash_ids, arrival.prompt_len, BLOCK)
    else:
        prompt = BlockPrompt((index,), arrival.prompt_len, arrival.prompt_len)
    params = SamplingParams(max_new_tokens=arrival.output_len, ignore_eos=True, seed=index)
    return Request(f"r{index}", prompt, params, time)
