// Where things lie: time to pixels, and the canvas they are drawn on.
"use strict";

const LANE = 30, BOX = 20; // pixels from lane to lane, and the height of a box
const LEFT = 196; // room for the names of the lanes

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

// Gives the canvas one pixel for each of the screen's, and an empty page.
function clean(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = height + "px";
  canvas.width = Math.round(canvas.clientWidth * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, canvas.clientWidth, height);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  return pen;
}

// The slices of a lane are in order and do not overlap: the first that ends after `time`.
function firstAfter(slices, time) {
  let low = 0, high = slices.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (slices[middle].end <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

function distance(times, canvasWidth) {
  const most = Math.max(2, canvasWidth / 90);
  let step = 10 ** Math.floor(Math.log10(times / most));
  while (times / step > most) step *= String(step)[0] === "2" ? 2.5 : 2;
  return step;
}
