"""What the lessons are made of: runs, pictures, sources, sliders, and exercises with checkers.

====================== ===========================================================================
module                 what it gives
====================== ===========================================================================
``simulate``           a run whose host, device and copy take so many milliseconds a step
``tables``             numbers of runs in a table
``figure``             pictures of runs, shown where a notebook or a page can
``source``             the few lines of the package that a lesson is about, never a copy of them
``slider``             host and device cost on two sliders, in a page that needs no kernel
``workload``           small random workloads, and simpler ones, for counterexamples
``trial``              one workload run through a learner's lines, bounded, with all that was heard
``guard``              no run of a learner's lines lasts for ever
``blame``              what they raise becomes one sentence
``step_notes``         which steps they launched and processed, turn by turn
``wasted_steps``       steps of which nobody needed the tokens, outlined
``laws``               what must be true of a trial
``exercise``           tries many workloads, shrinks the first that fails, and gives a verdict
``counterexample``     the trial up to the first wrong token, with the offending step marked
``verdict``            what a learner sees
``wording``            how numbers and lists are said
``callable_check``     whether what a learner hands over can be called at all
``loop_exercise``      write a loop that overlaps
``formula_exercise``   how long a settled step takes, and where overlap loses
``ring_exercise``      the lines of a FutureMap
``ring_size_exercise`` how many slots it needs
``ring_picture``       what was in which slot when, in the lessons' words
``sticky_ring``        the ring as SGLang had it, with the learner's lines in it
``ring_notes``         what each step read from it, for the words of a verdict
``lazy_exercise``      hand over before you read: the order around MLX's ``async_eval``
``lazy_clock``         lazy tokens on a virtual clock, for that
``chain_exercise``     what a lazy step is built on, and when the chain must break
``chain_loops``        loops with a hole for a learner's lines, for that
``newest_or_lazy``     a chain that gives an old token to a step that was not told
====================== ===========================================================================

Only the standard library is needed, and IPython nowhere: what a cell shows has ``_repr_html_``.
"""

from .chain_exercise import check_may_chain, check_turn
from .figure import timing, view
from .formula_exercise import check_losing_case, check_step_time
from .lazy_exercise import check_generate
from .loop_exercise import check_loop
from .ring_exercise import check_alloc, check_resolve
from .ring_size_exercise import check_limit
from .simulate import simulate
from .slider import cost_slider
from .source import show
from .tables import Table, inputs_sent, table

__all__ = [
    "LessonFigure",
    "Table",
    "check_alloc",
    "check_generate",
    "check_limit",
    "check_loop",
    "check_losing_case",
    "check_may_chain",
    "check_resolve",
    "check_step_time",
    "check_turn",
    "cost_slider",
    "inputs_sent",
    "show",
    "simulate",
    "table",
    "timing",
    "view",
]
