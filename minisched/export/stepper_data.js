// The runs, what is true of them when, and links to a moment.
"use strict";

// -- The runs (`html.py`), and what follows from them --

const owners = new Map(data.rids.map((rid, at) => [rid, data.owners[at % data.owners.length]]));
const runs = data.runs;
const longest = Math.max(1, ...runs.map((run) => run.end));
runs.forEach(complete);

// Slices know their lane, edges their slices, stays their place in the panel, and sources when the
// host was at which line.
function complete(run, index) {
  const slices = run.lanes.flatMap((lane) => lane.slices), byId = new Map(slices.map((one) => [one.id, one]));
  run.index = index;
  run.lanes.forEach((lane, at) => { for (const slice of lane.slices) slice.at = at; });
  for (const edge of run.edges) Object.assign(edge, { src: byId.get(edge.src), dst: byId.get(edge.dst) });
  for (const panel of run.panels) {
    const places = new Map(panel.places.map((place, at) => [place, at]));
    for (const stay of panel.stays) Object.assign(stay, { at: places.get(stay.place), isOpen: stay.end > run.end });
  }
  run.panels = new Map(run.panels.map((panel) => [keyOf(panel), panel]));
  run.sources = Map.groupBy(slices.filter(({ line }) => line !== undefined), ({ lane }) => lane);
  run.startOf = new Map(); // of each step: when its first forward begins
  for (const { phase, step, start } of slices) {
    if (phase === "forward" && !(run.startOf.get(step) <= start)) run.startOf.set(step, start);
  }
  run.order = [...run.startOf].sort((one, other) => one[1] - other[1]);
}

// A pair of schedulers has two panels of each name.
function keyOf({ name, side }) {
  return side ? `${side} ${name}` : name;
}

// An element with its properties, `dataset` among them, and what is in it.
function make(tag, { dataset = {}, ...properties } = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  Object.assign(element.dataset, dataset);
  element.append(...children);
  return element;
}

// -- The state at a moment, and the moments of a run --

// The stays of a panel at a time, in the order of their places. Until something changes this is the
// same object, which needs no new drawing.
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
  const found = source[countUpTo(source, time, (item) => item.start) - 1];
  return found && { line: found.line, isOver: found.end <= time && found.end > found.start };
}

// What a lane does at a moment, if anything.
function within(intervals, time) {
  const found = intervals[firstAfter(intervals, time)];
  return found && found.start <= time ? found : null;
}

// The times at which something begins, ends or changes in a run, in order.
function eventsOf(run) {
  if (!run.events) {
    const times = new Set([0, run.end, ...run.steps]);
    for (const { slices } of run.lanes) for (const slice of slices) times.add(slice.start).add(slice.end);
    for (const { stays } of run.panels.values()) for (const stay of stays) times.add(stay.start).add(stay.end);
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

// -- A link to a moment: #t=12.5&view=0-60&run=1&rid=a,b in milliseconds --

function addressOf({ time, view, run, chosen, shown }) {
  const between = ({ start, end }) => [start, end].map((at) => Number((at / 1e6).toFixed(6))).join("-");
  const parts = {
    t: time / 1e6,
    view: view && between(view),
    runs: shown && String([...shown].sort((a, b) => a - b)) !== String(data.first) && [...shown].sort((a, b) => a - b).join(","),
    run: runs.length > 1 && String(run),
    rid: [...chosen].map(encodeURIComponent).join(","),
  };
  return "#" + Object.entries(parts).filter(([name, value]) => value || name === "t").map((pair) => pair.join("=")).join("&");
}

// The valid parts of an address.
function fromAddress(hash) {
  const found = {};
  const parts = new Map(hash.slice(1).split("&").map((part) => part.split("=")));
  const between = (text) => {
    const [start, end] = (/^(-?[\d.]+)-([\d.]+)$/.exec(text) ?? []).slice(1).map((ms) => Number(ms) * 1e6);
    return start < end && Number.isFinite(end - start) ? { start, end } : undefined;
  };
  found.view = between(parts.get("view") ?? "");
  found.shown = (parts.get("runs") ?? "").split(",").filter((at) => at && runs[at]).map(Number);
  const time = parts.has("t") ? Number(parts.get("t") || NaN) : NaN;
  if (Number.isFinite(time)) found.time = Math.round(time * 1e6);
  const run = Number(parts.get("run") || NaN);
  if (runs[run]) found.run = run;
  if (parts.has("rid")) found.chosen = new Set(decoded(parts.get("rid") || ""));
  return found;
}

function decoded(text) {
  try {
    return text.split(",").map(decodeURIComponent).filter((rid) => owners.has(rid));
  } catch {
    return []; // not an encoded text
  }
}

// Written at most a few times a second: a browser refuses more. A page inside another one (a
// notebook's cell) may have no address of its own to change.
let written = "", pending = 0, mayWrite = location.protocol !== "about:";
function writeAddress(page) {
  if (!mayWrite || pending) return;
  pending = setTimeout(() => {
    pending = 0;
    const hash = addressOf(page);
    if (hash === written) return;
    try {
      history.replaceState(null, "", hash);
      written = hash;
    } catch {
      mayWrite = false;
    }
  }, 250);
}
