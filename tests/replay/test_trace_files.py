"""Formats of recorded workloads: each is read as its writer means it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minisched.core import Request
from minisched.replay.trace_file import Survey, TraceFile

MS = 10**6


def write(path: Path, *rows: dict[str, Any] | str) -> TraceFile:
    """Rows as JSON objects, or lines as they are."""
    path.write_text(
        "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
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
