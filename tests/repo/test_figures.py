"""Each figure in the READMEs and in the pages is recomputed, or it has a date.

A figure is a number, in a page a number with a unit. Code and links are left out, and so are tables
that another test compares cell by cell. ``test_lessons.py`` compares the lessons with their runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minisched import loops, nano
from minisched.checks import ahead, causes, findings
from minisched.devices.cost import SIM_COST
from minisched.export.units import ms
from minisched.learn import grade
from minisched.loops.design import LOOPS
from minisched.loops.pd import Link
from minisched.models import fetch, promise
from minisched.recipes import RECIPES, SPLIT
from minisched.relay import RELAYS
from minisched.trace.files import UNPACKED_MIB
from tests.support import numbers, prose, with_units

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "lessons" / "site" / "docs"
CLI = Callable[[str], Any]


# -- The READMEs: every number ---------------------------------------------------------------------


def of_the_readme(cli: CLI, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Every number that the README may have, computed now."""
    assert loops.__file__  # its import fills the registry
    nano.main()
    out = capsys.readouterr().out + cli("compare")[1]
    runs = re.findall(r"^serial: (\d+) ms", out, re.M)
    runs += re.findall(r"overlap takes ([\d.]+) ms instead of ([\d.]+) ms \(([\d.]+) x", out)[0]
    kept = json.loads((DOCS / "fidelity.json").read_text("utf-8"))
    cases = [{it["cases"], it["equal"], it["cases"] - it["equal"]} for it in kept.values()]
    lines = len(Path(nano.__file__).read_text("utf-8").splitlines())
    chinese = sorted(int(path.name[:2]) for path in ROOT.glob("lessons/zh/[0-9]*.py"))
    verdicts = (DOCS / "real_traces.md").read_text("utf-8")
    pythons = re.findall(r'Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    return {
        *runs, *(f"{count:,}" for count in set().union(*cases)),
        f"{-(-lines // 100) * 100}", f"{LOOPS['overlap'].depth}",
        *(f"{at}" for at in (chinese[0], chinese[-1])), pythons[0], pythons[-1],
        f"{len(LOOPS)}", f"{len(RELAYS)}",
        f"{len(re.findall(r'^[|] [HTN] ', verdicts, re.M))}",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_every_number_of_the_readme_is_computed(
    name: str, cli: CLI, capsys: pytest.CaptureFixture[str]
) -> None:
    said = numbers(prose((ROOT / name).read_text("utf-8")))
    assert len(said) >= 15
    assert said <= of_the_readme(cli, capsys)


# -- The pages: every number with a unit -----------------------------------------------------------


def shares(parts: dict[str, float]) -> set[str]:
    """Each part of a whole in percent."""
    return {f"{100 * part / sum(parts.values()):.0f}" for part in parts.values()}


def of_host_work() -> set[str]:
    """Shares of the phases with 256 running requests as measured, and with the usual costs."""
    table = (ROOT / "traces" / "bench" / "phases.md").read_text("utf-8")
    rows = re.findall(r"^\| (\w+), 256 running, 0 waiting \| ([\d.]+) ", table, re.M)
    measured = {name: float(time) for name, time in rows}
    return shares(measured) | shares({name: float(SIM_COST.host[name]) for name in measured})


def of_monitoring() -> set[str]:
    """What follows from the table of token usage, which ``test_written_pages.py`` recomputes."""
    page = (DOCS / "beside_the_guides.md").read_text("utf-8")
    rows = re.findall(r"^\| \d+ \| (\d+) % \| (\d+) \| ([\d.]+) ms \|", page, re.M)
    most, fewest = rows[0], rows[-1]
    longest = (DOCS / "long_document.py").read_text("utf-8")  # built and run with the site
    return {
        max((usage for usage, _, _ in rows), key=int),
        f"{100 * int(fewest[1]) / int(most[1]):.0f}",
        f"{100 * float(fewest[2]) / float(most[2]) - 100:.0f}",
        *re.findall(r"\*longest pause\* .*?: ([\d.]+) s .*? ([\d.]+) s", longest, re.S)[0],
    }


COMMANDS = (  # of designs.md; the other figures are in tests of their designs
    "compare --loops overlap,trtllm_overlap,trtllm_max_utilization --kv-tokens 400",
    "compare --loops overlap --speculative-algorithm NGRAM",
    "compare --loops vllm_pp4,vllm_pp4:harvest_when_done=true",
)
ELSEWHERE = {  # tests/loops/test_two_batch.py, tests/features/test_beam_search.py
    "717.8", "643.9", "580.2", "748.2", "642.2", "733.1", "1,181.5",
}  # fmt: skip


def of_the_designs(cli: CLI) -> set[str]:
    """Milliseconds that the commands of the page print, in full and rounded."""
    out = " ".join(cli(line)[1] for line in COMMANDS)
    times = [float(time) for time in re.findall(r"([\d.]+)(?= ms)", out)]
    return {word for time in times for word in (f"{time:,.1f}", f"{time:,.0f}")} | ELSEWHERE


QUOTED = {"15", "0.3", "0.5", "30", "3", "80", "60", "1", "50"}  # claims that the page judges
THRESHOLDS = {
    f"{ahead.MOST}", f"{findings.BUSY}", f"{UNPACKED_MIB / 1024:g}",
    f"{causes.MOST_LATENCY / 1e6:g}", f"{causes.SHORT / 1e6:g}",
}  # fmt: skip


def of_pd() -> set[str]:
    """Costs of the simulated device and of the link, and the time between two prompts."""
    link, (*_, before, last) = Link(), RECIPES["pd"].requests
    return {
        ms(SIM_COST.forward_base), ms(SIM_COST.forward_per_token), ms(link.latency),
        f"{link.bytes_per_second // 10**9}", ms(last.arrival_time - before.arrival_time),
    }  # fmt: skip


def of_streams() -> set[str]:
    """Costs of the simulated device; the second table has a device four times as fast."""
    costs = SIM_COST.host["launch"], SPLIT.host["launch sample"], SIM_COST.host["mask"]
    return {*map(ms, costs), "4"}


def of_rules() -> set[str]:
    """The price of a rule, from a table that ``test_written_pages.py`` recomputes."""
    page = (ROOT / "diagrams" / "rules.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\S+)` \|.* ([\d.]+) \|$", page, re.M)
    times = {name: float(time) for name, time in reversed(rows)}  # the first table counts
    return {f"{100 * times['free_rule=lease'] / times['sglang'] - 100:.0f}"}


def of_the_titles() -> set[str]:
    """The figures in titles of diagrams, which ``minisched diagrams --check`` draws again."""
    sources = (path.read_text("utf-8") for path in (ROOT / "diagrams").glob("*.puml"))
    return with_units("\n".join(re.findall(r"^title .*", "\n".join(sources), re.M)))


COMPUTED: dict[str, Callable[[CLI], set[str]]] = {
    "beside_the_guides.md": lambda cli: of_monitoring() | of_host_work() | QUOTED,
    "check_mine.md": lambda cli: THRESHOLDS,
    "designs.md": of_the_designs,
    "leaderboard.md": lambda cli: {"100", "25"},  # a formula and a workload, not measurements
    "pd_or_mixed.md": lambda cli: of_pd(),
    "real_models.md": lambda cli: {f"{promise.TIMES}", f"{fetch.WHEEL_MB}"},
    "recipes.md": lambda cli: THRESHOLDS,
    "rules.md": lambda cli: of_rules(),
    "running.md": lambda cli: of_host_work() | {"100"},  # a share above 100 % is explained
    "teaching.md": lambda cli: {"3", "10", "5", "463"},  # a plan; a figure of lesson 12
    "thread_or_stream.md": lambda cli: of_streams(),
    "diagrams/README.md": lambda cli: of_the_titles(),
    "lessons/README.md": lambda cli: {f"{grade.MOST_SECONDS_SMALLER:g}"},
    "traces/README.md": lambda cli: THRESHOLDS,
}
COMPARED = (  # heads of tables, and the test that compares each cell
    ("| loop | ms for one more", "repo/test_written_pages.py", "every_loop_costs_what"),
    ("| loop | what waits for what", "repo/test_written_pages.py", "every_loop_waits_for_what"),
    ("| | PD separation", "repo/test_written_pages.py", "pd_and_mixed_chunks_cost_what"),
    ("| | first token, p50", "repo/test_written_pages.py", "pd_and_mixed_chunks_cost_what"),
    ("| rules | steps", "repo/test_written_pages.py", "an_answer_costs_what"),
    ("| | stream | thread", "repo/test_written_pages.py", "a_thread_and_a_stream_cost_what"),
    ("| virtual time, usual", "repo/test_written_pages.py", "prompts_in_the_chain_cost_what"),
    ("| `--kv-tokens`", "repo/test_written_pages.py", "token_usage_and_running_requests"),
    ("| lesson | the question", "repo/test_lessons.py", "it_has_its_parts_and_its_header"),
    ("| after lesson | the", "learn/test_what_lessons_say.py", "the_rush_falls_with_the_same"),
    ("| loop | idea", "learn/test_score.py", "the_board_has"),
)
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (
        *DOCS.glob("*.md"), *ROOT.glob("diagrams/*.md"), *ROOT.glob("lessons/*.md"),
        ROOT / "traces" / "README.md", ROOT / "CONTRIBUTING.md",
    )
)  # fmt: skip
DATE = re.compile(r"\b\d\d? November 2026")  # the mark of a measurement that is not repeated


