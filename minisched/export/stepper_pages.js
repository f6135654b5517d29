// The KV map: every page is a small cell in the colour of whose it is.
"use strict";

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
    pen.globalAlpha = !chosen.size || ridsOf(stay).some((rid) => chosen.has(rid)) ? 1 : 0.25;
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

// The map with nobody in it: whole rows, then lines between the cells.
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
    const whose = kind in CACHED ? "" : label, place = `${PAGE_WORDS[kind]} pages of ${whose}`;
    if (!owned.has(place)) owned.set(place, { place, kind, label: whose, rid: whose, count: 0 });
    owned.get(place).count += 1;
  }
  const rank = ({ kind }) => Object.keys(PAGE_WORDS).indexOf(kind);
  const shown = [...owned.values()].sort((one, other) => rank(one) - rank(other));
  reuse(list, shown.slice(0, MOST_ENTRIES).map((owner) => (
    { ...owner, about: `${owner.count} pages, ${PAGE_WORDS[owner.kind]}`, group: 0, parent: "" }
  )), makeOwner);
  for (const element of list.children) {
    element.classList.toggle("chosen", chosen.has(element.stay.rid));
    element.classList.toggle("other", chosen.size > 0 && !chosen.has(element.stay.rid));
  }
}

function makeOwner(element, stay) {
  makeChip(element, stay);
  const count = document.createElement("small");
  count.textContent = String(stay.count);
  element.replaceChildren(stay.label || PAGE_WORDS[stay.kind], count);
}
