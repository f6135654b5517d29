"""What does not go together is refused, and for the reason that is said."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.comparison import compare_loops
from minisched.core import Request, SamplingParams, ScheduleBatch
from minisched.devices.base import Device
from minisched.devices.cost import NO_COST, CostModel
from minisched.devices.sim import SimDevice
from minisched.loops import pd_run
from minisched.loops.naming import parse
from minisched.loops.registry import LOOPS, find_loop
from minisched.loops.run import Run, run_loop
from minisched.loops.spec import DEVICES
from minisched.models.hash import HashModel
from minisched.relay import Relay
from minisched.relay.registry import RELAYS, RelayShape, RelaySpec
from minisched.scheduler import SchedulerConfig
from minisched.scheduler.presets import PRESETS, find_preset, preset_for

# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"page_size": 0}, "page_size is 0, .* at least 1"),
        ({"max_running_requests": 0}, "max_running_requests is 0, .* at least 1"),
        ({"max_prefill_tokens": 0}, "max_prefill_tokens is 0, .* at least 1"),
        ({"context_len": 0}, "context_len is 0, .* at least 1"),
        ({"kv_tokens": 3, "page_size": 4, "chunked_prefill_size": 4},
         "kv_tokens is 3, .* at least one page of 4"),
        ({"cuda_graph_max_bs": -1}, "cuda_graph_max_bs is -1, .* at least 0"),
        ({"schedule_conservativeness": nan}, "schedule_conservativeness is nan, .* at least 0"),
        ({"priority_scheduling_preemption_threshold": -1}, "threshold is -1, .* at least 0"),
        ({"chunked_prefill_size": 0}, "chunked_prefill_size is 0, .* at least 1, or -1"),
        ({"chunked_prefill_size": 6, "page_size": 4}, "is 6, .* multiple of the page size, 4"),
        ({"enable_mixed_chunk": True, "chunked_prefill_size": -1}, r"needs chunks.*-1"),
        ({"enable_mixed_chunk": True, "run_first": "decode"}, "'decode'; it must be 'prefill'"),
        ({"enable_mixed_chunk": True, "speculative_algorithm": "NGRAM"}, "not go with speculation"),
        ({"late_penalties": True, "speculative_algorithm": "NGRAM"}, "not go with speculation"),
        ({"speculative_draft_model_path": "x"}, "is 'x', but only .* STANDALONE"),
        ({"speculative_num_draft_tokens": 0}, "speculative_num_draft_tokens is 0, .* at least 1"),
        ({"speculative_algorithm": "EAGLE"}, "'EAGLE', .* one of NGRAM, NGRAM_GPU, STANDALONE"),
        ({"run_first": "last"}, "run_first is 'last', .* one of prefill, decode, unified"),
        ({"schedule_policy": "lifo"}, "schedule_policy is 'lifo', .* one of fcfs"),
        ({"radix_eviction_policy": "mru"}, "radix_eviction_policy is 'mru', .* one of lru"),
        ({"free_rule": "later"}, "free_rule is 'later', .* one of lease"),
    ],
    ids=lambda value: "",
)  # fmt: skip
def test_a_setting_outside_its_limits_names_both(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        SchedulerConfig(**settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("drafts", "what"), [(0, "of 20 slots."), (3, "of 17 slots (and 3 for")])
def test_a_request_that_never_has_enough_memory_hears_what_there_is(drafts: int, what: str) -> None:
    config, params = (
        SchedulerConfig(kv_tokens=20, draft_slack=drafts),
        SamplingParams(max_new_tokens=3),
    )
    assert config.refusal(Request("r", [1] * (17 - drafts), params)) is None
    said = config.refusal(Request("r", [1] * (18 - drafts), params)) or ""
    assert f"the prompt has {18 - drafts} tokens and max_new_tokens is 3" in said and what in said


@pytest.mark.parametrize(
    ("below_gib", "chunk", "graphs", "with_four"),
    [(20, 2048, 8, 8), (35, 2048, 24, 80), (60, 4096, 32, 160), (160, 8192, 256, 512),
     (1000, 16384, 512, 512)],
)  # fmt: skip
def test_every_gpu_gets_what_sglang_gives_it(
    below_gib: int, chunk: int, graphs: int, with_four: int
) -> None:
    """Written down from ``server_args.py``: up to which memory, and with four GPUs or more."""
    for gpus, batch in ((1, graphs), (3, graphs), (4, with_four), (16, with_four)):
        preset = preset_for(below_gib - 1e-9, gpus)
        assert preset.settings == {"chunked_prefill_size": chunk, "cuda_graph_max_bs": batch}
        assert preset.below_gib >= below_gib > preset.min_gib
        assert SchedulerConfig(**preset.settings)  # type: ignore[arg-type]
        for text in (preset.name.upper(), f"{gpus}x{below_gib - 1} gib"):
            assert find_preset(text) is preset


@pytest.mark.parametrize("text", ["", "0GiB", "0x24GiB", "-24GiB", "24", "24GB", "infGiB", "h1000"])
def test_what_is_no_preset_is_refused(text: str) -> None:
    assert len({preset.name for preset in PRESETS}) == len(PRESETS)
    with pytest.raises(ValueError, match=r"must be one of t4, .* such as 24GiB or 4x24GiB"):
        find_preset(text)
    for memory_gib, tensor_parallel in ((0, 1), (-1, 1), (nan, 1), (inf, 1), (24, 0)):
        with pytest.raises(ValueError, match="must be"):
            preset_for(memory_gib, tensor_parallel)


# -- names of loops --------------------------------------------------------------------------------

words = st.text("az_09", min_size=1)


@given(words, st.none() | words, st.dictionaries(words, words, max_size=3))
def test_a_name_comes_apart_as_it_was_put_together(
    loop: str, relay: str | None, options: dict[str, str]
) -> None:
    parts = [loop, *([relay] if relay else []), *(f"{k}={v}" for k, v in options.items())]
    assert parse(":".join(parts)) == (loop, relay, options)


@pytest.mark.parametrize(
    ("name", "relays", "options"),
    [
        ("vllm_async:pool:depth=4", ("pool",), {"depth": 4}),
        ("multi_step:num_steps=2", LOOPS["multi_step"].relays, {"num_steps": 2}),
        ("overlap:delay_sample=true", LOOPS["overlap"].relays, {"delay_sample": True}),
        *((f"{loop}:{spec.relays[0]}", spec.relays[:1], spec.options)
          for loop, spec in LOOPS.items()),
    ],
)  # fmt: skip
def test_a_name_says_relay_and_options(name: str, relays: Any, options: dict[str, Any]) -> None:
    spec = find_loop(name)
    assert (spec.relays, spec.options) == (relays, options)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nonsense", "unknown loop 'nonsense'.* serial"),
        ("nonsense:depth=3", "unknown loop 'nonsense'"),
        (":ring", "unknown loop"),
        ("overlap:nonsense", "unknown relay 'nonsense'.* host"),
        ("overlap:", "unknown relay"),
        ("overlap:ring:pool", "names 2 relays"),
        ("overlap:depth=3", "no option 'depth'; its options are"),
        ("serial:depth=3", "no option 'depth'; it has none"),
        ("vllm_async:depth=two", "'depth' of loop 'vllm_async' is 'two'"),
        ("overlap:delay_sample=2", "is '2', .* true or false"),
        ("vllm_async:depth=0", "depth is 0, .* at least 1"),
        ("vllm_async:depth=3", "depth is 3, .* 'prev_sampled' allows at most 2"),
        ("multi_step:num_steps=9", "num_steps is 9, .* between 1 and 4"),
        ("mindie_placeholder:max_async_schedule_times=2", "the relay brings every token over the"),
    ],
)
def test_a_bad_name_or_value_says_what_is_wrong(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        run_loop(name, SimDevice(), HashModel(), [Request("r", [1])])


# -- relays: the reason is true --------------------------------------------------------------------


def forced(loop: str, relay: str) -> bool:
    """Whether a small run raises, fails a request, or gives other tokens than the serial loop."""
    options: dict[str, Any] = (
        {"max_async_schedule_times": 2} if loop == "mindie_placeholder" else {}
    )
    cost = CostModel({"schedule": 5, "launch": 1, "process": 5}, 10, 0, 2, 1)

    def run(name: str, relay: str, **options: Any) -> Run:
        params = [SamplingParams(max_new_tokens=5 + 3 * i) for i in range(4)]
        requests = [Request(f"r{i}", [i + 1] * (3 + i), params[i]) for i in range(4)]
        return run_loop(name, SimDevice(), HashModel(), requests, None, cost, relay, **options)

    try:
        found = run(loop, relay, **options)
    except (ValueError, TypeError):
        return True
    return bool(found.errors) or found.outputs != run("serial", "").outputs


def launches_unknown(loop: str) -> bool:
    """Whether the loop, as it is, launches a step on a token that the host does not know."""
    seen: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        for name, spec in RELAYS.items():

            def make(device: Device, shape: RelayShape, spec: RelaySpec = spec) -> Relay:
                relay = spec.make(device, shape)
                bind = relay.bind

                def watch(batch: ScheduleBatch, *args: Any) -> tuple[list[int], list[int]]:
                    seen.append(any(None in ids for ids in batch.ids))
                    return bind(batch, *args)

                relay.bind = watch  # type: ignore[method-assign]
                return relay

            patch.setitem(RELAYS, name, spec._replace(make=make))
        relays = LOOPS[loop].relays
        by_two = "fill_device" if loop == "mindie_placeholder" else relays[0]
        assert not forced(loop, by_two) and seen
    return any(seen)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_relay_that_does_not_fit_says_why_and_the_reason_is_true(
    monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    """One of two runs ahead and the other does not, or the two together do wrong."""
    spec, runs_ahead = LOOPS[loop], launches_unknown(loop)
    assert {*spec.relays} <= {*RELAYS} and {*spec.devices} <= {*DEVICES}
    for name, relay in RELAYS.items():
        made = relay.make(SimDevice(), RelayShape(4, 64))
        assert made.name == name and (made.most_in_flight or 2) >= 2
        if name in spec.relays:
            continue
        device, reason = SimDevice(), spec.takes or relay.needs
        with pytest.raises(ValueError) as caught:
            run_loop(loop, device, HashModel(), [Request("r", [1])], relay=name)
        assert str(caught.value).startswith(f"relay {name!r} does not fit loop {loop!r}: ")
        assert reason in str(caught.value) and not device.recorder.trace("", "", "", "").slices
        if made.run_ahead == runs_ahead:
            assert runs_ahead, "a loop that waits for each token takes the relay that has none"
            with monkeypatch.context() as patch:
                patch.setitem(LOOPS, loop, replace(spec, relays=(name,)))
                for side in ("PREFILL", "DECODE"):
                    patch.setattr(pd_run, side, replace(getattr(pd_run, side), relays=(name,)))
                assert forced(loop, name), "nothing is wrong with it: the loop should take it"


@pytest.mark.parametrize("loop", [loop for loop, spec in LOOPS.items() if spec.devices != DEVICES])
def test_a_loop_says_why_it_does_not_run_on_a_device(loop: str) -> None:
    for device in {*DEVICES} - {*LOOPS[loop].devices}:
        with pytest.raises(ValueError, match="does not run on device") as caught:
            find_loop(loop).check_device(loop, device)
        assert LOOPS[loop].only and LOOPS[loop].only in str(caught.value)


# -- features --------------------------------------------------------------------------------------

SPECULATION = ("NGRAM", "NGRAM_GPU", "STANDALONE")
WISHES: dict[str, dict[str, Any]] = {
    "grammar": {"regex": "([a-m][n-z]){9}"},  # every mask is another one
    "penalties": {"presence_penalty": 0.5},
}
REFUSED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("overlap", "overlap_pool_indexed", "vllm_async"), ("NGRAM",)),
    **dict.fromkeys(("overlap_thread", "mixed", "mlx_async", "pd", "vllm_pp2", "vllm_pp4",
                     "mindie_plugin", "mindie_placeholder", "mindie_dual", "mindie_single"),
                    SPECULATION),
    **dict.fromkeys(("mini_normal", "mini_overlap", "multi_step"), (*WISHES, *SPECULATION)),
}  # fmt: skip
"""What each original does not do, or not in this way; all else is done."""


def run_some(loop: str, relay: str = "", wish: str = "", **settings: Any) -> Run:
    """Three requests, of which one wants something."""
    requests = [
        Request(f"r{i}", [i + 1, 2, 3], SamplingParams(max_new_tokens=6 + i)) for i in range(3)
    ]
    if wish:
        requests[1].params = replace(requests[1].params, **WISHES[wish])
    return run_loop(loop, SimDevice(), HashModel(), requests, SchedulerConfig(**settings),
                    relay=relay)  # fmt: skip


@pytest.mark.parametrize("loop", LOOPS)
def test_a_wish_is_granted_or_its_request_alone_hears_why_not(loop: str) -> None:
    assert {*LOOPS[loop].refuses} == {*REFUSED.get(loop, ())}
    relays = {LOOPS[loop].relays[0], "fill_device"} & {*LOOPS[loop].relays}
    for wish, relay in ((wish, relay) for wish in WISHES for relay in sorted(relays)):
        run, alone = run_some(loop, relay, wish), run_some("serial", "", wish)
        reason = LOOPS[loop].refusals(relay).get(wish)
        there = relay == "fill_device" and loop in ("mindie_plugin", "mindie_dual")
        assert bool(reason) == (wish in REFUSED.get(loop, ()) or (there and wish == "grammar"))
        assert run.errors == ({"r1": f"this loop takes no {wish}: {reason}."} if reason else {})
        assert run.outputs == {**alone.outputs, **({"r1": []} if reason else {})}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_speculates_or_says_why_not(loop: str) -> None:
    plain = run_some("serial").outputs
    for kind in SPECULATION:
        settings = {
            "speculative_algorithm": kind,
            "speculative_num_draft_tokens": 2,
            "speculative_draft_model_path": "hash:7" if kind == "STANDALONE" else "",
        }
        relay = "pool" if "pool" in LOOPS[loop].relays else ""
        if kind not in REFUSED.get(loop, ()):
            assert run_some(loop, relay, **settings).outputs == plain
            continue
        with pytest.raises(ValueError, match=f"'{loop}' does not speculate with {kind}: ") as why:
            run_some(loop, relay, **settings)
        assert LOOPS[loop].refuses[kind] in str(why.value)


@pytest.mark.parametrize(
    ("loop", "drafts", "slots", "said"),
    [
        ("overlap:ring", 4, 1024, "does not fit loop 'overlap:ring'.*carries drafts"),
        ("vllm_async:prev_sampled", 4, 1024, "does not fit loop .*carries drafts"),
        ("overlap", 5000, 9000, "draft_tokens is 5000.*the context of 4096"),
        ("overlap", 99, 80, "draft_tokens is 99.*the KV pool of 80"),
    ],
)
def test_drafts_for_which_there_is_no_room_are_refused(
    loop: str, drafts: int, slots: int, said: str
) -> None:
    config = SchedulerConfig(
        speculative_algorithm="NGRAM_GPU", speculative_num_draft_tokens=drafts, kv_tokens=slots
    )
    with pytest.raises(ValueError, match=said):
        run_loop(loop, SimDevice(), HashModel(), [Request("r", [1])], config)


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
