// Draws the state at the cursor: lists, KV map, source, and a request's life.
"use strict";

// -- Panels that list entries: the queue, the running set, future slots, rows, the tree --

const MOST_ENTRIES = 240; // a longer list says how many more there are

function drawEntries(frame, panel, state) {
  const list = frame.querySelector(".entries");
  const isTree = panel.name === "tree";
  const live = state.stays.filter(({ kind }) => kind !== "stale"); // no step reads a stale token
  reuse(list, live.slice(0, MOST_ENTRIES), isTree ? makeNode : makeChip);
  const more = live.length - MOST_ENTRIES;
  list.dataset.more = more > 0 ? `and ${more} more` : "";
  list.classList.toggle("empty", !live.length);
  frame.querySelector(".count").textContent = countOf(panel, state);
}

// Elements stay with their places, so that the keyboard's focus does too.
function reuse(list, stays, fill) {
  const before = new Map([...list.children].map((child) => [child.dataset.place, child]));
  const depths = new Map();
  stays.forEach((stay, index) => {
    const element = before.get(stay.place) || make("button");
    before.delete(stay.place);
    depths.set(stay.place, (depths.get(stay.parent) ?? -1) + 1);
    if (element.stay !== stay) {
      element.stay = stay;
      Object.assign(element.dataset, { place: stay.place, kind: stay.kind, tip: stay.about });
      fill(element, stay, depths.get(stay.place));
    }
    if (list.children[index] !== element) list.insertBefore(element, list.children[index] || null);
  });
  before.forEach((element) => element.remove());
}

function makeChip(element, stay) {
  element.className = `chip ${stay.kind}`;
  const [fill, ink] = owners.get(stay.label) || ["var(--lane)", "var(--ink)"];
  element.style.setProperty("--fill", fill);
  element.style.setProperty("--text", ink);
  const number = /^(?:slot|row) (\d+)$/.exec(stay.place);
  const whose = stay.label && stay.label !== stay.place ? `: ${stay.label}` : "";
  element.ariaLabel = `${stay.place}${whose}, ${stay.about}`;
  element.replaceChildren(...(number ? [make("small", {}, number[1])] : []), stay.label);
}

function makeNode(element, stay, depth) {
  element.className = `node ${stay.kind}`;
  element.style.setProperty("--depth", Math.min(depth, 12));
  element.replaceChildren(
    make("b", {}, stay.place.replace("node ", "")), make("span", {}, stay.label), make("small", {}, stay.about),
  );
}

function countOf(panel, state) {
  const kinds = new Map();
  for (const { kind } of state.stays) kinds.set(kind, (kinds.get(kind) || 0) + 1);
  if (["queue", "rows"].includes(panel.name)) return String(state.stays.length);
  const words = { wasted: "zombie", admitted: "running", sending: "in transfer" };
  return [...kinds].map(([kind, count]) => `${count} ${words[kind] || kind}`).join(", ") || "0";
}

// Chosen requests stand out. A request that holds a node holds its parents, too.
function markChosen(frame, state, chosen) {
  const held = new Set();
  const parents = new Map(state.stays.map((stay) => [stay.place, stay.parent]));
  for (const stay of state.stays) {
    if (!stay.rids.some((rid) => chosen.has(rid))) continue;
    for (let place = stay.place; place && !held.has(place); place = parents.get(place)) held.add(place);
  }
  for (const element of frame.querySelectorAll("[data-place]")) {
    element.classList.toggle("chosen", held.has(element.dataset.place));
    element.classList.toggle("other", chosen.size > 0 && !held.has(element.dataset.place));
  }
}

// -- The KV map: every page is a small cell in the colour of whose it is --

const MOST_FREE = 640; // a larger pool shows only as much of it as the run ever used

