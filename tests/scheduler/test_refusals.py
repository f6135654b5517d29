"""What does not go together is refused, and for the reason that is said."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import Any

import pytest

from minisched.cli.presets import preset_named
from minisched.comparison import compare_loops
from minisched.core import Request, SamplingParams
from minisched.devices.cost import NO_COST
from minisched.devices.sim import SimDevice
from minisched.features import features_of
from minisched.features.logprobs import LogProbabilities
from minisched.loops.design import DEVICES, LOOPS, find_loop
from minisched.loops.run import Run, run_loop
from minisched.models.hash import HashModel
from minisched.relay import RELAYS
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.trace import NullRecorder

# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"page_size": 0}, "page_size is 0, .* at least 1"),
        ({"kv_tokens": 3, "page_size": 4, "chunked_prefill_size": 4},
         "kv_tokens is 3, .* at least one page of 4"),
        ({"schedule_conservativeness": nan}, "schedule_conservativeness is nan, .* at least 0"),
        ({"priority_scheduling_preemption_threshold": -1}, "threshold is -1, .* at least 0"),
        ({"chunked_prefill_size": 0}, "chunked_prefill_size is 0, .* at least 1, or -1"),
        ({"chunked_prefill_size": 6, "page_size": 4}, "is 6, .* multiple of the page size, 4"),
        ({"enable_mixed_chunk": True, "chunked_prefill_size": -1}, r"needs chunks.*-1"),
        ({"enable_mixed_chunk": True, "run_first": "decode"}, "'decode'; it must be 'prefill'"),
        ({"enable_mixed_chunk": True, "speculative_algorithm": "NGRAM"}, "not go with NGRAM"),
        ({"late_penalties": True, "speculative_algorithm": "NGRAM"}, "not go with speculation"),
        ({"speculative_draft_model_path": "x"}, "is 'x', but only .* STANDALONE"),
        ({"speculative_algorithm": "EAGLE"}, "'EAGLE', .* one of NGRAM, NGRAM_GPU, STANDALONE"),
        ({"free_rule": "later"}, "free_rule is 'later', .* one of lease"),
    ],
    ids=lambda value: "",
)  # fmt: skip
def test_a_setting_outside_its_limits_names_both(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SchedulerConfig(**settings)


@pytest.mark.parametrize(("drafts", "what"), [(0, "of 20 slots."), (3, "of 17 slots (and 3 for")])
def test_a_request_that_never_has_enough_memory_hears_what_there_is(drafts: int, what: str) -> None:
    rules = "sglang,too_many_tokens=refused"
    config = SchedulerConfig(kv_tokens=20, draft_slack=drafts, rules=rules)
    params = SamplingParams(max_new_tokens=3)
    assert config.refusal(Request("r", [1] * (17 - drafts), params)) is None
    said = config.refusal(Request("r", [1] * (18 - drafts), params)) or ""
    assert f"the prompt has {18 - drafts} tokens and max_new_tokens is 3" in said and what in said


@pytest.mark.parametrize(
    ("gib", "gpus", "name"),
    [(19.9, 4, "t4"), (20, 3, "rtx4090"), (34, 4, "rtx4090-tp4"), (60, 16, "h100-tp4")],
)
def test_a_preset_is_found_by_name_or_by_memory(gib: float, gpus: int, name: str) -> None:
    found = preset_named(name.upper()), preset_named(f"{gpus}x{gib} gib")
    assert {preset.name for preset in found} == {name}
    chunk, graphs = found[0].chunked_prefill_size, found[0].cuda_graph_max_bs
    assert SchedulerConfig(chunked_prefill_size=chunk, cuda_graph_max_bs=graphs)


# -- names of loops --------------------------------------------------------------------------------


def test_a_name_says_relay_and_options() -> None:
    spec = find_loop("vllm_async:pool:depth=4:harvest_when_done=true")
    assert spec.relays == ("pool",)
    assert spec.options == {"depth": 4, "harvest_when_done": True}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nonsense", "unknown loop 'nonsense'.* serial"),
        (":ring", "unknown loop"),
        ("overlap:nonsense", "unknown relay 'nonsense'.* host"),
        ("overlap:ring:pool", "names 2 relays"),
        ("overlap:depth=3", "no option 'depth'; its options are"),
        ("vllm_async:depth=two", "'depth' of loop 'vllm_async' is 'two'"),
        ("overlap:delay_sample=2", "is '2', .* true or false"),
        ("vllm_async:depth=0", "depth is 0, .* at least 1"),
        ("vllm_async:depth=3", "depth is 3, .* 'prev_sampled' allows at most 2"),
        ("multi_step:num_steps=9", "num_steps is 9, .* between 1 and 4"),
    ],
)
def test_a_bad_name_or_value_says_what_is_wrong(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        run_loop(name, SimDevice(), HashModel(), [Request("r", [1])])


@pytest.mark.parametrize(
    ("drafts", "slots", "said"),
    [(5000, 9000, "is 5000.*the context of 4096"), (99, 80, "is 99.*the KV pool of 80")],
)
def test_drafts_for_which_there_is_no_room_are_refused(drafts: int, slots: int, said: str) -> None:
    config = SchedulerConfig(
        speculative_algorithm="NGRAM_GPU", speculative_num_draft_tokens=drafts, kv_tokens=slots
    )
    with pytest.raises(ValueError, match=said):
        run_loop("overlap", SimDevice(), HashModel(), [Request("r", [1])], config)


# -- relays and devices ----------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS)
def test_a_relay_that_does_not_fit_says_why(loop: str) -> None:
    spec = LOOPS[loop]
    for name in {*RELAYS} - {*spec.relays}:
        with pytest.raises(ValueError) as caught:
            run_loop(loop, SimDevice(), HashModel(), [Request("r", [1])], relay=name)
        assert str(caught.value).startswith(f"relay {name!r} does not fit loop {loop!r}: ")
        assert spec.refuses.get("other relays", RELAYS[name].needs) in str(caught.value)


@pytest.mark.parametrize("loop", [loop for loop, spec in LOOPS.items() if spec.devices != DEVICES])
def test_a_loop_says_why_it_does_not_run_on_a_device(loop: str) -> None:
    for device in {*DEVICES} - {*LOOPS[loop].devices}:
        with pytest.raises(ValueError, match="does not run on device") as caught:
            find_loop(loop).check_device(loop, device)
        assert LOOPS[loop].refuses["real devices"] in str(caught.value)


# -- features --------------------------------------------------------------------------------------

SPECULATION = ("NGRAM", "NGRAM_GPU", "STANDALONE")
WISHES: dict[str, dict[str, Any]] = {
    "grammar": {"regex": "([a-m][n-z]){9}"},  # every mask is another one
    "penalties": {"presence_penalty": 0.5},
}
REFUSED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("vllm_async", "trtllm_overlap", "trtllm_max_utilization", "mixed"),
                    ("NGRAM",)),
    **dict.fromkeys(("overlap_thread", "mlx_async", "pd", "vllm_pp2", "vllm_pp4",
                     "mindie_plugin", "mindie_placeholder", "mindie_dual", "mindie_single",
                     "two_batch"),
                    SPECULATION),
    **dict.fromkeys(("mini_normal", "mini_overlap", "multi_step"), (*WISHES, *SPECULATION)),
}  # fmt: skip
"""What each original does not do, or not in this way; all else is done."""
NO_BEAMS = {
    "mini_normal", "mini_overlap", "vllm_step", "vllm_batch_queue", "vllm_async", "vllm_pp2",
    "vllm_pp4", "mindie_plugin", "mindie_dual", "pd", "trtllm_overlap", "trtllm_max_utilization",
    "two_batch",
}  # fmt: skip
"""Loops without beam search (``tests/features/test_beam_search.py``)."""


def run_some(loop: str, relay: str = "", wish: str = "", **settings: Any) -> Run:
    params = [SamplingParams(max_new_tokens=6 + i) for i in range(3)]
    params[1] = replace(params[1], **WISHES.get(wish, {}))
    requests = [Request(f"r{i}", [i + 1, 2, 3], params[i]) for i in range(3)]
    config = SchedulerConfig(**settings)
    return run_loop(loop, SimDevice(), HashModel(), requests, config, relay=relay)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_wish_is_granted_or_its_request_alone_hears_why_not(loop: str) -> None:
    relays = {LOOPS[loop].relays[0], "fill_device"} & {*LOOPS[loop].relays}
    for wish, relay in ((wish, relay) for wish in WISHES for relay in sorted(relays)):
        run, alone = run_some(loop, relay, wish), run_some("serial", "", wish)
        reason = LOOPS[loop].refusals(relay).get(wish)
        there = relay == "fill_device" and loop in ("mindie_plugin", "mindie_dual")
        assert bool(reason) == (wish in REFUSED.get(loop, ()) or (there and wish == "grammar"))
        assert run.errors == ({"r1": f"this loop takes no {wish}: {reason}."} if reason else {})
        assert run.outputs == {**alone.outputs, **({"r1": []} if reason else {})}
    for kind in {*SPECULATION} & {*REFUSED.get(loop, ())}:
        path = "hash:7" if kind == "STANDALONE" else ""
        with pytest.raises(ValueError, match=f"'{loop}' does not speculate with {kind}: "):
            run_some(loop, speculative_algorithm=kind, speculative_draft_model_path=path)
    beams = {"beam search"} if loop in NO_BEAMS else set[str]()
    refused = {*REFUSED.get(loop, ())} | beams
    assert {*LOOPS[loop].refusals("")} == refused, "and with the others it does"


def test_a_request_that_one_loop_refuses_is_not_compared() -> None:
    """Overlap needs room for drafts in flight, and serial does not; nor are penalties dropped."""
    params = SamplingParams(max_new_tokens=10, ignore_eos=True)
    requests = [Request("long", [1] * 10, params), Request("short", [2] * 4, params)]
    config = SchedulerConfig(kv_tokens=21, speculative_algorithm="NGRAM_GPU")
    found = compare_loops(["overlap"], "sim", HashModel(), requests, config, NO_COST)
    assert set(found.runs[1].errors) == {"long"} and not found.runs[0].errors
    assert found.identical and found.unequally_served == ["overlap"]
    wishing = [Request("r", [1], SamplingParams(frequency_penalty=1.0))]
    with pytest.raises(ValueError, match="loop 'mini_overlap' takes no penalties"):
        compare_loops(["mini_overlap"], "sim", HashModel(), wishing, SchedulerConfig(), NO_COST)


def test_stale_outputs_are_not_kept_without_their_feature() -> None:
    config = SchedulerConfig(keep_stale_outputs=True)
    with pytest.raises(ValueError, match=r"keep_stale_outputs is True, but .* features_of"):
        Scheduler(config)
    with pytest.raises(ValueError, match="no feature of this scheduler"):
        Scheduler(config, features=[LogProbabilities()])
    Scheduler(config, features=features_of(config, HashModel(), NullRecorder()))
