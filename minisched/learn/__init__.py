"""What the lessons are made of: runs, pictures, sources, and exercises with checkers.

================= ================================================================================
module            what it gives
================= ================================================================================
``runs``          a run whose host, device and copy take so many milliseconds a step; tables
``figure``        pictures of runs, and of lines of the package, where a notebook can show them
``guard``         no run of a learner's lines lasts for ever, or ends anything but itself
``trial``         one small workload run through a learner's lines, and the laws that it has to keep
``exercise``      tries many workloads, shrinks the first that fails, draws it, gives a verdict
``loop_exercise`` write a loop that overlaps; how long a step takes, and where overlap loses
``ring_exercise`` the lines of a FutureMap, and how many slots it needs
``lazy_exercise`` two lazy graphs: hand over before you read, and when the chain must break
================= ================================================================================

Only the standard library is needed, and IPython nowhere: what a cell shows has ``_repr_html_``.
"""

from .figure import show, timing, view
from .grade import check
from .keep import hint
from .lazy_exercise import check_generate, check_may_chain, check_turn
from .loop_exercise import check_loop, check_losing_case, check_step_time
from .ring_exercise import check_alloc, check_limit, check_resolve
from .runs import Table, inputs_sent, simulate, table

__all__ = [
    "Table",
    "check",
    "check_alloc",
    "check_generate",
    "check_limit",
    "check_loop",
    "check_losing_case",
    "check_may_chain",
    "check_resolve",
    "check_step_time",
    "check_turn",
    "hint",
    "inputs_sent",
    "show",
    "simulate",
    "table",
    "timing",
    "view",
]
