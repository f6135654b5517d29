"""A bug is told by its cause: a missing page, a skipped position or a crash before a race.

Each patch is a published bug. A step that it disturbs reads cells that its request has never
written, which is a race, too; but no missing wait is the cause.
"""

from __future__ import annotations

import pytest

from minisched.checks.case import Case
from minisched.checks.judge import judge
from minisched.checks.laws import cause_rank
from minisched.museum.exhibit import case
from minisched.museum.patch import Edit, put_in

ADD_PROMPTS = "scheduler.scheduler:Scheduler._add_prompts"
PATCHES: dict[str, tuple[str, Case, Edit]] = {
    "vLLM #57562: no placeholder for the last chunk of a prompt": (
        "ownership", case("a: 7 3 -> 1", "overlap", kv=16, chunked_prefill_size=1),
        Edit(ADD_PROMPTS, "req.device_len += 1  #",
             "req.device_len += start == req.admission.hit_len  #"),
    ),
    "nano-vllm #211: the tokens of a step are counted before the cached prefix is known": (
        "ownership", case("a: 7 -> 1; b at 4: 7 7 -> 3", "overlap:pool", kv=8, rows=2),
        Edit("policy.prefill_adder:PrefillAdder.add_one_req",
             "self._add(req, self.cut(req.extend_len))", "self._add(req, self.cut(req.known_len))"),
    ),
    "sglang-jax #971: a third chunk counts as the last": (
        "crash", case("a: 7 7 11 2 7 -> 1", "mini_overlap", kv=16, chunked_prefill_size=1),
        Edit(ADD_PROMPTS, "if end < req.device_len:",
             "if end < req.device_len and start - req.admission.hit_len < 2 * extend_len:"),
    ),
    "vllm-ascend #11334: the chunk of a resumed request is judged by its prompt's length": (
        "positions",
        case("a: 4 5 -> 6; b: 7 3 -> 6", "vllm_async:pool", kv=11, rows=2, chunked_prefill_size=2,
             disable_radix_cache=True, schedule_conservativeness=0.0),
        Edit(ADD_PROMPTS, "if end < req.device_len:", "if end < len(req.prompt):"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PATCHES)
def test_the_cause_is_told_first(name: str) -> None:
    law, small, edit = PATCHES[name]
    assert judge(small).holds
    with put_in([edit]):
        told = sorted((finding.law for finding in judge(small).findings), key=cause_rank)
    assert told[0] == law, told
    assert {"race", "touches"} & {*told}, "nothing else is told that could go first"
