// The page: its state, what changes it (time, pointer, keys), and drawing it again.
"use strict";

// -- The page's state, how it changes, and drawing what has changed --

const canvases = [...document.querySelectorAll("canvas.run")];
const sections = [...document.querySelectorAll("section.run")];
const axis = document.querySelector("canvas.axis");
const cursor = document.getElementById("cursor");
const position = document.getElementById("position");
const moments = [...document.querySelectorAll(".moment")];
const tabs = document.getElementById("tabs");
const MIN_COLUMN = 400; // pixels for what is shown of one run

const page = {
  time: data.now, // nanoseconds, a whole number
  view: { start: 0, end: longest },
  run: data.first[Math.min(1, runs.length - 1)], // whose events and steps the keys go through
  chosen: new Set(), // ids of the requests that are followed
  hovered: null, // {run, slice}
  shown: new Set(data.first), // the runs that are not put away
  folded: new Set(), // titles of lanes
};
const runsShown = () => runs.filter(({ index }) => page.shown.has(index));

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
  const shown = layOut();
  if (stale.lanes) {
    for (const run of runsShown()) drawRun(canvases[run.index], run, page);
    drawAxis(axis, page.view);
  }
  drawCursor();
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
  const isRoomy = document.body.clientWidth >= MIN_COLUMN * page.shown.size;
  tabs.hidden = isRoomy || page.shown.size === 1;
  sections.forEach((section, at) => { section.hidden = !page.shown.has(at); });
  moments.forEach((frame, at) => {
    frame.hidden = !page.shown.has(at) || (!isRoomy && at !== page.run);
    frame.classList.toggle("active", at === page.run && runs.length > 1);
  });
  for (const button of document.querySelectorAll("[data-activate]")) {
    const isActive = Number(button.dataset.activate) === page.run;
    button.classList.toggle("active", isActive && runs.length > 1);
    button.setAttribute("aria-pressed", String(isActive));
    if (button.parentElement === tabs) button.hidden = !page.shown.has(Number(button.dataset.activate));
  }
  for (const button of document.querySelectorAll("[data-toggle]")) {
    button.setAttribute("aria-pressed", String(page.shown.has(Number(button.dataset.toggle))));
  }
  return isRoomy ? page.shown : new Set([page.run]);
}

