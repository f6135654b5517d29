"""A recorded workload on disk: checked and measured in one pass, replayed in another."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from reprlib import repr as shown  # short, and text in quotes
from typing import Any, BinaryIO, NamedTuple, cast

from ..core import Request, SamplingParams
from ..trace.files import UNPACKED_MIB, Hear, unheard, unpacked

# -- A prompt that is never written out: blocks of equal tokens, made into tokens where asked for --

BLOCK = 512  # tokens to a hash id, in Mooncake's own traces
BLOCKS = (BLOCK, 16, 32, 64, 128, 256, 1024, 2048)  # in traces of other writers


class BlockPrompt(Sequence[int]):
    """A sequence of ``length`` tokens of which each block repeats one id.

    The scheduler only compares tokens, and the tokens of two blocks are equal exactly where their
    hash ids are. That is why a block's id can stand for each of its tokens. 100,000 tokens take 196
    ids, and a slice is made at the speed of copying.
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
PAGE = 16  # tokens to a page, where a trace has no hash ids


class TraceRequest(NamedTuple):
    """One request of a trace: its arrival and its lengths, without its text.

    ``hash_ids`` names the prompt's blocks: equal names at the same place mean equal tokens. Without
    them a prompt shares nothing. Requests with the same ``session`` are the turns of one
    conversation. The first turn has a ``time``. A later one may have a ``delay`` instead, which
    begins when the answer before it ends.
    """

    time: int | None  # nanoseconds
    prompt_len: int
    output_len: int
    hash_ids: tuple[int | str, ...] = ()
    session: str = ""
    delay: int = 0  # nanoseconds


@dataclass(eq=False)
class Turn(Request):
    """A request of a conversation.

    From the second turn on, the prompt is what this turn adds to the conversation, and the request
    arrives ``delay`` after the end of the answer before it.
    """

    session: str = ""
    delay: int = 0  # nanoseconds


class Format(NamedTuple):
    """A kind of file: its names for time, prompt and output (and blocks), and the unit of time."""

    name: str
    unit: int  # nanoseconds; 0: times are dates
    fields: tuple[str, ...]
    blocks: tuple[int, ...] = ()  # how many tokens a hash id may stand for; the usual number first
    optional: tuple[str, ...] = ()


