"""What surely comes before a moment of a run, and what surely comes after it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ...trace import Act


class Knowledge:
    """A program, ready to be asked; acts are named by their places in it."""

    def __init__(self, program: Sequence[Act]) -> None:
        self.program = program
        self.lanes: defaultdict[str, list[int]] = defaultdict(list)
        self.place: list[int] = []  # of each act in its lane
        self.launched: dict[int, int] = {}  # by op
        self.ended: dict[int, int] = {}  # by op or signal; of a signal the first
        self.followers: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for at, act in enumerate(program):
            self.place.append(len(self.lanes[act.lane]))
            self.lanes[act.lane].append(at)
            if act.kind == "launch":
                self.launched[act.op] = at
            elif act.kind in ("end", "say"):
                self.ended.setdefault(act.op, at)
            elif act.kind in ("begin", "wait"):
                self.followers[act.kind, act.op].append(at)

    def before(self, starts: Iterable[int]) -> dict[str, int]:
        """How many acts of each lane have happened by the time of the acts at ``starts``.

        They themselves are counted. Found by walking back: along a lane, from a begin to its
        launch, from a wait to the end that it waits for.
        """
        known: dict[str, int] = {}
        waiting = list(starts)
        while waiting:
            at = waiting.pop()
            lane, place = self.program[at].lane, self.place[at]
            for earlier in self.lanes[lane][known.get(lane, 0) : place + 1]:
                act = self.program[earlier]
                if act.kind == "begin" and act.op in self.launched:
                    waiting.append(self.launched[act.op])
                elif act.kind == "wait" and act.op in self.ended:
                    waiting.append(self.ended[act.op])
            known[lane] = max(known.get(lane, 0), place + 1)
        return known

    def has(self, known: dict[str, int], at: int) -> bool:
        """Whether the act at ``at`` is among what ``before`` found."""
        return self.place[at] < known.get(self.program[at].lane, 0)

    def after(self, start: int) -> dict[str, int]:
        """From which of its acts on each lane comes after the act at ``start``, itself counted."""
        first: dict[str, int] = {}
        waiting = [start]
        while waiting:
            at = waiting.pop()
            lane, place = self.program[at].lane, self.place[at]
            places = self.lanes[lane]
            for later in places[place : first.get(lane, len(places))]:
                act = self.program[later]
                if act.kind == "launch":
                    waiting += self.followers["begin", act.op]
                elif act.kind in ("end", "say") and self.ended[act.op] == later:
                    waiting += self.followers["wait", act.op]
            first[lane] = min(first.get(lane, len(places)), place)
        return first

    def is_unordered(self, one: int, other: int) -> bool:
        """Whether nothing says which of two acts comes first."""
        act, place = self.program[other], self.place[other]
        is_before = place < self.before([one]).get(act.lane, 0)
        return not is_before and place < self.after(one).get(act.lane, place + 1)
