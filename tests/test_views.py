"""Every view shows what its trace says: counted in the picture, against runs of all kinds."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minisched.checks.overlap.overlap import forwards
from minisched.core import Request, SamplingParams
from minisched.devices.cost import SIM_COST, CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.export import native
from minisched.export.recipes import recipes
from minisched.export.views import NothingToShow, draw
from minisched.export.views.look import LOOKS
from minisched.export.views.radix_panel import MOST_LEAVES, MOST_LEVELS
from minisched.export.views.radix_tree import ROOT, Tree, tree_at
from minisched.export.views.schedule_policy import MOST_ROUNDS
from minisched.export.views.wording import ordinal
from minisched.memory import RadixCache
from minisched.memory.radix_node import TreeNode
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.topics import TOPICS
from minisched.trace import Mark, Recorder, Slice, Trace
from tests.support import LOOP_OPTIONS, VOCAB, Picture, Workload, check_picture, play, workloads
from tests.test_diagrams import luminance

REPOSITORY = Path(__file__).resolve().parents[1]
POLICY_VIEWS = [topic for topic in TOPICS if TOPICS[topic] != "loops"]
COST = CostModel(
    dict.fromkeys(("receive", "schedule", "prepare", "launch", "process", "output"), 7_000),
    forward_base=50_000, forward_per_token=1_000, sample=9_000, copy=3_000,
)  # fmt: skip
law = settings(max_examples=60, deadline=None)


@st.composite
def runs(draw: st.DrawFn, max_requests: int = 5) -> tuple[Trace, Engine]:
    """A small random run under any policy, through any loop."""
    loop, relay, options = draw(st.sampled_from(LOOP_OPTIONS))
    workload = draw(workloads(max_requests=max_requests))
    device = SimDevice()
    model = HashModel(VOCAB, eos_ids=workload.eos_ids)
    engine, _ = play(workload, loop, relay, options, device, model, COST)
    return device.recorder.trace(loop, "sim", "hash", "virtual"), engine


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Trace, Engine]:
    """A run in which memory is short: requests that need more than the pool has, all at once."""
    count, most = draw(st.integers(2, 4)), draw(st.integers(4, 9))
    params = SamplingParams(max_new_tokens=most, ignore_eos=True)
    requests = [Request(f"r{i}", [i, *range(draw(st.integers(1, 3)))], params)
                for i in range(count)]  # fmt: skip
    config = SchedulerConfig(
        kv_tokens=4 + most + draw(st.integers(2, 5)),
        schedule_conservativeness=0.0,
        run_first=draw(st.sampled_from(["prefill", "unified"])),
    )
    workload = Workload(requests, draw(st.permutations(range(count))), {}, config)
    loop, relay, options = draw(st.sampled_from(LOOP_OPTIONS))
    device = SimDevice()
    engine, _ = play(workload, loop, relay, options, device, HashModel(VOCAB), COST)
    return device.recorder.trace(loop, "sim", "hash", "virtual"), engine


def golden(topic: str) -> Trace:
    return recipes()[topic].run()


def picture_of(topic: str, trace: Trace) -> Picture:
    """The view, read back and checked; Hypothesis drops the example if there is nothing to show."""
    try:
        picture = Picture(draw(topic, trace))
    except NothingToShow:
        assume(False)
        raise
    check_picture(picture)
    return picture


def marks(trace: Trace, *names: str) -> list[Mark]:
    return [mark for mark in trace.marks if mark.name in names]


def steps_shown(trace: Trace, most: int) -> set[int]:
    return {item.step for item in forwards(trace)[:most]}


# -- all views ---------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", TOPICS)
def test_the_golden_trace_has_everything_that_its_view_shows(topic: str) -> None:
    trace = golden(topic)
    svg = draw(topic, trace)
    assert svg == draw(topic, trace) and svg.endswith("</svg>\n")
    picture = Picture(svg)
    check_picture(picture)
    assert "time" in picture.words and picture.width <= 900


@settings(max_examples=40, deadline=None)
@given(runs(), st.sampled_from(sorted(TOPICS)))
def test_any_run_can_be_drawn_or_one_sentence_says_why_not(run: Any, topic: str) -> None:
    try:
        check_picture(Picture(draw(topic, run[0])))
    except NothingToShow as error:
        assert str(error).count(".") == 1 and str(error).endswith(".")


@pytest.mark.parametrize("topic", POLICY_VIEWS)
def test_a_damaged_trace_gets_a_sentence_too(topic: str) -> None:
    """Marks that are missing, or that lack an attribute, never end in a traceback."""
    dice, refused = random.Random(topic), 0
    whole = golden(topic)
    for _ in range(60):
        kept = [damaged(mark, dice) for mark in whole.marks if dice.random() > 0.05]
        try:
            check_picture(Picture(draw(topic, replace(whole, marks=tuple(kept)))))
        except NothingToShow as error:
            assert str(error).endswith(".")
            refused += 1
    assert refused or topic == "generation_batch_result"  # it has one mark, which may lack


def damaged(mark: Mark, dice: random.Random) -> Mark:
    """The mark, now and then without one of its attributes or with one of the wrong type."""
    if not mark.attrs or dice.random() > 0.02:
        return mark
    name = dice.choice(sorted(mark.attrs))
    attrs = {key: value for key, value in mark.attrs.items() if key != name}
    return replace(mark, attrs=attrs if dice.random() < 0.5 else {**attrs, name: 0.5})


@pytest.mark.parametrize("topic", TOPICS)
def test_a_trace_without_events_gets_one_sentence(topic: str) -> None:
    empty = Trace("serial", "sim", "hash", "virtual", (), (), (), ())
    with pytest.raises(NothingToShow, match=r"^the trace has no [^.]*\.$"):
        draw(topic, empty)
    with pytest.raises(ValueError, match=r"^unknown topic 'nope'; the topics are radix_cache, "):
        draw("nope", empty)


@pytest.mark.parametrize("topic", POLICY_VIEWS)
def test_a_long_run_is_cut_and_says_so(topic: str) -> None:
    """Of 60 requests in hundreds of steps a picture shows the beginning, and names the whole."""
    recipe = recipes()[topic]
    copies = [
        Request(
            f"{req.rid}{n}", [token + n % 90 for token in req.prompt], req.params,
            arrival_time=req.arrival_time + 90_000_000 * n,
        )
        for n in range(60 // len(recipe.requests) + 12)
        for req in recipe.requests
    ]  # fmt: skip
    svg = draw(topic, replace(recipe, requests=copies).run())
    picture = Picture(svg)
    check_picture(picture)
    assert re.search(r"the first \d+ of \d+", picture.words) and len(svg) < 400_000


def test_views_need_only_the_standard_library() -> None:
    """Every golden run and its view, in an interpreter without site-packages."""
    program = (
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n"
        "from minisched.export.recipes import recipes\n"
        "from minisched.export.views import draw\n"
        "assert all(draw(topic, recipe.run()) for topic, recipe in recipes().items())\n"
        "roots = {name.partition('.')[0] for name in sys.modules} - {'minisched', '__main__'}\n"
        "print(sorted(roots - sys.stdlib_module_names))\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True)
    assert (done.stdout.decode().strip(), done.stderr.decode()) == ("[]", "")


def test_looks_can_be_told_apart_without_colour_and_read() -> None:
    """WCAG contrast of text on its fill; and what has one fill in a legend has another texture."""
    for look in LOOKS.values():
        if look.fill:
            bright, dark = sorted(map(luminance, (look.fill, look.text)), reverse=True)
            assert (bright + 0.05) / (dark + 0.05) >= 4.5, look
    together = (
        {"prompt", "decode", "again", "wasted"},
        {"protected", "evictable", "evicted"},
        {"promised", "stored", "stale"},
        {"left", "spent"},
        {"queued", "admitted", "evictable", "left"},
        {"stored", "evictable", "prompt", "again", "decode", "wasted"},
    )
    for names in together:
        assert len({(LOOKS[name].fill, LOOKS[name].texture) for name in names}) == len(names)


# -- steps and requests ------------------------------------------------------------------------


@law
@given(runs())
def test_decode_shows_every_row_of_every_step(run: tuple[Trace, Engine]) -> None:
    trace = run[0]
    picture = picture_of("decode", trace)
    shown = steps_shown(trace, 100)
    rows = Counter(
        (str(item.step), rid) for item in forwards(trace) if item.step in shown for rid in item.rids
    )
    assert picture.count("step", "rid", tag="rect") == rows
    wasted = Counter(
        (str(mark.attrs["step"]), str(mark.attrs["rid"])) for mark in marks(trace, "wasted row")
    )
    assert picture.count("step", "rid", kind="wasted") == wasted
    ran = {rid for item in forwards(trace) for rid in item.rids}
    retracted = Counter((mark.attrs["rid"],) for mark in marks(trace, "retraction"))
    assert picture.count("rid", "mark") == Counter({(r, "retraction"): n for (r,), n in
                                                    retracted.items() if r in ran})  # fmt: skip


def forward_time(trace: Trace, item: Slice) -> int:
    """How long a forward pass took; in a pipeline, in all stages together."""
    if not item.lane.startswith("stage "):
        return item.duration
    return sum(s.duration for s in trace.slices if (s.name, s.step) == (item.name, item.step))


@law
@given(runs(), st.sampled_from(["mixed_chunk", "unified"]))
def test_bars_are_as_high_as_what_the_device_computed(run: Any, topic: str) -> None:
    """The time that a forward took on ``sim`` tells how many tokens it had."""
    trace = run[0]
    picture = picture_of(topic, trace)
    for item in forwards(trace)[:60]:
        parts = picture.shapes("rect", step=str(item.step), tokens="*")
        assert sorted(part["data-rid"] for part in parts) == sorted(item.rids)
        tokens = (forward_time(trace, item) - COST.forward_base) / COST.forward_per_token
        assert sum(int(part["data-tokens"]) for part in parts) == tokens
        heights = {float(p["height"]) / int(p["data-tokens"]) for p in parts}
        assert max(heights) - min(heights) < 0.11
        edges = [(float(p["y"]) + float(p["height"]), float(p["y"])) for p in parts]
        for (_, top), (bottom, _) in pairwise(edges):
            assert abs(top - bottom) < 0.11  # each stands on the one before
    steps = steps_shown(trace, 60)
    flags = {int(flag["data-step"]) for flag in picture.shapes("path", mark="retraction", step="*")}
    assert flags <= steps
    if len(forwards(trace)) <= 60 and trace.loop == "serial":
        assert len(picture.shapes("path", mark="retraction")) == len(marks(trace, "retraction"))


def test_the_golden_bars_reach_the_limit_and_not_beyond() -> None:
    for topic, limit in (("mixed_chunk", 24), ("unified", 24)):
        picture = picture_of(topic, golden(topic))
        assert [line["data-limit"] for line in picture.shapes("line", limit="*")] == [str(limit)]
        sums: Counter[str] = Counter()
        for part in picture.shapes("rect", step="*", tokens="*"):
            sums[part["data-step"]] += int(part["data-tokens"])
        assert max(sums.values()) == limit
        modes = {item.mode for item in forwards(golden(topic))}
        assert "mixed" in modes


@law
@given(crowds())
def test_retraction_shows_every_retraction(run: tuple[Trace, Engine]) -> None:
    trace = run[0]
    picture = picture_of("retraction", trace)
    found = marks(trace, "retraction")
    flags = picture.shapes("path", kind="flag-head", rid="*")
    in_memory = [flag["data-rid"] for flag in flags if "data-mark" not in flag]
    assert in_memory == [mark.attrs["rid"] for mark in found]
    assert picture.words.count("gives back") == min(8, len(found))
    assert picture.shapes("path", series="held by requests")


def test_the_golden_retractions_are_paid_for() -> None:
    """What the bill says is computed again is what the device computed."""
    trace = golden("retraction")
    picture = picture_of("retraction", trace)
    assert len(marks(trace, "retraction")) == 2
    again = picture.shapes("rect", kind="again", rid="*")
    billed = 0
    for box in again:
        step = next(item for item in forwards(trace) if str(item.step) == box["data-step"])
        tokens = (step.duration - SIM_COST.forward_base) // SIM_COST.forward_per_token
        assert f"computes {tokens} tokens again" in picture.words
        billed += 1
    assert billed == 2
    assert picture.shapes("path", series="new token ratio")


# -- admission ---------------------------------------------------------------------------------


@law
@given(runs())
def test_prefill_shows_everybody_who_was_admitted_or_refused(run: tuple[Trace, Engine]) -> None:
    trace = run[0]
    picture = picture_of("prefill", trace)
    assume("the first" not in picture.words)
    admits = [
        (shape["data-rid"], shape["data-left"])
        for shape in picture.shapes("rect", mark="admit", budget="rem_total", left="*")
    ]
    assert admits == [
        (mark.attrs["rid"], str(mark.attrs["rem_total"])) for mark in marks(trace, "admit")
    ]
    rounds: list[list[Mark]] = []
    for mark in marks(trace, "budget", "admit", "refuse"):
        if mark.name == "budget":
            rounds.append([])
        else:
            rounds[-1].append(mark)
    told = [
        key for key, _ in groupby(one for one in map(round_key, rounds) if one is not None)
    ]  # rounds in a row with the same refusals are one
    refusals = [rid for key in told for rid in key[1]]
    assert [shape["data-rid"] for shape in picture.shapes("text", mark="refuse")] == refusals


def round_key(events: list[Mark]) -> tuple[Any, tuple[str, ...], Any] | None:
    """Equal for rounds that are shown as one; None for those that are not shown."""
    if not events:
        return None
    refused = [mark for mark in events if mark.name == "refuse"]
    admits = id(events) if len(refused) < len(events) else 0
    rids = tuple(str(mark.attrs["rid"]) for mark in refused)
    return admits, rids, tuple(mark.attrs["result"] for mark in refused)


def test_rounds_in_a_row_with_one_outcome_are_shown_once() -> None:
    budget = dict.fromkeys(("rem_total", "cur_rem", "rem_input", "rem_chunk"), 5)
    refused = []
    for time, rid in enumerate(["a", "a", "b", "a"]):
        attrs = {"rid": rid, "result": "NO_TOKEN", "reason": f"no {rid}", "need": 9, "left": 5}
        refused += [Mark("budget", time, {**budget, "mixed_decode_tokens": 0})]
        refused += [Mark("refuse", time, attrs)]
    trace = Trace("serial", "sim", "hash", "virtual", (), (), (), tuple(refused))
    picture = picture_of("prefill", trace)
    assert [s["data-rid"] for s in picture.shapes("text", mark="refuse")] == ["a", "b", "a"]
    assert "(2 ×)" in picture.words and "4 rounds" in picture.words


def test_the_golden_budget_falls_by_what_was_taken() -> None:
    picture = picture_of("prefill", golden("prefill"))
    for budget in ("rem_chunk", "rem_input", "cur_rem", "rem_total"):
        left = picture.shapes("rect", kind="left", budget=budget)
        spent = picture.shapes("rect", kind="spent", budget=budget)
        assert len(spent) == 7  # three chunks and the rest, and three more requests
        ends = {round(float(shape["x"]) + float(shape["width"]), 1) for shape in left}
        assert {float(shape["x"]) for shape in spent} <= ends
        values = [int(shape["data-left"]) for shape in left]
        rests = [float(shape["width"]) for shape in left]
        scale = max(rests) / max(values)
        after = [at for at, shape in enumerate(left) if shape["data-mark"] == "admit"]
        for at, shape in zip(after, spent, strict=True):
            taken = values[at - 1] - values[at]
            assert abs(float(shape["width"]) - taken * scale) < 0.11
    assert "KV memory: needs 25 tokens" in picture.words


@law
@given(runs())
def test_schedule_policy_shows_the_queue_as_it_was_sorted(run: tuple[Trace, Engine]) -> None:
    trace = run[0]
    picture = picture_of("schedule_policy", trace)
    orders = [mark for mark in marks(trace, "queue order") if mark.attrs["rids"]]
    assume(len(orders) <= MOST_ROUNDS)
    for at, mark in enumerate(orders, 1):
        column = picture.shapes("rect", round=str(at), place="*")
        rids = [shape["data-rid"] for shape in column]
        assert rids == str(mark.attrs["rids"]).split()
        places = [float(shape["y"]) for shape in column]
        assert places == sorted(places)
    story = marks(trace, "queue order", "admit")
    starts = [at for at, mark in enumerate(story) if mark.name == "queue order"]
    for at, (start, end) in enumerate(pairwise([*starts, len(story)]), 1):
        if len(orders) == len(starts):
            now = {mark.attrs["rid"] for mark in story[start + 1 : end]}
            queue = set(str(story[start].attrs["rids"]).split())
            marked = picture.shapes("rect", kind="admitted", round=str(at))
            assert {shape["data-rid"] for shape in marked} == now & queue
    admitted = {mark.attrs["rid"] for mark in marks(trace, "admit")}
    waits = [s for s in picture.shapes("rect", kind="queued", rid="*") if "data-round" not in s]
    assert {shape["data-rid"] for shape in waits} == admitted
    tokens: Counter[str] = Counter()
    for shape in picture.shapes("rect", kind="left", rid="*", tokens="*"):
        tokens[shape["data-rid"]] += int(shape["data-tokens"])
    computed: Counter[str] = Counter()
    for mark in marks(trace, "admit"):
        computed[str(mark.attrs["rid"])] += int(mark.attrs["extend_len"])
    assert tokens == computed


def test_the_golden_queue_is_overtaken() -> None:
    """The questions on the cached document come before two that arrived earlier."""
    picture = picture_of("schedule_policy", golden("schedule_policy"))
    first = [s["data-rid"] for s in picture.shapes("rect", round="0")]
    sorted_ = [s["data-rid"] for s in picture.shapes("rect", round="2")]
    assert first == ["doc", "other", "doc-q1", "new", "doc-q2"]
    assert sorted_ == ["doc-q1", "doc-q2", "other", "new"]
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 21, 113)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "113th",
    ]  # fmt: skip


# -- the relay ---------------------------------------------------------------------------------


@law
@given(runs())
def test_future_map_shows_every_promise_and_every_look_up(run: tuple[Trace, Engine]) -> None:
    trace = run[0]
    picture = picture_of("future_map", trace)
    shown = steps_shown(trace, 36)
    promised: Counter[tuple[str, str]] = Counter()
    reads: Counter[tuple[str]] = Counter()
    for mark in marks(trace, "future slots"):
        if mark.attrs["step"] in shown:
            slots = str(mark.attrs["slots"]).split()
            promised.update((str(mark.attrs["step"]), slot) for slot in slots)
            reads.update((slot,) for slot in str(mark.attrs["reads"]).split())
    assert picture.count("step", "slot", kind="promised", tag="rect") == promised
    assert picture.count("slot", kind="read", tag="path") == reads


def test_the_golden_ring_is_lapped_and_read_by_the_right_request() -> None:
    trace = golden("future_map")
    picture = picture_of("future_map", trace)
    assert {shape["data-slot"] for shape in picture.shapes("rect", slot="*")} == set("123456")
    diamonds = picture.shapes("path", kind="read", slot="*")
    edges = [edge for edge in trace.edges if edge.kind == "token"]
    rids = {item.id: set(item.rids) for item in trace.slices}
    expected = sum(len(rids[edge.src] & rids[edge.dst]) for edge in edges)
    assert len(diamonds) == expected


# -- the radix tree ----------------------------------------------------------------------------


def real_tree(cache: RadixCache) -> dict[int, tuple[int, int, int, str]]:
    """Node id -> parent's id, pages, locks, first tokens."""
    found: dict[int, tuple[int, int, int, str]] = {}
    stack: list[TreeNode] = [cache.root_node]
    while stack:
        node = stack.pop()
        stack += node.children.values()
        if node.parent is not None:
            found[node.id] = (
                node.parent.id, node.edge.num_pages, node.lock_ref, node.edge.beginning,
            )  # fmt: skip
    return found


