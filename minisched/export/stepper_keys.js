// Buttons and keys, links to a moment, and the beginning.
"use strict";

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
  all: () => show(0, longest * 1.02),
  few: () => { show(...few); if (!isSeen(page.time)) goTo(data.now); },
  clear: () => choose([]),
  keys: () => dialog.showModal(),
  pick: pickSlice,
  stale: () => { document.body.classList.toggle("shows-stale"); redraw("panels"); },
};
const keys = {
  " ": "play", ArrowLeft: "back", ArrowRight: "forward", Home: "first", End: "last", "+": "in",
  "=": "in", "-": "out", "0": "all", "1": "few", ",": "left", ".": "right", Escape: "clear", "?": "keys",
  Enter: "pick",
};

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-do], [data-activate]");
  if (button?.dataset.do) actions[button.dataset.do]();
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

function makeTabs() {
  tabs.replaceChildren(...runs.map((run) => {
    const button = document.createElement("button");
    button.dataset.activate = String(run.index);
    button.textContent = run.loop;
    return button;
  }));
}

// Goes where an address says, if it says anything.
function follow(hash) {
  const found = fromAddress(hash);
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
makeTabs();
show(...few);
goTo(data.now);
follow(location.hash);
