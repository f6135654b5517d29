// What is said of the thing under the pointer.
"use strict";

const tip = document.getElementById("tip");

function tell(event, lines) {
  tip.hidden = false;
  tip.replaceChildren(...lines.slice(0, 12).map((line) => {
    const row = document.createElement("div");
    row.textContent = line;
    return row;
  }));
  const left = Math.min(event.pageX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = event.pageY + 16 + "px";
}

function aboutSlice(slice) {
  const lines = [
    slice.step ? `${slice.phase}, step ${slice.step}` : slice.phase,
    `starts at ${ms(slice.start)} ms, takes ${ms(slice.end - slice.start)} ms`,
  ];
  const rids = ridsOf(slice);
  if (rids.length) lines.push(`${slice.mode ? slice.mode + " of " : ""}${rids.join(" ")}; click to follow`);
  return lines;
}

function aboutBubble(bubble) {
  const idle = ms(bubble.end - bubble.start);
  const why = bubble.reason ? `waits for ${bubble.reason}` : "bubble";
  return [why, `the device idles ${idle} ms from ${ms(bubble.start)} ms on`];
}

function aboutMark(mark) {
  return `${mark.text} at ${ms(mark.time)} ms`;
}

function aboutStay(stay) {
  const until = stay.isOpen ? "ms up to the end of the run" : `to ${ms(stay.end)} ms`;
  const since = stay.start === undefined ? [] : [`from ${ms(stay.start)} ${until}`];
  const whose = stay.label && stay.label !== stay.place ? `: ${stay.label}` : "";
  return [`${stay.place}${whose}`, stay.about, ...since].filter(Boolean);
}
