"""Recorded workloads: what is written is read, and what is no trace gets one sentence."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.replay.arrival import MOST_TOKENS, Arrival
from minisched.replay.mooncake import BLOCK
from minisched.replay.prompt import BlockPrompt
from minisched.replay.trace_file import TraceFile
from tests.support import many

SECONDS = "arrived_at,num_prefill_tokens,num_decode_tokens"
DATES = "TIMESTAMP,ContextTokens,GeneratedTokens"
START = datetime(2023, 11, 16, 18, 17, 3, tzinfo=UTC)


@st.composite
def arrivals(draw: st.DrawFn) -> list[Arrival]:
    """In order of time, in steps of 100 ns: what all formats can say."""
    found, time = [], 100 * draw(st.sampled_from([0, 0, 12_345]))
    for _ in range(draw(st.integers(1, 8))):
        length = draw(st.sampled_from([1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK]))
        ids = draw(st.tuples(*[st.integers(0, 9)] * -(-length // BLOCK)))
        found.append(Arrival(time, length, draw(st.integers(1, 2000)), ids))
        time += 100 * draw(st.integers(0, 10**9))
    return found


def mooncake_line(arrival: Arrival, **other: Any) -> str:
    time = arrival.time / 10**6 if arrival.time % 10**6 else arrival.time // 10**6
    record = {
        "timestamp": time,
        "input_length": arrival.prompt_len,
        "output_length": arrival.output_len,
        "hash_ids": list(arrival.hash_ids),
    }
    return json.dumps(record | other)


def seconds_line(arrival: Arrival) -> str:
    whole, fraction = divmod(arrival.time, 10**9)
    return f"{whole}.{fraction:09},{arrival.prompt_len},{arrival.output_len}"


def dates_line(arrival: Arrival) -> str:
    whole, fraction = divmod(arrival.time, 10**9)
    moment = (START + timedelta(seconds=whole)).strftime("%Y-%m-%d %H:%M:%S")
    return f"{moment}.{fraction // 100:07},{arrival.prompt_len},{arrival.output_len}"


FORMATS = {
    "mooncake": ([], mooncake_line),
    "seconds": ([SECONDS], seconds_line),
    "dates": ([DATES], dates_line),
}


def write(path: Path, format: str, rows: list[Arrival], end: str = "\n") -> Path:
    header, line = FORMATS[format]
    path.write_text("".join(text + end for text in [*header, *map(line, rows)]), newline="")
    return path


@pytest.mark.parametrize("format", FORMATS)
@given(
    rows=arrivals(), limit=st.none() | st.integers(1, 9),
    end=st.sampled_from(["\n", "\r\n", " \n\n"]),
)  # fmt: skip
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, format: str, end: str, rows: list[Arrival],
    limit: int | None,
) -> None:  # fmt: skip
    path = write(tmp_path_factory.getbasetemp() / f"{format}.trace", format, rows, end)
    trace = TraceFile(path, limit)
    rows = rows[:limit]
    start = rows[0].time if format == "dates" else 0
    found = list(trace.requests())
    assert [req.rid for req in found] == [f"r{n}" for n in range(len(rows))]
    for req, row in zip(found, rows, strict=True):
        assert req.arrival_time == row.time - start
        assert (len(req.prompt), req.params.max_new_tokens) == (row.prompt_len, row.output_len)
        assert req.params.ignore_eos
    survey = trace.survey()
    assert survey.requests == len(rows)
    assert survey.longest == max(row.prompt_len + row.output_len for row in rows)
    assert survey.highest_id == max(max(req.prompt) for req in found)
    if format == "mooncake":
        for req, row in zip(found, rows, strict=True):
            assert list(req.prompt) == [row.hash_ids[n // BLOCK] for n in range(row.prompt_len)]
    else:
        assert len({req.prompt[0] for req in found}) == len(rows), "nothing is shared"


def test_dates_may_name_their_zone_and_a_file_its_encoding(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    lines = [DATES, "2024-05-10 00:00:00.009930+00:00,2162,5", "2024-05-10 02:00:00Z,7,6"]
    path.write_text("\ufeff" + "\n".join(lines))
    assert [req.arrival_time for req in TraceFile(path).requests()] == [0, 7_199_990_070_000]


GOOD = Arrival(5_000_000, 600, 2, (1, 2))
LINE = mooncake_line(GOOD)


def with_field(name: str, value: Any) -> str:
    return f"{LINE}\n{mooncake_line(GOOD, **{name: value})}\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty, but it needs at least one request."),
        (SECONDS, "holds no request after its header, line 1."),
        (b"\x00\x01\x02", "line 1: it has a zero byte"),
        (b"\xff\xfe{", "line 1: it is not UTF-8 text"),
        (b"x" * (16 * 2**20 + 1), "line 1: it is longer than 16777216 bytes"),
        ("a,b,c\n1,2,3\n", "line 1: it begins with 'a,b,c', but a trace has the"),
        ("[1, 2]\n", "line 1: it begins with '[1, 2]'"),
        ("0.0,374,44\n", "line 1: it begins with '0.0,374,44'"),
        (f"\n{SECONDS}\n0,1\n", "line 3: it has 2 fields, but it must have arrived_at,"),
        (f"{SECONDS}\n0,1,2\n{SECONDS}\n", "line 3: arrived_at is 'arrived_at', but it must be"),
        (f"{SECONDS}\n0,-1,2\n", "line 2: num_prefill_tokens is '-1', but it must be a whole"),
        (f"{SECONDS}\n0,1,0\n", "line 2: num_decode_tokens is 0,"),
        (f"{SECONDS}\n0,1_0,2\n", "line 2: num_prefill_tokens is '1_0',"),
        (f"{SECONDS}\n0,{MOST_TOKENS + 1},2\n", f"from 1 to {MOST_TOKENS}."),
        (f"{SECONDS}\n-1,1,2\n", "line 2: arrived_at is '-1', but it must be a number from 0 to"),
        (f"{SECONDS}\nnan,1,2\n", "line 2: arrived_at is 'nan',"),
        (f"{SECONDS}\n1e999,1,2\n", "line 2: arrived_at is 1E+999,"),
        (f"{SECONDS}\n1,1,2\n0.5,1,2\n", "line 3: it is 500.0 ms earlier than the request before"),
        (f"{DATES}\n2023-11-16,1,2\n", "line 2: TIMESTAMP is '2023-11-16', but it must be like"),
        (f"{DATES}\n2023-13-16 18:17:03.97,1,2\n", "line 2: TIMESTAMP is '2023-13-16 18:17:03.97'"),
        (f"{DATES}\n2023-11-16 18:17:03,1,x\n", "line 2: GeneratedTokens is 'x',"),
        (f"{LINE}\n{LINE[:-1]}\n", "line 2: it is not JSON: Expecting ',' delimiter at column"),
        (f"{LINE}\n" + "[" * 100_000, "line 2: it is not a Mooncake line but '[[["),
        (f"{LINE}\n" + '{"timestamp": ' + "9" * 9999 + "}", "line 2: it is not a Mooncake line"),
        (LINE.replace("input_length", "length"), "line 1: the field 'input_length' is missing"),
        (with_field("timestamp", True), "line 2: timestamp is True,"),
        (with_field("timestamp", float("nan")), "line 2: timestamp is nan,"),
        (with_field("timestamp", 4), "line 2: it is 1.0 ms earlier than the request before it"),
        (with_field("input_length", 600.0), "line 2: input_length is 600.0,"),
        (with_field("output_length", -2), "line 2: output_length is -2,"),
        (with_field("hash_ids", 3), "line 2: hash_ids is 3, but it must be a list"),
        (with_field("hash_ids", [1, -1]), "line 2: hash_ids is [1, -1],"),
        (with_field("hash_ids", [1, True]), "line 2: hash_ids is [1, True],"),
        (with_field("hash_ids", [1]), "line 2: hash_ids has 1 ids, but 600 tokens take 2 of 512"),
    ],
    ids=lambda value: str(value)[:40].replace("\n", " "),
)  # fmt: skip
def test_what_is_no_trace_gets_one_sentence(
    tmp_path: Path, text: str | bytes, sentence: str
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ValueError) as error:
        TraceFile(path).survey()
    said = str(error.value)
    assert sentence in said and said.startswith(str(path))
    assert said.endswith(".") and len(said.splitlines()) == 1 and len(said) < 400


def test_what_can_not_be_read_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing can't be read: No such file or directory\.$"):
        TraceFile(tmp_path / "missing").survey()
    with pytest.raises(ValueError, match=r"can't be read: Is a directory\.$"):
        TraceFile(tmp_path).survey()
    with pytest.raises(ValueError, match=r"it is read twice, so it must be a regular file\.$"):
        TraceFile(Path(os.devnull)).survey()
    with pytest.raises(ValueError, match=r"^--requests is 0, but it must be at least 1\.$"):
        TraceFile(tmp_path, limit=0)


def test_a_limit_leaves_what_follows_unread(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(f"{LINE}\n{LINE}\nnonsense\n")
    assert TraceFile(path, limit=2).survey().requests == 2
    with pytest.raises(ValueError, match="line 3"):
        TraceFile(path, limit=3).survey()


@given(rows=arrivals(), format=st.sampled_from(sorted(FORMATS)), data=st.data())
@settings(max_examples=many(60, 500))
def test_damage_is_read_or_named_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Arrival], format: str, data: st.DataObject
) -> None:
    path = write(tmp_path_factory.getbasetemp() / "damaged", format, rows)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    path.write_bytes(content)
    try:
        survey = TraceFile(path).survey()
    except ValueError as error:
        assert str(error).startswith(str(path)) and len(str(error).splitlines()) == 1
    else:
        assert survey.requests == len(list(TraceFile(path).requests()))


@given(
    ids=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    block=st.integers(1, 5),
    missing=st.integers(0, 4),
    index=st.slices(30) | st.integers(-35, 35),
)
def test_a_prompt_of_blocks_is_the_list_of_its_tokens(
    ids: list[int], block: int, missing: int, index: slice | int
) -> None:
    tokens = [token for token in ids for _ in range(block)]
    tokens = tokens[: max(len(tokens) - missing % block, 1)]
    prompt = BlockPrompt(tuple(ids), len(tokens), block)
    assert list(prompt) == tokens and len(prompt) == len(tokens)
    assert (min(prompt), max(prompt)) == (min(tokens), max(tokens))
    if isinstance(index, slice):
        assert prompt[index] == tuple(tokens[index])
    elif -len(tokens) <= index < len(tokens):
        assert prompt[index] == tokens[index]
    else:
        with pytest.raises(IndexError):
            prompt[index]
