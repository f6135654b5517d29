"""A recorded workload on disk: checked and measured in one pass, replayed in another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path

from ..core import Request, SamplingParams
from ..trace.files import Hear, unheard
from .arrival import Arrival, shown
from .azure import DATES_HEADER, SECONDS_HEADER, cells, read_dates, read_seconds
from .lines import numbered_lines
from .mooncake import BLOCK, read_mooncake
from .prompt import BlockPrompt


@dataclass(frozen=True)
class Format:
    """How a kind of file is read, and the page size that suits it."""

    name: str
    read: Callable[..., Arrival]  # a line; of CSV also its header
    header: tuple[str, ...]  # columns that it needs; empty: its first line is a request already
    from_first: bool  # its times are dates, so they count from the first request's
    page_size: int


MOONCAKE = Format("Mooncake", read_mooncake, (), False, BLOCK)  # one page for each hash id
SECONDS = Format("CSV", read_seconds, SECONDS_HEADER, False, 16)
DATES = Format("Azure", read_dates, DATES_HEADER, True, 16)


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

    def _read(self, hear: Hear = unheard) -> tuple[Format, Iterator[Arrival]]:
        """The file's format and its requests, each checked when it is reached."""
        lines = numbered_lines(self.path, hear)
        first = next(lines, None)
        if first is None:
            raise ValueError(f"{self.path} is empty, but it needs at least one request.")
        format = self._format(*first)
        rest = lines if format.header else chain([first], lines)
        return format, islice(self._arrivals(format, rest), self.limit)

    def _format(self, number: int, line: str) -> Format:
        """What the first line shows the file to be."""
        header = tuple(cells(line))
        for format in (SECONDS, DATES):
            if set(format.header) <= set(header):
                return replace(format, read=partial(format.read, header=header))
        if line.startswith("{"):
            return MOONCAKE
        raise ValueError(
            f"{self.path}, line {number}: it begins with {shown(line)}, but a trace has the "
            f"columns {','.join(SECONDS.header)} or {','.join(DATES.header)}, or is a JSON object "
            "on each line."
        )

    def _arrivals(self, format: Format, lines: Iterator[tuple[int, str]]) -> Iterator[Arrival]:
        last = None
        for number, line in lines:
            try:
                arrival = format.read(line)
            except ValueError as error:
                raise ValueError(f"{self.path}, line {number}: {error}") from error
            if last is not None and arrival.time < last:
                raise ValueError(
                    f"{self.path}, line {number}: it is {(last - arrival.time) / 1e6} ms earlier "
                    "than the request before it, but requests must be in order of arrival: sort "
                    "it first."
                )
            last = arrival.time
            yield arrival


def make_request(index: int, arrival: Arrival, time: int) -> Request:
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
