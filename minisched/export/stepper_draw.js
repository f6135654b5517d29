// Draws the runs over time: where things lie, lanes, slices, arrows, flags, the axis.
"use strict";

// -- Where things lie: time to pixels, and the canvas they are drawn on --

const LANE = 30, BOX = 20; // pixels from lane to lane, and the height of a box
const FOLDED = 9, THIN = 6; // the same of a lane that is folded
let LEFT = 196; // room for the names of the lanes; a narrow screen has less

function measureRoom() {
  LEFT = document.documentElement.clientWidth < 800 ? 112 : 196;
  document.documentElement.style.setProperty("--left", LEFT + "px");
}

// Where each lane of a run lies, from its top on: `folded` has the titles of those that are folded.
function placeLanes(run, folded) {
  let top = 0;
  for (const lane of run.lanes) {
    const isFolded = folded.has(lane.title);
    Object.assign(lane, { top, height: isFolded ? FOLDED : LANE, box: isFolded ? THIN : BOX });
    top += lane.height;
  }
  run.height = top + 4;
}

const laneAt = (run, y) => run.lanes.find(({ top, height }) => top <= y && y < top + height);

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
  if (canvas.pen) return canvas.pen; // the picture is saved (stepper_save.js)
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

// -- Draws one run on a canvas: lanes, bubbles, slices. Only what is visible is drawn --

function drawRun(canvas, run, page) {
  const { view } = page, pen = clean(canvas, run.height), scale = scaleOf(canvas, view);
  for (const lane of run.lanes) drawLane(pen, lane, scale);
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, 0, scale.right - LEFT, canvas.clientHeight);
  pen.clip();
  for (const lane of run.lanes) drawBubbles(pen, lane, view, scale);
  for (const lane of run.lanes) drawSlices(pen, lane, view, scale, page.chosen);
  drawMarks(pen, run, view, scale);
  drawEdges(pen, run, view, page, scale);
  if (page.hovered && page.hovered.run === run) outline(pen, run, page.hovered.slice, scale);
  drawEnd(pen, run, scale, canvas.clientHeight);
  pen.restore();
}

function drawLane(pen, { title: name, top, height }, scale) {
  pen.fillStyle = css("lane");
  pen.fillRect(LEFT, top + (height === LANE ? 2 : 1), scale.right - LEFT, height - (height === LANE ? 4 : 2));
  if (height < LANE) return;
  pen.fillStyle = css("ink");
  const title = LEFT < 150 ? name.replace(/ \((host|device)\)$/, "") : name;
  pen.fillText(title, 4, top + height / 2, LEFT - 10);
}

const topOf = (lane) => lane.top + (lane.height - lane.box) / 2; // of its boxes

function drawBubbles(pen, lane, view, scale) {
  const y = topOf(lane);
  const patterns = {
    bubble: hatching(pen, css("bubble"), true), waited: hatching(pen, css("waited"), false),
  };
  for (let at = firstAfter(lane.bubbles, view.start); at < lane.bubbles.length; at++) {
    const bubble = lane.bubbles[at];
    if (bubble.start > view.end) break;
    const x = scale.x(bubble.start), width = scale.x(bubble.end) - x;
    const colour = bubble.reason ? "waited" : "bubble", words = bubble.reason || "idle";
    pen.fillStyle = width > 3 ? patterns[colour] : css(colour);
    pen.globalAlpha = width > 3 ? 1 : 0.35;
    pen.fillRect(x, y, width, lane.box);
    pen.globalAlpha = 1;
    if (width > 90 && lane.box === BOX) label(pen, `${words} ${ms(bubble.end - bubble.start)} ms`, x, width, y, css(colour), true);
  }
}

// Where requests are chosen, what is not theirs steps back.
const isDim = ({ rids }, chosen) => chosen.size > 0 && rids.length > 0 && !rids.some((rid) => chosen.has(rid));

// Slices narrower than a pixel are drawn once a pixel.
function drawSlices(pen, lane, view, scale, chosen) {
  let full = -1;
  for (let at = firstAfter(lane.slices, view.start); at < lane.slices.length; at++) {
    const slice = lane.slices[at];
    if (slice.start > view.end) break;
    const x = scale.x(slice.start), width = scale.x(slice.end) - x;
    const dim = isDim(slice, chosen);
    if (width < 1) {
      const pixel = Math.floor(x) * 2 + (dim ? 0 : 1);
      if (pixel <= full) continue;
      full = pixel;
    }
    pen.globalAlpha = dim ? 0.22 : 1;
    drawSlice(pen, slice, topOf(lane), lane.box, x, width);
  }
  pen.globalAlpha = 1;
}

function drawSlice(pen, slice, y, height, x, width) {
  const [fill, text] = data.colours[slice.phase] || data.colours.other;
  const isWait = slice.phase === "wait";
  if (isWait) {
    pen.strokeStyle = css("faint");
    pen.setLineDash([2, 2]);
    if (width > 3) pen.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
    pen.setLineDash([]);
  } else {
    pen.fillStyle = fill;
    pen.fillRect(x, y, width > 3 ? width - 0.7 : Math.max(width, 1), height);
  }
  if (width < 12 || height < BOX) return;
  const full = slice.step ? `${slice.phase} ${slice.step}` : slice.phase;
  for (const words of [full, isWait ? "" : slice.step]) {
    if (words && pen.measureText(words).width + 6 < width) {
      label(pen, String(words), x, width, y, isWait ? css("faint") : text, isWait);
      break;
    }
  }
}

