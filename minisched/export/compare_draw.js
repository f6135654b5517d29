// Draws one run on a canvas: lanes, slices, bubbles, edges, marks. Only what is visible is drawn.
"use strict";

function drawAxis(canvas, view) {
  const pen = clean(canvas, 26), scale = scaleOf(canvas, view);
  const step = distance(view.end - view.start, scale.right - LEFT);
  pen.fillStyle = pen.strokeStyle = css("faint");
  pen.fillText("time in ms", 4, 15);
  pen.textAlign = "center";
  for (let time = Math.ceil(view.start / step) * step; time <= view.end; time += step) {
    const x = scale.x(time);
    pen.fillRect(x, 0, 1, 5);
    if (x + pen.measureText(ms(time)).width / 2 < scale.right) pen.fillText(ms(time), x, 15);
  }
}

function drawRun(canvas, run, view, hovered, colours) {
  const pen = clean(canvas, LANE * run.lanes.length + 4), scale = scaleOf(canvas, view);
  run.lanes.forEach((lane, index) => drawLane(pen, lane, index * LANE, scale));
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, 0, scale.right - LEFT, canvas.clientHeight);
  pen.clip();
  run.lanes.forEach((lane, index) => drawBubbles(pen, lane, index * LANE, view, scale));
  run.lanes.forEach((lane, index) => {
    for (let at = firstAfter(lane.slices, view.start); at < lane.slices.length; at++) {
      const slice = lane.slices[at];
      if (slice.start > view.end) break;
      drawSlice(pen, slice, index * LANE, scale, colours);
    }
  });
  drawMarks(pen, run, view, scale);
  drawEdges(pen, run, view, scale, hovered);
  if (hovered && hovered.run === run) outline(pen, hovered, scale);
  drawEnd(pen, run, scale, canvas.clientHeight);
  pen.restore();
}

function drawLane(pen, lane, y, scale) {
  pen.fillStyle = css("lane");
  pen.fillRect(LEFT, y + 2, scale.right - LEFT, LANE - 4);
  pen.fillStyle = css("ink");
  pen.fillText(lane.title, 4, y + LANE / 2);
}

function hatching(pen, colour, rises) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const ink = tile.getContext("2d");
  ink.strokeStyle = css(colour);
  ink.lineWidth = 1.3;
  ink.beginPath();
  for (const shift of [-6, 0, 6]) {
    ink.moveTo(shift, rises ? 6 : 0);
    ink.lineTo(shift + 6, rises ? 0 : 6);
  }
  ink.stroke();
  return pen.createPattern(tile, "repeat");
}

function drawBubbles(pen, lane, top, view, scale) {
  const y = top + (LANE - BOX) / 2;
  const patterns = { bubble: hatching(pen, "bubble", true), waited: hatching(pen, "waited", false) };
  for (let at = firstAfter(lane.bubbles, view.start); at < lane.bubbles.length; at++) {
    const bubble = lane.bubbles[at];
    if (bubble.start > view.end) break;
    const x = scale.x(bubble.start), width = scale.x(bubble.end) - x;
    const colour = bubble.reason ? "waited" : "bubble", words = bubble.reason || "idle";
    pen.fillStyle = width > 3 ? patterns[colour] : css(colour);
    pen.globalAlpha = width > 3 ? 1 : 0.35;
    pen.fillRect(x, y, width, BOX);
    pen.globalAlpha = 1;
    if (width > 90) label(pen, `${words} ${ms(bubble.end - bubble.start)} ms`, x, width, y, css(colour), true);
  }
}

function drawSlice(pen, slice, top, scale, colours) {
  const y = top + (LANE - BOX) / 2;
  const x = scale.x(slice.start), width = scale.x(slice.end) - x;
  const [fill, text] = colours[slice.phase] || colours.other;
  if (slice.phase === "wait") {
    pen.strokeStyle = css("faint");
    pen.setLineDash([2, 2]);
    if (width > 3) pen.strokeRect(x + 0.5, y + 0.5, width - 1, BOX - 1);
    pen.setLineDash([]);
  } else {
    pen.fillStyle = fill;
    pen.fillRect(x, y, width > 3 ? width - 0.7 : Math.max(width, 1), BOX);
  }
  const ink = slice.phase === "wait" ? css("faint") : text;
  const full = slice.step ? `${slice.phase} ${slice.step}` : slice.phase;
  for (const words of [full, slice.phase === "wait" ? "" : slice.step]) {
    if (words && width > 12 && pen.measureText(words).width + 6 < width) {
      label(pen, String(words), x, width, y, ink, false);
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

function drawEdges(pen, run, view, scale, hovered) {
  const roomy = scale.x(run.stepTime) - scale.x(0) > 70; // pixels for one step
  for (const edge of run.edges) {
    if (edge.end < view.start || edge.start > view.end) continue;
    const touched = hovered && (edge.src === hovered.slice || edge.dst === hovered.slice);
    if (!roomy && !touched) continue;
    pen.globalAlpha = touched ? 1 : hovered ? 0.25 : 0.75;
    arrow(pen, edge, scale, touched);
    pen.globalAlpha = 1;
  }
}

function arrow(pen, edge, scale, strong) {
  const gap = (LANE - BOX) / 2, down = edge.dst.lane > edge.src.lane;
  let x1 = scale.x(edge.start), x2 = scale.x(edge.end);
  let y1 = edge.src.lane * LANE + (down ? LANE - gap : gap);
  let y2 = edge.dst.lane * LANE + (down ? gap : LANE - gap);
  pen.strokeStyle = pen.fillStyle = css(edge.kind) || css("ink");
  pen.lineWidth = strong ? 2.2 : 1.2;
  pen.beginPath();
  if (edge.src.lane === edge.dst.lane) { // a bow below the lane
    [x1, x2] = [x1 - 7, x2 + 12];
    y1 = y2 = edge.src.lane * LANE + LANE - gap;
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
    pen.fillStyle = css(mark.text.startsWith("wait ") ? "waited" : "bubble");
    pen.beginPath();
    pen.moveTo(x, 6);
    pen.lineTo(x - 4, 0);
    pen.lineTo(x + 4, 0);
    pen.fill();
  }
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

function outline(pen, hovered, scale) {
  const { slice } = hovered, x = scale.x(slice.start);
  pen.strokeStyle = css("ink");
  pen.lineWidth = 2;
  const y = slice.lane * LANE + (LANE - BOX) / 2;
  pen.strokeRect(x, y, Math.max(2, scale.x(slice.end) - x), BOX);
}
