"""What a lazy step is built on, and when the chain must break: two parts of MLX's loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..engine.engine import Engine
from .callable_check import takes
from .chain_loops import MayChain, Turn, loop_of_turns, loop_that_asks
from .exercise import right, try_all
from .guard import in_time
from .laws import BrokenLaw, broken
from .loop_exercise import too_slow
from .newest_or_lazy import NewestOrLazy
from .trial import Loop, Trial, play
from .verdict import ExerciseVerdict
from .wording import joined, ordinal
from .workload import ExerciseWorkload, WorkloadLimits

SHAPE = WorkloadLimits()


@in_time
def check_turn(turn: Turn) -> ExerciseVerdict:
    """Whether ``turn(engine, pending)`` keeps two lazy graphs in flight, on the right tokens.

    It is given the step in flight, and gives back the one launched behind it, or None.
    """
    if problem := takes(turn, "turn", "engine", "pending"):
        return ExerciseVerdict(False, [problem])
    loop = loop_of_turns(turn)
    if failed := try_all(partial(play_lazily, loop=loop), SHAPE, explain=why):
        return failed
    return too_slow(loop, "chain", "mlx_async") or right(
        "Two graphs are in flight: a settled step takes no longer than the longer of host and "
        "device needs."
    )


@in_time
def check_may_chain(may_chain: MayChain) -> ExerciseVerdict:
    """Whether ``may_chain(batch, waiting, ended)`` breaks the chain when it must, and only then.

    All three are request ids: of the step in flight, of who waits, of who has ended.
    """
    if problem := takes(may_chain, "may_chain", "batch", "waiting", "ended"):
        return ExerciseVerdict(False, [problem])

    def playing(workload: ExerciseWorkload) -> Trial:
        chained: list[tuple[int, str]] = []
        trial = play_lazily(workload, loop_that_asks(may_chain, chained))
        trial.parts["waited"] = chained
        return trial

    if failed := try_all(playing, SHAPE, law=nobody_waits):
        return failed
    return too_slow(loop_that_asks(may_chain, []), "chain", "mlx_async") or right(
        "Nobody waited while others were chained, and nobody was chained who had ended."
    )


def play_lazily(workload: ExerciseWorkload, loop: Loop) -> Trial:
    """A loop on lazy tokens; a step that was not told what it is built on gets an old token."""
    relay: list[NewestOrLazy] = []

    def patch(engine: Engine) -> None:
        relay.append(NewestOrLazy(engine.device))
        engine.worker.relay = relay[0]

    trial = play(workload, loop, "chain", patch)
    trial.parts["untold"] = relay[0].untold
    return trial


def why(trial: Trial, what: BrokenLaw) -> Sequence[str]:
    """What a wrong step was built on."""
    before = sum(one.step < what.step for one in trial.tokens(what.rid))
    if what.law != "identity" or what.step not in trial.parts["untold"] or not before:
        return []
    return [
        f"run_batch was not told which step {what.step} is built on. So its input for request "
        f"{what.rid} was the newest token that the host had then, and not its {ordinal(before)} "
        f"one, which step {what.step - 1} was still computing."
    ]


def nobody_waits(trial: Trial) -> BrokenLaw | None:
    """The laws, and: while somebody waits, nothing is chained."""
    if found := broken(trial):
        return found
    waited: list[tuple[int, str]] = trial.parts["waited"]
    if not waited:
        return None
    step, rid = waited[0]
    steps = [str(at) for at, who in waited if who == rid]
    words = f"steps {joined(steps)} were" if len(steps) > 1 else f"step {step} was"
    sentence = (
        f"request {rid} waited while {words} chained. A chain has the same requests in every "
        f"step, so {rid} can't join before it breaks."
    )
    return BrokenLaw("waits", sentence, step, rid)
