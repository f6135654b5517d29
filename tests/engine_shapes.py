"""Profiles as real engines give them, made from the structure of theirs, and what an oracle says.

The shapes are those of one step each, profiled on MI300X (torch.profiler on ROCm): SGLang's extend
and decode steps, vLLM's mixed step in piecewise graphs and its decode step in a full graph. Names
of calls and marks, the order of things and the long gaps are theirs; kernels are fewer.

The oracle for idle time is Meta's Holistic Trace Analysis. ``engine_idle.json`` holds its answers:

    python -m venv hta && hta/bin/pip install HolisticTraceAnalysis==0.5.0
    hta/bin/python -m tests.engine_shapes > tests/engine_idle.json

With names of files behind it, that command says the same of these instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

THREAD, GPU = 251, 9
ZERO = 4_909_914_216_204.0  # microseconds: profilers do not begin at 0
EXTEND = (
    "execute_15360_context_15(sq15360sk15360sqsq15728640sqsk15728640)"
    "_generation_0(sq0sk0sqsq0sqsk0)"
)
DECODE = "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)"
MIXED = (
    "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)"
    "_generation_37(sq37sk34489sqsq37sqsk34489)"
)
RESOLVE = (
    "void (anonymous namespace)::resolve_future_token_ids_kernel<long>(long*, long const*, "
    "unsigned long)"
)


@dataclass
class Profile:
    """Events of one process, in microseconds from its beginning; what is launched gets a number."""

    events: list[dict[str, Any]] = field(default_factory=list)
    launched: int = 91_053

    def mark(self, name: str, start: float, end: float, cat: str = "user_annotation") -> None:
        """A range of the host: ``record_function``, an operator, a function."""
        self._add(cat, name, THREAD, start, end, {"External id": 1})

    def call(self, name: str, start: float, end: float) -> int:
        """A call of the runtime; the number of what it launches."""
        self.launched += 1
        self._add("cuda_runtime", name, THREAD, start, end, {"correlation": self.launched})
        return self.launched

    def op(self, name: str, start: float, end: float, launch: int, stream: int = 3) -> None:
        """A kernel or a copy."""
        cat = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        args = {"device": GPU, "stream": stream, "correlation": launch}
        self._add(cat, name, stream, start, end, args, GPU)

    def _add(
        self, cat: str, name: str, tid: int, start: float, end: float, args: dict[str, Any],
        pid: int = THREAD,
    ) -> None:  # fmt: skip
        place = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "args": args}
        self.events.append({**place, "ts": ZERO + start, "dur": round(end - start, 3)})

    def text(self) -> str:
        """As ``export_chrome_trace`` writes it."""
        about = {"schemaVersion": 1, "hip_runtime_version": 0, "distributedInfo": {"rank": 0}}
        return json.dumps({**about, "traceEvents": self.events})


def sglang_extend(begin: float = 0, wait: float = 493_365.75, layers: int = 30) -> Profile:
    """The first kernel is queued behind a step that was cut off; the host blocks on a copy."""
    made = Profile()
    made.mark(EXTEND, begin, begin + wait + 29_400)
    made.mark("step[EXTEND bs=15 toks=15360]", begin + wait + 275, begin + wait + 29_200)
    number = made.call("hipLaunchKernel", begin + 69, begin + 74)
    made.op("arange", begin + 78.5, begin + 82, number, stream=2)
    made.call("hipStreamWaitEvent", begin + 100.25, begin + 110)
    number = made.call("hipLaunchKernel", begin + 121.75, begin + 126.75)
    made.op(RESOLVE, at := begin + wait, at + 7, number)
    made.mark("aten::copy_", begin + 168, at + 14, "cpu_op")
    number = made.call("hipMemcpyWithStream", begin + 170.5, at + 13)
    made.op("Memcpy HtoD (Host -> Device)", at + 7, at + 11.75, number)
    for name, call, since, until in (
        ("hipMemcpyWithStream", 58.25, 83.75, 89),
        ("hipModuleLaunchKernel", 240.75, 269.75, 275.5),
        ("hipLaunchKernel", 360.25, 379.75, 386.25),
        ("hipMemcpyWithStream", 407.25, 420, 426.25),
        ("hipLaunchKernel", 508.25, 520, 525.25),
    ):
        number = made.call(name, at + call, at + call + 9)
        kind = "Memcpy DtoD (Device -> Device)" if "Memcpy" in name else "compute_position_kernel"
        made.op(kind, at + since, at + until, number)
    free = at + 612
    for layer in range(layers):
        number = made.call(
            "hipExtModuleLaunchKernel", at + 600 + 900 * layer, at + 606 + 900 * layer
        )
        made.op(f"Cijk_Alik_Bljk_{layer}", free, free + 16_400, number)
        free += 16_400 + 0.25 * (layer % 3)
    number = made.call("hipLaunchKernel", at + 29_340, at + 29_345)
    made.op("arange", at + 29_352, at + 29_356, number, stream=2)
    return made


def sglang_decode(wait: float = 463_380.25) -> Profile:
    """A graph of which pieces come late, as the launch is still going on."""
    made = Profile()
    made.mark(DECODE, 0, wait + 2_336)
    made.mark("step[DECODE bs=32]", 203.75, wait + 2_071)
    for start, name in ((123, RESOLVE), (176.5, "clamp_position_kernel")):
        number = made.call("hipLaunchKernel", start, start + 5.5)
        made.op(name, wait, wait + 6.75, number)
        wait += 6.75
    number = made.call("hipMemcpyWithStream", 361.75, wait + 45)
    made.mark("aten::copy_", 345.5, wait + 56, "cpu_op")
    made.op("Memcpy DtoH (Device -> Host)", wait + 0.5, wait + 29, number)
    made.mark("cuda_graph_runner.py(1251): replay_prepare", 232.5, wait + 380, "python_function")
    number = made.call("hipModuleLaunchKernel", wait + 355, wait + 363)
    made.op("create_flashinfer_kv_indices_triton", wait + 368, wait + 373.5, number)
    number = made.call("hipGraphLaunch", wait + 410, wait + 1_983)
    at = wait + 424.5
    for piece in range(60):
        at += 273.75 if piece == 18 else 0.25 * (piece % 2)
        made.op("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb0ELb0ELb1ELi1EEEvPT0_",
                at, at + 150, number)  # fmt: skip
        at += 150
    return made


def vllm_piecewise(
    steps: int = 1, pieces: int = 25, mark: str | None = MIXED, begins: float = 151_231.25
) -> Profile:
    """Every forward pass in so many graphs, launched long before the device comes to them."""
    made, host, device = Profile(), 0.0, begins
    for _ in range(steps):
        if mark is not None:
            made.mark(mark, host, host + 26_353.5)
        made.call("hipEventSynchronize", host + 86.5, host + 90.5)
        number = made.call("hipMemcpyAsync", host + 2_211.75, host + 2_232.5)
        made.op("Memcpy HtoD (Host -> Device)", device, device + 4, number, stream=0)
        device += 4.25
        for piece in range(pieces):
            at = host + 4_448.25 + 800 * piece
            for name, took, kernels in (
                ("hipGraphLaunch", 30.5, 4),
                ("hipLaunchKernel", 12, 1),
                ("hipModuleLaunchKernel", 12, 1),
            ):
                number = made.call(name, at, at + took)
                at += 100
                for kernel in range(kernels):
                    made.op(f"triton_poi_fused_{kernel}", device, device + 1_000, number, stream=0)
                    device += 1_000 + 0.25 * (kernel % 3)
        host += 26_400
    return made


def vllm_full_graph() -> Profile:
    """One graph of which each kernel follows the one before within a microsecond."""
    made = Profile()
    made.mark(DECODE, 0, 2_408.5)
    made.call("hipEventSynchronize", 39, 41.25)
    device = 8_370.75
    for copy in range(9):
        number = made.call("hipMemcpyAsync", 534.25 + 60 * copy, 544.75 + 60 * copy)
        made.op("Memcpy DtoD (Device -> Device)", device, device + 4.5, number, stream=0)
        device += 4.75
    number = made.call("hipGraphLaunch", 1_543.5, 2_050.25)
    for kernel in range(120):
        made.op(f"_matmul_ogs_{kernel % 7}", device, device + 85.5, number, stream=0)
        device += 85.5 + (10.25 if kernel == 0 else 0.25 * (kernel % 2))
    return made


SHAPES = {
    "sglang_extend": sglang_extend,
    "sglang_decode": sglang_decode,
    "vllm_piecewise": vllm_piecewise,
    "vllm_full_graph": vllm_full_graph,
}


def oracle(path: Path, rounded: bool) -> dict[str, Any]:
    """What Holistic Trace Analysis says of a file, in microseconds; this Python has to have it.

    ``rounded``: as it does by itself, with times in whole microseconds.
    """
    switch = {} if rounded else {"HTA_DISABLE_NS_ROUNDING": "1"}
    line = [sys.executable, "-c", ASK, str(path)]
    done = subprocess.run(line, env={**os.environ, **switch}, capture_output=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


ASK = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
one = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
whole = one.get_temporal_breakdown(visualize=False).iloc[0]
streams = {}
for stream in sorted(int(item) for item in one.t.get_trace(0).stream.unique() if item >= 0):
    rows = one.get_idle_time_breakdown(ranks=[0], streams=[stream], visualize=False)[0]
    streams[str(stream)] = {
        row.idle_category.replace("_", " "): round(float(row.idle_time), 3)
        for row in rows.itertuples()
    }
found = {"idle": whole["idle_time(us)"], "whole": whole["kernel_time(us)"]}
print(json.dumps({**{k: round(float(v), 3) for k, v in found.items()}, "streams": streams}))
"""


def facts(paths: dict[str, Path]) -> Iterator[tuple[str, Any]]:
    """The oracle's answers, exact and rounded."""
    for name, path in paths.items():
        yield name, {"exact": oracle(path, False), "rounded": oracle(path, True)}


def main(files: list[str]) -> None:
    """Print what the oracle says of the files, or else of the shapes."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {Path(file).name: Path(file).resolve() for file in files}
        if not files:
            for name, make in SHAPES.items():
                paths[name] = Path(folder) / f"{name}.json"
                paths[name].write_text(make().text(), encoding="utf-8")
        print(json.dumps(dict(facts(paths)), indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
