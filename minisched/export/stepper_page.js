// The page's state, how it changes, and drawing what has changed.
"use strict";

const canvases = [...document.querySelectorAll("canvas.run")];
const axis = document.querySelector("canvas.axis");
const cursor = document.getElementById("cursor");
const position = document.getElementById("position");
const moments = [...document.querySelectorAll(".moment")];
const tabs = document.getElementById("tabs");
const MIN_COLUMN = 400; // pixels for what is shown of one run

const page = {
  time: data.now, // nanoseconds, a whole number
  view: { start: 0, end: longest * 1.02 },
  run: Math.min(1, runs.length - 1), // whose events and steps the keys go through
  chosen: new Set(), // ids of the requests that are followed
  bright: null, // which groups of requests have one of them
  hovered: null, // {run, slice}
};
const stale = { lanes: true, strip: true, panels: true };
let isWaiting = false; // for the next frame: once a frame is enough

function redraw(...parts) {
  for (const part of parts) stale[part] = true;
  if (isWaiting) return;
  isWaiting = true;
  requestAnimationFrame(() => {
    isWaiting = false;
    paint();
  });
}

function paint() {
  if (stale.strip) drawStrip(position.querySelector("canvas"));
  if (stale.lanes) {
    canvases.forEach((canvas, at) => drawRun(canvas, runs[at], page));
    drawAxis(axis, page.view);
  }
  drawCursor();
  const shown = layOut();
  moments.forEach((frame, at) => { if (shown.has(at)) drawMoment(frame, runs[at], stale.panels); });
  drawLife(page);
  Object.assign(stale, { lanes: false, strip: false, panels: false });
  writeAddress(page);
}

function drawCursor() {
  const x = scaleOf(axis, page.view).x(page.time), text = `${ms(page.time)} ms`;
  cursor.hidden = x < LEFT - 0.5 || x > axis.clientWidth;
  cursor.style.transform = `translateX(${x}px)`;
  cursor.dataset.time = String(page.time);
  cursor.firstChild.textContent = document.getElementById("time").textContent = text;
  const share = (time) => `${(100 * Math.min(Math.max(time, 0), longest)) / longest}%`;
  position.querySelector(".handle").style.left = share(page.time);
  const frame = position.querySelector(".window").style;
  frame.left = share(page.view.start);
  frame.right = `calc(100% - ${share(page.view.end)})`;
  position.ariaValueNow = position.ariaValueText = ms(page.time);
  position.ariaValueMax = ms(longest);
}

// A column for each run where there is room, else one run and tabs; gives the runs shown.
function layOut() {
  const isRoomy = document.body.clientWidth >= MIN_COLUMN * runs.length;
  tabs.hidden = isRoomy || runs.length === 1;
  moments.forEach((frame, at) => {
    frame.hidden = !isRoomy && at !== page.run;
    frame.classList.toggle("active", at === page.run && runs.length > 1);
  });
  for (const button of document.querySelectorAll("[data-activate]")) {
    const isActive = Number(button.dataset.activate) === page.run;
    button.classList.toggle("active", isActive && runs.length > 1);
    button.setAttribute("aria-pressed", String(isActive));
  }
  return new Set(isRoomy ? runs.keys() : [page.run]);
}

function drawMoment(frame, run, isStale) {
  const time = momentOf(run, page.time);
  frame.querySelector(".doing").textContent = doing(run, page.time);
  for (const panelFrame of frame.querySelectorAll("[data-panel]")) {
    const { panel: name, side, lane } = panelFrame.dataset, panel = run.panels.get(keyOf({ name, side }));
    if (name === "counters") drawCounters(panelFrame, run, time);
    else if (name === "source") {
      drawSource(panelFrame, run.sources.find((source) => source.lane === lane), time);
    } else if (panelFrame.state !== stateAt(panel, time) || isStale) {
      const state = (panelFrame.state = stateAt(panel, time));
      if (name === "pages") drawPages(panelFrame, panel, state, page.chosen);
      else {
        drawEntries(panelFrame, panel, state);
        markChosen(panelFrame, state, page.chosen);
      }
    }
  }
}

function show(start, end) {
  const length = Math.min(Math.max(end - start, 1000), longest * 1.5); // a microsecond at least
  const from = Math.min(Math.max(start, -0.1 * length), longest - 0.1 * length);
  page.view = { start: from, end: from + length };
  redraw("lanes");
}

function zoom(factor, around = isSeen(page.time) ? page.time : (page.view.start + page.view.end) / 2) {
  show(around - (around - page.view.start) * factor, around + (page.view.end - around) * factor);
}

function pan(share) {
  const by = (page.view.end - page.view.start) * share;
  show(page.view.start + by, page.view.end + by);
}

const isSeen = (time) => page.view.start <= time && time <= page.view.end;

// Moves the cursor, and the view with it where the cursor would leave it.
function goTo(time) {
  page.time = Math.round(Math.min(Math.max(time, 0), longest));
  const length = page.view.end - page.view.start;
  if (page.time > page.view.end - 0.05 * length || page.time < page.view.start) {
    const share = page.time < page.view.start ? 0.6 : 0.2; // of the view that lies before it
    const from = Math.max(page.time - share * length, -0.02 * length);
    if (from < page.view.start || page.view.end < longest) show(from, from + length);
  }
  redraw();
}

function choose(rids) {
  page.chosen = new Set(rids);
  page.bright = page.chosen.size ? groups.map((group) => group.some((rid) => page.chosen.has(rid))) : null;
  redraw("lanes", "panels");
}

function activate(run) {
  page.run = run;
  redraw("panels");
}