function drawPages(frame, panel, state, chosen) {
  const canvas = frame.querySelector("canvas");
  const used = Math.max(1, ...panel.places.slice(-1).map(pageNumber));
  const count = panel.pages && panel.pages <= MOST_FREE ? panel.pages : used;
  const grid = gridOf(canvas.clientWidth, count);
  const pen = clean(canvas, grid.height);
  paintFree(pen, grid, count);
  const wasted = hatching(pen, css("bubble"), true);
  for (const stay of state.stays) {
    const cell = pageNumber(stay.place) - 1;
    pen.globalAlpha = !chosen.size || stay.rids.some((rid) => chosen.has(rid)) ? 1 : 0.25;
    paintPage(pen, grid, cell, stay, wasted);
  }
  pen.globalAlpha = 1;
  Object.assign(canvas, { state, grid });
  const total = panel.pages ? ` of ${panel.pages}` : "", told = countPages(state);
  frame.querySelector(".count").textContent = `${state.stays.length}${total} pages: ${told}`;
  canvas.ariaLabel = `KV map: ${state.stays.length}${total} pages are not free: ${told}`;
  drawOwners(frame.querySelector(".entries"), state, chosen);
}

const PAGE_WORDS = { // in the order in which they are counted
  admitted: "own", wasted: "zombie", protected: "cached, in use", evictable: "cached, evictable",
};
const CACHED = { protected: 0.4, evictable: 0 }; // how much of the owner's colour is behind the dots

// "12 own, 2 zombie, 30 cached, in use": as far as there are any.
function countPages(state) {
  const counts = new Map(Object.keys(PAGE_WORDS).map((kind) => [kind, 0]));
  for (const { kind } of state.stays) counts.set(kind, counts.get(kind) + 1);
  const some = [...counts].filter(([, count]) => count);
  return some.map(([kind, count]) => `${count} ${PAGE_WORDS[kind]}`).join("; ") || "all free";
}

const pageNumber = (place) => Number(place.split(" ")[1]);

// Cells as large as 150 pixels of height allow, between 3 and 22 pixels.
function gridOf(width, count) {
  const size = Math.max(3, Math.min(22, Math.floor(Math.sqrt((width * 150) / count))));
  const columns = Math.max(1, Math.floor(width / size));
  return { size, columns, height: Math.ceil(count / columns) * size + 1 };
}

function corner(grid, cell) {
  return [(cell % grid.columns) * grid.size, Math.floor(cell / grid.columns) * grid.size];
}

const gapOf = (grid) => (grid.size > 5 ? 1 : 0.5);

function paintCell(pen, grid, cell, fill) {
  const [x, y] = corner(grid, cell), side = grid.size - gapOf(grid);
  pen.fillStyle = fill;
  pen.fillRect(x, y, side, side);
}

// The map of an empty pool: whole rows, then lines between the cells.
function paintFree(pen, grid, count) {
  const { size, columns } = grid, whole = Math.floor(count / columns) * size;
  pen.fillStyle = css("lane");
  pen.fillRect(0, 0, columns * size, whole);
  pen.fillRect(0, whole, (count % columns) * size, size);
  pen.fillStyle = css("paper");
  for (let x = size; x <= columns * size; x += size) pen.fillRect(x - gapOf(grid), 0, gapOf(grid), grid.height);
  for (let y = size; y <= grid.height; y += size) pen.fillRect(0, y - gapOf(grid), columns * size, gapOf(grid));
}

function paintPage(pen, grid, cell, stay, wasted) {
  const [fill, ink] = owners.get(stay.label) || data.colours.other;
  const [x, y] = corner(grid, cell), { size } = grid;
  const isCached = stay.kind in CACHED, { globalAlpha } = pen;
  paintCell(pen, grid, cell, stay.kind === "admitted" ? fill : css("paper"));
  if (stay.kind === "wasted") paintCell(pen, grid, cell, wasted);
  if (isCached) {
    pen.globalAlpha = globalAlpha * CACHED[stay.kind];
    paintCell(pen, grid, cell, fill);
    pen.globalAlpha = globalAlpha;
    pen.fillStyle = fill;
    const dots = size > 8 ? [0.3, 0.7] : [0.5], radius = Math.max(0.9, size * (size > 8 ? 0.13 : 0.3));
    for (const dx of dots) for (const dy of dots) {
      pen.beginPath();
      pen.arc(x + dx * (size - 1), y + dy * (size - 1), radius, 0, 7);
      pen.fill();
    }
  }
  if (size < 13 || isCached || stay.label.length * 6 > size - 2) return;
  pen.fillStyle = stay.kind === "admitted" ? ink : css("ink");
  pen.textAlign = "center";
  pen.fillText(stay.label, x + (size - 1) / 2, y + size / 2);
}