function label(pen, words, x, width, y, ink, onPaper) {
  const room = pen.measureText(words).width;
  const from = Math.max(x, LEFT), to = Math.min(x + width, pen.canvas.clientWidth);
  if (to - from < room + 4) return; // most of the box is out of sight
  const left = (from + to - room) / 2;
  if (onPaper) {
    pen.fillStyle = css("paper");
    pen.fillRect(left - 3, y + 3, room + 6, BOX - 6);
  }
  pen.fillStyle = ink;
  pen.fillText(words, left, y + BOX / 2 + 0.5);
}

function outline(pen, run, slice, scale) {
  const x = scale.x(slice.start), lane = run.lanes[slice.at];
  pen.strokeStyle = css("ink");
  pen.lineWidth = 2;
  pen.strokeRect(x, topOf(lane), Math.max(2, scale.x(slice.end) - x), lane.box);
}

function drawEnd(pen, run, scale, height) {
  const x = scale.x(run.end);
  pen.strokeStyle = pen.fillStyle = css("ink");
  pen.lineWidth = 1.3;
  pen.setLineDash([3, 3]);
  pen.beginPath();
  pen.moveTo(x, 0);
  pen.lineTo(x, height);
  pen.stroke();
  pen.setLineDash([]);
  const words = `ends at ${ms(run.end)} ms`, room = pen.measureText(words).width;
  const left = x + 6;
  if (left + room > scale.right) return; // the heading says it too
  pen.fillStyle = css("paper");
  pen.fillRect(left - 3, LANE / 2 - 7, room + 6, 14);
  pen.fillStyle = css("ink");
  pen.fillText(words, left, LANE / 2 + 0.5);
}

// -- Draws what points from slice to slice, the flags, and the axis --

function drawAxis(canvas, view) {
  const pen = clean(canvas, 26), scale = scaleOf(canvas, view);
  const step = distance(view.end - view.start, scale.right - LEFT);
  pen.fillStyle = pen.strokeStyle = css("faint");
  pen.fillText("time in ms", 4, 15, LEFT - 8);
  pen.textAlign = "center";
  for (let time = Math.ceil(view.start / step) * step; time <= view.end; time += step) {
    const x = scale.x(time);
    pen.fillRect(x, 0, 1, 5);
    if (x + pen.measureText(ms(time)).width / 2 < scale.right) pen.fillText(ms(time), x, 15);
  }
}

// All edges where there is room for them; else those of the slice under the pointer.
function drawEdges(pen, run, view, page, scale) {
  const isRoomy = scale.x(run.stepTime) - scale.x(0) > 70; // pixels for one step
  const { hovered, chosen } = page;
  for (const edge of run.edges) {
    if (edge.end < view.start || edge.start > view.end) continue;
    const isTouched = hovered && (edge.src === hovered.slice || edge.dst === hovered.slice);
    if (!isRoomy && !isTouched) continue;
    const isFaint = isDim(edge.src, chosen) || isDim(edge.dst, chosen);
    pen.globalAlpha = isTouched ? 1 : isFaint ? 0.1 : hovered ? 0.25 : 0.75;
    arrow(pen, run.lanes, edge, scale, isTouched);
    pen.globalAlpha = 1;
  }
}

function arrow(pen, lanes, edge, scale, isStrong) {
  const src = lanes[edge.src.at], dst = lanes[edge.dst.at], isDown = dst.top > src.top;
  let x1 = scale.x(edge.start), x2 = scale.x(edge.end);
  let y1 = topOf(src) + (isDown ? src.box : 0), y2 = topOf(dst) + (isDown ? 0 : dst.box);
  pen.strokeStyle = pen.fillStyle = css(edge.kind) || css("ink");
  pen.lineWidth = isStrong ? 2.2 : 1.2;
  pen.beginPath();
  if (src === dst) { // a bow below the lane
    [x1, x2] = [x1 - 7, x2 + 12];
    y1 = y2 = topOf(src) + src.box;
    pen.moveTo(x1, y1);
    pen.bezierCurveTo(x1, y1 + 9, x2, y2 + 9, x2, y2);
    pen.stroke();
    return head(pen, x2, y2, 0, -1);
  }
  pen.moveTo(x1, y1);
  pen.lineTo(x2, y2);
  pen.stroke();
  head(pen, x2, y2, x2 - x1, y2 - y1);
}

function head(pen, x, y, dx, dy) {
  const length = Math.hypot(dx, dy) || 1, ux = dx / length, uy = dy / length;
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(x - 6 * ux - 3 * uy, y - 6 * uy + 3 * ux);
  pen.lineTo(x - 6 * ux + 3 * uy, y - 6 * uy - 3 * ux);
  pen.fill();
}

function drawMarks(pen, run, view, scale) {
  for (const mark of run.marks) {
    if (mark.time < view.start || mark.time > view.end) continue;
    const x = scale.x(mark.time);
    pen.fillStyle = css(data.flags[mark.name]);
    pen.beginPath();
    pen.moveTo(x, 6);
    pen.lineTo(x - 4, 0);
    pen.lineTo(x + 4, 0);
    pen.fill();
  }
}

// The whole run in one strip: where the devices compute. Drawn once, and again when it is resized.
function drawStrip(canvas) {
  const pen = clean(canvas, 22), width = canvas.clientWidth, perPixel = longest / width;
  pen.fillStyle = css("lane");
  pen.fillRect(0, 0, width, 22);
  runsShown().forEach((run, index, shown) => {
    const height = Math.max(1, 18 / shown.length), y = 2 + index * height;
    pen.fillStyle = data.colours.forward[0];
    for (const { slices } of run.lanes.filter((lane) => /forward|stage/.test(lane.key))) {
      for (const slice of slices) {
        const width = Math.max(0.3, (slice.end - slice.start) / perPixel);
        pen.fillRect(slice.start / perPixel, y, width, Math.max(1, height - 1));
      }
    }
  });
}
