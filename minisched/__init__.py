"""minisched: overlap scheduling for LLM inference, small enough to read, with visual traces.

In Python three lines are enough, and in a notebook they end in the player:

>>> import minisched as ms
>>> ms.compare(ms.requests(2), loops=["overlap"]).show()  # doctest: +ELLIPSIS
loop     steps  tokens  makespan (ms)  device busy  ...
serial      64     128         1047.7         56 %  ...
overlap     64     128          594.1         99 %  ...
<BLANKLINE>
Identical: overlap gave every request the same tokens as serial.
overlap takes ...

The simulator needs only the standard library. Each function loads its part of this package when it
is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .core import Request, SamplingParams
from .core.notebook import NotebookOutput

if TYPE_CHECKING:
    from .checking import Check, Checkable
    from .comparison import Comparison
    from .core import Output
    from .devices.cost import CostModel
    from .loops.run import Run
    from .models.base import Model
    from .own_loops import OwnLoop
    from .scheduler import SchedulerConfig
    from .trace import Trace

__version__ = "0.1.0"
__all__ = ["Request", "SamplingParams", "check", "compare", "requests", "run", "show"]


def _in_notebook(trace: Trace, text: str) -> dict[str, str]:
    """Return a cell's output for a run or a trace; pictures are loaded when one is drawn."""
    from .export.notebook import trace_bundle

    return trace_bundle(trace, text)


NotebookOutput.draw = _in_notebook


def requests(
    prompts: int | Sequence[str] = 8,
    params: SamplingParams | None = None,
    *,
    model: Model | str | tuple[object, object] = "hash",
) -> list[Request]:
    """Return requests ``r0``, ``r1``, .. for that many built-in prompts, or for your own texts.

    ``params`` sets their sampling and their length, by default 64 tokens each, the most likely
    ones. The texts become the tokens of ``model``: bytes for ``hash``, otherwise the tokens of
    the named model's tokenizer (``smollm2``, a directory, a hub id).

    >>> [request.rid for request in requests(3)]
    ['r0', 'r1', 'r2']
    >>> requests(["Hi!"], SamplingParams(max_new_tokens=4))[0].prompt
    (72, 105, 33)

    Raises:
        ValueError: there are no prompts, they are no texts, or there is no such model.
    """
    from . import defaults

    if isinstance(prompts, int):
        if prompts < 1:
            raise ValueError(f"prompts is {prompts}, but there must be at least 1.")
        texts = defaults.go_round((), prompts)
    else:
        texts = defaults.check_names("prompts", prompts, "Once upon a time")
        if not texts:
            raise ValueError("prompts is empty, but there must be at least 1.")
    params = SamplingParams(max_new_tokens=defaults.MAX_NEW_TOKENS) if params is None else params
    return defaults.make_requests(texts, defaults.text_codec(model), params)


def compare(
    requests: Iterable[Request] | None = None,
    loops: Sequence[str | OwnLoop] | None = None,
    *,
    device: str = "sim",
    model: Model | str | tuple[object, object] = "hash",
    dtype: str = "auto",
    config: SchedulerConfig | Mapping[str, object] | None = None,
    cost: CostModel | None = None,
    on_output: Callable[[str, Output], None] = lambda loop, output: None,
) -> Comparison:
    """Run requests through ``serial`` and then through ``loops``, and compare the runs.

    ``requests`` are those of ``requests()`` and ``loops`` the one that overlaps on the device, if
    they are left out; the requests themselves are not changed. A loop of your own is a generator
    function, a ``Design``, or the text ``"FILE.py:NAME"``. ``model`` is a name, a directory, a hub
    id, or on ``mlx`` the pair that ``mlx_lm.load`` returned. ``dtype`` is what a real model
    computes in, as for ``--dtype``. ``config`` are settings of the scheduler by name, over those of
    the command line (16 requests at a time, with room for all, in chunks of 128), or a whole
    ``SchedulerConfig``. ``cost`` gives the time of a step: the usual costs on ``sim``, and
    nothing added elsewhere. ``on_output`` receives every output, with its loop.

    The result has the ``runs``, whether they are ``identical``, their ``differences``, the
    ``speedup`` of each loop (None where no time passed), ``show()``, and prints as a table.

    >>> found = compare(requests(2), loops=["overlap", "vllm_async"], config={"page_size": 4})
    >>> found.identical, list(found.speedup)
    (True, ['serial', 'overlap', 'vllm_async'])
    >>> found.speedup["overlap"] > 1.5
    True

    Raises:
        ValueError: an argument is not what it should be, there is no such loop, device, model or
            setting, or they don't go together.
        KeyboardInterrupt: Ctrl-C; the current run has ended cleanly.
        RunStopped: a run stopped with an error (``loops/run.py``).
    """
    from .comparison import compare_loops
    from .defaults import overlapped_loop, prepare
    from .own_loops import check_loops, known

    chosen = [overlapped_loop(device)] if loops is None else check_loops(loops)
    asked, opened, settings, costs = prepare(requests, device, model, dtype, config, cost)
    with known(chosen) as names:
        return compare_loops(names, device, opened, asked, settings, costs, on_output)


