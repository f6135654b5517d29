// Draws one run on a canvas: lanes, bubbles, slices. Only what is visible is drawn.
"use strict";

function drawRun(canvas, run, page) {
  const pen = clean(canvas, LANE * run.lanes.length + 4), scale = scaleOf(canvas, page.view);
  run.lanes.forEach((lane, index) => drawLane(pen, lane, index * LANE, scale));
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, 0, scale.right - LEFT, canvas.clientHeight);
  pen.clip();
  run.lanes.forEach((lane, index) => drawBubbles(pen, lane, index * LANE, page.view, scale));
  run.lanes.forEach((lane, index) => drawSlices(pen, lane, index * LANE, scale, page));
  drawMarks(pen, run, page, scale);
  drawEdges(pen, run, page, scale);
  if (page.hovered && page.hovered.run === run) outline(pen, page.hovered.slice, scale);
  drawEnd(pen, run, scale, canvas.clientHeight);
  pen.restore();
}

function drawLane(pen, lane, y, scale) {
  pen.fillStyle = css("lane");
  pen.fillRect(LEFT, y + 2, scale.right - LEFT, LANE - 4);
  pen.fillStyle = css("ink");
  const title = LEFT < 150 ? lane.title.replace(/ \((host|device)\)$/, "") : lane.title;
  pen.fillText(title, 4, y + LANE / 2, LEFT - 10);
}

function drawBubbles(pen, lane, top, view, scale) {
  const y = top + (LANE - BOX) / 2;
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
    pen.fillRect(x, y, width, BOX);
    pen.globalAlpha = 1;
    if (width > 90) label(pen, `${words} ${ms(bubble.end - bubble.start)} ms`, x, width, y, css(colour), true);
  }
}

// Slices narrower than a pixel are drawn once a pixel.
function drawSlices(pen, lane, top, scale, page) {
  let full = -1;
  for (let at = firstAfter(lane.slices, page.view.start); at < lane.slices.length; at++) {
    const slice = lane.slices[at];
    if (slice.start > page.view.end) break;
    const x = scale.x(slice.start), width = scale.x(slice.end) - x;
    const dim = page.bright && !page.bright[slice.group];
    if (width < 1) {
      const pixel = Math.floor(x) * 2 + (dim ? 0 : 1);
      if (pixel <= full) continue;
      full = pixel;
    }
    pen.globalAlpha = dim ? 0.22 : 1;
    drawSlice(pen, slice, top + (LANE - BOX) / 2, x, width);
  }
  pen.globalAlpha = 1;
}

function drawSlice(pen, slice, y, x, width) {
  const [fill, text] = data.colours[slice.phase] || data.colours.other;
  const isWait = slice.phase === "wait";
  if (isWait) {
    pen.strokeStyle = css("faint");
    pen.setLineDash([2, 2]);
    if (width > 3) pen.strokeRect(x + 0.5, y + 0.5, width - 1, BOX - 1);
    pen.setLineDash([]);
  } else {
    pen.fillStyle = fill;
    pen.fillRect(x, y, width > 3 ? width - 0.7 : Math.max(width, 1), BOX);
  }
  if (width < 12) return;
  const full = slice.step ? `${slice.phase} ${slice.step}` : slice.phase;
  for (const words of [full, isWait ? "" : slice.step]) {
    if (words && pen.measureText(words).width + 6 < width) {
      label(pen, String(words), x, width, y, isWait ? css("faint") : text, false);
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

function outline(pen, slice, scale) {
  const x = scale.x(slice.start), y = slice.lane * LANE + (LANE - BOX) / 2;
  pen.strokeStyle = css("ink");
  pen.lineWidth = 2;
  pen.strokeRect(x, y, Math.max(2, scale.x(slice.end) - x), BOX);
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
