"""KV on its way from the prefill device to the decode device, and what the way costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from ..core import Lease
from ..devices.base import Label
from ..devices.cost import MICROSECOND
from ..devices.sim import SimDevice
from ..devices.sim_op import SimOp
from ..devices.sim_shared import FINISH
from ..scheduler.transfer import Prefilled
from ..worker.touches import KV
from .pd_messages import Mailbox, Transferred


@dataclass(frozen=True)
class Link:
    """The network. Every message takes ``latency`` nanoseconds, and every transfer that and its
    bytes over ``bytes_per_second``, one transfer after the other.

    By default a link of 400 Gbit/s and 50 us, ten times slower, as ``SIM_COST`` is; a slot has 32
    KiB: 16 layers of 8 KV heads of 64 dimensions, keys and values, two bytes each.

    Raises:
        ValueError: a number is outside its limits.
    """

    latency: int = 500 * MICROSECOND
    bytes_per_second: int = 5 * 10**9
    slot_bytes: int = 32 * 1024

    def __post_init__(self) -> None:
        for name, least in (("latency", 0), ("bytes_per_second", 1), ("slot_bytes", 0)):
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"{name} is {value}, but it must be at least {least}.")

    def cost(self, num_slots: int) -> int:
        """Nanoseconds that a transfer of so many slots takes."""
        return self.latency - (-num_slots * self.slot_bytes * 10**9 // self.bytes_per_second)


class KVModel(Protocol):
    """What a model must offer beside ``models/base.py:Model``."""

    def read_kv(self, slots: list[int]) -> list[list[int]]:
        """The KV of these slots, [num_layers][num_slots]."""
        ...

    def write_kv(self, slots: list[int], values: list[list[int]]) -> None:
        """Put it into these slots."""
        ...


@dataclass
class KVTransfer:
    """The lane ``kv transfer``: reads one device's KV memory and writes the other's.

    A real copy reads and writes its bytes at any time until it is over. Here all of it happens at
    the end: whoever gives pages away before that, on either side, is sure to be caught.
    """

    link: Link
    source: SimDevice
    source_model: KVModel
    target: SimDevice
    target_model: KVModel
    mailbox: Mailbox  # the decode side's

    def launch(
        self,
        label: Label,
        slots: list[int],
        to_slots: list[int],
        last: Transferred | None,
        before: Sequence[SimOp] = (),
    ) -> SimOp:
        """Queue a transfer; ``last`` arrives with it, unless one of those ``before`` it fails."""
        (rid,) = label.rids
        num_bytes = len(slots) * self.link.slot_bytes
        self.source.recorder.mark("kv transfer", rid=rid, slots=len(slots), bytes=num_bytes)
        op = self.source.thread("kv transfer").launch(
            self._copy, rid, slots, to_slots, last, *before,
            name="transfer", cost=self.link.cost(len(slots)), label=label,
        )  # fmt: skip
        if last is not None:
            last.slice_id = op.slice_id
        return op

    def _copy(
        self,
        rid: str,
        slots: list[int],
        to_slots: list[int],
        last: Transferred | None,
        *before: None,
    ) -> None:
        now = self.source.now()
        self._declare(rid, slots, to_slots)
        write = partial(self.target_model.write_kv, to_slots, self.source_model.read_kv(slots))
        if now > self.target.now():
            self.target.at(now, FINISH, write)
        else:
            write()  # its host is in the middle of a turn and could not have looked before
        if last is not None:
            self.mailbox.post(now, last, last.slice_id)

    def _declare(self, rid: str, slots: list[int], to_slots: list[int]) -> None:
        """Both are this lane's accesses; where they are is each side's to name."""
        here, there = self.source.recorder.program, self.target.recorder.program
        here.touch("read", KV, slots, rid)
        with there.acting(here.lane, here.op):
            there.touch("write", KV, to_slots, rid)


@dataclass
class KVSender:
    """One request's way to the decode side (SGLang ``disagg_kv_sender``)."""

    to_slots: list[int] | None = None  # None: the decode side has not reserved them yet
    sent_len: int = 0  # positions
    transfers: list[tuple[SimOp, Lease]] = field(default_factory=list)  # that are not over
    done: Prefilled | None = None
    is_unwanted: bool = False
    error: str = ""  # of a transfer
    has_sent_all: bool = False
