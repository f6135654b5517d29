"""PD separation: prompts on one device, decoding on another, and KV sent from here to there."""

from __future__ import annotations

from dataclasses import dataclass

from ..devices.sim import Deadlock
from .current_line import line_of
from .pd_decode import DecodeEngine, pd_decode
from .pd_prefill import PrefillEngine, pd_prefill
from .pd_side import SideEngine
from .spec import Turns


@dataclass
class Pair:
    """Two engines, each with its own device, clock and event loop (SGLang ``disaggregation``).

    A load balancer sends every request to both. With ``prealloc_first`` (SGLang) the decode side
    reserves pages for its prompt, then the prefill side computes it, chunk by chunk, and sends the
    KV of each as soon as it is there. Without (vLLM's NIXL connector) it is computed at once, and
    its pages are held until the decode side has room.

    The clocks go forward conservatively: always the side that is behind takes a turn, or sleeps if
    it has nothing to do, and never past the moment at which the other one could still send it
    something. A side hears messages at the beginning of a turn only, so none comes too late.
    """

    prefill: PrefillEngine
    decode: DecodeEngine

    def __post_init__(self) -> None:
        self.turns: dict[str, Turns] = {
            "prefill": pd_prefill(self.prefill),
            "decode": pd_decode(self.decode),
        }
        self.prefill.device.recorder.line = line_of(self.turns["prefill"])
        self.decode.device.recorder.line = line_of(self.turns["decode"])

    @property
    def is_done(self) -> bool:
        """Whether every request has ended, and nothing is in flight or held on either side."""
        held = self.prefill.senders or self.decode.scheduler.leases.returning
        return self.prefill.is_done and self.decode.is_done and not held

    def turn(self) -> None:
        """Let the side that is behind go on.

        Raises:
            Deadlock: both sleep, and nothing could wake them.
        """
        if self.decode.frontend.interrupted and not self.prefill.frontend.interrupted:
            self.prefill.frontend.interrupt()
        sides: list[tuple[str, SideEngine]] = [("prefill", self.prefill), ("decode", self.decode)]
        for _, side in sides:
            side.device.idle_until(side.device.now())  # what ends at this moment has ended
        sides.sort(key=lambda item: (item[1].device.now(), item[1].is_asleep))
        (name, behind), (_, ahead) = sides
        if behind.is_asleep:
            behind.device.idle_until(wake_up(behind, ahead))
        else:
            next(self.turns[name])

    def self_check(self) -> None:
        """Look for leaks on both sides.

        Raises:
            MemoryLeak: there is one.
        """
        self.prefill.scheduler.self_check()
        self.decode.scheduler.self_check()


def wake_up(behind: SideEngine, ahead: SideEngine) -> int:
    """Until when a side without work may sleep."""
    bound = ahead.device.now()
    limit = bound if bound > behind.device.now() else ahead.next_event
    times = [time for time in (behind.next_event, limit) if time is not None]
    if not times:
        raise Deadlock("both sides of pd wait for each other, and no message is on its way")
    return min(times)
