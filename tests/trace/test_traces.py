"""What traces hold: each lane's program, files in gzip, and workloads that others recorded."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.devices.sim import SimDevice
from minisched.models.base import slots_of
from minisched.models.hash import HashModel
from minisched.policy.rules import FREE_RULES
from minisched.record import to_text
from minisched.replay.trace_file import BLOCK, MOST_TOKENS, BlockPrompt, TraceFile, TraceRequest
from minisched.trace import Trace
from minisched.trace.cells import common, joined, spans_of
from minisched.trace.events import is_host
from minisched.trace.native import check_program
from tests.support import LOOP_OPTIONS, VOCAB, Workload, many, play, workloads

# -- cells as text ---------------------------------------------------------------------------------


def cells_in(spans: Any) -> list[int]:
    spans = spans_of(spans) if isinstance(spans, str) else spans
    return [cell for first, last in spans for cell in range(first, last + 1)]


some_cells = st.lists(st.integers(0, 40))


@given(some_cells, some_cells)
def test_cells_are_written_in_order_and_each_once_and_spans_are_sets(
    a: list[int], b: list[int]
) -> None:
    text, some, others = to_text(a), spans_of(to_text(a)), spans_of(to_text(b))
    assert cells_in(text) == sorted(set(a)) and to_text(text) == text
    assert all(one[1] + 1 < other[0] for one, other in pairwise(some)), "none is in two"
    assert set(cells_in(common(some, others))) == {*a} & {*b}
    assert joined([*some, *others]) == to_text([*a, *b])


# -- of every run ----------------------------------------------------------------------------------


@given(
    workloads(max_requests=4), st.sampled_from(LOOP_OPTIONS), st.sampled_from(sorted(FREE_RULES))
)
def test_what_holds_of_every_program(workload: Workload, which: Any, rule: str) -> None:
    """All pages that go back to the pool are released in the program, under every rule."""
    workload.config = replace(workload.config, free_rule=rule)
    device, model = SimDevice(), HashModel(VOCAB, eos_ids=workload.eos_ids)
    play(workload, *which, device, model)
    trace = Trace.of(device.recorder, "", "", "", "virtual")
    check_program(trace.program)
    lanes, running = {item.id: item.lane for item in trace.slices}, dict[str, int]()
    for act in trace.program:
        if act.kind == "begin":
            running[act.lane] = act.op
            assert lanes[act.op] == act.lane
        elif act.resource:
            assert act.at and (act.op == running.get(act.lane, 0) or is_host(act.lane))
    frees = [(act.resource.removeprefix("stage 0 "), act.at)
             for act in trace.program if act.kind == "release"]  # fmt: skip
    freed = (mark.attrs["pages"] for mark in trace.marks if mark.name == "page free")
    pages = [page for some in freed for page in some]
    slots = Counter(cell for resource, at in frees if resource == "kv" for cell in cells_in(at))
    assert slots == Counter(slots_of(pages, workload.config.page_size))


# -- files in gzip ---------------------------------------------------------------------------------

OVERLAP = Path(__file__).resolve().parents[2] / "traces" / "overlap.json"
RECORD = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}


@pytest.mark.parametrize(
    ("line", "what"),
    [("replay FILE.jsonl", json.dumps(RECORD)),
     ("check FILE.json", OVERLAP.read_text("utf-8"))],
)  # fmt: skip
def test_what_is_in_gzip_is_read_as_if_it_were_not(cli: Any, line: str, what: str) -> None:
    name = re.findall(r"FILE\.\w+", line)[0]
    told = []
    for written in (what.encode(), gzip.compress(what.encode())):
        Path(name).write_bytes(written)
        code, out, err = cli(line)
        assert code == 0, err
        told.append(re.sub(r"The simulation took .*", "", out, flags=re.DOTALL))
    assert told[0] == told[1] and told[0]
    Path(name).write_bytes(gzip.compress(what.encode())[:-9])
    code, out, err = cli(line)
    assert (code, out) == (2, "") and "its gzip is damaged" in err and len(err.splitlines()) == 1


# -- workloads that others recorded ----------------------------------------------------------------

SECONDS = "arrived_at,num_prefill_tokens,num_decode_tokens"
DATES = "TIMESTAMP,ContextTokens,GeneratedTokens"
START = datetime(2023, 11, 16, 18, 17, 3, tzinfo=UTC)


@st.composite
def arrivals(draw: st.DrawFn) -> list[TraceRequest]:
    """In order of time, in steps of 100 ns: what all formats can say."""
    found, time = [], 100 * draw(st.sampled_from([0, 0, 12_345]))
    for _ in range(draw(st.integers(1, 8))):
        length = draw(st.sampled_from([1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK]))
        ids = draw(st.tuples(*[st.integers(0, 9)] * -(-length // BLOCK)))
        found.append(TraceRequest(time, length, draw(st.integers(1, 2000)), ids))
        time += 100 * draw(st.integers(0, 10**9))
    return found


def mooncake_line(arrival: TraceRequest, **other: Any) -> str:
    lengths = {"input_length": arrival.prompt_len, "output_length": arrival.output_len}
    ids = list(arrival.hash_ids)
    return json.dumps({"timestamp": arrival.time / 10**6, **lengths, "hash_ids": ids, **other})


def csv_line(arrival: TraceRequest, is_date: bool) -> str:
    whole, fraction = divmod(arrival.time, 10**9)
    time = f"{START + timedelta(seconds=whole):%Y-%m-%d %H:%M:%S}" if is_date else str(whole)
    return f"{time}.{fraction // 100:07},{arrival.prompt_len},{arrival.output_len}"


HEADERS = {"mooncake": [], "seconds": [SECONDS], "dates": [DATES]}


def write(path: Path, format: str, rows: list[TraceRequest], end: str = "\n") -> Path:
    line = mooncake_line if format == "mooncake" else partial(csv_line, is_date=format == "dates")
    lines = [*HEADERS[format], *map(line, rows)]
    path.write_text("".join(text + end for text in lines), encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize("format", HEADERS)
@given(
    rows=arrivals(), limit=st.none() | st.integers(1, 9),
    end=st.sampled_from(["\n", "\r\n", " \n\n"]),
)  # fmt: skip
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, format: str, end: str, rows: list[TraceRequest],
    limit: int | None,
) -> None:  # fmt: skip
    path = write(tmp_path_factory.getbasetemp() / f"{format}.trace", format, rows, end)
    trace, rows = TraceFile(path, limit), rows[:limit]
    start, unit = rows[0].time or 0, 1000 if format == "dates" else 1  # dates: microseconds
    survey = trace.survey()
    found, numbers = list(trace.requests(survey)), dict[Any, int]()
    assert [req.rid for req in found] == [f"r{n}" for n in range(len(rows))]
    for req, row in zip(found, rows, strict=True):
        assert req.arrival_time == (row.time or 0) // unit * unit - start // unit * unit
        assert (len(req.prompt), req.params.max_new_tokens) == (row.prompt_len, row.output_len)
        if format == "mooncake":
            assert isinstance(req.prompt, BlockPrompt) and req.prompt.block == BLOCK
            for name, token in zip(row.hash_ids, req.prompt[::BLOCK], strict=True):
                assert numbers.setdefault(name, token) == token
    assert len(set(numbers.values())) == len(numbers), "two ids are two tokens"
    assert survey.requests == len(rows)
    assert survey.longest == max(row.prompt_len + row.output_len for row in rows)
    assert survey.num_ids == 1 + max(max(req.prompt) for req in found)
    if format != "mooncake":
        assert len({req.prompt[0] for req in found}) == len(rows), "nothing is shared"


def test_dates_may_name_their_zone_and_a_file_its_encoding(tmp_path: Path) -> None:
    lines = [DATES, "2024-05-10 00:00:00.009930+00:00,2162,5", "2024-05-10 02:00:00Z,7,6"]
    (path := tmp_path / "azure.csv").write_text("\ufeff" + "\n".join(lines), "utf-8")
    trace = TraceFile(path)
    times = [req.arrival_time for req in trace.requests(trace.survey())]
    assert times == [0, 7_199_990_070_000]


GOOD = TraceRequest(5_000_000, 600, 2, (1, 2))
LINE = mooncake_line(GOOD)


def with_field(name: str, value: Any) -> str:
    return f"{LINE}\n{mooncake_line(GOOD, **{name: value})}\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty, but it needs at least one request."),
        (b"\xff\xfe{", " is not UTF-8 text, so it is no trace."),
        ("a,b,c\n1,2,3\n", "line 1: it begins with 'a,b,c', but a trace has the"),
        (f"\n{SECONDS}\n0,1\n", "line 3: it has 2 fields, but it must have arrived_at,"),
        (f"{SECONDS}\n0,1,0\n", "line 2: num_decode_tokens is '0',"),
        (f"{SECONDS}\n0,{MOST_TOKENS + 1},2\n", f"from 1 to {MOST_TOKENS}."),
        (f"{SECONDS}\n-1,1,2\n", "line 2: arrived_at is '-1', but it must be a number from 0 to"),
        (f"{SECONDS}\n1,1,2\n0.5,1,2\n", "line 3: it is 500.0 ms earlier than the request before"),
        (f"{DATES}\n2023-11-16,1,2\n", "line 2: TIMESTAMP is '2023-11-16', but it must be like"),
        (f"{LINE}\n{LINE[:-1]}\n", "line 2: it is not JSON: Expecting ',' delimiter at column"),
        (f"{LINE}\n" + "[" * 100_000, "line 2: it is not JSON: maximum recursion depth"),
        (f"{LINE}\n" + '{"timestamp": ' + "9" * 9999 + "}", "line 2: it is not JSON: Exceeds"),
        (LINE.replace("input_length", "length"), "line 1: the field 'input_length' is missing"),
        (with_field("timestamp", float("nan")), "line 2: timestamp is nan,"),
        (with_field("hash_ids", [1, True]), "line 2: hash_ids is [1, True],"),
        (with_field("hash_ids", [1]), "line 2: hash_ids has 1 ids, but 600 tokens take 2 of 512"),
    ],
    ids=lambda value: str(value)[:40].replace("\n", " "),
)  # fmt: skip
def test_what_is_no_trace_gets_one_sentence(
    tmp_path: Path, text: str | bytes, sentence: str
) -> None:
    (path := tmp_path / "trace").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ValueError) as error:
        TraceFile(path).survey()
    said = str(error.value)
    assert sentence in said and said.startswith(str(path)) and said.endswith(".")
    assert len(said.splitlines()) == 1 and len(said) < 400


def test_a_limit_leaves_what_follows_unread(tmp_path: Path) -> None:
    (path := tmp_path / "trace").write_text(f"{LINE}\n{LINE}\nnonsense\n", "utf-8")
    assert TraceFile(path, limit=2).survey().requests == 2
    with pytest.raises(ValueError, match="line 3"):
        TraceFile(path, limit=3).survey()
    with pytest.raises(ValueError, match=r"can't be read: Is a directory\.$"):
        TraceFile(tmp_path).survey()
    with pytest.raises(ValueError, match=r"is read twice, so it must be a regular file\.$"):
        TraceFile(Path(os.devnull)).survey()


@given(rows=arrivals(), format=st.sampled_from(sorted(HEADERS)), data=st.data())
@settings(max_examples=many(60, 500))
def test_damage_is_read_or_named_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[TraceRequest],
    format: str,
    data: st.DataObject,
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
        assert survey.requests == len(list(TraceFile(path).requests(survey)))


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
    del tokens[max(len(tokens) - missing % block, 1) :]
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
