// A request's whole life: its moments, as links that move the cursor.
"use strict";

const lifeBox = document.getElementById("life");

// In order of time: arrival, admission, each step, waits, retractions, and how it ended.
function lifeOf(run, rid) {
  const seen = new Set(), steps = [];
  for (const { slices } of run.lanes.filter((lane) => /forward|stage/.test(lane.key))) {
    for (const slice of slices) {
      const step = `${slice.mode} ${slice.step}`; // one a step, of however many stages
      if (slice.phase !== "forward" || seen.has(step) || !ridsOf(slice).includes(rid)) continue;
      seen.add(step);
      steps.push({ time: slice.start, step: slice.step, mode: slice.mode });
    }
  }
  const told = run.life.filter((item) => item.rid === rid);
  return [...told, ...steps].sort((one, other) => one.time - other.time);
}

// The keyboard's way to the slices: whoever is in one at the cursor, in the active run. Pressed
// again it goes on to the next lane's.
function pickSlice() {
  const run = runs[page.run], chosen = [...page.chosen].join(" ");
  const slices = run.lanes.map((lane) => within(lane.slices, page.time)).filter(Boolean);
  const found = [...new Set(slices.map(({ group }) => group).filter(Boolean))].map((group) => groups[group]);
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
  const head = document.createElement("h3"), clear = document.createElement("button");
  head.textContent = rids.length > 1 ? `${rids.length} requests in ${run.loop} ` : `Its life in ${run.loop} `;
  clear.textContent = "clear";
  clear.title = clear.ariaLabel = "choose no request (Escape)";
  clear.dataset.do = "clear";
  head.append(clear);
  return head;
}

// The list of a request is made when it is opened: of many, most never are.
function lifeItem(run, rid, isOpen) {
  const item = document.createElement("details"), name = document.createElement("summary");
  const chip = document.createElement("button");
  makeChip(chip, { label: rid, place: rid, kind: "admitted", about: "follow this one alone" });
  chip.dataset.rids = JSON.stringify([rid]);
  const told = run.life.filter((moment) => moment.rid === rid).map((moment) => moment.text);
  name.append(chip, " ", told.findLast((text) => text.startsWith("finishes")) || told.at(-1) || "");
  item.append(name);
  item.addEventListener("toggle", () => {
    if (item.open && !item.querySelector("ol")) item.append(lifeList(run, rid));
    if (item.open) markMoment(item.querySelector("ol"), page.time);
  });
  item.open = isOpen;
  if (isOpen) item.append(lifeList(run, rid));
  return item;
}

function lifeList(run, rid) {
  const list = document.createElement("ol");
  let row = null, mode = "";
  for (const moment of lifeOf(run, rid)) {
    if (!moment.step || moment.mode !== mode) {
      row = document.createElement("li");
      list.append(row);
      mode = moment.step ? moment.mode : "";
      if (moment.step) row.append(`${mode || "runs"} in step `);
    }
    row.append(momentLink(run, rid, moment), " ");
  }
  return list;
}

function momentLink(run, rid, moment) {
  const link = document.createElement("a");
  link.textContent = moment.step ? String(moment.step) : `${ms(moment.time)} ms ${moment.text}`;
  link.title = `${ms(moment.time)} ms`;
  link.dataset.time = String(moment.time);
  link.href = addressOf({ time: moment.time, run: run.index, chosen: new Set([rid]) });
  return link;
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
