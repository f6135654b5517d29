"""The host's cost of scheduling next to other schedulers: same requests and pages, no device.

Each scheduler runs in a process of its own, ours too (``steps.py``), and measures itself. Only
questions and answers pass the pipe. The others are ``fidelity``'s originals with their stand-ins.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from .figures import (
    GROWTH_AIM,
    PEER_AIM,
    Ask,
    BenchCall,
    BenchPart,
    Figure,
    contest,
    no_peer,
    not_measured,
    peer_asked,
)
from .peers.peer import start_peer
from .steps import HostWorkload

OURS, NANO_VLLM, VLLM, SGLANG = "minisched", "nano-vllm", "vLLM", "SGLang"
SCRIPTS = {NANO_VLLM: "nano_vllm", VLLM: "vllm", SGLANG: "sglang"}  # in fidelity/
NOT_ADMITTED = {
    VLLM: "vLLM admits requests in the call that schedules decodes",
    SGLANG: "SGLang's admission takes kernels of a GPU",
}
A_STEP = (
    "each step makes a plan, a committed batch, and an output for each row, because loops run "
    "ahead of results"
)
AN_ADMISSION = (
    "each admission looks for its prefix in a radix tree, locks it and counts down four budgets. "
    "The computed prompt is shared"
)
NO_CHECKOUT = "no checkout of nano-vllm was given with --nano-vllm"
WARM_UP, STEPS, ADMITTING_STEPS = 8, 240, 8


@dataclass(frozen=True)
class HostCase:
    """A workload of a scheduler, and the peers that can run it too.

    Its running requests decode. With ``admits``, requests are admitted and get their first token.
    ``ahead``: in the order of the loop ``overlap``.
    """

    name: str
    load: HostWorkload
    peers: tuple[str, ...] = ()
    admits: bool = False
    ahead: bool = False

    def us(self, ask: Ask) -> float:
        """Microseconds of a step, or of a request that is admitted.

        Raises:
            RuntimeError: not all of those decode, or others do.
        """
        warm_up, steps = (1, ADMITTING_STEPS) if self.admits else (WARM_UP, STEPS)
        load = asdict(self.load)
        answer = ask({"load": load, "warm_up": warm_up, "steps": steps, "ahead": self.ahead})
        taken, rows = float(answer["us"]), int(answer["rows"])
        if self.admits:
            return taken / rows
        if rows != self.load.running * steps:
            raise RuntimeError(f"{rows / steps} requests ran in a step, not {self.load.running}")
        return taken / steps


def admitting(waiting: int) -> HostCase:
    """Return the case of requests that are admitted while ``waiting`` others wait."""
    load = HostWorkload(
        running=0, waiting=waiting, prompt_len=512, head_len=512, spare_pages=4096, spare_rows=1024
    )
    return HostCase(f"a request admitted, {waiting:,} waiting", load, (NANO_VLLM,), admits=True)


def pool_full(waiting: int) -> HostCase:
    """Rows are left, but the first that waits needs more pages than are free, and holds up all."""
    load = HostWorkload(waiting=waiting, head_len=150_000, spare_pages=64, spare_rows=64)
    return HostCase(f"step, 256 running, {waiting:,} waiting for a full pool", load, (NANO_VLLM,))


def batch_full(waiting: int) -> HostCase:
    """Memory is left, but no row."""
    load = HostWorkload(waiting=waiting, spare_pages=64)
    return HostCase(f"step, 256 running, {waiting:,} waiting for a full batch", load, (VLLM,))


def after(finished: int) -> HostCase:
    """Return a case after ``finished`` requests, whose prompts are still in the tree."""
    load = HostWorkload(spare_pages=8192, finished=finished, distinct=max(1, finished))
    return HostCase(f"step, 256 running, {finished:,} finished before", load)


DECODING = HostWorkload()
BESIDE = (
    *(
        HostCase(f"step, {rows:,} running", replace(DECODING, running=rows), (NANO_VLLM, VLLM))
        for rows in (1, 4, 16, 64, 256, 1024)
    ),
    *(  # its allocator of larger pages is a GPU's kernel
        HostCase(
            f"step, {rows:,} running, page 1", replace(DECODING, running=rows, page_size=1),
            (SGLANG,),
        )
        for rows in (1, 16, 256, 1024)
    ),
    HostCase("step, 256 running, one step ahead", DECODING, ahead=True),
    admitting(1_000), pool_full(1_000), batch_full(1_000),
)  # fmt: skip
GROWTH = (  # what the first costs, in units of the second: nothing of it should make a difference
    (admitting(100_000), admitting(1_000)),
    (pool_full(100_000), pool_full(0)),
    (batch_full(100_000), batch_full(0)),
    (after(4_000), after(4)),  # a tree of 1,000,000 tokens, and one of 1,000
)


def host_rows(call: BenchCall) -> list[Figure]:
    """Steps and admissions beside the peers'; then how ours grow.

    Raises:
        ValueError: ``--nano-vllm`` is no checkout.
    """
    needed = Path("nanovllm", "engine", "scheduler.py")
    if call.nano_vllm and not (call.nano_vllm / needed).is_file():
        raise ValueError(
            f"--nano-vllm is {str(call.nano_vllm)!r}, which is no checkout of nano-vllm: "
            f"it has no {needed}."
        )
    rows: list[Figure] = []
    with ExitStack() as stack:
        ours = stack.enter_context(start_peer(f"{__package__}.steps", {}, call.report)).ask
        told = {"source": str(call.nano_vllm)}
        peers = {
            name: no_peer(NO_CHECKOUT) if name == NANO_VLLM and not call.nano_vllm
            else peer_asked(f"minisched.fidelity.{script}", told, call, stack)
            for name, script in SCRIPTS.items()
        }  # fmt: skip

        for case in BESIDE:
            asked = {OURS: ours, **{name: peers[name] for name in case.peers}}
            arms = {name: partial(case.us, ask) for name, ask in asked.items()}
            aims, why = dict.fromkeys(arms, PEER_AIM), AN_ADMISSION if case.admits else A_STEP
            rows += contest(case.name, arms, "us", aims, call, why=why)
            for name, reason in NOT_ADMITTED.items() if case.admits else ():
                rows.append(not_measured(f"{case.name}: {name}", "us", reason))
        for large, small in GROWTH:
            both = {case.name: partial(case.us, ours) for case in (large, small)}
            rows += contest("growth", both, "us", {small.name: GROWTH_AIM}, call)
    return rows


PART = BenchPart(host_rows, ("nano_vllm",))
