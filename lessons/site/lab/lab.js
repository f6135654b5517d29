// The lab: a change of the form becomes a run, and its report is shown. The newest change wins.

import { PRESETS } from "./presets.js";
import { Python } from "./python.js";
import { offerToSave } from "./save.js";
import { defaults, fromHash, label, offerLoops, read, toHash, write } from "./settings.js";
import { showProblem, showProgress, showReport } from "./show.js";

const form = document.getElementById("controls");
const python = new Python("session", showProgress);
let wanted = null;
let isRunning = false;

async function refresh() {
  label();
  wanted = read();
  history.replaceState(null, "", toHash(wanted));
  if (isRunning) return;
  isRunning = true;
  while (wanted) {
    const settings = wanted;
    wanted = null;
    await run(settings);
  }
  isRunning = false;
}

async function run(settings) {
  const start = performance.now();
  try {
    const report = JSON.parse(await python.call("experiment", JSON.stringify(settings)));
    showReport(report, Math.round(performance.now() - start));
    offerToSave(python, settings.loops);
  } catch (error) {
    showProblem(error.message);
  }
}

function offerPresets() {
  for (const { name, why, settings } of PRESETS) {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: name, title: why });
    button.addEventListener("click", () => {
      defaults();
      write(settings);
      document.getElementById("why").textContent = why;
      refresh();
    });
    document.getElementById("why").before(button);
  }
}

async function begin() {
  label();
  try {
    offerLoops(JSON.parse(await python.call("loops")));
  } catch (error) {
    showProblem(error.message);
    return;
  }
  write(fromHash(location.hash));
  offerPresets();
  form.addEventListener("input", refresh);
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", () => {
    write(fromHash(location.hash));
    refresh();
  });
  await refresh();
}

begin();
