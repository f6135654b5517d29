"""The comparison of PD separation and mixed chunks says what the two runs did."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import pytest

from minisched.core import Request, SamplingParams
from minisched.devices.cost import MILLISECOND, SIM_COST
from minisched.devices.sim import SimDevice
from minisched.engine.metrics import Percentiles
from minisched.export.pd_or_mixed import find_runs, pause, rows
from minisched.export.pd_or_mixed_page import both, other_runs, pd_or_mixed
from minisched.export.pictures.stages import pd_or_mixed as pd_against_mixed
from minisched.export.recipes import recipes
from minisched.loops.run import Run, run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig

GUIDE = [
    "deployment", "devices", "transfer", "schedulers", "prefill", "mixing",
    "scenario", "latency", "throughput",
]  # fmt: skip


@cache
def main_runs() -> tuple[Run, Run]:
    """The two loops on the workload of the page."""
    return both(recipes()["pd"].requests)


@cache
def others() -> dict[str, tuple[Run, Run]]:
    """The two loops on the other workloads."""
    return other_runs()


def cells() -> dict[str, tuple[str, str]]:
    """The table's rows, by title."""
    return {title: (pd, mixed) for title, pd, mixed in rows(*main_runs())}


def first(run: Run) -> Percentiles:
    """Time to first token."""
    assert run.metrics.ttft is not None
    return run.metrics.ttft


def between(run: Run) -> Percentiles:
    """Time between tokens."""
    assert run.metrics.itl is not None
    return run.metrics.itl


def test_every_row_of_the_guides_is_there_in_order() -> None:
    assert list(dict.fromkeys(title.partition(":")[0] for title in cells())) == GUIDE
    assert all(all(row) for row in rows(*main_runs()))


def test_what_is_counted_is_counted_again() -> None:
    pd, mixed = main_runs()
    assert cells()["devices"] == cells()["schedulers"] == ("2", "1")
    prompt_tokens = sum(len(req.prompt) for req in pd.requests)
    sent = [mark.attrs for mark in pd.trace.marks if mark.name == "kv transfer"]
    assert sum(int(mark["slots"]) for mark in sent) == prompt_tokens
    mebibytes = prompt_tokens * 32 / 1024
    assert cells()["transfer"][0].startswith(f"{mebibytes:.1f} MiB in {len(sent)} transfers, ")
    batched = [s for s in mixed.trace.on("forward") if s.name == "forward"]
    both_kinds = sum(item.mode == "mixed" for item in batched)
    assert both_kinds > 0
    assert cells()["mixing"][1].startswith(f"{both_kinds} of {len(batched)} steps")
    assert cells()["mixing"][0].startswith("0 of ")
    for run, cell in zip(main_runs(), cells()["throughput: in all"], strict=True):
        ends = [item.last_token or 0 for item in run.metrics.ended]
        tokens = sum(map(len, run.outputs.values()))
        assert cell == f"{tokens * 1e9 / max(ends):.0f} tokens/s"
    in_all = [run.metrics.throughput for run in (pd, mixed)]
    each = cells()["throughput: for each device"]
    assert each == (f"{in_all[0] / 2:.0f} tokens/s", f"{in_all[1]:.0f} tokens/s")


def test_the_pause_is_the_longest_gap_that_touches_a_prompts_step() -> None:
    """Worked out token by token on one run."""
    tokens = SamplingParams(max_new_tokens=12, ignore_eos=True)
    requests = [Request("a", [1, 2], tokens), Request("b", [3] * 90, tokens, 40 * MILLISECOND)]
    config = SchedulerConfig(chunked_prefill_size=30)
    run = run_loop("mixed", SimDevice(), HashModel(), requests, config, SIM_COST)
    steps = [s for s in run.trace.on("forward") if s.name == "forward" and s.mode != "decode"]
    found = 0
    for item in run.metrics.ended:
        heard = list(accumulate(item.itls, initial=item.first_token or 0))
        for start, end in pairwise(heard):
            if any(start < step.end and step.start < end for step in steps):
                found = max(found, end - start)
    assert pause(run) == f"{found / MILLISECOND:g} ms"