def run(
    requests: Iterable[Request] | None = None,
    loop: str | OwnLoop | None = None,
    *,
    device: str = "sim",
    model: Model | str | tuple[object, object] = "hash",
    dtype: str = "auto",
    config: SchedulerConfig | Mapping[str, object] | None = None,
    cost: CostModel | None = None,
    on_output: Callable[[Output], None] = lambda output: None,
) -> Run:
    """Run requests through one loop; the arguments are those of ``compare``.

    A loop of your own is a generator function, a ``Design``, or the text ``"FILE.py:NAME"``.

    The result has ``outputs`` and ``errors`` by request id, the ``trace`` and the ``metrics``.
    After an interrupt its requests have ended cleanly, and it is ``interrupted``.

    >>> ran = run([Request("a", [1, 2, 3], SamplingParams(max_new_tokens=4))], "overlap")
    >>> len(ran.outputs["a"])
    4
    >>> ran
    <overlap on sim with hash: 4 tokens of 1 request in 43.8 ms>

    Raises:
        ValueError: an argument is not what it should be, or there is no such loop, device, model or
            setting.
    """
    from .defaults import overlapped_loop, prepare
    from .devices.registry import open_device
    from .loops.run import fresh, run_loop
    from .own_loops import known

    asked, opened, settings, costs = prepare(requests, device, model, dtype, config, cost)
    again = [fresh(request) for request in asked]
    with known([overlapped_loop(device) if loop is None else loop]) as (name,):
        fresh_device = open_device(device)
        return run_loop(name, fresh_device, opened, again, settings, costs, on_output=on_output)


def check(
    *what: Checkable,
    workloads: int | None = None,
    seed: int = 0,
    loops: Sequence[str | OwnLoop] = (),
    device: str = "sim",
    jobs: int = 1,
    step: str = "",
    device_lane: str = "",
    unpacked_mib: int = 1024,
    require: Sequence[str] = (),
    compare: bool = False,
) -> Check:
    """Hold the laws against runs, against loops of your own, or against the loops that are here.

    - ``check(run, ..)``, with runs, a comparison, traces or files of them: is each *identical* to
      the first, does it *leak*, does it *race*, does it *overlap*, is its device *busy*?
    - ``check(my_loop)`` or ``check("FILE.py:my_loop")``: random workloads (150; 20 in real time)
      on your loop. It is a generator like those in ``minisched/loops``. A design with other than
      two steps in flight and a ring is a ``Design`` (``minisched/loops/design.py``), which also
      has what it ``refuses``.
    - ``check()``: random workloads on all loops, half a minute of them, or on those of ``loops``.

    Of a profiler's file, ``step`` names the ranges that are steps (``*`` is any text), and
    ``device_lane`` the stream, thread or range that is the device; in a file of your own it is a
    lane. A file in gzip may unpack to ``unpacked_mib`` MiB. Recorded runs have to meet what is in
    ``require``: ``["overlapped>=90%", "busy>=95%", "no blocking aten::item", "no races"]``.

    With ``compare``, two files of engines' outputs are compared: the first different token, and the
    events before it (``minisched/checks/outputs.py`` describes the files).

    ``workloads``, ``seed``, ``loops``, ``device`` and ``jobs`` (processes) are those of ``minisched
    check``. The result has ``holds`` (None: there was nothing to judge by), prints as sentences,
    and has the ``answers`` on runs, or the ``tally`` of all failures, the first one made small.
    ``save(folder)`` writes that one's trace and picture.

    >>> check(run(requests(2), "overlap"))  # doctest: +ELLIPSIS
    overlap: overlap on sim hash, virtual clock
      ? identical?  Nothing to judge: this is one run alone; name a second one.
      ✓ leaks?      Nothing leaks: all allocated memory was released.
      ✓ races?      No race: of ... accesses on 3 lanes, all that conflict are ordered.
      ✓ overlaps?   Overlapped: ...
    >>> check(run(requests(2), "serial"), require=["overlapped>=90%"]).holds
    False
    >>> def my_loop(engine):
    ...     while True:
    ...         engine.recv_requests()
    ...         batch = engine.get_next_batch_to_run()
    ...         if batch:
    ...             engine.process_batch_result(engine.run_batch(batch))
    ...         else:
    ...             engine.on_idle()
    ...         yield batch
    >>> check(my_loop, workloads=5)
    ✓ every law held in all 5 cases: 5 random workloads on my_loop, on sim.

    Raises:
        ValueError: a file can't be read, runs are of different workloads, there is no such loop, or
            an option is outside its limits.
    """
    from .checking import check_this

    return check_this(
        what, workloads, seed, loops, device, jobs, step, device_lane, unpacked_mib, require,
        compare,
    )  # fmt: skip


def show(
    runs: Comparison | Run | Trace | OwnLoop | Iterable[Run | Trace | OwnLoop], height: int = 640
) -> None:
    """Show runs: in a notebook the player over all of them, in a terminal a picture of letters.

    A loop of your own, which ``run`` takes, runs the usual requests first.

    Of several runs the first is the baseline of speed-ups; a comparison is shown as its own
    ``show()`` does. A cell in a notebook is ``height`` pixels high.

    >>> show(run(requests(2), "serial"))  # doctest: +ELLIPSIS
    serial: the device idles ...

    Raises:
        ValueError: there is no run, or the height is less than 1 pixel.
    """
    from .comparison import Comparison
    from .defaults import in_words
    from .export.notebook import display
    from .own_loops import is_own

    if isinstance(runs, Comparison):
        return runs.show(height)
    one = isinstance(runs, str) or not isinstance(runs, Iterable)
    given: list[Any] = [runs] if one else list(runs)  # type: ignore[arg-type]
    several = [run(loop=item) if is_own(item) else item for item in given]
    for item in several:
        if not hasattr(item, "trace") and not hasattr(item, "slices"):
            raise ValueError(f"runs are what run or compare gave, but one is {in_words(item)}.")
    display(several, height)
