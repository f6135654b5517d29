// The pointer: hover, click, drag the picture, drag the cursor, and the bar of the whole run.
"use strict";

const GRIP = 7; // pixels from the cursor at which a drag takes hold of it

canvases.forEach((canvas, index) => {
  listen(canvas, (event) => click(canvas, runs[index], event));
  canvas.addEventListener("pointermove", (event) => {
    if (!canvas.drag) hover(canvas, runs[index], event);
  });
  canvas.addEventListener("pointerleave", () => {
    page.hovered = null;
    tip.hidden = true;
    redraw("lanes");
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / 1000);
    else zoom(event.deltaY > 0 ? 1.25 : 0.8, scaleOf(canvas, page.view).time(event.offsetX));
  }, { passive: false });
});
listen(axis, (event) => goTo(scaleOf(axis, page.view).time(event.offsetX)), true);

// Drags pan the picture, or move the cursor where they take hold of it (on the axis: anywhere).
function listen(canvas, onClick, isAxis = false) {
  const isNear = (event) => isAxis
    || Math.abs(scaleOf(canvas, page.view).x(page.time) - event.offsetX) < GRIP;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    canvas.drag = { x: event.offsetX, last: event.offsetX, isTime: isNear(event), isFar: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    const { drag } = canvas;
    canvas.classList.toggle("grips", isNear(event) || Boolean(drag?.isTime));
    if (!drag || !(drag.isFar ||= Math.abs(event.offsetX - drag.x) > 3)) return;
    if (drag.isTime) takeOver(scaleOf(canvas, page.view).time(event.offsetX));
    else pan((drag.last - event.offsetX) / (canvas.clientWidth - LEFT));
    drag.last = event.offsetX;
  });
  canvas.addEventListener("pointerup", (event) => {
    const { drag } = canvas;
    canvas.drag = null;
    if (drag && !drag.isFar) onClick(event);
  });
  canvas.addEventListener("pointercancel", () => { canvas.drag = null; });
}

// The reader moves the cursor, so the clock stops; the view stays where it is.
function takeOver(time) {
  if (playing) pause();
  goTo(Math.min(Math.max(time, page.view.start), page.view.end));
}

function click(canvas, run, event) {
  const slice = sliceAt(canvas, run, event);
  if (runs.length > 1) activate(run.index);
  if (event.offsetX >= LEFT) takeOver(scaleOf(canvas, page.view).time(event.offsetX));
  if (slice && ridsOf(slice).length) choose(ridsOf(slice));
}

function sliceAt(canvas, run, event) {
  const lane = event.offsetX < LEFT ? null : run.lanes[Math.floor(event.offsetY / LANE)];
  return lane && within(lane.slices, scaleOf(canvas, page.view).time(event.offsetX));
}

function hover(canvas, run, event) {
  const scale = scaleOf(canvas, page.view), time = scale.time(event.offsetX);
  const lane = event.offsetX < LEFT ? null : run.lanes[Math.floor(event.offsetY / LANE)];
  const slice = lane && within(lane.slices, time), bubble = lane && within(lane.bubbles, time);
  const isNear = (mark) => event.offsetY < 10 && Math.abs(scale.x(mark.time) - event.offsetX) < 5;
  const marks = run.marks.filter(isNear);
  if (marks.length) tell(event, marks.map(aboutMark));
  else if (slice) tell(event, aboutSlice(slice));
  else if (bubble) tell(event, aboutBubble(bubble));
  else tip.hidden = true;
  if ((page.hovered && page.hovered.slice) === slice) return;
  page.hovered = slice && { run, slice };
  redraw("lanes");
}

// The bar of the whole run.
function seek(event) {
  if (event.type === "pointermove" && !position.hasPointerCapture(event.pointerId)) return;
  if (playing) pause();
  if (event.type === "pointerdown") position.setPointerCapture(event.pointerId);
  const box = position.getBoundingClientRect();
  goTo(((event.clientX - box.left) / box.width) * longest);
}
position.addEventListener("pointerdown", seek);
position.addEventListener("pointermove", seek);

// Panels: whatever belongs to a request leads to its life.
document.addEventListener("click", (event) => {
  const item = event.target.closest("[data-place], [data-rids], a[data-time]");
  if (!item) return;
  if (item.dataset.time) {
    event.preventDefault(); // inside a notebook the link would lead out of the cell
    if (playing) pause();
    return goTo(Number(item.dataset.time));
  }
  if (item.closest("summary")) event.preventDefault();
  const rids = item.dataset.rids ? JSON.parse(item.dataset.rids) : [item.stay.rid || ridsOf(item.stay)].flat();
  if (rids.length && rids[0]) choose(rids);
});
document.addEventListener("pointerover", (event) => {
  const item = event.target.closest("[data-place]");
  if (item) tell(event, aboutStay(item.stay));
  else if (event.target.tagName !== "CANVAS") tip.hidden = true;
});
for (const canvas of document.querySelectorAll('[data-panel="pages"] canvas')) {
  const found = (event) => pageAt(canvas, event.offsetX, event.offsetY);
  canvas.addEventListener("pointermove", (event) => {
    if (found(event)) tell(event, aboutStay(found(event)));
    else tip.hidden = true;
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", (event) => {
    const stay = found(event);
    if (stay && ridsOf(stay).length) choose(ridsOf(stay));
  });
}
