"""Each figure in the READMEs and in the prose of the pages is recomputed, or it has a date.

A figure is a number, in a page a number with a unit. Code, links and generated tables are left out.
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
from minisched.loops.design import LOOPS
from minisched.relay import RELAYS
from minisched.trace.files import UNPACKED_MIB

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "lessons" / "site" / "docs"
CODE = re.compile(
    r"^```.*?^```|^ *\d+\. |`[^`]*`|\]\([^)]*\)|<[^>]+>|#\d+|-?\d\.\d+\.\d+", re.M | re.S
)
NUMBER = r"(?<![\w.,+-])\d[\d,]*(?:\.\d+)?(?![\w.]*[A-Za-z_])"
UNIT = r"(?: to (?P<to>[\d,.]+))? ?(?:%|x\b|(?:ms|µs|s|minutes|times|MB|GB|MiB|GiB|loops|relays)\b)"
CLI = Callable[[str], Any]


def prose(text: str, has_tables: bool = True) -> str:
    """A page without code and links."""
    text = CODE.sub(" ", text)
    return text if has_tables else re.sub(r"^\|.*$", "", text, flags=re.M)


def numbers(text: str) -> set[str]:
    """The numbers of a text, as they stand there."""
    return set(re.findall(NUMBER, text))


def with_units(text: str) -> set[str]:
    """The numbers of a text that have a unit."""
    found = re.finditer(f"(?P<one>{NUMBER}){UNIT}", text)
    return {it for one in found for it in one.group("one", "to") if it}


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
    return {
        *runs, *(f"{count:,}" for count in set().union(*cases)),
        f"{-(-lines // 100) * 100}", f"{LOOPS['overlap'].depth}",
        *(f"{at}" for at in (chinese[0], chinese[-1])),
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
COMPUTED: dict[str, Callable[[CLI], set[str]]] = {
    "beside_the_guides.md": lambda cli: of_monitoring() | of_host_work() | QUOTED,
    "check_mine.md": lambda cli: THRESHOLDS,
    "designs.md": of_the_designs,
    "recipes.md": lambda cli: THRESHOLDS,
    "running.md": lambda cli: of_host_work() | {"100"},  # a share above 100 % is explained
}
DATED = {"benchmarks.md", "mlx_caches.md", "real_models.md", "real_traces.md", "the_code.md"}


@pytest.mark.thorough
@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_every_figure_of_a_page_is_computed_or_has_a_date(page: str, cli: CLI) -> None:
    text = (DOCS / page).read_text("utf-8")
    if page in DATED:
        assert re.search(r"\b\d\d? November 2026", text), "when was it measured?"
        return
    said = with_units(prose(text, has_tables=False))
    assert said <= (COMPUTED[page](cli) if page in COMPUTED else set())


def test_a_figure_is_seen_and_code_is_not() -> None:
    text = prose("8 loops, 1.73 times; N-1, N+1, 0.x, `9`, [a page](a/11.md)")
    assert numbers(text) == {"8", "1.73"}
    assert with_units(prose("4 to 45 ms, 7 %, 12 steps, 3 x, #5 ms")) == {"4", "45", "7", "3"}
