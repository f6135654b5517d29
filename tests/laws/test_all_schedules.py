"""The law of this project: every schedule gives the tokens of the serial one."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.case import Case, fresh, same_on
from minisched.checks.draw import DRAFTERS, Variant, all_designs, draw
from minisched.checks.judge import hash_model, run
from minisched.devices.sim import SimDevice
from minisched.loops.design import LOOPS
from tests.support import many

any_design = st.sampled_from(all_designs())
any_drafts = st.integers(0, len(DRAFTERS) - 1)


def tokens(case: Case) -> dict[str, list[int]]:
    """The tokens of each request that the loop of the case does not refuse."""
    workload = fresh(case.workload)
    model = hash_model("sim", workload)
    engines = run(case, workload, SimDevice(), model, lambda engine: None, lambda engine: None)
    refusal = engines[0].scheduler.config.refusal
    return {req.rid: req.output_ids for req in workload.requests if refusal(req) is None}


def exact(case: Case) -> Case:
    """The case under rules that clip no request."""
    config = case.workload.config
    rules = config.rules or LOOPS[case.loop].rules
    if not rules.startswith("sglang"):
        return case
    rules += ",too_many_tokens=refused"
    return replace(case, workload=replace(case.workload, config=replace(config, rules=rules)))


@given(any_design, any_drafts, st.randoms(use_true_random=False))
@settings(max_examples=many(75, 500), deadline=None)
def test_every_schedule_gives_the_tokens_of_the_serial_one(
    design: Variant, drafts: int, rng: Random
) -> None:
    """Nobody aborts, because the schedule decides how far an aborted request has come.

    A loop with many tokens in flight refuses a request whose memory just suffices for the serial
    loop. No request is clipped, because only SGLang's rules do that.
    """
    drawn = draw(drafts, odd=False, rng=rng)
    case = replace(drawn, workload=replace(drawn.workload, aborts={})).on(design)
    found, serial = tokens(exact(case)), tokens(exact(same_on(case, "serial")))
    assert found == {rid: serial[rid] for rid in found}
