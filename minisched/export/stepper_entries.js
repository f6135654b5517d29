// Panels that list things: who waits, who runs, the future slots, the rows, the tree.
"use strict";

const MOST_ENTRIES = 240; // a longer list says how many more there are

function drawEntries(frame, panel, state) {
  const list = frame.querySelector(".entries");
  const isTree = panel.name === "tree";
  const shown = mostOf(state.stays);
  reuse(list, shown, isTree ? makeNode : makeChip);
  const more = state.stays.length - shown.length;
  list.dataset.more = more ? `and ${more} more` : "";
  list.classList.toggle("empty", !state.stays.length);
  frame.querySelector(".count").textContent = countOf(panel, state);
  if (panel.name === "ring") drawStaleButton(frame, state);
}

// Of a list that is too long the stale entries go first.
function mostOf(stays) {
  if (stays.length <= MOST_ENTRIES) return stays;
  const live = stays.filter(({ kind }) => kind !== "stale");
  return (live.length ? live : stays).slice(0, MOST_ENTRIES);
}

// Stale slots are many and nobody reads them, so they are shown to who asks.
function drawStaleButton(frame, state) {
  const count = state.stays.filter(({ kind }) => kind === "stale").length;
  const button = frame.querySelector("button.stale-too") || document.createElement("button");
  const isOpen = document.body.classList.contains("shows-stale");
  if (!button.isConnected) frame.querySelector("h4").append(button);
  Object.assign(button, { className: "stale-too", hidden: !count, ariaExpanded: String(isOpen) });
  button.dataset.do = "stale";
  button.textContent = `${isOpen ? "hide" : "show"} ${count} stale`;
}

// Elements stay with their places, so that the keyboard's focus does too.
function reuse(list, stays, make) {
  const before = new Map([...list.children].map((child) => [child.dataset.place, child]));
  const depths = new Map();
  stays.forEach((stay, index) => {
    const element = before.get(stay.place) || document.createElement("button");
    before.delete(stay.place);
    depths.set(stay.place, (depths.get(stay.parent) ?? -1) + 1);
    if (element.stay !== stay) {
      element.stay = stay;
      Object.assign(element.dataset, { place: stay.place, kind: stay.kind, tip: stay.about });
      make(element, stay, depths.get(stay.place));
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
  const where = document.createElement("small");
  where.textContent = number ? number[1] : "";
  const about = `${stay.place === stay.label ? "" : stay.place + ": "}${stay.label}, ${stay.about}`;
  element.setAttribute("aria-label", about);
  element.replaceChildren(...(number ? [where] : []), stay.label);
}

function makeNode(element, stay, depth) {
  element.className = `node ${stay.kind}`;
  element.style.setProperty("--depth", Math.min(depth, 12));
  const texts = [["b", stay.place.replace("node ", "")], ["span", stay.label], ["small", stay.about]];
  element.replaceChildren(...texts.map(([tag, text]) => {
    const part = document.createElement(tag);
    part.textContent = text;
    return part;
  }));
}

function countOf(panel, state) {
  const kinds = new Map();
  for (const { kind } of state.stays) kinds.set(kind, (kinds.get(kind) || 0) + 1);
  if (["queue", "rows"].includes(panel.name)) return String(state.stays.length);
  const words = { wasted: "zombie", admitted: "running", sending: "in transfer" };
  return [...kinds].map(([kind, count]) => `${count} ${words[kind] || kind}`).join(", ") || "0";
}

// Who is chosen stands out. A node is held by whoever holds one below it.
function markChosen(frame, state, chosen) {
  const held = new Set();
  const parents = new Map(state.stays.map((stay) => [stay.place, stay.parent]));
  for (const stay of state.stays) {
    if (!ridsOf(stay).some((rid) => chosen.has(rid))) continue;
    for (let place = stay.place; place && !held.has(place); place = parents.get(place)) held.add(place);
  }
  for (const element of frame.querySelectorAll("[data-place]")) {
    element.classList.toggle("chosen", held.has(element.dataset.place));
    element.classList.toggle("other", chosen.size > 0 && !held.has(element.dataset.place));
  }
}
