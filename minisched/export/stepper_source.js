// Where each loop is in its source, what each lane does, and the counters.
"use strict";

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

function drawCounters(frame, run, time) {
  const table = frame.querySelector("table");
  Object.entries(run.counters).forEach(([name, pairs], index) => {
    const row = table.rows[index] || makeCounter(table, name, run.units[name][0]);
    const value = counterAt(pairs, time);
    const most = (run.most ??= new Map());
    if (!most.has(name)) most.set(name, Math.max(1e-9, ...pairs.map((pair) => pair[1])));
    row.cells[1].textContent = value === null ? "–" : String(value);
    row.cells[2].textContent = value === null ? "" : run.units[name][1];
    row.cells[3].firstChild.style.width = `${(100 * (value || 0)) / most.get(name)}%`;
  });
}

function makeCounter(table, name, title) {
  const row = table.insertRow();
  row.insertCell().textContent = title;
  row.dataset.counter = name;
  row.insertCell();
  row.insertCell();
  row.insertCell().append(document.createElement("i"));
  return row;
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
