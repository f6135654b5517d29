// A text area for Python: it grows, indents as Python does, and Shift+Enter runs.
// Tab indents only after a key was pressed in it, and Escape gives Tab back to the page.

export function editor(text, label, onRun, onInput) {
  const area = document.createElement("textarea");
  Object.assign(area, { value: text, spellcheck: false, autocomplete: "off", autocapitalize: "off" });
  area.setAttribute("autocorrect", "off");
  area.setAttribute("aria-label", label);
  let takesTab = false;
  const fit = () => (area.rows = Math.max(3, area.value.split("\n").length + 1));
  fit();
  area.addEventListener("input", () => {
    fit();
    onInput(area.value);
  });
  area.addEventListener("blur", () => (takesTab = false));
  area.addEventListener("keydown", (event) => {
    const { key, shiftKey, ctrlKey, metaKey, isComposing } = event;
    if (isComposing) return;
    if (key === "Enter" && (shiftKey || ctrlKey || metaKey)) onRun();
    else if (key === "Enter") insert(area, `\n${indentBehind(area)}`);
    else if (key === "Tab" && takesTab) shift(area, shiftKey);
    else if (key === "Backspace" && isInIndent(area)) removeIndent(area);
    else {
      takesTab = key !== "Escape" && (takesTab || key !== "Tab");
      return;
    }
    event.preventDefault();
  });
  area.show = (wanted) => {
    area.value = wanted;
    fit();
  };
  return area;
}

// Typed, not set, so that the browser's undo knows of it.
function insert(area, text) {
  if (text === "") document.execCommand("delete");
  else if (!document.execCommand("insertText", false, text)) area.setRangeText(text);
}

function before(area) {
  return area.value.slice(area.value.lastIndexOf("\n", area.selectionStart - 1) + 1, area.selectionStart);
}

function indentBehind(area) {
  const line = before(area);
  return line.match(/^ */)[0] + (line.trimEnd().endsWith(":") ? "    " : "");
}

function isInIndent(area) {
  return area.selectionStart === area.selectionEnd && /^( {4})+$/.test(before(area));
}

function removeIndent(area) {
  area.setSelectionRange(area.selectionStart - 4, area.selectionStart);
  insert(area, "");
}

// All lines that the selection touches, or four spaces at the cursor.
function shift(area, isBack) {
  const { value, selectionStart, selectionEnd } = area;
  if (selectionStart === selectionEnd && !isBack) return insert(area, "    ");
  const first = value.lastIndexOf("\n", selectionStart - 1) + 1;
  const end = value.indexOf("\n", selectionEnd);
  const last = end < 0 ? value.length : end;
  const text = value.slice(first, last);
  const moved = isBack ? text.replace(/^ {1,4}/gm, "") : text.replace(/^(?=.)/gm, "    ");
  area.setSelectionRange(first, last);
  insert(area, moved);
  area.setSelectionRange(first, first + moved.length);
}
