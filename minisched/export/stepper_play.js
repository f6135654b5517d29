// Time goes by: at so many steps a second, of the run whose steps they are.
"use strict";

const speed = document.getElementById("speed");
const isCalm = matchMedia("(prefers-reduced-motion: reduce)"); // then from event to event
let playing = null; // {exact, last}: where in the run, and when that was on the screen's clock

function togglePlay() {
  if (playing) return pause();
  if (page.time >= runs[page.run].end) goTo(0);
  playing = { exact: page.time, last: performance.now() };
  sayPlaying();
  requestAnimationFrame(advance);
}

function pause() {
  playing = null;
  sayPlaying();
}

function sayPlaying() {
  document.querySelector('[data-do="play"]').textContent = playing ? "❚❚ pause" : "▶ play";
  document.body.classList.toggle("playing", Boolean(playing));
}

function advance(now) {
  if (!playing) return;
  const run = runs[page.run];
  const passed = Math.max(0, Math.min(now - playing.last, 100)); // a hidden tab must not leap
  playing.last = Math.max(now, playing.last);
  playing.exact = Math.min(playing.exact + (passed / 1000) * Number(speed.value) * run.stepTime, run.end);
  const events = eventsOf(run);
  goTo(isCalm.matches ? events[countUpTo(events, playing.exact) - 1] : playing.exact);
  if (playing.exact >= run.end) return pause();
  requestAnimationFrame(advance);
}

// One event or one step on or back; the reader takes over from the clock.
function move(direction, isStep) {
  if (playing) pause();
  const run = runs[page.run];
  goTo(neighbour(isStep ? run.steps : eventsOf(run), Math.min(page.time, run.end), direction, run));
}
