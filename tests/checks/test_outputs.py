"""The outputs of two engines are compared: formats, the first difference, and events before it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minisched as ms
from minisched.checks.judge import judge
from minisched.checks.many import case_of
from minisched.museum.patch import put_in
from minisched.trace import native
from tests.checks.test_answers import NO_WAIT

TOKENS = {"a": [1, 2, 3], "b": [4, 5]}


def each(shape: Callable[[str, list[int]], Any]) -> list[Any]:
    """Return the answers of both requests in a shape."""
    return [shape(rid, given) for rid, given in TOKENS.items()]


FORMATS = {
    "plain": TOKENS,
    "sglang": each(lambda rid, ids: {"meta_info": {"id": rid}, "output_ids": ids, "text": "x"}),
    "vllm": each(lambda rid, ids: {"request_id": rid, "outputs": [{"token_ids": ids}]}),
    "openai": each(lambda rid, ids: {"id": rid, "choices": [{"token_ids": ids, "text": "x"}]}),
    "batch": each(lambda rid, ids: {
        "id": f"batch-{rid}", "custom_id": rid,
        "response": {"body": {"choices": [{"token_ids": ids}]}},
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("form", ["json", "lines", "gzip"])
def test_the_answers_of_engines_are_read(tmp_path: Path, name: str, form: str) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.write_text(json.dumps(TOKENS), "utf-8")
    data = FORMATS[name]
    if form == "lines" and isinstance(data, list):
        other.write_text("\n".join(map(json.dumps, data)) + "\n", "utf-8")
    else:
        text = json.dumps(data).encode()
        other.write_bytes(gzip.compress(text) if form == "gzip" else text)
    found = ms.check(one, other, compare=True)
    assert found.holds and found.lines[-1] == "  ✓ The same 5 tokens of 2 requests."


def test_the_first_difference_is_the_earliest_and_text_is_compared_by_character(
    cli: Any, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_text(json.dumps(TOKENS), "utf-8")
    (tmp_path / "b.json").write_text(json.dumps({"a": [1, 2, 9], "b": [4, 6], "c": [1]}), "utf-8")
    code, out, err = cli("check --compare a.json b.json")
    assert (code, err) == (1, "")
    assert "✗ 2 of 2 requests got other tokens." in out
    assert "First: token 1 of b is 6 instead of 5." in out and "Before it, both have: 4." in out
    assert "✗ 1 request in one file alone: c." in out
    code, out, _ = cli("check --compare a.json b.json --json")
    assert code == 1 and json.loads(out)["differences"][0] == {
        "request": "b", "position": 1, "expected": 5, "got": 6
    }  # fmt: skip
    for name, text in (("x.json", "same old"), ("y.json", "same odd")):
        (tmp_path / name).write_text(
            json.dumps([{"choices": [{"message": {"content": text}}]}]), "utf-8"
        )
    assert (
        "First: character 6 of 0 is 'd' instead of 'l'." in cli("check --compare x.json y.json")[1]
    )
    (tmp_path / "short.json").write_text(json.dumps({"a": [1, 2], "b": [4, 5]}), "utf-8")
    assert "First: a has 2 tokens instead of 3." in cli("check --compare a.json short.json")[1]


def test_answers_without_a_common_id_are_matched_by_order(tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.write_text(json.dumps(TOKENS), "utf-8")
    other.write_text(json.dumps({"cmpl-7": [1, 2, 3], "cmpl-8": [4, 7]}), "utf-8")
    found = ms.check(one, other, compare=True)
    assert "No id is in both files, so answers are matched by their order." in repr(found)
    assert "First: token 1 of b is 7 instead of 5." in repr(found)


def test_a_recorded_run_gives_the_events_before_the_token(cli: Any, tmp_path: Path) -> None:
    """As in vLLM #46669: with a fault that only overlap has, some tokens are others."""
    native.write(judge(case_of(10, "serial")).trace, tmp_path / "serial.json")
    with put_in([NO_WAIT]):
        native.write(judge(case_of(10, "overlap")).trace, tmp_path / "bug.json")
    code, out, err = cli("check --compare serial.json bug.json")
    assert (code, err) == (1, "")
    said = " ".join(out.split())
    assert "Events of" in said and "runs with" in said and "and samples the token." in said
    assert "is admitted." in said and "The reason in the recorded run:" in said
    assert "does not wait for" in said or "was taken for" in said or "instead of" in said
    assert cli("check --compare serial.json serial.json")[0] == 0


@pytest.mark.parametrize(("text", "says"), [
    ("{", "is not a file of outputs: it is neither JSON nor JSON Lines"),
    ("[" * 100_000, "is nested too deep."),
    ("[]", "has no answer."),
    ('[{"id": "a"}]', "has no tokens and no text in answer 0; tokens are a list output_ids"),
    ('[{"id": "a", "text": "x"}, {"id": "a", "text": "x"}]', "has two answers with the id a."),
    ('[{"id": "a", "text": "x"}, {"id": "b", "token_ids": [1]}]', "has tokens of some answers"),
    ('[{"id": "a", "text": "x"}]', "record tokens of both."),
    ('{"z": [1]}', "have no request in common"),
])  # fmt: skip
def test_bad_outputs_are_one_sentence(cli: Any, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "a.json").write_text(json.dumps(TOKENS), "utf-8")
    (tmp_path / "b.json").write_text(text, "utf-8")
    code, out, err = cli("check --compare a.json b.json")
    assert (code, out, err.count("\n")) == (2, "", 1) and says in err and err.endswith(".\n")


@pytest.mark.parametrize(("line", "says"), [
    ("--compare a.json", "compare takes two files of outputs, but 1 are named."),
    ("--compare", "compare takes two files of outputs, but 0 are named."),
    ("--compare a.json none.json", "none.json can't be read: No such file or directory."),
    ("--compare a.json a.json --step x", "--compare takes two files, and no --draw"),
])  # fmt: skip
def test_a_bad_comparison_is_one_sentence(cli: Any, tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "a.json").write_text(json.dumps(TOKENS), "utf-8")
    code, out, err = cli(f"check {line}")
    assert (code, out, err.count("\n")) == (2, "", 1) and says in err
