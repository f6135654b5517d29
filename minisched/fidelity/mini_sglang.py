"""mini-sglang's own scheduler and its two loops, from a checkout, on a CPU, without an engine.

A ``Scheduler`` is made without its ``__init__``. Its managers, its cache and both loops are the
original's. The engine that runs batches is replaced by the tokens of a case.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from ..bench.peers.peer import serve
from .case import EOS, Arrival, FidelityCase, Rows, ScheduledStep
from .original import (
    DEVICE,
    ENTRY,
    KERNELS,
    LISTENER,
    SETTINGS,
    UNUSED,
    Original,
    StandIn,
    Turns,
    stand_in,
)

SCHEDULER = "minisgl.scheduler.scheduler"
DECIDING = (
    SCHEDULER, "minisgl.scheduler.prefill", "minisgl.scheduler.decode", "minisgl.scheduler.cache",
    "minisgl.scheduler.table", "minisgl.kvcache.radix_cache", "minisgl.kvcache.naive_cache",
    "minisgl.core",
)  # fmt: skip
STAND_INS = (
    StandIn("triton", DEVICE, KERNELS),
    StandIn("tvm_ffi", DEVICE, KERNELS),
    StandIn("flashinfer", DEVICE, KERNELS),
    StandIn("sgl_kernel", DEVICE, KERNELS),
    StandIn("msgpack", DEVICE, f"sockets: {UNUSED}"),
    StandIn("minisgl.kernel", DEVICE, "fast_compare_key, which counts the tokens two keys share"),
    StandIn("minisgl.engine", DEVICE, "it runs batches"),
    StandIn("minisgl.attention", DEVICE, "kernels"),
    StandIn("minisgl.distributed", DEVICE, "other ranks"),
    StandIn("minisgl.message", ENTRY, "requests and replies, which came by a socket"),
    StandIn("minisgl.utils.hf", DEVICE, "tokenizers and weights"),
    StandIn("minisgl.utils.mp", ENTRY, "sockets"),
    StandIn("minisgl.scheduler.io", ENTRY, "sockets"),
    StandIn("minisgl.scheduler.config", SETTINGS, "values that parts are made with one by one"),
    StandIn("minisgl.utils.logger", LISTENER, "it writes what happens"),
    StandIn("torch:empty", DEVICE, "memory is not pinned"),
    StandIn("torch:tensor", DEVICE, "memory is not pinned"),
    StandIn("torch:Tensor.pin_memory", DEVICE, "memory is not pinned"),
    StandIn(f"{SCHEDULER}:Scheduler.__init__", SETTINGS, "parts are made one by one"),
    StandIn(f"{SCHEDULER}:Scheduler.receive_msg", ENTRY, "the case's requests come"),
    StandIn(f"{SCHEDULER}:Scheduler.send_result", LISTENER, "no process detokenizes"),
    StandIn(f"{SCHEDULER}:Scheduler.run_when_idle", LISTENER, "it logs, and checks for leaks"),
)  # fmt: skip
LOOPS = {"normal": "mini_normal", "overlap": "mini_overlap"}
MOST_LEN = 4096  # positions in a row of the page table


class IdleStream:
    """A stream without work in flight."""

    def wait_stream(self, other: object) -> None:
        """Do nothing: there is no work to wait for."""


def shared_len(first: Any, second: Any) -> int:
    """Return the length of the common prefix of two keys, in tokens."""
    most = min(len(first), len(second))
    differ = (first[:most] != second[:most]).nonzero()
    return int(differ[0]) if len(differ) else most


def not_pinned(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``make`` with memory that is not pinned."""
    return lambda *args, pin_memory=False, **options: make(*args, **options)


