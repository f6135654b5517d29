"""Runs nano-vllm's own engine, scheduler and model runner from a checkout, on a CPU.

``run_nano_vllm.py SOURCE`` reads workloads from stdin, as JSON. For each workload it prints the
tokens of each request, and how many steps ran, how many of them were launched while another one was
in flight, and how many requests were preempted. The model is a stand-in: its KV cache has one
integer for each slot, and the next token depends on each slot that its block table names.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from importlib import import_module
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

EOS, VOCAB, PAGE = 0, 23, 4


class Hash:
    """xxhash's interface."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def update(self, data: bytes) -> None:
        self.hash.update(data)

    def intdigest(self) -> int:
        return int.from_bytes(self.hash.digest()[:8], "little")


class Event:
    """A CUDA event: on a CPU an op has ended when its call returns."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


class Model:
    """Writes a value for each input token into its slot, and reads all slots of a request."""

    def __init__(self, context: Any, blocks: int) -> None:
        self.context, self.kv = context, [0] * (blocks * PAGE)

    def __call__(self, input_ids: Any, positions: Any) -> Any:
        now = self.context()
        ids, at = input_ids.tolist(), positions.tolist()
        assert min(ids) >= 0, "a placeholder reached the model"
        pairs = zip(ids, at, strict=True)
        values = [token * 7919 + place * 104729 + token * place for token, place in pairs]
        for slot, value in zip(now.slot_mapping.tolist(), values, strict=True):
            self.kv[slot] = value
        if not now.is_prefill:
            rows = zip(now.block_tables.tolist(), now.context_lens.tolist(), strict=True)
            return torch.tensor([self.read(table, length) for table, length in rows])
        ends, lengths = now.cu_seqlens_q.tolist(), now.cu_seqlens_k.tolist()
        sums = list[int]()
        for row, (begin, end) in enumerate(pairwise(ends)):
            if now.block_tables is None:
                sums.append(sum(values[begin:end]))
            else:
                length = lengths[row + 1] - lengths[row]
                sums.append(self.read(now.block_tables[row].tolist(), length))
        return torch.tensor(sums)

    def read(self, table: list[int], length: int) -> int:
        return sum(self.kv[table[at // PAGE] * PAGE + at % PAGE] for at in range(length))

    def compute_logits(self, hidden: Any) -> Any:
        return hidden


def stand_in(name: str, **content: Any) -> None:
    """Put a module in the place of one that needs a GPU or is not installed."""
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(content)


def prepare(source: str) -> None:
    """Import nothing of a GPU: tensors stay where they are."""
    sys.path.insert(0, source)
    stand_in("xxhash", xxh64=Hash)
    stand_in("tqdm")
    stand_in("tqdm.auto", tqdm=None)
    stand_in("transformers", AutoTokenizer=None, AutoConfig=None)
    for name, part in (
        ("config", "Config"), ("llm", "LLM"), ("models.qwen3", "Qwen3ForCausalLM"),
        ("layers.sampler", "Sampler"), ("utils.loader", "load_model"),
    ):  # fmt: skip
        stand_in(f"nanovllm.{name}", **{part: object})
    for name in ("tensor", "empty"):
        made = getattr(torch, name)
        setattr(torch, name, lambda *a, made=made, pin_memory=False, **more: made(*a, **more))
    torch.Tensor.cuda = lambda self, **more: self  # type: ignore[assignment,method-assign]
    torch.cuda.Event = Event  # type: ignore[assignment,misc]


def count_steps(runner: Any, scheduler: Any) -> Counter[str]:
    """Count steps, those launched ahead, and preemptions, from now on."""
    counts, in_flight = Counter[str](steps=0, ahead=0, preempted=0), set[int]()
    launch = "launch" if hasattr(runner, "launch") else "run"
    calls = {launch: getattr(runner, launch), "wait": getattr(runner, "wait", None)}

    def launched(*args: Any) -> Any:
        counts["steps"] += 1
        counts["ahead"] += bool(in_flight)
        step = calls[launch](*args)
        in_flight.update({id(step)} if launch == "launch" else ())
        return step

    def waited(step: Any) -> Any:
        in_flight.remove(id(step))
        return calls["wait"](step)

    def preempted(seq: Any) -> None:
        counts["preempted"] += 1
        type(scheduler).preempt(scheduler, seq)

    vars(runner).update({launch: launched, "wait": waited})
    scheduler.preempt = preempted
    return counts


def run(rows: int, budget: int, blocks: int, requests: list[Any]) -> dict[str, Any]:
    """Run one workload to its end."""
    module = import_module("nanovllm.engine.llm_engine")
    runners = import_module("nanovllm.engine.model_runner")
    params = import_module("nanovllm.sampling_params").SamplingParams
    module.Sequence.block_size = PAGE
    config = SimpleNamespace(
        max_num_seqs=rows, max_num_batched_tokens=budget,
        eos=EOS, kvcache_block_size=PAGE, num_kvcache_blocks=blocks,
    )  # fmt: skip
    engine, runner = object.__new__(module.LLMEngine), object.__new__(runners.ModelRunner)
    runner.block_size, runner.rank, runner.world_size, runner.enforce_eager = PAGE, 0, 1, True
    runner.model = Model(import_module("nanovllm.utils.context").get_context, blocks)
    runner.sampler, runner.sampled = (lambda logits, temperatures: logits % VOCAB), None
    engine.scheduler, engine.model_runner, engine.last = module.Scheduler(config), runner, None
    coming = [
        (prompt, params(temperature=1.0, max_tokens=most, ignore_eos=goes_on))
        for prompt, most, goes_on in requests
    ]
    counts = count_steps(runner, engine.scheduler)
    first, outputs, turn = None, dict[int, list[int]](), 0
    while coming or not engine.is_finished():
        if coming and (turn % 5 == 0 or engine.is_finished()):
            engine.add_request(*coming.pop())
            number = engine.scheduler.waiting[-1].seq_id
            first = number if first is None else first
        ended, _ = engine.step()
        for number, tokens in ended:
            assert number - first not in outputs, "a request ended twice"
            outputs[number - first] = list(tokens)
        turn += 1
        assert turn < 2000, "it does not end"
    manager = engine.scheduler.block_manager
    assert not manager.used_block_ids, "some blocks were never released"
    return {"tokens": [outputs[at] for at in sorted(outputs)], **counts}


if __name__ == "__main__":
    prepare(sys.argv[1])
    print(json.dumps([run(*workload) for workload in json.load(sys.stdin)]))
