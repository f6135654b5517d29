"""A bug is told by its cause: a missing page, a skipped position or a crash before a race.

Each patch is a published bug. A step that it disturbs reads cells that its request has never
written, which is a race, too; but no missing wait is the cause.
"""

from __future__ import annotations

import pytest

from minisched.checks.many import CaseTally, try_seed
from minisched.museum.patch import Edit, put_in

ADD_PROMPTS = "scheduler.scheduler:Scheduler._add_prompts"
PATCHES: dict[str, tuple[str, list[str], list[int], Edit]] = {
    "vLLM #57562: no placeholder for the last chunk of a prompt": (
        "ownership", ["vllm_async", "overlap"], [0, 2],
        Edit(ADD_PROMPTS, "req.device_len += 1  #",
             "req.device_len += start == req.admission.hit_len  #"),
    ),
    "nano-vllm #211: the tokens of a step are counted before the cached prefix is known": (
        "crash", ["overlap:pool", "overlap_pool_indexed:pool", "serial"], [10],
        Edit("policy.prefill_adder:PrefillAdder.add_one_req",
             "self._add(req, self.cut(req.extend_len))", "self._add(req, self.cut(req.known_len))"),
    ),
    "sglang-jax #971: a third chunk counts as the last": (
        "crash", ["mini_overlap", "vllm_async", "overlap"], [0, 2],
        Edit(ADD_PROMPTS, "if end < req.device_len:",
             "if end < req.device_len and start - req.admission.hit_len < 2 * extend_len:"),
    ),
    "vllm-ascend #11334: the chunk of a resumed request is judged by its prompt's length": (
        "positions", ["vllm_async:pool", "overlap"], [8],
        Edit(ADD_PROMPTS, "if end < req.device_len:", "if end < len(req.prompt):"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PATCHES)
def test_the_cause_is_told_first(name: str) -> None:
    law, loops, seeds, edit = PATCHES[name]
    with put_in([edit]):
        cases = [case for seed in seeds for case in try_seed(seed, loops)]
    told = [finding.law for _, finding in CaseTally(0, len(seeds), "sim", cases).first]
    assert told[0] == law, told
    assert "race" in told or "touches" in told, "nothing else is told that could go first"