function drawMoment(frame, run, isStale) {
  const time = momentOf(run, page.time);
  frame.querySelector(".doing").textContent = doing(run, page.time);
  for (const panelFrame of frame.querySelectorAll("[data-panel]")) {
    const { panel: name, side, lane } = panelFrame.dataset, panel = run.panels.get(keyOf({ name, side }));
    if (name === "source") {
      drawSource(panelFrame, run.sources.get(lane) || [], time);
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
  const length = Math.min(Math.max(end - start, 1000), longest); // a microsecond at least
  const from = Math.min(Math.max(start, 0), longest - length);
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
    const from = page.time - share * length;
    if (from < page.view.start || page.view.end < longest) show(from, from + length);
  }
  redraw();
}

function choose(rids) {
  page.chosen = new Set(rids);
  redraw("lanes", "panels");
}

// Another run's events.
function activate(run) {
  page.run = run;
  redraw("lanes", "panels");
}

// -- Less on the page: runs that are put away, lanes that are folded --

function showRuns(shown) {
  page.shown = new Set(shown.length ? shown : runs.keys());
  if (!page.shown.has(page.run)) activate([...page.shown].at(-1));
  redraw("lanes", "strip", "panels");
}

// The first that is pressed stays alone; then each comes and goes.
function toggleRun(at) {
  if (page.shown.size === runs.length && runs.length <= 4) return showRuns([at]);
  showRuns(runs.map(({ index }) => index).filter((index) => page.shown.has(index) !== (index === at)));
}

function fold(titles) {
  page.folded = new Set(titles);
  for (const run of runs) placeLanes(run, page.folded);
  redraw("lanes");
}

// All but the hosts' and where forwards run; once more: none.
function foldMost() {
  const isMain = ({ title, key }) => title.includes("host") || /forward|stage/.test(key);
  const others = runs.flatMap((run) => run.lanes.filter((lane) => !isMain(lane)));
  fold(page.folded.size ? [] : others.map(({ title }) => title));
}

// -- Time goes by: at so many steps a second, of the run whose steps they are --

const speed = document.getElementById("speed");
const isCalm = matchMedia("(prefers-reduced-motion: reduce)"); // then from event to event
let playing = null; // {exact, last}: where in the run, and when that was on the screen's clock

function togglePlay() {
  if (playing) return pause();
  if (page.time >= runs[page.run].end) goTo(0);
  playing = { exact: page.time, last: performance.now() };
  sayPlaying();
  requestAnimationFrame(advance);
}

function pause() {
  playing = null;
  sayPlaying();
}

function sayPlaying() {
  document.querySelector('[data-do="play"]').textContent = playing ? "❚❚ pause" : "▶ play";
  document.body.classList.toggle("playing", Boolean(playing));
}

function advance(now) {
  if (!playing) return;
  const run = runs[page.run];
  const passed = Math.max(0, Math.min(now - playing.last, 100)); // a hidden tab must not leap
  playing.last = Math.max(now, playing.last);
  playing.exact = Math.min(playing.exact + (passed / 1000) * Number(speed.value) * run.stepTime, run.end);
  const events = eventsOf(run);
  goTo(isCalm.matches ? events[countUpTo(events, playing.exact) - 1] : playing.exact);
  if (playing.exact >= run.end) return pause();
  requestAnimationFrame(advance);
}

// One event or one step on or back; the reader takes over from the clock.
function move(direction, isStep) {
  if (playing) pause();
  const run = runs[page.run];
  goTo(neighbour(isStep ? run.steps : eventsOf(run), Math.min(page.time, run.end), direction, run));
}

// -- What is said of the thing under the pointer --

const tip = document.getElementById("tip");

function tell(event, lines) {
  tip.hidden = false;
  tip.replaceChildren(...lines.slice(0, 12).map((line) => make("div", {}, line)));
  const left = Math.min(event.pageX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = event.pageY + 16 + "px";
}

function aboutSlice(slice) {
  const lines = [
    slice.step ? `${slice.phase}, step ${slice.step}` : slice.phase,
    `starts at ${ms(slice.start)} ms, takes ${ms(slice.end - slice.start)} ms`,
  ];
  const { rids } = slice;
  if (rids.length) lines.push(`${slice.mode ? slice.mode + " of " : ""}${rids.join(" ")}; click to follow one, again for the next`);
  return lines;
}

function aboutBubble(bubble) {
  const idle = ms(bubble.end - bubble.start);
  const why = bubble.reason ? `waits for ${bubble.reason}` : "bubble";
  return [why, `the device idles ${idle} ms from ${ms(bubble.start)} ms on`];
}

function aboutMark(mark) {
  const words = Object.entries(mark.attrs).flat().join(" ");
  return `${mark.name} ${words} at ${ms(mark.time)} ms`;
}

function aboutStay(stay) {
  const until = stay.isOpen ? "ms up to the end of the run" : `to ${ms(stay.end)} ms`;
  const since = stay.start === undefined ? [] : [`from ${ms(stay.start)} ${until}`];
  const whose = stay.label && stay.label !== stay.place ? `: ${stay.label}` : "";
  return [`${stay.place}${whose}`, stay.about, ...since].filter(Boolean);
}

// -- The pointer: hover, click, drag the picture, drag the cursor, and the bar of the whole run --

const GRIP = 7; // pixels from the cursor at which a drag takes hold of it

// Where a run's canvas has which moment of the active run.
const timeAt = (canvas, x) => scaleOf(canvas, page.view).time(x);

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
    if (drag.isTime) takeOver(timeAt(canvas, event.offsetX));
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
  const lane = laneAt(run, event.offsetY);
  if (event.offsetX < LEFT) {
    if (lane) fold(page.folded.has(lane.title) ? [...page.folded].filter((title) => title !== lane.title) : [...page.folded, lane.title]);
    return;
  }
  const slice = lane && within(lane.slices, scaleOf(canvas, page.view).time(event.offsetX));
  if (runs.length > 1) activate(run.index);
  takeOver(timeAt(canvas, event.offsetX));
  const rids = slice ? slice.rids : [];
  if (rids.length) choose([rids[(page.chosen.size === 1 ? rids.indexOf([...page.chosen][0]) + 1 : 0) % rids.length]]);
}

function hover(canvas, run, event) {
  const scale = scaleOf(canvas, page.view), time = scale.time(event.offsetX);
  const found = laneAt(run, event.offsetY), lane = event.offsetX < LEFT ? null : found;
  canvas.style.cursor = found && !lane ? "pointer" : "";
  const slice = lane && within(lane.slices, time), bubble = lane && within(lane.bubbles, time);
  const isNear = (mark) => event.offsetY < 10 && Math.abs(scale.x(mark.time) - event.offsetX) < 5;
  const marks = run.marks.filter(isNear);
  if (marks.length) tell(event, marks.map(aboutMark));
  else if (slice) tell(event, aboutSlice(slice));
  else if (bubble) tell(event, aboutBubble(bubble));
  else if (found && !lane) tell(event, [found.title, `click to ${page.folded.has(found.title) ? "unfold" : "fold"} this lane`]);
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
  const rids = item.dataset.rids ? JSON.parse(item.dataset.rids) : [item.stay.rid || item.stay.rids].flat();
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
    if (stay?.rids.length) choose(stay.rids);
  });
}

