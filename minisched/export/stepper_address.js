// A link to a moment: #t=12.5&view=0-60&run=1&rid=a,b in milliseconds. #20-60 is a view alone.
"use strict";

function addressOf({ time, view, run, chosen }) {
  const parts = [`t=${time / 1e6}`];
  if (view) parts.push(`view=${[view.start, view.end].map((at) => Number((at / 1e6).toFixed(6))).join("-")}`);
  if (runs.length > 1) parts.push(`run=${run}`);
  if (chosen.size) parts.push(`rid=${[...chosen].map(encodeURIComponent).join(",")}`);
  return "#" + parts.join("&");
}

// What an address says of the page; what it does not say, or says wrongly, is left out.
function fromAddress(hash) {
  const found = {};
  const parts = new Map(hash.slice(1).split("&").map((part) => part.split("=")));
  const [, ...view] = /^(-?[\d.]+)-([\d.]+)$/.exec(parts.get("view") ?? hash.slice(1)) ?? [];
  const [start, end] = view.map((text) => Number(text) * 1e6);
  if (start < end && Number.isFinite(end - start)) found.view = { start, end };
  const time = parts.has("t") ? Number(parts.get("t") || NaN) : NaN;
  if (Number.isFinite(time)) found.time = Math.round(time * 1e6);
  const run = Number(parts.get("run") || NaN);
  if (runs[run]) found.run = run;
  if (parts.has("rid")) found.chosen = new Set(decoded(parts.get("rid") || ""));
  return found;
}

function decoded(text) {
  try {
    return text.split(",").map(decodeURIComponent).filter((rid) => owners.has(rid));
  } catch {
    return []; // a lonely per cent sign
  }
}

// Written at most a few times a second: a browser refuses more. A page inside another one (a
// notebook's cell) may have no address of its own to change.
let written = "", pending = 0, mayWrite = location.protocol !== "about:";
function writeAddress(page) {
  if (!mayWrite || pending) return;
  pending = setTimeout(() => {
    pending = 0;
    const hash = addressOf(page);
    if (hash === written) return;
    try {
      history.replaceState(null, "", hash);
      written = hash;
    } catch {
      mayWrite = false;
    }
  }, 250);
}
