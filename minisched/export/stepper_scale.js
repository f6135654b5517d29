// Where things lie: time to pixels, and the canvas they are drawn on.
"use strict";

const LANE = 30, BOX = 20; // pixels from lane to lane, and the height of a box
let LEFT = 196; // room for the names of the lanes; a narrow screen has less

function measureRoom() {
  LEFT = document.documentElement.clientWidth < 800 ? 112 : 196;
  document.documentElement.style.setProperty("--left", LEFT + "px");
}

// The page's colours, asked for once: a style is slow to look up.
const known = new Map();
function css(name) {
  if (!known.has(name)) {
    const style = getComputedStyle(document.documentElement);
    known.set(name, style.getPropertyValue("--" + name).trim());
  }
  return known.get(name);
}

function ms(nanoseconds) {
  const value = nanoseconds / 1e6;
  return String(Number(value.toFixed(value >= 1000 ? 1 : value >= 10 ? 2 : 3)));
}

// Where a canvas's pixels lie in time; `view` is {start, end} in nanoseconds.
function scaleOf(canvas, view) {
  const width = canvas.clientWidth - LEFT;
  const perPixel = (view.end - view.start) / width;
  return {
    x: (time) => LEFT + (time - view.start) / perPixel,
    time: (x) => view.start + (x - LEFT) * perPixel,
    right: LEFT + width,
  };
}

// Gives the canvas one pixel for each of the screen's, and an empty page. A new size is slow.
function clean(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const size = [Math.round(canvas.clientWidth * ratio), Math.round(height * ratio)];
  if (canvas.width !== size[0] || canvas.height !== size[1]) {
    canvas.style.height = height + "px";
    [canvas.width, canvas.height] = size;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, canvas.clientWidth, height);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  pen.globalAlpha = 1;
  return pen;
}

// A small tile of lines, as the paint of what is idle or wasted; each is made once.
const hatchings = new Map();
function hatching(pen, colour, rises) {
  const key = `${colour} ${rises}`;
  if (!hatchings.has(key)) hatchings.set(key, pen.createPattern(tileOf(colour, rises), "repeat"));
  return hatchings.get(key);
}

function tileOf(colour, rises) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const ink = tile.getContext("2d");
  ink.strokeStyle = colour;
  ink.lineWidth = 1.3;
  ink.beginPath();
  for (const shift of [-6, 0, 6]) {
    ink.moveTo(shift, rises ? 6 : 0);
    ink.lineTo(shift + 6, rises ? 0 : 6);
  }
  ink.stroke();
  return tile;
}

// Intervals in order that do not overlap: the first that ends after `time`.
function firstAfter(intervals, time) {
  let low = 0, high = intervals.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (intervals[middle].end <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Numbers in order, or things with one: how many of them are not later than `time`.
function countUpTo(items, time, number = (item) => item) {
  let low = 0, high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (number(items[middle]) <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

// From tick to tick: 1, 2 or 5 times a power of ten.
function distance(times, canvasWidth) {
  const most = Math.max(2, canvasWidth / 90);
  let step = 10 ** Math.floor(Math.log10(times / most));
  while (times / step > most) step *= String(step)[0] === "2" ? 2.5 : 2;
  return step;
}