def computed(page: str, cli: CLI) -> set[str]:
    """The figures that a page may have without a date."""
    key = page if page in COMPUTED else page.rpartition("/")[2]
    return COMPUTED[key](cli) if key in COMPUTED else set()


def without_compared_tables(text: str) -> str:
    """A page without the tables that other tests compare cell by cell."""
    heads = tuple(head.replace(" ", "") for head, *_ in COMPARED)
    parts = re.split(r"\n\n+", text)
    return "\n\n".join(part for part in parts if not part.replace(" ", "").startswith(heads))


def undated(text: str) -> str:
    """The sections without a date; a date in the first one is for all, with "on this page"."""
    first, *others = re.split(r"^(?=## )", text, flags=re.M)
    if DATE.search(first) and "on this page" in " ".join(first.split()):
        return ""
    return "\n".join(part for part in (first, *others) if not DATE.search(part))


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES)
def test_every_figure_of_a_page_is_computed_or_has_a_date(page: str, cli: CLI) -> None:
    text = undated(without_compared_tables((ROOT / page).read_text("utf-8")))
    said = with_units(prose(text))
    assert not said or said <= computed(page, cli)


@pytest.mark.parametrize("page", PAGES)
def test_a_share_is_that_of_its_two_counts(page: str) -> None:
    text = " ".join((ROOT / page).read_text("utf-8").split())
    for part, whole, percent in re.findall(r"(\d+) of (\d+)[ ,]\(?(\d+) %", text):
        share = 100 * int(part) / int(whole)
        assert int(percent) in (int(share), round(share)), (part, whole)  # down, or to the nearest


def test_each_table_left_out_has_its_test() -> None:
    text = "".join((ROOT / page).read_text("utf-8") for page in PAGES).replace(" ", "")
    for head, file, name in COMPARED:
        assert f"\n{head}".replace(" ", "") in text, head
        assert f"def test_{name}" in (ROOT / "tests" / file).read_text("utf-8"), name


def test_a_figure_is_seen_and_code_is_not() -> None:
    text = prose("8 loops, 1.73 times; N-1, N+1, 0.x, `9`, [a page](a/11.md)")
    assert numbers(text) == {"8", "1.73"}
    assert with_units(prose("4 to 45\nms, 7 %, 12 steps, 3 x, #5 ms")) == {"4", "45", "7", "3"}
    page = "in 5 ms\n\n| loop | idea |\n|---|---|\n| a | 7 ms |\n\n## B\n9 ms on 3 November 2026\n"
    assert with_units(undated(without_compared_tables(page))) == {"5"}
