"""Plays the lanes of a run again: each item starts as soon as what it comes after has happened.

An item is one of four: ``run`` takes time (after it was launched, if anybody launches it), ``wait``
holds its lane until another item has ended or was said, ``launch`` lets another one start, ``say``
is what others wait for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...trace import Slice


@dataclass(slots=True)  # there are a million of them in a large trace
class Item:
    """One thing that a lane does; times in nanoseconds.

    What the rest does not explain (``calibrate``): ``lane_lag`` and ``launch_lag`` are how much
    earlier than its lane was free, or than its launch was over, it started (0 or less; on a wall
    clock an op starts while its launch still runs); ``delay`` is how much later than all of them.
    ``release`` is when it could start at the earliest, for what came from outside.
    """

    kind: str
    id: int
    duration: int = 0
    lane_lag: int = 0
    launch_lag: int = 0
    delay: int = 0
    release: int = 0


Lanes = dict[str, list[Item]]


class Moment(NamedTuple):
    """A time, and the ``run`` item that it is the end of (0: the beginning)."""

    time: int
    after: int


class Ran(NamedTuple):
    """When an item ran; ``after`` is the one that held it back last, until ``ready``."""

    start: int
    end: int
    after: int
    ready: int


Start = Callable[[Item, Moment, Moment], int]


def replay(lanes: Lanes) -> dict[int, Ran]:
    """When each ``run`` item runs, by id."""
    return _walk(lanes, as_calibrated).ran


def replayed_end(lanes: Lanes) -> int:
    """When the last item ends; of a large trace it takes half the memory of all that ``replay``."""
    return _walk(lanes, as_calibrated, keeps=False).end


def as_calibrated(item: Item, lane: Moment, launch: Moment) -> int:
    """When an item starts, of which ``calibrate`` knows what held it back."""
    ready = max(lane.time + item.lane_lag, launch.time + item.launch_lag)
    return max(ready + item.delay, item.release)


def calibrate(lanes: Lanes, recorded: Mapping[int, Slice]) -> None:
    """Set lags, delays and releases so that a replay gives what was recorded."""

    def start(item: Item, lane: Moment, launch: Moment) -> int:
        was = recorded[item.id]
        item.lane_lag = min(0, was.start - lane.time)
        item.launch_lag = min(0, was.start - launch.time)
        late = was.start - max(lane.time + item.lane_lag, launch.time + item.launch_lag)
        if was.name == "receive":
            item.release = was.start if late else 0
        else:
            item.delay = late
        return was.start

    _walk(lanes, start, keeps=False)


def _walk(lanes: Lanes, start: Start, keeps: bool = True) -> _Stage:
    """Take items lane by lane, each as soon as what it comes after is known."""
    players = [_Player(items) for items in lanes.values()]
    every = [item for items in lanes.values() for item in items]
    stage = _Stage(
        start,
        will_end={item.id for item in every if item.kind in ("run", "say")},
        will_launch={item.id for item in every if item.kind == "launch"},
        keeps=keeps,
    )
    while any([stage.play(player) for player in players]):
        pass
    return stage


class _Player:
    """A lane: what it has yet to do, and since when it could."""

    def __init__(self, items: list[Item]) -> None:
        self.queue = deque(items)
        self.ready = Moment(0, 0)


class _Stage:
    """What has happened so far; ``keeps`` says whether anybody asks what ran when."""

    def __init__(
        self, start: Start, will_end: set[int], will_launch: set[int], keeps: bool
    ) -> None:
        self.start, self.will_end, self.will_launch = start, will_end, will_launch
        self.keeps, self.end = keeps, 0
        self.launched: dict[int, Moment] = {}
        self.ended: dict[int, Moment] = {}
        self.ran: dict[int, Ran] = {}

    def play(self, player: _Player) -> bool:
        """Let a lane go on as far as it can; says whether it did anything."""
        before = len(player.queue)
        while player.queue and self._may(player.queue[0]):
            self._take(player.queue.popleft(), player)
        return len(player.queue) < before

    def _may(self, item: Item) -> bool:
        if item.kind == "run":
            return item.id not in self.will_launch or item.id in self.launched
        return item.kind != "wait" or item.id not in self.will_end or item.id in self.ended

    def _take(self, item: Item, player: _Player) -> None:
        if item.kind == "run":
            self._run(item, player)
        elif item.kind == "launch":
            self.launched[item.id] = player.ready
        elif item.kind == "say":
            self.ended[item.id] = player.ready
        elif (ended := self.ended.get(item.id)) and ended.time > player.ready.time:
            player.ready = ended

    def _run(self, item: Item, player: _Player) -> None:
        lane, launch = player.ready, self.launched.get(item.id, Moment(0, 0))
        start = self.start(item, lane, launch)  # may set the lags
        by_lane, by_launch = lane.time + item.lane_lag, launch.time + item.launch_lag
        after = launch.after if by_launch > by_lane else lane.after
        if self.keeps:
            self.ran[item.id] = Ran(start, start + item.duration, after, max(by_lane, by_launch))
        self.end = max(self.end, start + item.duration)
        self.ended[item.id] = player.ready = Moment(start + item.duration, item.id)
