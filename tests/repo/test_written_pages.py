"""The pages of ``diagrams/`` are written by hand, and each figure in them is that of a run now."""

from __future__ import annotations

import gc
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pytest import MonkeyPatch

from minisched.bench.tiny_llama import write_tiny_llama
from minisched.checks.causes import lost_ns, waits
from minisched.checks.overlap import device_busy, host_busy, intersection, length, measure, union
from minisched.checks.profiled import is_step
from minisched.core import Request, SamplingParams
from minisched.devices.cost import MILLISECOND, SIM_COST
from minisched.devices.registry import open_device
from minisched.devices.sim import SimDevice, SimStream, VectorArrays
from minisched.export.layout import settled
from minisched.export.pd_or_mixed import both, figures_of, rows
from minisched.export.pictures.waits import FEATURES, run_with
from minisched.export.units import ms
from minisched.loops.design import LOOPS, find_loop
from minisched.loops.pd import Link
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.policy.rules import Rules, rules_of_admission
from minisched.policy.systems import RULES, find_rules
from minisched.recipes import RECIPES, SPLIT, Recipe, a_bit_of_everything, run_of, tokens
from minisched.relay import RELAYS
from minisched.scheduler import SchedulerConfig
from minisched.trace import Slice, Trace
from minisched.trace.events import is_host

ROOT = Path(__file__).resolve().parents[2]
Table = list[list[str]]  # rows of cells; the first row is the head


def text_of(name: str) -> str:
    """A page, with each line break as a space in prose."""
    return (ROOT / name).read_text("utf-8")


