"""Formats of recorded workloads: each is read as its writer means it, or refused by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minisched.core import Output, Request
from minisched.replay.profiles import PROFILES
from minisched.replay.replay import LengthModel, ReplayedRun, config_for, play
from minisched.replay.trace_file import Survey, TraceFile, Turn

MACHINE = PROFILES["llama8b-h100"]
MS = 10**6


def write(path: Path, *rows: dict[str, Any] | str) -> TraceFile:
    """Rows as JSON objects, or lines as they are."""
    path.write_text(
        "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows),
        encoding="utf-8",
    )
    return TraceFile(path)


def read(trace: TraceFile) -> tuple[Survey, list[Request]]:
    survey = trace.survey()
    return survey, list(trace.requests(survey))


def mooncake(
    time: float, prompt: int, output: int, ids: list[Any] | None = None, **more: Any
) -> Any:
    row = {"timestamp": time, "input_length": prompt, "output_length": output, **more}
    return row if ids is None else {**row, "hash_ids": ids}


# -- how each writer means it ----------------------------------------------------------------------


def test_bailian_has_seconds_and_16_tokens_to_an_id(tmp_path: Path) -> None:
    more = {"chat_id": 0, "parent_chat_id": -1, "type": "text", "turn": 1}
    rows = (mooncake(10.5, 12, 8, [7], **more), mooncake(20.5, 40, 8, [7, 8, 9], **more))
    survey, (first, second) = read(write(tmp_path / "t", *rows))
    assert survey.name == "Bailian" and survey.page_size == 16
    assert (first.arrival_time, second.arrival_time) == (0, 10 * 1000 * MS)
    assert second.prompt[:12] == first.prompt[:] and second.prompt[15] != second.prompt[16]
    assert list(survey.ignored) == ["chat_id", "parent_chat_id", "type", "turn"]


@pytest.mark.parametrize("block", [16, 64, 512])
def test_the_tokens_to_an_id_are_found_from_all_lines(tmp_path: Path, block: int) -> None:
    """A first line of one block fits every size."""
    rows = [mooncake(0, 9, 1, [1]), mooncake(1, 1500, 1, [*range(-(-1500 // block))])]
    survey, (_, long) = read(write(tmp_path / "t", *rows))
    assert (survey.block, survey.page_size) == (block, block)
    assert (
        len({*long.prompt}) == len(rows[1]["hash_ids"]) and long.prompt[0] == long.prompt[block - 1]
    )
    dynamo = f"Mooncake with {block} tokens to a hash id, as Dynamo's"
    assert survey.name == ("Mooncake" if block == 512 else dynamo)
    with pytest.raises(ValueError, match=rf"line 3: hash_ids has 1 ids, but 1500 .* {block} each"):
        write(tmp_path / "t", *rows, mooncake(2, 1500, 1, [1])).survey()


def test_burstgpt_has_seconds_with_or_without_sessions(tmp_path: Path) -> None:
    rest = "Model,Request tokens,Response tokens,Total tokens,Log Type"
    one, two = f"Timestamp,{rest}", f"Timestamp,Session ID,Elapsed time,{rest}"
    for header, row in ((one, "{},GPT-4,{},{},9,API log"), (two, "{},s,1.5,GPT-4,{},{},9,API log")):
        lines = row.format(5, 472, 18), row.format(45, 1, 2)
        survey, found = read(write(tmp_path / "t", header, *lines))
        assert survey.name == "BurstGPT" and "Model" in survey.ignored
        sizes = [(len(req.prompt), req.params.max_new_tokens) for req in found]
        assert sizes == [(472, 18), (1, 2)]
        assert [req.arrival_time for req in found] == [0, 40_000 * MS]


def test_an_id_may_be_any_number_or_text(tmp_path: Path) -> None:
    rows = [
        mooncake(0, 1024, 1, ["0xffa0", "beef"]),
        mooncake(1, 1025, 1, ["0xffa0", 3, -(10**30)]),
    ]
    survey, (first, second) = read(write(tmp_path / "t", *rows))
    assert survey.num_ids == 4 and max(map(max, (first.prompt, second.prompt))) == 3
    assert first.prompt[:512] == second.prompt[:512] and first.prompt[512] != second.prompt[512]


def test_prompts_without_ids_share_nothing(tmp_path: Path) -> None:
    rows = [mooncake(0, 655, 52), mooncake(535, 655, 26, [1, 2]), mooncake(540, 655, 26, [])]
    survey, found = read(write(tmp_path / "t", *rows))
    assert survey.name == "Mooncake as AIPerf writes it"
    assert len({req.prompt[0] for req in found}) == 3
    survey, _ = read(write(tmp_path / "t", rows[0]))
    assert survey.page_size == 16


def test_fields_without_effect_are_named(tmp_path: Path, cli: Any) -> None:
    write(
        Path("t.csv"),
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens",
        "2024-10-15 00:00:00.1,1,9,3",
    )
    code, out, err = cli("replay t.csv")
    assert code == 0, err
    assert "Without effect here: NumImages." in out and "(Azure)" in out
    _, out, _ = cli("replay t.csv --json")
    assert json.loads(out)["ignored"] == ["NumImages"] and json.loads(out)["format"] == "Azure"


def test_empty_requests_are_skipped_if_asked(tmp_path: Path, cli: Any) -> None:
    write(Path("t.csv"), "Timestamp,Request tokens,Response tokens", "0,5,0", "1,5,2", "2,0,3")
    code, _, err = cli("replay t.csv")
    assert code == 2 and "line 2: Response tokens is '0', but it must be a whole" in err
    assert "--skip-empty leaves such requests out." in err
    code, out, _ = cli("replay t.csv --skip-empty")
    assert code == 0 and "1 of 1 request (BurstGPT)" in out and "2 empty requests skipped." in out
    write(Path("t.csv"), "Timestamp,Request tokens,Response tokens", "0,5,0")
    code, _, err = cli("replay t.csv --skip-empty")
    assert code == 2 and "has 1 empty requests, but it needs at least one request" in err


# -- conversations ---------------------------------------------------------------------------------


def replay(trace: TraceFile, hear: Any = lambda output: None) -> ReplayedRun:
    survey = trace.survey()
    model = LengthModel(survey.num_ids, survey.requests, survey.longest)
    config = config_for(survey, MACHINE, {})
    return play("overlap", model, trace.requests(survey), config, MACHINE.cost, hear)


def test_a_turn_comes_after_the_answer_before_it_and_goes_on_from_it(tmp_path: Path) -> None:
    rows = [
        mooncake(1000, 1024, 64, [1, 2], session_id="s"),
        {
            "session_id": "s",
            "delay": 7000,
            "input_length": 512,
            "output_length": 3,
            "hash_ids": [3],
        },
        mooncake(1001, 512, 2, [9], session_id="t"),
        {"session_id": "s", "delay": 0, "input_length": 10, "output_length": 2},
        mooncake(1002, 512, 2, [8], session_id="t"),  # due before the answer: it waits
        mooncake(60_000, 512, 2, [7], session_id="t"),
    ]
    trace = write(tmp_path / "t", *rows)
    survey = trace.survey()
    assert survey.longest == 1024 + 64 + 512 + 3 + 10 + 2 and survey.is_aiperf
    run = replay(trace)
    s1, s2, t1, s3, t2, t3 = sorted(run.metrics.ended, key=lambda item: item.rid)
    assert all(item.end is not None for item in run.metrics.ended) and run.metrics.num_finished == 6
    assert s1.end and s2.end and t1.end
    assert (s1.arrival, t1.arrival) == (0, MS)
    assert s2.arrival == s1.end + 7000 * MS and s3.arrival == s2.end
    assert t2.arrival == t1.end > 2 * MS and t3.arrival == 59_000 * MS
    lengths = [item.prompt_tokens for item in (s1, s2, s3, t1, t2, t3)]
    assert lengths == [1024, 1024 + 64 + 512, 1600 + 3 + 10, 512, 512 + 2 + 512, 1026 + 2 + 512]
    assert s2.cached_tokens == 1024, "the pages of the turn before; its answer fills none"


def test_a_later_turn_without_a_first_one_is_refused(tmp_path: Path) -> None:
    for row in ({"delay": 5, "session_id": "s"}, {"delay": 5}, {"timestamp": None}):
        trace = write(tmp_path / "t", {"input_length": 5, "output_length": 1, **row})
        with pytest.raises(ValueError, match="it has no timestamp, but only the later turns"):
            trace.survey()


def test_turns_are_requests_that_keep_their_order(tmp_path: Path) -> None:
    """A refused turn ends its place in the conversation like any other."""
    said: list[Output] = []
    turns = [Turn(f"r{n}", [0] * (10**7 if n == 1 else 5), session="s") for n in range(3)]
    model = LengthModel(1, 3, 1000)
    survey, _ = read(write(tmp_path / "t", mooncake(0, 5, 1)))
    for turn in turns:
        turn.params = read(TraceFile(tmp_path / "t"))[1][0].params
    config = config_for(survey, MACHINE, {"context_len": 1000})
    play("serial", model, iter(turns), config, MACHINE.cost, said.append)
    assert [output.rid for output in said if output.finish_reason] == ["r0", "r1", "r2"]


# -- what is not read ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("request_id,arrival_timestamp,batch_size,prompt_size,token_size", "splitwise-sim"),
        ({"date": "x", "backend": "vllm", "input_lens": [1]}, "vLLM's benchmark"),
        ({"service_kind": "openai", "endpoint": "x", "experiments": []}, "GenAI-Perf"),
        ({"data": [{"payload": [{"prompt": "x"}]}]}, "GenAI-Perf"),
        ({"custom_id": "1", "method": "POST", "body": {"messages": []}}, "OpenAI batch"),
        ('[{"id": "x", "conversations": [{"from": "human", "value": "hi"}]}]', "ShareGPT"),
        ({"conversation_id": "x", "model": "y", "conversation": [], "turn": 1}, "LMSYS"),
        ({"captureData": {}, "eventMetadata": {}}, "SageMaker"),
        ({"text_input": "hello", "output_length": 5, "timestamp": 0}, "AIPerf's trace with texts"),
        ({"messages": [], "output_length": 5, "timestamp": 0}, "chat messages"),
    ],
)  # fmt: skip
def test_a_format_that_is_not_read_is_refused_by_its_name(
    tmp_path: Path, line: dict[str, Any] | str, name: str
) -> None:
    with pytest.raises(ValueError, match="which replay does not read; convert it to") as refused:
        write(tmp_path / "t", line, line).survey()
    said = str(refused.value)
    assert name in said and "Mooncake" not in said and said.endswith(".")
