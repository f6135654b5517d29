"""The run of SGLang's worker thread, and what launching and a mask cost it."""

from __future__ import annotations

from dataclasses import replace

from ...devices.cost import MICROSECOND, SIM_COST, CostModel
from .recipe import a_bit_of_everything

LAUNCH, SAMPLING, MASK = (us * MICROSECOND for us in (500, 200, 1500))  # sampling is part of launch


def cost_of(loop: str, has_masks: bool = False, fast: int = 1) -> CostModel:
    """The usual costs, the device's divided by ``fast``.

    Where sampling is launched by itself, it takes its part of the launch.
    """
    is_split = has_masks or loop == "overlap_thread"
    launch = LAUNCH - SAMPLING if is_split else LAUNCH
    host = {**SIM_COST.host, "launch": launch, "launch sample": SAMPLING, "mask": MASK}
    forward, per_token = SIM_COST.forward_base // fast, SIM_COST.forward_per_token // fast
    return CostModel(host, forward, per_token, SIM_COST.sample // fast, SIM_COST.copy)


TITLES = {"overlap_thread": "overlap_thread: a second host thread launches what was put"}
RECIPES = {
    "overlap_thread": replace(a_bit_of_everything("overlap_thread"), cost=cost_of("overlap_thread"))
}
