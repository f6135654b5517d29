// The list of lessons: how many exercises of each are right, and the file that keeps them.

import { mine, read } from "./kept.js";

const place = document.getElementById("progress");
const lessons = JSON.parse(place.dataset.lessons);
let [right, all] = [0, 0];

for (const [lesson, names] of Object.entries(lessons)) {
  const done = names.filter((name) => read(lesson, name).passed).length;
  [right, all] = [right + done, all + names.length];
  const link = document.querySelector(`article table a[href="${lesson}.html"]`);
  const mark = Object.assign(document.createElement("small"), { className: "done" });
  mark.textContent = done ? ` ${done === names.length ? "✓ " : ""}${done} of ${names.length} right` : "";
  link?.parentNode.append(mark);
}
place.textContent = right ? `You have ${right} of ${all} exercises right. ` : "";
if (mine()) {
  const href = URL.createObjectURL(new Blob([mine()], { type: "text/x-python" }));
  place.append(Object.assign(document.createElement("a"), {
    href, download: "mine.py", textContent: "Download what you wrote, mine.py",
  }));
}
