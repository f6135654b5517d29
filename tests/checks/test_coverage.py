"""Situations: the corners that random workloads reach, and how often."""

from __future__ import annotations

import json
from typing import Any

import pytest

from minisched.checks.coverage import SITUATIONS
from minisched.checks.many import try_seed

LOOPS = ("serial", "overlap", "pd")
RARE = {
    "prompts and decodes are not mixed for lack of memory": 3,
    "a request with log-probabilities is retracted": 6,
    "a search is retracted after a token": 5,
    "duplicate pages wait for a transfer": 1,
    "a row that read a failed page has NaN": 3,
    "a request is preempted, and another has its priority": 6,
    "the post-processing of a step fails": 6,  # few loops have one of their own
    "a step fails that has a row that read a failed page": 5,
}
"""The least cases of the rarest situations among the default workloads; of others 10."""


@pytest.mark.parametrize("seed", range(3))
def test_to_count_situations_changes_no_case(seed: int) -> None:
    plain, counted = try_seed(seed, LOOPS), try_seed(seed, LOOPS, coverage=True)
    assert [it.findings for it in plain] == [it.findings for it in counted]
    assert not any(it.situations for it in plain)
    assert all({*it.situations} <= {*SITUATIONS} for it in counted)


def test_the_command_counts_cases(cli: Any) -> None:
    line = "check --workloads 2 --jobs 1 --loop overlap --loop serial --coverage"
    code, out, _ = cli(f"{line} --json")
    counts = json.loads(out)["situations"]
    assert code == 0 and [*counts] == [*SITUATIONS]
    assert max(counts.values()) <= json.loads(out)["cases"] == 4
    told = cli(line)[1].splitlines()
    for name, count in counts.items():
        assert sum(row.split() == [*name.split(), str(count)] for row in told) == 1
    assert "situations" not in json.loads(cli("check --workloads 1 --loop serial --json")[1])


@pytest.mark.thorough
def test_the_default_workloads_hold_every_law_and_reach_every_situation(cli: Any) -> None:
    """The README's ``minisched check`` runs the same cases; only the counts are added."""
    code, out, err = cli("check --coverage --json")
    found = json.loads(out)
    assert (code, found["workloads"]) == (0, 150), err
    counts = found["situations"]
    few = {name: count for name, count in counts.items() if count < RARE.get(name, 10)}
    assert few == {}


def test_situations_are_those_of_random_workloads(cli: Any) -> None:
    code, _, err = cli("check some.json --coverage")
    assert code == 2 and "--coverage draws workloads, but some.json is a recorded run" in err
