// Python, in a thread of its own: the page stays responsive while a run is on.
// It hears {id, name, text} and answers {id, value} or {id, error}; {progress} while it loads, and
// {began} when the call begins.
// Its address says whose functions they are: worker.js?session.

import { loadPyodide } from "./pyodide/pyodide.mjs";

const FILES = ["experiment.py", "report.py", "session.py", "cells.py"];

const python = start();
python.catch(() => {}); // whoever calls hears of it

async function start() {
  postMessage({ progress: "Loading Python (14 MB, once) …" });
  const files = ["minisched.zip", ...FILES].map(load);
  const [pyodide, archive, ...sources] = await Promise.all([loadPyodide(), ...files]);
  postMessage({ progress: "Loading minisched …" });
  pyodide.unpackArchive(archive, "zip");
  FILES.forEach((name, at) => pyodide.FS.writeFile(name, new Uint8Array(sources[at])));
  return pyodide.pyimport(location.search.slice(1));
}

async function load(name) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name} is missing (${answer.status}): build the site again.`);
  return answer.arrayBuffer();
}

onmessage = async ({ data: { id, name, text } }) => {
  try {
    const session = await python;
    postMessage({ began: id });
    postMessage({ id, value: session[name](text) });
  } catch (error) {
    postMessage({ id, error: sentence(error) });
  }
};

// The last line of a Python traceback, without the name of its class.
function sentence(error) {
  const line = error.message.trim().split("\n").at(-1);
  return line.replace(/^\w+(Error|Exception): /, "");
}
