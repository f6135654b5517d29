"""Our FutureMap in lockstep with SGLang's: what a difference looks like, and the command."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from minisched.cli import fidelity as command
from minisched.fidelity import future_map
from minisched.fidelity.future_map import FORMS, RelayCase, RelayReport, compare, draw, ours
from minisched.fidelity.run import Report
from tests.support import many


def ours_as_original(case: dict[str, Any]) -> future_map.Answer:
    """Our own FutureMap in the original's place."""
    return ours(RelayCase.from_json(case))


def late_by_a_step(case: dict[str, Any]) -> future_map.Answer:
    """An original whose inputs are those of the step before."""
    steps = ours_as_original(case)
    return [{**step, "inputs": at and steps[at - 1].get("inputs")} for at, step in enumerate(steps)]


@pytest.mark.parametrize("form", FORMS)
def test_a_case_goes_through_a_pipe_and_reads_no_slot_before_it_is_written(form: str) -> None:
    for seed in range(many(5, 50)):
        case = draw(form, str(seed))
        assert RelayCase.from_json(json.loads(json.dumps(asdict(case)))) == case
        written = set[int]()
        for step in case.steps:
            reads = {row for row, unknown in zip(step.rows, step.unknown, strict=True) if unknown}
            assert reads <= written
            written |= set(step.stored)


@pytest.mark.parametrize("form", FORMS)
def test_a_difference_is_reported_with_its_seed_and_step(form: str) -> None:
    assert not compare(ours_as_original, form, "1", 5, 0).differences
    report = compare(late_by_a_step, form, "1", 5, 0)
    assert len(report.differences) == 5
    assert report.differences[0].startswith(f"seed '{form} 0 0', step 0: SGLang ")
    assert report.as_json()["equal"] == 0


def test_a_different_future_map_is_an_error_of_the_command(cli: Any, monkeypatch: Any) -> None:
    report = Report("sglang", "0.5.23", 0)
    monkeypatch.setattr(command, "play", lambda *of_the_call: report)
    report.future_maps = [RelayReport("pool", "0.5.23", 3, [])]
    code, out, _ = cli("fidelity sglang")
    assert code == 0 and "✓ 3 of 3 uses of the pool FutureMap are equal to SGLang 0.5.23." in out
    report.future_maps = [RelayReport("ring", "0.5.3", 3, ["seed 'ring 0 1', step 2: .."])]
    code, out, _ = cli("fidelity sglang")
    assert code == 1 and "✗ 2 of 3 uses of the ring FutureMap" in out and "step 2: .." in out


@pytest.mark.thorough
def test_both_forms_are_equal_to_sglang() -> None:
    found = future_map.in_lockstep("sglang", 50, 1, lambda doing: None)
    assert [(report.form, report.version) for report in found] == [
        ("ring", "0.5.3"), ("pool", "0.5.23"),
    ]  # fmt: skip
    assert not any(report.differences for report in found)
