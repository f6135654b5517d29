// Draws what points from slice to slice, the flags, and the axis.
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

// All edges where there is room for them; else those of the slice under the pointer.
function drawEdges(pen, run, page, scale) {
  const isRoomy = scale.x(run.stepTime) - scale.x(0) > 70; // pixels for one step
  const { hovered, view, bright } = page;
  for (const edge of run.edges) {
    if (edge.end < view.start || edge.start > view.end) continue;
    const isTouched = hovered && (edge.src === hovered.slice || edge.dst === hovered.slice);
    if (!isRoomy && !isTouched) continue;
    const isDim = bright && !(bright[edge.src.group] && bright[edge.dst.group]);
    pen.globalAlpha = isTouched ? 1 : isDim ? 0.1 : hovered ? 0.25 : 0.75;
    arrow(pen, edge, scale, isTouched);
    pen.globalAlpha = 1;
  }
}

function arrow(pen, edge, scale, isStrong) {
  const gap = (LANE - BOX) / 2, isDown = edge.dst.lane > edge.src.lane;
  let x1 = scale.x(edge.start), x2 = scale.x(edge.end);
  let y1 = edge.src.lane * LANE + (isDown ? LANE - gap : gap);
  let y2 = edge.dst.lane * LANE + (isDown ? gap : LANE - gap);
  pen.strokeStyle = pen.fillStyle = css(edge.kind) || css("ink");
  pen.lineWidth = isStrong ? 2.2 : 1.2;
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

function drawMarks(pen, run, page, scale) {
  for (const mark of run.marks) {
    if (mark.time < page.view.start || mark.time > page.view.end) continue;
    const x = scale.x(mark.time);
    pen.fillStyle = flagColour(mark);
    pen.beginPath();
    pen.moveTo(x, 6);
    pen.lineTo(x - 4, 0);
    pen.lineTo(x + 4, 0);
    pen.fill();
  }
}

// The legend says the same of each name (html_flags.py).
function flagColour({ text }) {
  return css(Object.entries(data.flags).find(([name]) => `${text} `.startsWith(`${name} `))[1]);
}

// The whole run in one strip: where the devices compute. Drawn once, and again when it is resized.
function drawStrip(canvas) {
  const pen = clean(canvas, 22), width = canvas.clientWidth, perPixel = longest / width;
  pen.fillStyle = css("lane");
  pen.fillRect(0, 0, width, 22);
  runs.forEach((run, index) => {
    const height = Math.max(1, 18 / runs.length), y = 2 + index * height;
    pen.fillStyle = data.colours.forward[0];
    for (const { slices } of run.lanes.filter((lane) => /forward|stage/.test(lane.key))) {
      for (const slice of slices) {
        const width = Math.max(0.3, (slice.end - slice.start) / perPixel);
        pen.fillRect(slice.start / perPixel, y, width, Math.max(1, height - 1));
      }
    }
  });
}
