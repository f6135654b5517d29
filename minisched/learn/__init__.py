"""The parts of the lessons: runs, pictures, sources, and exercises that are held to the laws.

================ =================================================================================
module           what it gives
================ =================================================================================
``runs``         runs with given costs in milliseconds, and tables and pictures of runs
``exercise``     what an exercise is: a table with a hole in the package; ``exercises`` has all
``grade``        ``check``: the laws, the smallest counterexample in red, or the run beside another
``guard``        limits of time and instructions for a learner's lines
``score``        three fixed workloads, and the figures of a loop on them
``guess``        a learner's guess as a dashed line in a picture
``rush``         one server through the course: the time of an answer after each lesson
``small_engine`` an engine of nano-vllm's shape, for lesson 14
``slides``       a lesson as slides, without its solutions
``outputs``      what a cell shows: a table, and lines of the package
``report``       a page on all answers of a learner, each checked again
``keep``         ``mine.py``, the file with the right answers; hints
================ =================================================================================

Only the standard library is needed, and IPython nowhere: what a cell shows has ``_repr_html_``
(``outputs.py``).
"""

from .exercises.l02_future_map import inputs_sent
from .exercises.l11_reviewer import (
    acts,
    clocks_of_example,
    picture_of_example,
    touches,
    trace_of_bug,
)
from .exercises.l12_your_engine import device_ops, host_calls, joined, profile, profile_path
from .exercises.l14_into_an_engine import trace_of_engine
from .grade import check
from .guess import bars
from .keep import hint
from .outputs import Table
from .outputs import excerpt as show
from .runs import simulate, table, timing, view
from .rush import rush

__all__ = [
    "Table",
    "acts",
    "bars",
    "check",
    "clocks_of_example",
    "device_ops",
    "hint",
    "host_calls",
    "inputs_sent",
    "joined",
    "picture_of_example",
    "profile",
    "profile_path",
    "rush",
    "show",
    "simulate",
    "table",
    "timing",
    "touches",
    "trace_of_bug",
    "trace_of_engine",
    "view",
]