def told_tree(tree: Tree) -> dict[int, tuple[int, int, int, str]]:
    """The same, as the marks tell it."""
    return {
        node.id: (node.parent, node.pages, node.lock_ref, node.tokens)
        for node in tree.nodes.values()
        if not node.evicted
    }


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=10)
ACTIONS = ("insert", "insert", "match", "lock", "unlock", "evict")


@law
@given(st.data(), st.sampled_from([1, 2, 3]))
def test_the_rebuilt_tree_is_the_real_one_at_every_moment(data: st.DataObject, size: int) -> None:
    recorder, now, pages = Recorder(), 0, iter(range(1, 10_000))
    recorder.now = lambda: now
    cache = RadixCache(size, recorder=recorder)
    locked: list[TreeNode] = []
    truths = []
    for _ in range(data.draw(st.integers(1, 12))):
        now += 10
        action = data.draw(st.sampled_from(ACTIONS))
        if action == "insert":
            words = data.draw(tokens)
            cache.insert(words, [next(pages) for _ in range(len(words) // size)])
        elif action in ("match", "lock"):
            node = cache.match_prefix(data.draw(tokens)).node
            if action == "lock":
                cache.inc_lock_ref(node)
                locked.append(node)
        elif action == "unlock" and locked:
            cache.dec_lock_ref(locked.pop())
        elif action == "evict":
            cache.evict(data.draw(st.integers(1, 5)))
        truths.append((now, real_tree(cache), cache.protected_size, cache.evictable_size))
    trace = recorder.trace("serial", "sim", "hash", "virtual")
    for moment, truth, protected, evictable in truths:
        tree = tree_at(trace, moment)
        assert told_tree(tree) == truth
        assert (tree.size("protected"), tree.size("evictable")) == (protected, evictable)


@law
@given(runs())
def test_radix_cache_shows_the_scheduler_s_own_tree(run: tuple[Trace, Engine]) -> None:
    """The last panel is the tree as the run has left it."""
    trace, engine = run
    cache = engine.scheduler.tree
    assume(cache is not None)
    assert cache is not None
    picture = picture_of("radix_cache", trace)
    truth = real_tree(cache)
    assert told_tree(tree_at(trace, trace.end + 1)) == truth
    leaves = len(truth) - len({parent for parent, *_ in truth.values()} - {ROOT})
    if leaves > MOST_LEAVES or "more nodes" in picture.words:
        return
    boxes = picture.shapes("rect", node="*")
    last = boxes[len(boxes) - len(truth) - evicted_at_the_end(trace) :]
    alive = [box for box in last if box["data-state"] != "evicted"]
    shown = {
        int(box["data-node"]): tuple(int(box[f"data-{n}"]) for n in ("parent", "pages", "lock"))
        for box in alive
    }
    assert shown == {node: facts[:3] for node, facts in truth.items()}
    for box in alive:
        assert box["data-state"] == ("protected" if int(box["data-lock"]) else "evictable")


def evicted_at_the_end(trace: Trace) -> int:
    """Nodes that the last panel still shows although they went just then."""
    changes = marks(trace, "radix add", "radix split", "radix evict", "radix lock")
    return sum(mark.name == "radix evict" and mark.time == changes[-1].time for mark in changes)


def test_the_golden_tree_splits_at_a() -> None:
    """ABC is cached, AFG comes: A is split off and holds both locks."""
    picture = picture_of("radix_cache", golden("radix_cache"))
    nodes = picture.shapes("rect", node="*")
    assert [node["data-pages"] for node in picture.shapes("rect", panel="1 before")] == ["9"]
    a, bc = picture.shapes("rect", panel="1 after")
    if a["data-parent"] != str(ROOT):
        a, bc = bc, a
    assert (a["data-pages"], a["data-lock"], bc["data-lock"]) == ("4", "2", "1")
    assert bc["data-parent"] == a["data-node"] and bc["data-pages"] == "5"
    assert {node["data-state"] for node in nodes} == {"protected", "evictable", "evicted"}


def test_a_large_tree_is_cut_to_what_can_be_read() -> None:
    recorder = Recorder()
    cache = RadixCache(recorder=recorder)
    for first in range(40):
        cache.insert([first, *range(30)], range(1 + 31 * first, 32 + 31 * first))
    for length in range(1, 30):
        cache.match_prefix([0, *range(length)])
    trace = recorder.trace("serial", "sim", "hash", "virtual")
    picture = picture_of("radix_cache", trace)
    assert "more nodes" in picture.words
    assert len(picture.shapes("rect", node="*")) <= MOST_LEAVES * MOST_LEVELS


# -- the command -------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", TOPICS)
def test_the_command_draws_every_golden_trace(view: Any, tmp_path: Path, topic: str) -> None:
    source = str(REPOSITORY / "traces" / f"{topic}.json")
    code, svg, err = view(topic, source, "--out", "-")
    assert (code, err) == (0, "") and not list(tmp_path.iterdir())
    assert view(topic, source)[:2] == (0, f"{topic}.svg\n")
    assert (tmp_path / f"{topic}.svg").read_text() == svg
    assert view(topic, source, "--out", "other.svg")[0] == 0
    assert (tmp_path / "other.svg").read_text() == svg


def test_bad_input_to_the_command_is_one_sentence(view: Any, tmp_path: Path) -> None:
    good = str(REPOSITORY / "traces" / "decode.json")
    (tmp_path / "text.json").write_text("hello")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    for arguments, words in (
        (("nope", good), "unknown topic 'nope'"),
        (("decode", "missing.json"), "missing.json can't be read: No such file"),
        (("decode", str(tmp_path)), "can't be read: Is a directory"),
        (("decode", "text.json"), "text.json is not a minisched trace"),
        (("decode", "bytes.json"), "bytes.json is not a minisched trace: it is not text"),
        (("unified", good, "--out", "no/such/folder.svg"), "can't be written: No such file"),
        (("radix_cache", str(REPOSITORY / "traces" / "serial.json"), "--nope"), "No such option"),
    ):
        code, out, err = view(*arguments)
        assert (code, out) == (2, "") and words in err, err
        assert err.count("\n") == 1 and "Traceback" not in err
    empty = native.to_json(Trace("serial", "sim", "hash", "virtual", (), (), (), ()))
    (tmp_path / "empty.json").write_text(empty)
    for topic in TOPICS:
        code, out, err = view(topic, "empty.json")
        assert (code, out) == (2, "") and err.count("\n") == 1
        assert err.startswith(f"minisched: empty.json can't be shown as {topic}: the trace has no ")