// -- Buttons and keys, links to a moment, and the beginning --

const dialog = document.getElementById("keys");
const few = [data.few[0] - (data.few[1] - data.few[0]) * 0.4, data.few[1] + (data.few[1] - data.few[0]) * 0.6];
const actions = {
  play: togglePlay,
  back: () => move(-1, false),
  forward: () => move(1, false),
  "step-back": () => move(-1, true),
  "step-forward": () => move(1, true),
  first: () => { pause(); goTo(0); },
  last: () => { pause(); goTo(runs[page.run].end); },
  in: () => zoom(0.5),
  out: () => zoom(2),
  left: () => pan(-0.4),
  right: () => pan(0.4),
  all: () => show(0, longest),
  few: () => { show(...few); if (!isSeen(page.time)) goTo(data.now); },
  clear: () => choose([]),
  fold: foldMost,
  "all-runs": () => showRuns([]),
  keys: () => dialog.showModal(),
  link: copyLink,
  svg: saveSvg,
  perfetto: savePerfetto,
  pick: pickSlice,
};
const keys = {
  " ": "play", ArrowLeft: "back", ArrowRight: "forward", Home: "first", End: "last", "+": "in",
  "=": "in", "-": "out", "0": "all", "1": "few", ",": "left", ".": "right", Escape: "clear", "?": "keys",
  Enter: "pick", f: "fold",
};

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-do], [data-activate], [data-toggle]");
  if (button?.dataset.do) actions[button.dataset.do]();
  else if (button?.dataset.toggle) toggleRun(Number(button.dataset.toggle));
  else if (button) activate(Number(button.dataset.activate));
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
  if (event.target.closest("select, input")) return;
  if ([" ", "Enter"].includes(event.key) && event.target.closest("button, summary, a")) return; // it presses that
  let action = keys[event.key];
  if (event.shiftKey && (action === "back" || action === "forward")) action = "step-" + action;
  if (!action) return;
  event.preventDefault();
  actions[action]();
});

// Goes where an address says, if it says anything.
function follow(hash) {
  const found = fromAddress(hash);
  if (found.shown.length) showRuns(found.shown);
  if (found.run !== undefined) activate(found.run);
  if (found.chosen) choose(found.chosen);
  if (found.view) show(found.view.start, found.view.end);
  if (found.time !== undefined) goTo(found.time);
  else if (found.view && !isSeen(page.time)) goTo((found.view.start + found.view.end) / 2);
  return found;
}

window.addEventListener("hashchange", () => {
  if (location.hash !== written) follow(location.hash);
});
window.addEventListener("resize", () => {
  measureRoom();
  redraw("lanes", "strip", "panels");
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  known.clear();
  redraw("lanes", "strip", "panels");
});
measureRoom();
fold([]);
if (LEFT < 150 && runs.length > 1) foldMost(); // a phone: what matters first
show(...few);
goTo(data.now);
follow(location.hash);
