"""The figures that the README gives of the lockstep are those of the kept result."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_equal_cases_and_those_that_differ_by_a_rule_are_counted_as_kept(name: str) -> None:
    kept = json.loads((ROOT / "lessons/site/docs/fidelity.json").read_text(encoding="utf-8"))
    rules, figures = Counter[str](), Counter[str]()
    for result in kept.values():
        figures.update({key: result[key] for key in ("cases", "equal", "unexplained")})
        for part in result["parts"].values():
            rules.update({rule.partition("=")[0]: 0 for rule in part["rules"]})
            for rule, count in part["rules"].items():
                rules[rule.partition("=")[0]] += count
    differ = figures["cases"] - figures["equal"]
    assert figures["unexplained"] == 0 and sum(rules.values()) == differ
    assert set(rules) == {"free_rule", "too_long_alone", "enters_cache"}
    text = (ROOT / name).read_text(encoding="utf-8").partition("how_true_is_it.md")[0]
    for count in (figures["cases"], figures["equal"], differ, *rules.values()):
        assert re.search(rf"(?<![\d,]){count:,}(?![\d,])", text), count
