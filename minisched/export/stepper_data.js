// The runs. The page carries them as short lists of numbers; here they get names.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const groups = data.groups.map((numbers) => numbers.map((number) => data.names[number]));
const owners = new Map(data.rids.map((number, at) => (
  [data.names[number], data.owners[at % data.owners.length]]
)));
const runs = data.runs.map(unpack);
const longest = Math.max(1, ...runs.map((run) => run.end));

function unpack(packed, index) {
  const byId = new Map();
  const lanes = packed.lanes.map((lane, at) => unpackLane(lane, at, byId));
  const edges = packed.edges.map(([src, dst, kind, start, end]) => (
    { src: byId.get(src), dst: byId.get(dst), kind: data.names[kind], start, end }
  ));
  const marks = packed.marks.map(([time, text]) => ({ time, text }));
  const panels = new Map(packed.panels.map((panel) => [keyOf(panel), unpackPanel(panel, packed.end)]));
  const life = packed.life.map(([time, rid, text]) => ({ time, rid: data.names[rid], text }));
  const sources = packed.sources.map(({ lane, at }) => (
    { lane, at: at.map(([start, end, line]) => ({ start, end, line })) }
  ));
  return { ...packed, index, lanes, edges, marks, panels, life, sources };
}

function unpackLane(lane, at, byId) {
  const slices = lane.slices.map(([id, phase, start, end, step, mode, group]) => {
    const slice = { id, phase: data.names[phase], start, end, step, lane: at, group };
    slice.mode = data.names[mode];
    byId.set(id, slice);
    return slice;
  });
  const bubbles = lane.bubbles.map(([start, end, why]) => (
    { start, end, reason: data.names[why] }
  ));
  return { key: lane.key, title: lane.title, slices, bubbles };
}

// A pair of schedulers has two panels of each name.
function keyOf({ name, side }) {
  return side ? `${side} ${name}` : name;
}

// Stays are in order of their starts. Who is still there at the end of the run ends after it.
function unpackPanel(panel, runEnd) {
  const name = (number) => data.names[number || 0];
  const stays = panel.stays.map(([at, start, end, group, kind, label, about, parent]) => ({
    at, place: panel.places[at], start, end, group: group || 0, kind: name(kind),
    label: name(label), about: name(about), parent: name(parent), isOpen: end > runEnd,
  }));
  return { ...panel, stays, state: null };
}

const ridsOf = (thing) => groups[thing.group];