function pageAt(canvas, x, y) {
  const { grid, state } = canvas;
  if (!grid || x >= grid.columns * grid.size) return null;
  const cell = Math.floor(y / grid.size) * grid.columns + Math.floor(x / grid.size);
  return state.stays.find((stay) => pageNumber(stay.place) === cell + 1) || null;
}

// How many pages are whose; the keyboard's way to them, too.
function drawOwners(list, state, chosen) {
  const owned = new Map();
  for (const { kind, label } of state.stays) {
    const whose = kind in CACHED ? "" : label, place = PAGE_WORDS[kind] + (whose && ` pages of ${whose}`);
    if (!owned.has(place)) owned.set(place, { place, kind, label: whose, rid: whose, count: 0 });
    owned.get(place).count += 1;
  }
  const rank = ({ kind }) => Object.keys(PAGE_WORDS).indexOf(kind);
  const shown = [...owned.values()].sort((one, other) => rank(one) - rank(other));
  reuse(list, shown.slice(0, MOST_ENTRIES).map((owner) => (
    { ...owner, about: `${owner.count} pages, ${PAGE_WORDS[owner.kind]}`, rids: [], parent: "" }
  )), makeOwner);
  for (const element of list.children) {
    element.classList.toggle("chosen", chosen.has(element.stay.rid));
    element.classList.toggle("other", chosen.size > 0 && !chosen.has(element.stay.rid));
  }
}

function makeOwner(element, stay) {
  makeChip(element, stay);
  element.replaceChildren(stay.label || PAGE_WORDS[stay.kind], make("small", {}, String(stay.count)));
}

// -- Where each loop is in its source, and what each lane does --

function drawSource(frame, source, time) {
  const found = lineAt(source, time), key = found ? `${found.line} ${found.isOver}` : "";
  if (frame.dataset.shown === key) return;
  frame.dataset.shown = key;
  for (const line of frame.querySelectorAll("code.now")) line.className = "";
  const line = found && frame.querySelector(`code[data-line="${found.line}"]`);
  if (!line) return;
  line.className = found.isOver ? "now over" : "now";
  line.title = found.isOver ? "the host was here, and idles" : "the host is here";
  keepInSight(frame.querySelector(".code"), line);
}

// Scrolls the listing and nothing else, and only if the line is near its edge.
function keepInSight(code, line) {
  const top = line.offsetTop, height = code.clientHeight;
  const isSeen = top > code.scrollTop + 20 && top + line.offsetHeight < code.scrollTop + height - 20;
  if (!isSeen) code.scrollTop = top - height / 2;
}

// "Scheduler: schedule 6 · Forward stream: forward 5"
function doing(run, time) {
  if (time >= run.end) return `has ended at ${ms(run.end)} ms; below is its last moment`;
  return run.lanes.map((lane) => {
    const slice = within(lane.slices, time);
    const what = slice ? `${slice.phase}${slice.step ? " " + slice.step : ""}` : "–";
    return `${lane.title.replace(/ \((host|device)\)$/, "")}: ${what}`;
  }).join(" · ");
}

// -- A request's whole life: its moments, as links that move the cursor --

const lifeBox = document.getElementById("life");

