"""What lessons 8 to 12 say of their runs, in numbers, is so."""

from __future__ import annotations

import minisched as ms
from minisched import learn
from minisched.checks.overlap import measure
from minisched.core import SamplingParams
from minisched.learn.exercises.l12_your_engine import longest_wait
from minisched.learn.runs import PROFILES, makespan_ms


def test_lesson_8_one_batch_at_a_time_keeps_a_stage_busy_for_less_than_a_quarter() -> None:
    costs = {"host_ms": 2, "device_ms": 0, "token_ms": 20, "copy_ms": 1, "requests": 4, "chunk": 4}
    one, queue = (
        learn.simulate(loop, **costs)  # type: ignore[arg-type]
        for loop in ("vllm_pp4:host:depth=1", "vllm_pp4")
    )
    busy = [measure(run.trace).device_busy_percent for run in (one, queue)]
    assert busy[0] < 25 and 74 < busy[1] < 78
    assert 3 < makespan_ms(one) / makespan_ms(queue) < 3.5


def test_lesson_9_a_placeholder_alone_saves_nothing() -> None:
    loops = ("serial", "mindie_placeholder", "mindie_dual", "mindie_single", "multi_step")
    runs = {loop: learn.simulate(loop) for loop in loops}
    took = {loop: makespan_ms(run) for loop, run in runs.items()}
    assert took["mindie_placeholder"] >= took["serial"] and min(took.values()) == 127
    steps = {loop: measure(run.trace).steps for loop, run in runs.items()}
    assert steps["mindie_dual"] == steps["mindie_single"] + 1
    assert steps["multi_step"] == 1 + 3 * 4 and measure(runs["multi_step"].trace).wasted_rows == 2


def test_lesson_10_what_is_left_of_the_speed_up_depends_on_what_waits() -> None:
    loops = ["overlap", "mindie_plugin", "mlx_async"]
    rule = SamplingParams(max_new_tokens=24, regex="([a-z]+ ){3}[a-z]+")
    found = ms.compare(ms.requests(4, rule), loops)
    assert [round(found.speedup[loop] or 0, 2) for loop in loops] == [1.70, 1.28, 0.91]
    assert found.num_waits["overlap"] == {"grammar": 23}


def test_lesson_12_its_profiles_say_what_was_read_in_the_originals() -> None:
    waits = {name: longest_wait(learn.host_calls(learn.profile(name))) for name in PROFILES}
    assert waits == {
        "sglang_decode": ("hipMemcpyWithStream", "aten::copy_"),
        "sglang_extend": ("hipMemcpyWithStream", "aten::to"),
        "vllm_decode": ("hipEventSynchronize", "<built-in method synchronize of torch.Event>"),
        "vllm_mixed": ("hipEventSynchronize", "gpu_model_runner.py(3380): execute_model"),
        "two_gpus": ("cudaStreamSynchronize", "aten::is_nonzero"),
    }
    blocked = {
        name: sum(item.duration for item in learn.profile(name).slices if item.name == "wait") / 1e6
        for name in PROFILES
    }
    assert round(blocked["sglang_decode"]) == 463 and round(blocked["vllm_decode"], 3) == 0.002
