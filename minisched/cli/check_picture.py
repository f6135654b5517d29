"""The picture of a run, with what it did wrong in red."""

from __future__ import annotations

from ..checks.judge import Finding, Verdict
from ..checks.leaks.leaks import find_leaks
from ..checks.offence import Offence
from ..checks.races import Race, WaitsForEver, examine, race_offence
from ..checks.tokens.ends import find_ends
from ..checks.tokens.identity import Difference, first_difference
from ..checks.tokens.oracle import tokens_alone
from ..checks.tokens.wrong_token import explain
from ..checks.tokens.wrong_token import token_offence as wrong_token_offence
from ..export.offence import draw
from ..export.offence_text import to_text
from ..trace import Trace


def picture(trace: Trace, offence: Offence, suffix: str) -> str:
    """One offence, as ``.svg`` or as ``.txt``."""
    return draw(trace, offence) if suffix == ".svg" else to_text(trace, offence)


def offence_in(verdict: Verdict, finding: Finding) -> Offence:
    """What a picture of a finding shows in red; what no slice is to blame for, the host's last."""
    trace = verdict.trace
    if finding.law == "leak":
        for leak in find_leaks(trace):
            return leak.offence
    if finding.law in ("race", "deadlock"):
        seen = examine(trace)
        every: list[Race | WaitsForEver] = [*seen.races, *seen.waits]
        for found in every:
            return race_offence(found, trace)
    if finding.law == "ends":
        for breach in find_ends(trace):
            return breach.offence
    if finding.law == "identity" and (difference := wrong_token(verdict)) is not None:
        return wrong_token_offence(explain(difference, trace))
    last = tuple(item.id for item in trace.on("host")[-1:])
    return Offence(last, f"{finding.law}: {finding.sentence}")


def wrong_token(verdict: Verdict) -> Difference | None:
    """The first token that a request would not get alone."""
    requests = verdict.workload.requests
    alone = {
        req.rid: [] if req.name in verdict.refused else tokens_alone(verdict.workload, req)
        for req in requests
    }
    return first_difference(verdict.trace.loop, alone, {r.rid: r.output_ids for r in requests})
