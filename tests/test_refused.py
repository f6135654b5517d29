"""What does not go together is refused, in one sentence that says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minisched.comparison import compare_loops, verdict
from minisched.core import Request, SamplingParams, ScheduleBatch
from minisched.devices.base import Device
from minisched.devices.cost import NO_COST, CostModel
from minisched.devices.sim import SimDevice
from minisched.loops import pd_run
from minisched.loops.registry import LOOPS, find_loop
from minisched.loops.run import Run, run_loop
from minisched.loops.spec import DEVICES
from minisched.models.hash import HashModel
from minisched.relay import Relay
from minisched.relay.host_trip import known_ids
from minisched.relay.registry import RELAYS, RelayShape, RelaySpec
from minisched.scheduler import SchedulerConfig

REFUSED = [
    (loop, relay) for loop, spec in LOOPS.items() for relay in RELAYS if relay not in spec.relays
]
NOT_THERE = [
    (loop, device)
    for loop, spec in LOOPS.items()
    for device in DEVICES
    if device not in spec.devices
]


def test_names_are_known_names() -> None:
    for spec in LOOPS.values():
        assert spec.relays and set(spec.relays) <= set(RELAYS)
        assert spec.devices and set(spec.devices) <= set(DEVICES)
        assert bool(spec.only) == (spec.devices != DEVICES)
    assert {relay for spec in LOOPS.values() for relay in spec.relays} == set(RELAYS)


@pytest.mark.parametrize(("loop", "relay"), REFUSED)
def test_a_relay_that_does_not_fit_says_why(loop: str, relay: str) -> None:
    device = SimDevice()
    with pytest.raises(ValueError) as caught:
        run_loop(loop, device, HashModel(), [Request("r", [1])], relay=relay)
    message = str(caught.value)
    takes, needs = LOOPS[loop].takes, RELAYS[relay].needs
    reason = f"the loop wants {takes}" if takes else f"it needs {needs}"
    assert message.startswith(f"relay {relay!r} does not fit loop {loop!r}: {reason}; ")
    assert message.count("\n") == 0
    with pytest.raises(ValueError, match="does not fit"):
        find_loop(f"{loop}:{relay}")
    assert not device.recorder.trace("", "", "", "").slices, "nothing has run"


# -- the reason is true --------------------------------------------------------------------------


@pytest.mark.parametrize(("loop", "relay"), REFUSED)
def test_the_reason_is_true(monkeypatch: pytest.MonkeyPatch, loop: str, relay: str) -> None:
    """One of two runs ahead and the other does not, or the two together do wrong."""
    carries, has_some = carries_unknown(relay), launches_unknown(loop)
    if carries == has_some:
        assert carries, "a loop that waits for each token takes the relay that carries none"
        force(monkeypatch, loop, relay)
        assert goes_wrong(loop), "nothing is wrong with it: the loop should take this relay"


@pytest.mark.parametrize("name", RELAYS)
def test_a_relay_knows_its_name(name: str) -> None:
    relay = RELAYS[name].make(SimDevice(), RelayShape(4, 64))
    assert relay.name == name
    assert relay.most_in_flight is None or relay.most_in_flight >= 2


def carries_unknown(relay: str) -> bool:
    """Whether the relay carries tokens that the host does not know."""
    return RELAYS[relay].make(SimDevice(), RelayShape(4, 64)).run_ahead


def launches_unknown(loop: str) -> bool:
    """Whether the loop, as it is, launches a step on a token that the host does not know."""
    seen: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        for name, spec in RELAYS.items():

            def make(device: Device, shape: RelayShape, spec: RelaySpec = spec) -> Relay:
                relay = spec.make(device, shape)
                bind = relay.bind

                def watch(
                    batch: ScheduleBatch, previous: ScheduleBatch | None
                ) -> tuple[list[int], list[int]]:
                    seen.append(any(None in ids for ids in batch.ids))
                    return bind(batch, previous)

                relay.bind = watch  # type: ignore[method-assign]
                return relay

            patch.setitem(RELAYS, name, spec._replace(make=make))
        assert not goes_wrong(loop) and seen
    return any(seen)


def force(monkeypatch: pytest.MonkeyPatch, loop: str, relay: str) -> None:
    """Let the loop take this relay, whatever its spec says."""
    monkeypatch.setitem(LOOPS, loop, replace(LOOPS[loop], relays=(relay,)))
    for side in ("PREFILL", "DECODE"):
        monkeypatch.setattr(pd_run, side, replace(getattr(pd_run, side), relays=(relay,)))


def goes_wrong(loop: str) -> bool:
    """Whether a small run raises, fails a request, or gives other tokens than the serial loop."""
    options: dict[str, Any] = (
        {"max_async_schedule_times": 2} if loop == "mindie_placeholder" else {}
    )
    relay = "fill_device" if options and len(LOOPS[loop].relays) > 1 else ""
    cost = CostModel({"schedule": 5, "launch": 1, "process": 5}, 10, 0, 2, 1)

    def run(name: str, relay: str, **options: Any) -> Run:
        params = [SamplingParams(max_new_tokens=5 + 3 * i) for i in range(4)]
        requests = [Request(f"r{i}", [i + 1] * (3 + i), params[i]) for i in range(4)]
        return run_loop(name, SimDevice(), HashModel(), requests, None, cost, relay, **options)

    try:
        forced = run(loop, relay, **options)
    except (ValueError, TypeError):
        return True
    return bool(forced.errors) or forced.outputs != run("serial", "").outputs


# -- features ------------------------------------------------------------------------------------

MINI, PP = ("mini_normal", "mini_overlap"), ("vllm_pp2", "vllm_pp4")
MINDIE = ("mindie_plugin", "mindie_placeholder", "mindie_dual", "mindie_single")
STREAMS = ("overlap", "overlap_pool_indexed")
SPECULATION = ("NGRAM", "NGRAM_GPU", "STANDALONE")
WISHES: dict[str, dict[str, Any]] = {
    "grammar": {"regex": "([a-m][n-z]){9}"},  # every mask is another one
    "penalties": {"presence_penalty": 0.5},
}
NOT_COMBINED: dict[tuple[str, str], str] = {
    **{(loop, wish): "mini-sglang has none" for loop in MINI for wish in WISHES},
    ("multi_step", "grammar"): "vLLM V0 refuses guided decoding with multi-step",
    ("multi_step", "penalties"): "up to N - 1 tokens late",
    **{(loop, "NGRAM"): "SGLang turns overlap scheduling off" for loop in (*STREAMS, "pd")},
    **{("pd", kind): "the transfer has the target's KV alone" for kind in SPECULATION[1:]},
    **{("overlap_thread", kind): "it turned overlap scheduling off" for kind in SPECULATION},
    **{("mixed", kind): "SGLang turns mixed chunks off" for kind in SPECULATION},
    **{("mlx_async", kind): "without overlap then" for kind in SPECULATION},
    **{(loop, kind): "mini-sglang has no speculation" for loop in MINI for kind in SPECULATION},
    ("vllm_async", "NGRAM"): "vLLM takes only drafters that run there",
    **{(loop, kind): "vLLM does not combine them" for loop in PP for kind in SPECULATION},
    **{("multi_step", kind): "vLLM V0 refuses speculation" for kind in SPECULATION},
    **{(loop, kind): "does not go with look-ahead" for loop in MINDIE for kind in SPECULATION[:2]},
    **{(loop, "STANDALONE"): "runs no draft model" for loop in MINDIE},
}
"""What each original does not do, or not in this way, by loop and feature; all else is done."""
WITH_FILL_DEVICE = ("mindie_plugin", "mindie_dual")


def run_some(loop: str, relay: str = "", wish: str = "", **settings: Any) -> Run:
    """Three requests, of which one wants something."""
    requests = [
        Request(f"r{i}", [i + 1, 2, 3], SamplingParams(max_new_tokens=6 + i)) for i in range(3)
    ]
    if wish:
        requests[1].params = replace(requests[1].params, **WISHES[wish])
    return run_loop(loop, SimDevice(), HashModel(), requests, SchedulerConfig(**settings),
                    relay=relay)  # fmt: skip


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_request_hears_why_its_wish_is_not_granted_and_nobody_else_does(
    loop: str, wish: str
) -> None:
    for relay in LOOPS[loop].relays:
        run, alone = run_some(loop, relay, wish), run_some("serial", "", wish)
        reason = NOT_COMBINED.get((loop, wish), "")
        if relay == "fill_device" and loop in WITH_FILL_DEVICE and wish == "grammar":
            reason = "sampled tokens stay there"
        if not reason:
            assert not run.errors and run.outputs == alone.outputs
            continue
        error = run.errors.pop("r1")
        assert not run.outputs.pop("r1") and reason in error
        assert error.startswith(f"this loop takes no {wish}: ") and error.endswith(".")
        assert "\n" not in error
        del alone.outputs["r1"]
        assert run.errors.keys() == {"r1"}
        assert all(run.outputs[rid] == alone.outputs[rid] for rid in ("r0", "r2"))


@pytest.mark.parametrize("kind", SPECULATION)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_speculates_or_says_why_not(loop: str, kind: str) -> None:
    settings = {
        "speculative_algorithm": kind,
        "speculative_num_draft_tokens": 2,
        "speculative_draft_model_path": "hash:7" if kind == "STANDALONE" else "",
    }
    relay = "pool" if "pool" in LOOPS[loop].relays else ""
    reason = NOT_COMBINED.get((loop, kind))
    if reason is None:
        assert run_some(loop, relay, **settings).outputs == run_some("serial").outputs
        return
    with pytest.raises(ValueError, match=f"^loop '{loop}' does not speculate with {kind}: ") as why:
        run_some(loop, relay, **settings)
    assert reason in str(why.value) and "\n" not in str(why.value)


def test_nothing_else_is_refused() -> None:
    """Also not by the sides of ``pd``, which have specs of their own."""
    refused = {(loop, feature) for loop, spec in LOOPS.items() for feature in spec.refuses}
    assert refused == NOT_COMBINED.keys()
    with_relay = {loop: set(spec.refuses_with) for loop, spec in LOOPS.items() if spec.refuses_with}
    assert with_relay == {loop: {"fill_device"} for loop in WITH_FILL_DEVICE}
    assert pd_run.PREFILL.refuses == pd_run.DECODE.refuses == LOOPS["pd"].refuses


@pytest.mark.parametrize("wish", WISHES)
def test_a_burst_that_took_wishes_would_not_grant_them(
    monkeypatch: pytest.MonkeyPatch, wish: str
) -> None:
    """The reason is true: within a burst nobody hears the tokens that a mask has to see."""
    monkeypatch.setitem(LOOPS, "multi_step", replace(LOOPS["multi_step"], refuses={}))
    try:
        forced = run_some("multi_step", "", wish)
    except RuntimeError as error:
        assert "the loop had to wait" in str(error)
    else:
        assert forced.errors or forced.outputs != run_some("serial", "", wish).outputs


# -- devices and names ---------------------------------------------------------------------------


@pytest.mark.parametrize(("loop", "device"), NOT_THERE)
def test_a_loop_says_why_it_does_not_run_on_a_device(loop: str, device: str) -> None:
    with pytest.raises(ValueError, match="does not run on device") as caught:
        find_loop(loop).check_device(loop, device)
    assert LOOPS[loop].only in str(caught.value)


@pytest.mark.parametrize("name", ["nonsense", "overlap:nonsense", ":ring", "overlap:"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match=r"unknown (loop|relay) .* are .*(serial|host)"):
        find_loop(name)


@pytest.mark.parametrize("loop", LOOPS)
def test_naming_the_default_relay_changes_nothing(loop: str) -> None:
    spec = find_loop(f"{loop}:{LOOPS[loop].relays[0]}")
    assert spec.relays == LOOPS[loop].relays[:1] and spec.run is LOOPS[loop].run


@pytest.mark.parametrize("name", ["overlap:ring", "vllm_async:prev_sampled"])
def test_a_named_relay_that_carries_no_drafts_is_refused(name: str) -> None:
    config = SchedulerConfig(speculative_algorithm="NGRAM_GPU")
    with pytest.raises(ValueError, match=f"does not fit loop '{name}'.*carries drafts") as caught:
        run_loop(name, SimDevice(), HashModel(), [Request("r", [1])], config)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("drafts", "slots", "what"),
    [(5000, 9000, "the context of 4096"), (99, 80, "the KV pool of 80")],
)
def test_more_drafts_than_there_is_room_for_are_refused(drafts: int, slots: int, what: str) -> None:
    config = SchedulerConfig(
        speculative_algorithm="NGRAM_GPU", speculative_num_draft_tokens=drafts, kv_tokens=slots
    )
    with pytest.raises(ValueError, match=f"speculative_num_draft_tokens is {drafts}.*{what}"):
        run_loop("overlap", SimDevice(), HashModel(), [Request("r", [1])], config)


@pytest.mark.parametrize(
    ("drafts", "what"), [(0, "pool of 20 slots."), (3, "pool of 17 slots (and 3 for drafts).")]
)
def test_a_request_that_never_has_enough_memory_hears_what_there_is(drafts: int, what: str) -> None:
    config = SchedulerConfig(kv_tokens=20, draft_slack=drafts)
    req = Request("r", [1] * 18, SamplingParams(max_new_tokens=3))
    sentence = "the prompt has 18 tokens and max_new_tokens is 3, together more than the KV "
    assert config.refusal(req) == sentence + what


def test_a_request_that_one_loop_refuses_is_not_compared() -> None:
    """Overlap needs room for drafts in flight, and serial does not."""
    params = SamplingParams(max_new_tokens=10, ignore_eos=True)
    requests = [Request("long", [1] * 10, params), Request("short", [2] * 4, params)]
    config = SchedulerConfig(kv_tokens=21, speculative_algorithm="NGRAM_GPU")
    found = compare_loops(["overlap"], "sim", HashModel(), requests, config, NO_COST)
    assert set(found.runs[1].errors) == {"long"} and not found.runs[0].errors
    assert found.identical and found.unequally_served == ["overlap"]
    assert verdict(found).startswith("Identical where both answered, but overlap did not")


def test_a_loop_that_does_not_take_a_workload_is_named_before_anything_runs() -> None:
    requests = [Request("r", [1], SamplingParams(frequency_penalty=1.0))]
    with pytest.raises(ValueError, match="loop 'mini_overlap' takes no penalties"):
        compare_loops(["mini_overlap"], "sim", HashModel(), requests, SchedulerConfig(), NO_COST)


def test_a_relay_that_cannot_run_ahead_says_so() -> None:
    says = r"^this relay cannot run ahead, yet a row's input token is still unknown$"
    with pytest.raises(ValueError, match=says):
        known_ids([3, None])
    assert known_ids([3, 4]) == [3, 4]