def set_up() -> Any:
    """Import it, and return its ``Scheduler`` as a class that is made for a case."""
    torch: Any = import_module("torch")
    stand_in(STAND_INS, "minisgl")
    kernel: Any = import_module("minisgl.kernel")
    kernel.fast_compare_key = shared_len
    message: Any = import_module("minisgl.message")
    message.UserMsg = type("UserMsg", (SimpleNamespace,), {})
    message.DetokenizeMsg = type("DetokenizeMsg", (SimpleNamespace,), {})
    torch.empty, torch.tensor = not_pinned(torch.empty), not_pinned(torch.tensor)
    torch.Tensor.pin_memory = lambda tensor, *args: tensor
    module: Any = import_module(SCHEDULER)
    core: Any = import_module("minisgl.core")
    cache, table = (import_module(f"minisgl.scheduler.{name}") for name in ("cache", "table"))

    class MiniSglang(module.Scheduler):  # type: ignore[misc]
        """The scheduler of one case."""

        def __init__(self, case: FidelityCase) -> None:
            config = case.config
            core._GLOBAL_CTX = None
            core.set_global_ctx(core.Context(page_size=config.page_size))
            self.turns, is_serial = Turns(case), case.loop == LOOPS["normal"]
            self.loop = self.normal_loop if is_serial else self.overlapped
            self.numbers = {arrival.rid: at for at, arrival in enumerate(case.arrivals)}
            self.by_number = list(case.arrivals)
            self.live: set[int] = set()
            self.unread: Any = None
            rows = config.max_running_requests
            page_table = torch.zeros(rows + 1, MOST_LEN, dtype=torch.int32)
            self.table_manager = table.TableManager(rows, page_table)
            self.cache_manager = cache.CacheManager(
                config.num_pages, config.page_size, page_table,
                "naive" if config.disable_radix_cache else "radix",
            )  # fmt: skip
            self.decode_manager = module.DecodeManager(config.page_size)
            self.prefill_manager = module.PrefillManager(
                self.cache_manager, self.table_manager, self.decode_manager
            )
            self.finished_reqs: set[Any] = set()
            self.eos_token_id, self.device = EOS, torch.device("cpu")
            self.token_pool = self.table_manager.token_pool
            chunk = config.chunked_prefill_size
            self.prefill_budget = config.max_prefill_tokens if chunk == -1 else chunk
            self.stream, self.engine_stream_ctx = IdleStream(), nullcontext()
            self.engine = SimpleNamespace(
                graph_runner=SimpleNamespace(
                    pad_batch=lambda batch: setattr(batch, "padded_reqs", batch.reqs)
                ),
                attn_backend=SimpleNamespace(prepare_metadata=lambda batch: None),
                sampler=SimpleNamespace(prepare=lambda batch: None), page_table=page_table,
                max_seq_len=MOST_LEN, stream=IdleStream(), forward_batch=self.forward,
            )  # fmt: skip

        def receive_msg(self, blocking: bool = False) -> list[Any]:
            """Begin a turn; the call never blocks."""
            is_done = not self.live and self.unread is None
            messages = []
            for arrival in self.turns.begin(is_done, {}):
                self.live.add(self.numbers[arrival.rid])
                messages.append(self.message_of(arrival))
            return messages

        def message_of(self, arrival: Arrival) -> Any:
            """Return a request as the tokenizer would send it."""
            params = core.SamplingParams(
                ignore_eos=arrival.ignore_eos, max_tokens=arrival.max_new_tokens
            )
            ids = torch.tensor(arrival.prompt, dtype=torch.int32)
            return message.UserMsg(
                uid=self.numbers[arrival.rid], input_ids=ids, sampling_params=params
            )

        def forward(self, batch: Any, sample_args: None) -> Any:
            """Record the batch, advance lengths, return tokens: the engine's ``forward_batch``."""
            arrivals = [self.by_number[req.uid] for req in batch.reqs]
            pairs = list(zip(batch.reqs, arrivals, strict=True))
            if batch.is_prefill:
                rows = [Rows(it.rid, req.cached_len, req.device_len) for req, it in pairs]
                self.turns.launched(ScheduledStep("extend", tuple(rows)))
            else:
                self.turns.launched(
                    ScheduledStep("decode", (), tuple(sorted(it.rid for it in arrivals)))
                )
            told = torch.tensor([it.token(req.device_len) for req, it in pairs], dtype=torch.int32)
            for req in batch.reqs:
                req.complete_one()
            return ForwardOutput((told, told, SimpleNamespace(synchronize=lambda: None)))

        def send_result(self, reply: list[Any]) -> None:
            """Record the ended requests."""
            self.live -= {item.uid for item in reply if item.finished}

        def run_when_idle(self) -> None:
            """Do nothing: no thread waits."""

        def overlapped(self) -> None:
            """Run one turn of the overlap loop."""
            self.unread = self.overlap_loop(self.unread)

    return MiniSglang


class ForwardOutput(tuple[Any, ...]):
    """mini-sglang ``engine/engine.py:ForwardOutput``."""

    __slots__ = ()

    @property
    def next_tokens_gpu(self) -> Any:
        """Return the tokens."""
        return self[0]


ORIGINAL = Original(
    "mini-sglang", "mini-sglang", DECIDING, STAND_INS, set_up, below="python",
    packages_of="sglang",
)  # fmt: skip

if __name__ == "__main__":
    serve(ORIGINAL.start)