def test_the_picture_says_the_same_pauses_as_the_table() -> None:
    said = re.findall(r"longest pause while a prompt is computed ([^\"]+)\"", pd_against_mixed())
    assert tuple(said) == cells()["latency: longest pause while a prompt is computed"]


def test_nobody_to_pause() -> None:
    run = run_loop("mixed", SimDevice(), HashModel(), [Request("a", [1, 2])], cost=SIM_COST)
    assert pause(run) == "nobody decoded then"


# -- what the page says in words -------------------------------------------------------------------


def test_steadiness_is_what_the_second_device_buys() -> None:
    pd, mixed = main_runs()
    assert float(pause(pd).split()[0]) == between(pd).p50 / MILLISECOND
    assert float(pause(mixed).split()[0]) > 1.5 * between(mixed).p50 / MILLISECOND


def test_it_costs_a_device_and_a_later_first_token() -> None:
    pd, mixed = main_runs()
    assert 0.95 < pd.metrics.throughput / mixed.metrics.throughput < 1.05
    assert first(pd).p50 > first(mixed).p50 and first(pd).p99 > first(mixed).p99
    for item in pd.metrics.ended:
        assert max(item.itls) == item.itls[0], "the gap after a first token is the longest"


@pytest.mark.parametrize("name", ["one request", "short prompts"])
def test_where_pd_loses(name: str) -> None:
    pd, mixed = others()[name]
    assert pd.metrics.throughput < mixed.metrics.throughput
    assert first(pd).p50 > first(mixed).p50


def test_what_pd_is_for_and_that_it_is_dear() -> None:
    pd, mixed = others()["more, longer prompts"]
    assert between(pd).p50 < between(mixed).p50
    assert first(pd).p50 < first(mixed).p50 and first(pd).p99 < first(mixed).p99
    assert mixed.metrics.throughput < pd.metrics.throughput < 1.5 * mixed.metrics.throughput


def test_a_slow_link_delays_first_tokens_and_nobody_who_decodes() -> None:
    (fast, _), (slow, _) = main_runs(), others()["a slow link"]
    assert first(slow).p50 > first(fast).p50 and between(slow).p50 == between(fast).p50


def test_every_pair_gave_the_same_tokens() -> None:
    for pd, mixed in [main_runs(), *others().values()]:
        assert pd.outputs == mixed.outputs


def test_the_page_is_the_same_every_time() -> None:
    assert pd_or_mixed() == pd_or_mixed()


# -- the command -----------------------------------------------------------------------------------

LINE = "compare --max-new-tokens 12 --requests 3"


def test_compare_runs_both_beside_serial_and_prints_the_table(cli: Any) -> None:
    code, out, _ = cli(f"{LINE} --loops pd,mixed")
    assert code == 0 and "Identical: pd, mixed gave every request the same tokens" in out
    assert "PD separation" in out and all(word in out for word in GUIDE)
    code, out, _ = cli(f"{LINE} --loops pd,overlap")
    assert code == 0 and "PD separation" not in out


def test_the_table_is_in_the_json_too(cli: Any) -> None:
    result = json.loads(cli(f"{LINE} --loops pd,mixed --json")[1])
    assert result["identical"] is True
    assert [run["loop"] for run in result["runs"]] == ["serial", "pd", "mixed"]
    titles = [row[0] for row in result["pd_or_mixed"]]
    assert list(dict.fromkeys(title.partition(":")[0] for title in titles)) == GUIDE
    assert "pd_or_mixed" not in json.loads(cli(f"{LINE} --loops pd --json")[1])


def test_all_loops_leaves_both_out(cli: Any) -> None:
    result = json.loads(cli(f"{LINE} --loops all --json")[1])
    assert not {"pd", "mixed"} & {run["loop"] for run in result["runs"]}


def test_pd_is_refused_on_other_devices_and_in_replays(cli: Any) -> None:
    code, _, err = cli(f"{LINE} --loops pd --device thread")
    assert code == 2 and "does not run on device 'thread'" in err
    code, _, err = cli("scenario long-document --loop pd")
    assert code == 2 and "loop 'pd' can't be replayed: it is two engines" in err


def test_runs_are_found_by_loop_whatever_their_relay() -> None:
    pd, mixed = main_runs()
    assert find_runs([mixed, pd]) == (pd, mixed)
    assert find_runs([pd]) is None