def tables(name: str) -> list[Table]:
    """The tables of a page in order, without the lines that set the heads off."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text_of(name), re.M):
        cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in block.splitlines()]
        assert all(set(cell) <= {*"-: "} for cell in cells[1])
        found.append([cells[0], *cells[2:]])
    return found


def columns(table: Table) -> dict[str, dict[str, str]]:
    """A table with names on the left, by column and name."""
    heads, *lines = table
    return {head: {line[0]: line[at] for line in lines} for at, head in enumerate(heads) if head}


# -- thread_or_stream.md: transfers and waits, counted on the simulated device ---------------------

STREAM_OR_THREAD = {  # column -> loop, and whether every request has a mask
    "stream": ("overlap", False),
    "thread": ("overlap_thread", False),
    "stream, with masks": ("overlap", True),
    "thread, with masks": ("overlap_thread", True),
}


def counted(loop: str, has_masks: bool, fast: int) -> tuple[Trace, Counter[tuple[str, str]]]:
    """The usual five requests on a device ``fast`` times as fast: the trace, and the counts.

    Counted are transfers and their bytes by the thread that ships, and what a thread waits for.
    """
    device, counts = SimDevice(), Counter[tuple[str, str]]()

    def asarray(xp: VectorArrays, values: Sequence[int]) -> Any:
        lane, _ = device.recorder.here()
        counts["transfers", lane] += bool(values)
        counts["bytes", lane] += 8 * len(values)  # integers have 64 bits on torch
        return make(xp, values)

    def wait(stream: SimStream, op: Any) -> None:
        counts[stream.name, op.name.rstrip("0123456789 ")] += 1
        hold(stream, op)

    def run_until_done(sim: SimDevice, op: Any) -> None:
        counts["host", op.name.rstrip("0123456789 ")] += not op.done
        block(sim, op)

    make, hold, block = VectorArrays.asarray, SimStream.wait, SimDevice.run_until_done
    usual = SPLIT if has_masks or loop == "overlap_thread" else SIM_COST
    cost = replace(
        usual, forward_base=usual.forward_base // fast, sample=usual.sample // fast,
        forward_per_token=usual.forward_per_token // fast, copy=usual.copy // fast,
    )  # fmt: skip
    with MonkeyPatch.context() as patch:
        patch.setattr(VectorArrays, "asarray", asarray)
        patch.setattr(SimStream, "wait", wait)
        patch.setattr(SimDevice, "run_until_done", run_until_done)
        recipe = replace(a_bit_of_everything(loop, delay_sample=has_masks), cost=cost)
        return recipe.play(device).trace, counts


def stream_or_thread(loop: str, has_masks: bool, fast: int = 1) -> dict[str, str]:
    """What a column of the page must have, by the names on the left."""
    trace, counts = counted(loop, has_masks, fast)
    named: dict[str, list[Slice]] = defaultdict(list)
    for item in trace.slices:
        named[item.name].append(item)
    steps, decodes, masks = len(named["forward"]), settled(trace), union(named["mask"])
    ends = {item.step: item.end for item in named["forward"]}

    def lane(name: str) -> str:
        return named[name][0].lane if named[name] else "-"

    def per_step(of: str) -> str:
        found = sorted((name, count) for (one, name), count in counts.items() if one == of)
        return ", ".join(f"{name} {count / steps:.2f}" for name, count in found if count) or "none"

    def ms_a_step(nanoseconds: int) -> str:
        return f"{nanoseconds / steps / MILLISECOND:.2f}"

    settled_ns = (decodes[-1].start - decodes[0].start) / (len(decodes) - 1)
    hidden = length(intersection(masks, device_busy(trace))) / max(1, length(masks))
    return {
        "a settled decode step (ms)": f"{settled_ns / MILLISECOND:.2f}",
        "host threads busy (ms a step)": ms_a_step(length(host_busy(trace))),
        "the forward pass is launched on": lane("launch"),
        "sampling is launched on": lane("launch sample" if named["launch sample"] else "launch"),
        "the mask is built on": lane("mask"),
        "the device works while the mask is built": f"{100 * hidden:.0f} %" if masks else "-",
        "transfers to the device, a step": per_step("transfers"),
        "bytes to the device, a step": per_step("bytes"),
        "the scheduler waits for, a step": per_step("host"),
        "the scheduler waits (ms a step)": ms_a_step(
            sum(item.duration for item in trace.on("host") if item.name == "wait")
        ),
        "the worker thread waits for, a step": per_step("worker thread"),
        "logits wait for their sampling (ms a step)": ms_a_step(
            sum(item.start - ends[item.step] for item in named["sample"])
        ),
    }


def test_a_thread_and_a_stream_cost_what_the_page_says() -> None:
    path = "diagrams/thread_or_stream.md"
    for table, fast in zip(tables(path), (1, 4), strict=True):
        found = columns(table)
        assert found.keys() == STREAM_OR_THREAD.keys() and len(table) > 3
        for head, (loop, has_masks) in STREAM_OR_THREAD.items():
            run = stream_or_thread(loop, has_masks, fast)
            assert found[head] == {name: run[name] for name in found[head]}, (head, fast)
    words = " ".join(text_of(path).split())
    for cost, about in ((SIM_COST.host["launch"], "Launching a step takes {} ms"),
                        (SPLIT.host["launch sample"], "{} ms of it launch its sampling"),
                        (SIM_COST.host["mask"], "takes {} ms to build")):  # fmt: skip
        assert about.format(ms(cost)) in words
    shipped = columns(tables(path)[0])
    for head in ("stream, with masks", "thread, with masks"):
        assert shipped[head]["bytes to the device, a step"].split()[-1] + " bytes" in words


# -- async_scheduling_three_way_compare.md: what each loop costs, and what it waits for ------------

THREE_WAY = "diagrams/async_scheduling_three_way_compare.md"
LENGTHS = (4, 7, 10, 13)  # tokens of the requests whose ends are counted
SHORT, LONG = 12, 36  # tokens of two runs that differ in settled steps only


def four(params: Sequence[SamplingParams]) -> list[Request]:
    """Four requests that arrive together and share nothing."""
    return [Request(f"r{at}", range(20 * at, 20 * at + 6), each) for at, each in enumerate(params)]


@cache
def generated() -> dict[str, list[int]]:
    """The tokens of these requests, the same on every loop."""
    return Recipe("serial", four([tokens(LONG)] * 4)).play().outputs


def wasted_rows(loop: str, by_token: bool) -> str:
    """Rows computed without use, for each request that ends: by a stop token, or by length."""
    requests = four([tokens(count) for count in LENGTHS])
    for req, count in zip(requests, LENGTHS, strict=True) if by_token else ():
        stop = frozenset({generated()[req.rid][count - 1]})
        req.params = replace(tokens(LONG), stop_token_ids=stop)
    marks = Recipe(loop, requests).run().marks
    return f"{sum(mark.name == 'wasted row' for mark in marks) / len(requests):g}"


@pytest.mark.thorough
def test_every_loop_costs_what_the_page_says() -> None:
    _, words, (heads, *costs), *_ = tables(THREE_WAY)
    systems = ("vllm_async", "overlap", "mindie_dual", "mini_overlap", "mlx_async")
    assert words[1][1:] == [LOOPS[loop].follows for loop in systems]
    assert [row[0] for row in costs] == [f"`{loop}`" for loop in LOOPS] and len(heads) == 8
    for loop, row in zip(LOOPS, costs, strict=True):
        trace = run_of(loop)
        short, long = (Recipe(loop, four([tokens(n)] * 4)).run().end for n in (SHORT, LONG))
        assert row[1:] == [
            f"{(long - short) / (LONG - SHORT) / MILLISECOND:.2f}",
            f"{measure(trace).device_busy_percent:.0f} %",
            f"{measure(trace).host_hidden_percent:.0f} %",
            f"{run_of('serial').end / trace.end:.2f}×",
            wasted_rows(loop, by_token=True),
            wasted_rows(loop, by_token=False),
            f"{ms(trace.end)} ms",
        ], loop


OPS = {"sample": "sampling", "forward": "the forward pass"}
FAST = replace(  # a device twice as fast
    SIM_COST, forward_base=SIM_COST.forward_base // 2, sample=SIM_COST.sample // 2,
    forward_per_token=SIM_COST.forward_per_token // 2, verify=SIM_COST.verify // 2,
    draft=SIM_COST.draft // 2,
)  # fmt: skip


def waits_of(loop: str, feature: str) -> list[str]:
    """A row of the page's tables of waits, without the loop's name."""
    spec, (_, settings) = find_loop(loop), FEATURES[feature]
    refuses = spec.refusals(spec.relays[0])
    for word in (feature.removeprefix("late "), settings.get("speculative_algorithm")):
        if word in refuses:
            return [f"refused: {refuses[word]}", *[""] * 6]
    counts = Counter((str(mark.attrs["op"]), mark.attrs["reason"])
                     for mark in waits(run_with(loop, feature)))  # fmt: skip
    cells = [", ".join(f"{OPS[op]} of {n} steps ({why})" for (op, why), n in counts.items())]
    for cost in (SIM_COST, FAST):
        runs = [run_with(loop, feature, cost, is_on=is_on) for is_on in (True, False)]
        lost = [f"{ms(time)} ms {why}" for why, time in lost_ns(runs[0]).items() if time]
        cells += [", ".join(lost), *(f"{ms(run.end)} ms" for run in runs)]
    return [cell or "nothing" for cell in cells]


@pytest.mark.thorough
@pytest.mark.parametrize("at", range(len(FEATURES)), ids=[*FEATURES])
def test_every_loop_waits_for_what_the_page_says(at: int) -> None:
    (_, *found), feature = tables(THREE_WAY)[3 + at], [*FEATURES][at]
    assert len(found) == 6
    for name, *cells in found:
        (loop,) = re.findall(r"`(\w+)`", name)
        assert cells == waits_of(loop, feature), (loop, feature)


# -- mindie_pipeline_refactor.md: two layers, and one pipeline instead -----------------------------


def test_the_two_pipelines_cost_what_the_page_says() -> None:
    (table,) = tables("diagrams/mindie_pipeline_refactor.md")
    runs = {
        "two layers": run_of("mindie_dual"),
        "two layers, filled on the device": a_bit_of_everything("mindie_dual", "fill_device").run(),
        "one pipeline": run_of("mindie_single"),
    }
    assert columns(table).keys() == runs.keys()
    for head, trace in runs.items():
        report = measure(trace)
        assert columns(table)[head] == {
            "steps": f"{report.steps}",
            "makespan (ms)": f"{round(report.makespan_ns / 1e6, 2):g}",
            "device busy (%)": f"{report.device_busy_percent:.1f}",
            "host work (ms)": f"{round(report.host_busy_ns / 1e6, 2):g}",
            "host work a step (ms)": f"{report.host_busy_ns / report.steps / 1e6:.2f}",
            "wasted rows": f"{report.wasted_rows}",
            "host threads": f"{len({item.lane for item in trace.slices if is_host(item.lane)})}",
            "states of a request": f"{len({mark.name for mark in trace.marks} & KEPT)}",
        }


KEPT = {"ledger", "context"}  # marks: each class that keeps state of requests records its own


# -- pd_or_mixed.md: two devices, or mixed chunks on one -------------------------------------------


def decoding(count: int) -> list[Request]:
    """Requests with a short prompt and a long answer, all there at the beginning."""
    return [Request(f"s{at}", range(at, at + 12), tokens(36)) for at in range(count)]


def prompts(count: int, length: int) -> list[Request]:
    """Requests with a prompt of that length and a short answer, one every 40 ms."""
    return [
        Request(f"p{at}", [(7 * at + i) % 250 for i in range(length)], tokens(8),
                arrival_time=(60 + 40 * at) * MILLISECOND)
        for at in range(count)
    ]  # fmt: skip


def test_pd_and_mixed_chunks_cost_what_the_page_says() -> None:
    path, link, recipe = "diagrams/pd_or_mixed.md", Link(), RECIPES["pd"]
    slow = {"bytes_per_second": link.bytes_per_second // 10, "latency": 10 * link.latency}
    usual, others = tables(path)
    assert usual[1:] == [list(row) for row in rows(*both(recipe.requests))]
    pairs = {
        "one request": both(decoding(1)),
        "short prompts": both(decoding(3) + prompts(4, 12)),
        "more, longer prompts": both(decoding(4) + prompts(8, 512)),
        "a slow link": both(recipe.requests, **slow),
    }
    runs = {f"{name}: {loop}": run for name, pair in pairs.items()
            for loop, run in zip(("PD", "mixed"), pair, strict=True)}  # fmt: skip
    assert [line[0] for line in others[1:]] == [*runs]
    for line in others[1:]:
        figures = figures_of(runs[line[0]])
        assert line[1:] == [figures[of] for of in figures if ": " in of], line[0]
        assert others[0][1:] == [of.partition(": ")[2] for of in figures if ": " in of]
    words = " ".join(text_of(path).split())
    assert f"in chunks of {recipe.config.chunked_prefill_size}," in words
    assert f"A step takes {ms(SIM_COST.forward_base)} ms, plus" in words
    assert f"plus {ms(SIM_COST.forward_per_token)} ms for each token" in words
    assert f"A message takes {ms(link.latency)} ms" in words
    assert f"{link.bytes_per_second // 10**9} GB/s" in words
    assert f"{link.slot_bytes // 1024} KiB" in words


# -- designs.md: the loops, the relays, and the features that loops refuse -------------------------


def rows_of(*heads: str) -> Table:
    """The rows of a table of the page, by its heads."""
    (found,) = (rows for first, *rows in tables("lessons/site/docs/designs.md")
                if first == [*heads])  # fmt: skip
    return found


def test_the_page_of_designs_has_each_loop_and_each_relay() -> None:
    assert rows_of("loop", "follows", "steps in flight", "past a length", "relays") == [
        [f"`{name}`", spec.follows, f"{spec.depth}", f"{spec.overrun}", ", ".join(spec.relays)]
        for name, spec in LOOPS.items()
    ]
    takers = {relay: [name for name, spec in LOOPS.items() if relay in spec.relays]
              for relay in RELAYS}  # fmt: skip
    assert rows_of("relay", "needs", "loops that take it") == [
        [f"`{name}`", spec.needs, ", ".join(takers[name]) or "none"]
        for name, spec in RELAYS.items()
    ]


def test_the_page_of_designs_has_each_refusal_with_its_reason() -> None:
    refused = {
        (feature, ":".join(filter(None, (name, relay))), reason)
        for name, spec in LOOPS.items()
        for word, reason in spec.refuses.items()
        for feature, _, relay in [word.partition(" with ")]
        if feature not in ("other relays", "real devices")
    }
    assert refused == {
        (feature, design, reason)
        for features, designs, reason in rows_of("refused", "by", "because")
        for feature in features.split(", ")
        for design in re.findall(r"`([\w:]+)`", designs)
    }


# -- rules.md: the answers of each system, and the cost of each ------------------------------------

RULES_PAGE = "diagrams/rules.md"
SYSTEMS = ("sglang", "vllm", "")  # of its tables of costs; the last has whole systems


def test_the_page_of_rules_has_the_answers_of_each_system() -> None:
    (heads, *answers), *_ = tables(RULES_PAGE)
    systems = [rules_of_admission(system) for system in RULES.values()]
    assert heads == ["rule", "question", *RULES]
    assert answers == [
        [f"`{it.name}`", it.metadata["question"], *(getattr(rules, it.name) for rules in systems)]
        for it in fields(Rules)
    ]


def requests_with_shared_beginnings() -> list[Request]:
    """Thirty; one in ten ignores an end-of-text token, every sixth is urgent."""
    dice = Random(7)
    beginnings = [[dice.randrange(250) for _ in range(dice.randrange(16, 60))] for _ in range(4)]
    return [
        Request(
            f"r{at}",
            dice.choice(beginnings) + [dice.randrange(250) for _ in range(dice.randrange(1, 40))],
            SamplingParams(max_new_tokens=dice.randrange(8, 48), ignore_eos=at % 10 == 3),
            arrival_time=at * 10 * MILLISECOND,
            priority=20 * (at % 6 == 5),
        )
        for at in range(30)
    ]


@cache
def cost_of(rules: str) -> tuple[list[str], dict[str, list[int]]]:
    """The figures of a row, and the tokens. ``serial`` has rules that reserve for prompts alone."""
    config = SchedulerConfig(
        kv_tokens=300, page_size=4, max_running_requests=8, chunked_prefill_size=32, rules=rules,
        schedule_conservativeness=0.0, enable_priority_scheduling=True,
    )  # fmt: skip
    loop = "serial" if find_rules(rules).reserves == "prompt" else "overlap"
    model = HashModel(250, eos_ids=frozenset(range(0, 250, 40)))
    run = Recipe(loop, requests_with_shared_beginnings(), config, model=model).play()
    first = [item.ttft_ns for item in run.metrics.ended if item.ttft_ns is not None]
    admitted = [mark.attrs for mark in run.trace.marks if mark.name == "admit"]
    return [
        str(measure(run.trace).steps),
        str(sum(int(attrs["extend_len"]) for attrs in admitted)),
        f"{run.metrics.cache_hit_rate:.0%}",
        str(run.metrics.num_retractions),
        f"{sum(first) / len(first) / MILLISECOND:.1f}",
        f"{run.metrics.last_output / MILLISECOND:.1f}",
    ], run.outputs


@pytest.mark.thorough
def test_an_answer_costs_what_the_page_says() -> None:
    _, *costs = tables(RULES_PAGE)
    same = re.findall(r"^No difference here: (.*)\.$", text_of(RULES_PAGE), re.M)
    for (_, *lines), system in zip(costs, SYSTEMS, strict=True):
        for name, *figures in lines:
            rules = name.split("`")[1]
            changed = f"{system},{rules}" if "=" in rules else rules
            assert (figures, cost_of("sglang")[1]) == cost_of(changed), changed
    for words, system in zip(same, SYSTEMS, strict=False):
        for rules in re.findall(r"`(\S+)`", words):
            assert cost_of(f"{system},{rules}") == cost_of(system), rules


# -- mlx_caches.md: the memory that MLX keeps ------------------------------------------------------


@pytest.mark.thorough
def test_clearing_mlx_s_cache_saves_what_the_page_says(tmp_path: Path) -> None:
    """Two long requests through a small Llama, whose window grows by a token a step."""
    import mlx.core as mx

    from minisched.models.mlx_lm import MlxLm

    folder = write_tiny_llama(tmp_path, hidden=256, kv_heads=4, intermediate=256)
    model = MlxLm.from_directory(folder)
    config, most = SchedulerConfig(kv_tokens=2 * (128 + 64)), {}
    limit = mx.set_cache_limit(1 << 30)  # stock MLX stops at 32 MiB on a CPU
    try:
        for every in (0, 16):
            gc.collect()
            mx.clear_cache()
            requests = [Request(rid, range(5 + at, 45 + at), tokens(128))
                        for at, rid in enumerate("ab")]  # fmt: skip
            trace = run_loop("mlx_async", open_device("mlx"), model, requests, config,
                             clear_cache_every=every).trace  # fmt: skip
            most[every] = max(item.value for item in trace.counters if item.name == "cache memory")
    finally:
        mx.set_cache_limit(limit)
    said = re.search(r"grew to (\d+) MiB.* at most (\d+) MiB", text_of(
        "lessons/site/docs/mlx_caches.md"), re.S)  # fmt: skip
    assert said
    for every, figure in zip(most, said.groups(), strict=True):
        assert most[every] / 2**20 == pytest.approx(int(figure), rel=0.3)


@pytest.mark.thorough
def test_prompts_in_the_chain_cost_what_the_page_says(cli: Any) -> None:
    page = "lessons/site/docs/mlx_caches.md"
    command = re.findall(r"^minisched (compare .*-running-requests) 8( .*)$", text_of(page), re.M)[
        0
    ]
    table = next(it for it in tables(page) if it[0][0].startswith("virtual time"))
    loops = ("serial", "mlx_async", "mlx_async:chain_extend=true", "overlap")
    assert [head.strip("`") for head in table[0][1:]] == [loop.split(":")[-1].partition("=")[0]
                                                          for loop in loops]  # fmt: skip

    def shown(places: int, column: str) -> list[str]:
        """A column of what the command prints, in the order of the loops."""
        out = cli(f" {places}".join(command))[1]
        heads, *lines = [re.split("  +", line) for line in out.splitlines() if "  " in line]
        found = {line[0]: line[heads.index(column)] for line in lines if line[0] in loops}
        return [found[loop] for loop in loops]

    few, many = ([f"{float(time):,.1f}" for time in shown(places, "makespan (ms)")]
                 for places in (8, 24))  # fmt: skip
    assert table[1:] == [
        ["24 requests, 8 places (ms)", *few],
        ["hidden share of the host's work", *shown(8, "host hidden")],
        ["rows wasted", *shown(8, "wasted rows")],
        ["24 requests, 24 places (ms)", *many],
    ]


# -- beside_the_guides.md: the guide's targets for monitoring --------------------------------------


@pytest.mark.thorough
def test_token_usage_and_running_requests_do_not_show_a_loss_of_time(cli: Any) -> None:
    heads = "--kv-tokens", "highest token usage", "highest #running-req", "time"
    table = next(
        table for table in tables("lessons/site/docs/beside_the_guides.md")
        if tuple(cell.strip("`") for cell in table[0]) == heads
    )  # fmt: skip
    for kv_tokens, usage, running, time in table[1:]:
        _, out, err = cli(f"run --requests 32 --kv-tokens {kv_tokens} --log")
        usages = [float(it) for it in re.findall(r"token usage: ([0-9.]+)", out + err)]
        counts = [int(it) for it in re.findall(r"#running-req: ([0-9]+)", out + err)]
        assert (f"{max(usages):.0%}".replace("%", " %"), str(max(counts))) == (usage, running)
        assert f", {time};" in out


# -- own_model.md: the model on the page runs ------------------------------------------------------


def test_the_model_of_own_model_md_runs_and_has_40_lines() -> None:
    page = (ROOT / "lessons/site/docs/own_model.md").read_text("utf-8")
    code = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(code) == 1 and len([line for line in code[0].splitlines() if line.strip()]) <= 40
    names: dict[str, Any] = {}
    exec(compile(code[0], "own_model.md", "exec"), names)
    found = names["found"]
    assert found.identical and not found.errors
    assert min(len(set(tokens)) for tokens in found.runs[0].outputs.values()) > 4


# -- recipes.md: the ranges that mark steps --------------------------------------------------------


def test_check_takes_each_range_of_the_recipes_for_a_step() -> None:
    table = next(it for it in tables("lessons/site/docs/recipes.md") if it[0][-1] == "range")
    names = [name for row in table[1:] for name in re.findall("`([^`]+)`", row[-1])]
    assert len(names) == 8 and all(map(is_step, names))
    assert not is_step("scheduler.get_next_batch_to_run")
