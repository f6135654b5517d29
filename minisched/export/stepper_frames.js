// Builds the page's frames, empty as yet: what runs are drawn on, the legend, the state at the
// cursor.
"use strict";

// A sample of a look, and what it means.
function swatch(look, words, background = "") {
  return make("span", {}, make("i", { className: look, style: background && `background:${background}` }), words);
}

// -- Over time: a canvas for each run, and what occurs in them --

function runFrame({ index, loop, about }) {
  const title = `step through the events of ${loop}`;
  return make("section", { className: "run" },
    make("h2", {}, make("button", { title, dataset: { activate: index } }, loop), " ", make("span", {}, about)),
    make("canvas", { className: "run", role: "img", ariaLabel: `${loop}: ${about}` }),
  );
}

function makeLegend() {
  const lanes = runs.flatMap((run) => run.lanes), seen = (items, name) => new Set(items.map((item) => item[name]));
  const phases = seen(lanes.flatMap(({ slices }) => slices.filter(({ start, end }) => end > start)), "phase");
  const reasons = [...seen(lanes.flatMap(({ bubbles }) => bubbles), "reason")].filter(Boolean);
  const kinds = seen(runs.flatMap(({ edges }) => edges), "kind");
  const marks = seen(runs.flatMap((run) => run.marks), "name");
  const flags = Map.groupBy(Object.keys(data.flags).filter((name) => marks.has(name)), (name) => data.flags[name]);
  return [
    ...Object.keys(data.colours).filter((name) => phases.has(name)).map((name) => (
      swatch(name, name, name === "wait" ? "" : data.colours[name][0]))),
    swatch("bubble", "bubble: the device idles"),
    reasons.length ? swatch("waited", `the device waits for ${reasons.join(", ")}`) : "",
    ...Object.entries(data.arrows).filter(([kind]) => kinds.has(kind)).map(([kind, words]) => (
      swatch("arrow", words, `var(--${kind})`))),
    ...[...flags].map(([colour, names]) => (
      make("span", {}, make("b", { style: `color:var(--${colour})` }, "▼ "), names.join(", ")))),
  ];
}

// -- At a moment: source and state. A part that the run never had is left out --

const PANELS = { // title, one line for a newcomer, and what the looks of its entries mean, by kind of stay
  queue: ["Waiting queue", "requests that wait for memory", {}],
  set: ["Running set", "requests with memory", {
    admitted: "holds memory",
    sending: "framed: its KV moves from prefill to decode",
    wasted: "crossed (zombie): has ended or was retracted, but a launched step names it",
  }],
  ring: ["Future slots", "where the device keeps tokens that the host has not seen yet", {
    promised: "promised: its step has not sampled it yet",
    stored: "stored: a later step reads it",
    free: "not listed: empty, or stale (no step reads it any more)",
  }],
  pages: ["KV map", "one cell a page, in the colour of the request that computed it", {
    admitted: "a request's own",
    protected: "cached, in use: its node is locked",
    evictable: "cached, evictable",
    wasted: "a zombie's",
    free: "free",
  }],
  rows: ["Request table", "the request of each row", { admitted: "a request's", wasted: "a zombie's" }],
  tree: ["Radix tree", "cached prefixes; a lock protects a node from eviction", {
    protected: "locked: requests use it", evictable: "may be evicted",
  }],
};

function momentFrame({ index, loop, panels, listings }) {
  const shown = [...panels.values()].filter(({ stays }) => stays.length);
  const framesOf = (isOne) => shown.filter(isOne).map(panelFrame);
  const isMiddle = ({ name }) => ["queue", "set", "ring"].includes(name);
  const first = Object.entries(listings).map(sourceFrame);
  const groups = shown.some(({ side }) => side)
    ? [first, ...["Prefill", "Decode"].map((name) => (
      [make("h4", { className: "side" }, `${name} side`), ...framesOf(({ side }) => side === name.toLowerCase())]))]
    : [first, framesOf(isMiddle), framesOf((panel) => !isMiddle(panel))];
  return make("section", { className: "moment", ariaLabel: `${loop} at the cursor`, dataset: { run: index } },
    make("h3", {}, `${loop} `, make("span", { className: "doing" })),
    make("div", { className: "groups" }, ...groups.filter(({ length }) => length).map((group) => make("div", {}, ...group))),
  );
}

function frame(dataset, title, about, ...inside) {
  const head = make("h4", {}, `${title} `, make("span", { className: "count" }));
  return make("div", { className: "panel", dataset }, head, make("p", { className: "about", hidden: !about }, about), ...inside);
}

function panelFrame({ name, side, stays }) {
  const [title, about, meanings] = PANELS[name], seen = new Set(["free", ...stays.map(({ kind }) => kind)]);
  const looks = Object.entries(meanings).filter(([kind]) => seen.has(kind));
  const inside = [make("div", { className: "entries" })];
  if (name === "pages") inside.unshift(make("canvas", { role: "img", ariaLabel: "KV map" }));
  if (looks.length > 1) inside.unshift(make("div", { className: "looks" }, ...looks.map(([kind, words]) => swatch(`chip ${kind}`, words))));
  return frame({ panel: name, side }, title, about, ...inside);
}

// A loop's source with its docstring folded.
function sourceFrame([lane, { where, first, lines }]) {
  const rows = lines.map((text, at) => {
    const words = text.trimStart(), hang = text.length - words.length + 4; // where a line that is too long goes on
    const number = make("i", {}, String(first + at));
    const row = make("code", { className: words.startsWith("#") ? "faint" : "", dataset: { line: at } }, number, text || " ");
    row.style.setProperty("--in", `${hang}ch`);
    return row;
  });
  const [begin, end] = [...lines.keys()].filter((at) => lines[at].includes('"""'));
  if (end && lines[begin].split('"""').length === 2) {
    const [summary, ...folded] = rows.slice(begin, end + 1);
    rows.splice(begin, end - begin + 1, make("details", {}, make("summary", {}, summary), ...folded));
  }
  return frame({ panel: "source", lane }, "Source of the loop", `${where}; the ${lane} is at the marked line`,
    make("div", { className: "code", tabIndex: 0 }, ...rows));
}

// -- All of it --

const buttonsOf = (name) => runs.map(({ index, loop }) => make("button", { dataset: { [name]: index } }, loop));
document.getElementById("lanes").prepend(...runs.map(runFrame));
for (const [id, children] of Object.entries({
  chooser: ["show", ...data.groups.map(([words, members]) => (
    make("span", { className: "group" }, words, ...members.map((at) => buttonsOf("toggle")[at])))), make("button", { dataset: { do: "all-runs" } }, "all")],
  legend: makeLegend(),
  tabs: buttonsOf("activate"),
  moments: runs.map(momentFrame),
})) document.getElementById(id).append(...children);
document.getElementById("chooser").hidden = runs.length < 3; // of two there is nothing to choose
