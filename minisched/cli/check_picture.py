"""The picture of a run, with what it did wrong in red."""

from __future__ import annotations

from ..checks.judge import Finding, Verdict
from ..checks.leaks import find_leaks
from ..checks.offence import Offence
from ..checks.races import find_races, offence_of
from ..trace import Trace
