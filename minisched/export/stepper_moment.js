// What is true at a moment, and which moments there are.
"use strict";

// What is where in a panel: a list of stays in the order of their places. The same list is given
// again until something changes, so who has drawn it need not draw it again.
function stateAt(panel, time) {
  const before = panel.state;
  if (before && before.since <= time && time < before.until) return before;
  let since = -Infinity, until = Infinity;
  const now = new Map();
  for (const stay of panel.stays) {
    if (stay.start > time) {
      until = Math.min(until, stay.start);
      break;
    }
    since = Math.max(since, stay.end <= time ? stay.end : stay.start);
    if (stay.end <= time) continue;
    until = Math.min(until, stay.end);
    now.set(stay.place, stay);
  }
  const stays = [...now.values()].sort((one, other) => one.at - other.at);
  panel.state = { since, until, stays };
  return panel.state;
}

// Of a run that has ended the last moment is shown, while a longer one beside it goes on.
const momentOf = (run, time) => Math.min(time, run.end);

// At which line of its source a host is: that of the last thing it began.
function lineAt(source, time) {
  const found = source.at[countUpTo(source.at, time, (item) => item.start) - 1];
  return found && { line: found.line, isOver: found.end <= time && found.end > found.start };
}

function counterAt(pairs, time) {
  const found = pairs[countUpTo(pairs, time, (pair) => pair[0]) - 1];
  return found ? found[1] : null;
}

// What a lane does at a moment, if anything.
function within(intervals, time) {
  const found = intervals[firstAfter(intervals, time)];
  return found && found.start <= time ? found : null;
}

// Every moment at which something begins, ends or changes in a run, in order.
function eventsOf(run) {
  if (!run.events) {
    const times = new Set([0, run.end, ...run.steps]);
    for (const { slices } of run.lanes) for (const slice of slices) times.add(slice.start).add(slice.end);
    for (const { stays } of run.panels.values()) for (const stay of stays) times.add(stay.start).add(stay.end);
    for (const pairs of Object.values(run.counters)) for (const [time] of pairs) times.add(time);
    for (const mark of run.marks) times.add(mark.time);
    run.events = Float64Array.from(times).filter((time) => time <= run.end).sort();
  }
  return run.events;
}

// The moment before or after `time` among moments in order; the end of the run if there is none.
function neighbour(times, time, direction, run) {
  const upTo = countUpTo(times, time);
  if (direction > 0) return upTo < times.length ? times[upTo] : run.end;
  const at = upTo - (times[upTo - 1] === time ? 2 : 1);
  return at >= 0 ? times[at] : 0;
}
