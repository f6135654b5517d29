// What one can take away: the traces as JSON, the stepper for both runs, and the link.

const place = document.getElementById("save");

export function offerToSave(python, loops) {
  const traces = [...new Set(loops)].map((loop, number) =>
    button(`Save ${loop}.json`, () => saveTrace(python, loop, number)),
  );
  const copied = button("Copy link", async () => {
    await navigator.clipboard.writeText(location.href);
    copied.textContent = "Link copied";
  });
  place.replaceChildren(button("Step through both", () => openStepper(python)), ...traces, copied);
}

async function saveTrace(python, loop, number) {
  const text = await python.call("trace", String(number));
  const link = document.createElement("a");
  link.download = `${loop}.json`;
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// The tab is opened at the click, as browsers want it; the page comes when Python has made it.
async function openStepper(python) {
  const tab = window.open("about:blank");
  const html = await python.call("stepper");
  tab.location = URL.createObjectURL(new Blob([html], { type: "text/html" }));
}

function button(text, act) {
  const made = Object.assign(document.createElement("button"), { type: "button", textContent: text });
  made.addEventListener("click", act);
  return made;
}
