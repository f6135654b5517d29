// The KV map: every page is a small cell in the colour of whose it is.
"use strict";

const MOST_FREE = 640; // a larger pool shows only as much of it as the run ever used

function drawPages(frame, panel, state, run, chosen) {
  const canvas = frame.querySelector("canvas");
  const used = Math.max(1, ...panel.places.slice(-1).map(pageNumber));
  const count = run.pool && run.pool <= MOST_FREE ? run.pool : used;
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
  frame.querySelector(".count").textContent =
    `${state.stays.length}${run.pool ? ` of ${run.pool}` : ""} pages in use`;
  drawOwners(frame.querySelector(".entries"), state, chosen);
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
  paintCell(pen, grid, cell, stay.kind === "admitted" ? fill : css("paper"));
  if (stay.kind === "wasted") paintCell(pen, grid, cell, wasted);
  if (stay.kind === "evictable") {
    pen.fillStyle = fill;
    const dots = size > 8 ? [0.3, 0.7] : [0.5], radius = Math.max(0.9, size * (size > 8 ? 0.13 : 0.3));
    for (const dx of dots) for (const dy of dots) {
      pen.beginPath();
      pen.arc(x + dx * (size - 1), y + dy * (size - 1), radius, 0, 7);
      pen.fill();
    }
  }
  if (size < 13 || stay.kind === "evictable" || stay.label.length * 6 > size - 2) return;
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
  const counts = new Map();
  for (const stay of state.stays) {
    const whose = stay.kind === "evictable" ? "" : stay.label;
    counts.set(whose, (counts.get(whose) || 0) + 1);
  }
  const shown = [...counts].sort(([one], [other]) => !one - !other).slice(0, MOST_ENTRIES);
  reuse(list, shown.map(([whose, count]) => ({
    place: `pages of ${whose}`, kind: whose ? "admitted" : "evictable", label: whose, count,
    about: whose ? `${count} pages` : `${count} pages that only the prefix cache has`,
    group: 0, parent: "", rid: whose,
  })), makeOwner);
  for (const element of list.children) {
    element.classList.toggle("chosen", chosen.has(element.stay.rid));
    element.classList.toggle("other", chosen.size > 0 && !chosen.has(element.stay.rid));
  }
}

function makeOwner(element, stay) {
  makeChip(element, stay);
  const count = document.createElement("small");
  count.textContent = String(stay.count);
  element.replaceChildren(stay.label || "cached", count);
}