LENGTHS = ("timestamp", "input_length", "output_length")
# JSON lines of Mooncake ("FAST25-release/traces"), in milliseconds. A hash id stands for 512 tokens
# and everything before them; the last one may stand for fewer. Dynamo's generator writes the same
# with blocks of any size. AIPerf's ``mooncake_trace`` may lack the ids, and has conversations.
MOONCAKE = Format("Mooncake", 10**6, LENGTHS, BLOCKS, ("hash_ids", "session_id", "delay"))
# alibaba-edu/qwen-bailian-usagetraces-anon: the same names, but seconds. Each prompt is whole.
BAILIAN = Format("Bailian", 10**9, (*LENGTHS, "hash_ids"), (16,))
# CSV without any content, so no prompt shares anything. AzurePublicDataset
# ("AzureLLMInferenceDataset2023") has dates. Simulators such as Vidur pass it on in seconds since
# the trace began; that is the form for a file of one's own. BurstGPT (HPMLL/BurstGPT): seconds.
SECONDS = Format("CSV", 10**9, ("arrived_at", "num_prefill_tokens", "num_decode_tokens"))
DATES = Format("Azure", 0, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
BURST = Format("BurstGPT", 10**9, ("Timestamp", "Request tokens", "Response tokens"))
CSVS = (SECONDS, DATES, BURST)
# Formats that are not read, each by a name in its first line that no other one has.
NOT_READ = {
    "token_size": "splitwise-sim's trace",
    "input_lens": "a result of vLLM's benchmark",
    "custom_id": "an OpenAI batch",
    "conversations": "ShareGPT",
    "conversation_id": "LMSYS-Chat",
    "service_kind": "a profile of GenAI-Perf",
    "payload": "an input file of GenAI-Perf",
    "captureData": "SageMaker's data capture",
    "text_input": "AIPerf's trace with texts instead of lengths",
    "messages": "a trace of chat messages",
}


def format_of(line: str) -> tuple[Format, list[str]]:
    """Return the format of a file's first line, with the columns of CSV.

    Raises:
        ValueError: it is none of them.
    """
    header = [] if line.startswith(("{", "[")) else cells(line)
    for format in CSVS:
        if set(format.fields) <= set(header):
            return format, header
    wanted = f"the columns {','.join(SECONDS.fields)}"
    for name, what in NOT_READ.items():
        is_in = name in header or (not header and f'"{name}"' in line)
        if is_in and '"input_length"' not in line:
            raise ValueError(
                f"it is {what} (it has {name!r}), which replay does not read; convert it to "
                f"{wanted}."
            )
    if line.startswith("{") and line != "{":
        return (BAILIAN if '"chat_id"' in line else MOONCAKE), []
    others = " or ".join(",".join(format.fields) for format in CSVS[1:])
    raise ValueError(
        f"it begins with {shown(line)}, but a trace has {wanted} or {others}, or is a JSON object "
        "on each line."
    )


def cells(line: str) -> list[str]:
    """Split a line of CSV into its fields, without quotes and the space around them."""
    return [field.strip() for field in next(csv.reader([line], skipinitialspace=True), [])]


def fields_of(line: str, format: Format, header: Sequence[str]) -> dict[str, Any]:
    """Return a line's fields by name: a row below a ``header``, or without one a JSON object.

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
    for name in format.fields:
        if name not in record and not (name == "timestamp" and "delay" in record):
            needed = ", ".join(format.fields)
            raise ValueError(f"the field {name!r} is missing; a {format.name} line has {needed}.")
    return record


def request_of(format: Format, found: Mapping[str, Any], least: int = 1) -> TraceRequest:
    """Return the request that a line's fields describe; further ones are ignored.

    Raises:
        ValueError: a value is outside its limits, or a length is below ``least``.
    """
    name, *lengths = format.fields[:3]
    time: int | None = None
    if not format.unit:
        time = date(name, found[name])
    elif found.get(name) is not None:
        latest = LATEST // format.unit
        time = round(number(name, found[name], 0, latest, is_whole=False) * format.unit)
    for each in lengths:
        if least and found[each] in (0, "0"):
            raise ValueError(
                f"{each} is {shown(found[each])}, but it must be a whole number from {least} to "
                f"{MOST_TOKENS}; skip_empty leaves such requests out."
            )
    prompt, output = (number(each, found[each], least, MOST_TOKENS) for each in lengths)
    if not format.blocks:
        return TraceRequest(time, prompt, output)
    ids = found.get("hash_ids") or []
    if not isinstance(ids, list) or not all(type(item) in (int, str) for item in ids):
        should = "a list of whole numbers or texts"
        raise ValueError(f"hash_ids is {shown(ids)}, but it must be {should}.")
    session, delay = "", 0
    if "session_id" in format.optional and found.get("session_id") is not None:
        session = str(found["session_id"])
    if "delay" in format.optional and found.get("delay") is not None:
        longest = LATEST // format.unit
        delay = round(number("delay", found["delay"], 0, longest, is_whole=False) * format.unit)
    return TraceRequest(time, prompt, output, tuple(ids), session, delay)


def number(name: str, value: object, least: int, most: int, is_whole: bool = True) -> Any:
    """Return the number in a field, which may be text.

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
    """Return the nanoseconds since 1970 of ``2023-11-16 18:17:03.9799600``, to the microsecond.

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


@dataclass
class Survey:
    """The result of a first pass over a trace: its format, and its sizes."""

    format: Format
    requests: int = 0
    longest: int = 0  # tokens, prompt and answer together, with the turns before it
    num_ids: int = 0  # distinct blocks; the token ids of prompts are below that
    num_skipped: int = 0  # empty prompts or answers
    has_ids: bool = False
    is_aiperf: bool = False  # it lacks hash ids somewhere, or has conversations
    blocks: tuple[int, ...] = ()  # the numbers of tokens to a hash id that fit every line
    ignored: dict[str, None] = field(default_factory=dict)  # names of fields without effect

    @property
    def block(self) -> int:
        """Tokens to a hash id."""
        return self.blocks[0] if self.has_ids else 0

    @property
    def page_size(self) -> int:
        """The page that suits the trace: a block, where it has blocks."""
        return self.block or PAGE

    @property
    def name(self) -> str:
        """The format as a reader calls it."""
        name = self.format.name + (" as AIPerf writes it" if self.is_aiperf else "")
        usual = self.block in (0, *self.format.blocks[:1])
        return name if usual else f"{name} with {self.block} tokens to a hash id, as Dynamo's"

    def add(self, found: TraceRequest) -> None:
        """Count one more request.

        Raises:
            ValueError: no number of tokens to a hash id fits this line and those before it.
        """
        self.requests += 1
        self.has_ids |= bool(found.hash_ids)
        self.is_aiperf |= self.format is MOONCAKE and bool(found.session or not found.hash_ids)
        if not found.hash_ids:
            return
        prompt, count = found.prompt_len, len(found.hash_ids)
        fitting = tuple(block for block in self.blocks if -(-prompt // block) == count)
        if not fitting:
            block = self.blocks[0]
            raise ValueError(
                f"hash_ids has {count} ids, but {prompt} tokens take {-(-prompt // block)} of "
                f"{block} each."
            )
        self.blocks = fitting


@dataclass(frozen=True)
class TraceFile:
    """A recorded workload, perhaps in gzip, read line by line as often as needed and never kept.

    ``limit`` takes only the first requests and leaves the rest unread. ``skip_empty`` leaves out
    requests with an empty prompt or an empty answer; otherwise they are refused. Of the 31,397
    requests in Azure's and Mooncake's conversation traces none has one. BurstGPT has some. Reading
    raises a ``ValueError`` of one sentence, with the line's number, if the file is not what it
    claims to be or can't be read.
    """

    path: Path
    limit: int | None = None
    skip_empty: bool = False
    unpacked_mib: int = UNPACKED_MIB  # the most that a file in gzip may unpack to

    def survey(self, hear: Hear = unheard) -> Survey:
        """Check every line and find the sizes; ``hear`` gets the bytes read so far."""
        survey, numbers, turns = Survey(MOONCAKE), Numbers(), dict[str, int]()
        for found in self._read(survey, hear):
            numbers.of(found)
            length = found.prompt_len + found.output_len
            if found.session:
                length = turns[found.session] = length + turns.get(found.session, 0)
            survey.longest = max(survey.longest, length)
        if not survey.requests:
            what = f"has {survey.num_skipped} empty requests" if survey.num_skipped else "is empty"
            raise ValueError(f"{self.path} {what}, but it needs at least one request.")
        survey.num_ids = numbers.count
        return survey

    def requests(self, survey: Survey) -> Iterator[Request]:
        """Yield the requests of a file with this ``survey``, ``r0`` first, in order of arrival.

        The first one arrives at 0. A prompt's tokens are the numbers of its blocks. A prompt
        without hash ids has a number of its own and shares nothing. The seed is the request's
        number, by which the length model distinguishes the answers.
        """
        start, numbers = None, Numbers()
        for at, found in enumerate(self._read(Survey(MOONCAKE))):
            start = found.time if start is None else start
            ids = numbers.of(found)
            block = survey.block if found.hash_ids else found.prompt_len
            prompt = BlockPrompt(ids, found.prompt_len, block)
            params = SamplingParams(max_new_tokens=found.output_len, ignore_eos=True, seed=at)
            time = 0 if found.time is None else found.time - cast(int, start)
            if found.session:
                yield Turn(f"r{at}", prompt, params, time, session=found.session, delay=found.delay)
            else:
                yield Request(f"r{at}", prompt, params, time)

    def _read(self, survey: Survey, hear: Hear = unheard) -> Iterator[TraceRequest]:
        """Yield the requests, each checked when it is reached; ``survey`` counts them."""
        if self.path.exists() and not self.path.is_file() and not self.path.is_dir():
            raise ValueError(f"{self.path} is read twice, so it must be a regular file.")
        try:
            with unpacked(self.path, hear, self.unpacked_mib) as file:
                lines = TextIOWrapper(cast(BinaryIO, file), "utf-8-sig")
                yield from islice(self._parsed(lines, survey), self.limit)
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.path} is not UTF-8 text, so it is no trace.") from error
        except OSError as error:
            raise ValueError(f"{self.path} can't be read: {error.strerror}.") from error

    def _parsed(self, lines: Iterable[str], survey: Survey) -> Iterator[TraceRequest]:
        header, last, sessions, known = list[str](), 0, set[str](), set[str]()
        for at, line in enumerate(map(str.strip, lines), 1):
            if not line:
                continue
            try:
                if not known:
                    format, header = format_of(line)
                    survey.format, survey.blocks = format, format.blocks
                    known = {*format.fields, *format.optional}
                    if header:
                        survey.ignored.update(dict.fromkeys(n for n in header if n not in known))
                        continue
                fields = fields_of(line, format, header)
                if not header:
                    survey.ignored.update(dict.fromkeys(n for n in fields if n not in known))
                found = request_of(format, fields, least=0 if self.skip_empty else 1)
                if not found.prompt_len or not found.output_len:
                    survey.num_skipped += 1
                    continue
                if found.time is None and found.session not in sessions:
                    raise ValueError(
                        "it has no timestamp, but only the later turns of a session do without."
                    )
                if found.time is not None and found.time < last:
                    raise ValueError(
                        f"it is {(last - found.time) / 1e6} ms earlier than the request before "
                        "it, but requests must be in order of arrival: sort it first."
                    )
                survey.add(found)
            except csv.Error as error:
                raise ValueError(f"{self.path}, line {at}, is no CSV: {error}.") from error
            except ValueError as error:
                raise ValueError(f"{self.path}, line {at}: {error}") from error
            last = last if found.time is None else found.time
            sessions.add(found.session)
            yield found


class Numbers:
    """The blocks of a trace, numbered in order of appearance, so that an id may be any text."""

    def __init__(self) -> None:
        self.count = 0
        self.known: dict[int | str, int] = {}

    def of(self, found: TraceRequest) -> tuple[int, ...]:
        """Return the numbers of a prompt's blocks; of a prompt without hash ids a new one."""
        numbers = []
        for item in found.hash_ids:
            number = self.known.setdefault(item, self.count)
            self.count += number == self.count
            numbers.append(number)
        if not numbers:
            numbers.append(self.count)
            self.count += 1
        return tuple(numbers)
