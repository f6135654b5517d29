// The page's state and what the reader does with it: zoom, pan, hover. Drawing is in compare_draw.js.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const runs = data.runs.map(unpack);
const longest = Math.max(1, ...runs.map((run) => run.end));
const canvases = [...document.querySelectorAll("canvas.run")];
const axis = document.querySelector("canvas.axis");
const tip = document.getElementById("tip");
let view = fromAddress() || { start: 0, end: longest * 1.02 };
let hovered = null; // {run, slice}
let drawn = false;

// The page carries slices as short lists; here they get names, and edges their slices.
function unpack(packed) {
  const byId = new Map();
  const lanes = packed.lanes.map((lane, index) => ({
    key: lane.key,
    title: lane.title,
    slices: lane.slices.map(([id, phase, start, end, step, mode, rids]) => {
      const slice = { id, phase: data.names[phase], start, end, step, lane: index };
      slice.mode = data.names[mode];
      slice.rids = data.names[rids];
      byId.set(id, slice);
      return slice;
    }),
    bubbles: lane.bubbles.map(([start, end, why]) => ({ start, end, reason: data.names[why] })),
  }));
  const edges = packed.edges.map(([src, dst, kind, start, end]) => (
    { src: byId.get(src), dst: byId.get(dst), kind: data.names[kind], start, end }
  ));
  const marks = packed.marks.map(([time, text]) => ({ time, text }));
  return { ...packed, lanes, edges, marks };
}

// #20-60 shows milliseconds 20 to 60: a link to a place.
function fromAddress() {
  const found = /^#([\d.]+)-([\d.]+)$/.exec(location.hash);
  return found && { start: found[1] * 1e6, end: Math.max(found[2] * 1e6, found[1] * 1e6 + 1000) };
}

function redraw() {
  if (drawn) return;
  drawn = true; // once a frame is enough
  requestAnimationFrame(() => {
    drawn = false;
    canvases.forEach((canvas, at) => drawRun(canvas, runs[at], view, hovered, data.colours));
    drawAxis(axis, view);
  });
}

function show(start, end) {
  const length = Math.min(Math.max(end - start, 1000), longest * 1.5); // a microsecond at least
  const from = Math.min(Math.max(start, -0.1 * length), longest - 0.1 * length);
  view = { start: from, end: from + length };
  redraw();
}

function zoom(factor, around = (view.start + view.end) / 2) {
  show(around - (around - view.start) * factor, around + (view.end - around) * factor);
}

function pan(share) {
  const by = (view.end - view.start) * share;
  show(view.start + by, view.end + by);
}

const actions = {
  in: () => zoom(0.5),
  out: () => zoom(2),
  left: () => pan(-0.4),
  right: () => pan(0.4),
  all: () => show(0, longest * 1.02),
  few: () => show(...data.few),
};
const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", "0": "all" };

document.querySelectorAll("button[data-do]").forEach((button) => {
  button.addEventListener("click", actions[button.dataset.do]);
});
document.addEventListener("keydown", (event) => {
  if (keys[event.key] && !event.ctrlKey && !event.metaKey) {
    actions[keys[event.key]]();
    event.preventDefault();
  }
});

canvases.forEach((canvas, index) => {
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (event.shiftKey || sideways) return pan((event.deltaX || event.deltaY) / 1000);
    zoom(Math.exp(event.deltaY / 400), scaleOf(canvas, view).time(event.offsetX));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons === 1) pan(-event.movementX / (canvas.clientWidth - LEFT));
    hover(canvas, runs[index], event);
  });
  canvas.addEventListener("pointerleave", () => {
    hovered = null;
    tip.hidden = true;
    redraw();
  });
});

function hover(canvas, run, event) {
  const scale = scaleOf(canvas, view), time = scale.time(event.offsetX);
  const lane = event.offsetX < LEFT ? null : run.lanes[Math.floor(event.offsetY / LANE)];
  const slice = lane && at(lane.slices, time);
  const near = (mark) => event.offsetY < 10 && Math.abs(scale.x(mark.time) - event.offsetX) < 5;
  const marks = run.marks.filter(near);
  hovered = slice && { run, slice };
  if (marks.length) tell(event, marks.map((mark) => `${mark.text} at ${ms(mark.time)} ms`));
  else if (slice) tell(event, aboutSlice(slice));
  else if (lane && at(lane.bubbles, time)) tell(event, aboutBubble(at(lane.bubbles, time)));
  else tip.hidden = true;
  redraw();
}

function at(intervals, time) {
  const found = intervals[firstAfter(intervals, time)];
  return found && found.start <= time ? found : null;
}

function tell(event, lines) {
  tip.hidden = false;
  tip.replaceChildren(...lines.slice(0, 12).map((line) => {
    const row = document.createElement("div");
    row.textContent = line;
    return row;
  }));
  const left = Math.min(event.pageX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = event.pageY + 16 + "px";
}

function aboutSlice(slice) {
  const lines = [
    slice.step ? `${slice.phase}, step ${slice.step}` : slice.phase,
    `starts at ${ms(slice.start)} ms, takes ${ms(slice.end - slice.start)} ms`,
  ];
  if (slice.mode) lines.push(`${slice.mode} of ${slice.rids}`);
  return lines;
}

function aboutBubble(bubble) {
  const idle = ms(bubble.end - bubble.start);
  const why = bubble.reason ? `waits for ${bubble.reason}` : "bubble";
  return [why, `the device idles ${idle} ms from ${ms(bubble.start)} ms on`];
}

window.addEventListener("resize", redraw);
window.addEventListener("hashchange", () => {
  view = fromAddress() || view;
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  known.clear();
  redraw();
});
redraw();