// In order of time: arrival, admission, each step, waits, retractions, and how it ended.
function lifeOf(run, rid) {
  const seen = new Set(), steps = [];
  for (const { slices } of run.lanes.filter((lane) => /forward|stage/.test(lane.key))) {
    for (const slice of slices) {
      const step = `${slice.mode} ${slice.step}`; // one a step, of however many stages
      if (slice.phase !== "forward" || seen.has(step) || !slice.rids.includes(rid)) continue;
      seen.add(step);
      steps.push({ time: slice.start, step: slice.step, mode: slice.mode });
    }
  }
  const told = run.life.filter((item) => item.rid === rid);
  return [...told, ...steps].sort((one, other) => one.time - other.time);
}

// Choose the requests of the slice at the cursor, in the active run; once more: of the next lane.
function pickSlice() {
  const run = runs[page.run], chosen = [...page.chosen].join(" ");
  const slices = run.lanes.map((lane) => within(lane.slices, page.time)).filter(Boolean);
  const found = [...new Map(slices.map(({ rids }) => [rids.join(" "), rids])).values()].filter((rids) => rids.length);
  if (!found.length) return;
  choose(found[(found.findIndex((rids) => rids.join(" ") === chosen) + 1) % found.length]);
}

function drawLife(page) {
  lifeBox.hidden = !page.chosen.size;
  const run = runs[page.run], rids = [...page.chosen];
  const key = JSON.stringify([page.run, rids]);
  if (lifeBox.dataset.shown !== key) {
    lifeBox.dataset.shown = key;
    lifeBox.replaceChildren(...rids.map((rid) => lifeItem(run, rid, rids.length === 1)));
    if (rids.length) lifeBox.prepend(lifeHead(run, rids));
  }
  for (const list of lifeBox.querySelectorAll("ol")) markMoment(list, page.time);
}

function lifeHead(run, rids) {
  const whose = rids.length > 1 ? `${rids.length} requests` : "Its life";
  const clear = make("button", { title: "choose no request (Escape)", dataset: { do: "clear" } }, "clear");
  return make("h3", {}, `${whose} in ${run.loop} `, clear);
}

// The list of a request is made when it is opened: of many, most never are.
function lifeItem(run, rid, isOpen) {
  const chip = make("button", { dataset: { rids: JSON.stringify([rid]) } });
  makeChip(chip, { label: rid, place: rid, kind: "admitted", about: "follow this one alone" });
  const told = run.life.filter((moment) => moment.rid === rid).map((moment) => moment.text);
  const end = told.findLast((text) => text.startsWith("finishes")) || told.at(-1) || "";
  const item = make("details", { open: isOpen }, make("summary", {}, chip, " ", end));
  const fill = () => {
    if (item.open && !item.querySelector("ol")) item.append(lifeList(run, rid));
    if (item.open) markMoment(item.querySelector("ol"), page.time);
  };
  item.addEventListener("toggle", fill);
  fill();
  return item;
}

function lifeList(run, rid) {
  const list = make("ol");
  let row = null, mode = "";
  for (const { time, step, mode: its, text } of lifeOf(run, rid)) {
    if (!step || its !== mode) {
      list.append(row = make("li", {}, step ? `${its || "runs"} in step ` : ""));
      mode = step ? its : "";
    }
    const href = addressOf({ time, run: run.index, chosen: new Set([rid]) });
    const words = step ? String(step) : `${ms(time)} ms ${text}`;
    row.append(make("a", { href, title: `${ms(time)} ms`, dataset: { time } }, words), " ");
  }
  return list;
}

// The last moment that is not later than the cursor. A list that the reader has scrolled stays so
// until the cursor comes to another moment.
function markMoment(list, time) {
  const links = (list.links ??= [...list.querySelectorAll("a")]);
  const now = links[countUpTo(links, time, (link) => Number(link.dataset.time)) - 1];
  if (list.now === now) return;
  list.now?.classList.remove("now");
  (list.now = now)?.classList.add("now");
  if (now && lifeBox.clientHeight) keepInSight(lifeBox, now);
}
