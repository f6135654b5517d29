// The form as settings, and settings as the part of the address behind the hash.

const NUMBERS = ["host", "forward", "copy", "requests", "prompt", "tokens"];
const form = document.getElementById("controls");

export function read() {
  const settings = { loops: [form.first.value, form.second.value], needs: form.needs.value };
  for (const name of NUMBERS) settings[name] = form[name].valueAsNumber;
  return { ...settings, stops: form.stops.checked, whole: form.elements.whole.checked };
}

// Sets what is named, as far as the form has it; a slider keeps to its own limits.
export function write(settings) {
  const [first, second] = settings.loops ?? [];
  choose(form.first, first);
  choose(form.second, second);
  choose(form.needs, settings.needs);
  for (const name of NUMBERS) {
    if (Number.isFinite(settings[name])) form[name].value = settings[name];
  }
  if ("stops" in settings) form.stops.checked = settings.stops;
  if ("whole" in settings) form.elements.whole.checked = settings.whole;
  label();
}

export function defaults() {
  form.reset();
}

// Each slider says its value and unit, to the eye and to a screen reader.
export function label() {
  for (const name of NUMBERS) {
    const text = `${form[name].value} ${form[name].dataset.unit}`.trim();
    form.querySelector(`output[for=${name}]`).textContent = text;
    form[name].setAttribute("aria-valuetext", text);
  }
}

export function offerLoops(names) {
  for (const select of [form.first, form.second]) {
    select.replaceChildren(...names.map((name) => new Option(name, name)));
  }
  for (const [select, name] of [[form.first, "serial"], [form.second, "overlap"]]) {
    select.value = name;
    select.selectedOptions[0].defaultSelected = true;
  }
}

export function toHash(settings) {
  const pairs = Object.entries(settings).map(([name, value]) => [name, String(value)]);
  return `#${new URLSearchParams(pairs).toString().replaceAll("%2C", ",")}`;
}

export function fromHash(hash) {
  const settings = {};
  for (const [name, text] of new URLSearchParams(hash.slice(1))) {
    if (name === "loops") settings.loops = text.split(",");
    else if (NUMBERS.includes(name)) settings[name] = Number.parseFloat(text);
    else if (name === "needs") settings.needs = text;
    else if (name === "stops" || name === "whole") settings[name] = text === "true";
  }
  return settings;
}

function choose(select, value) {
  if ([...select.options].some((option) => option.value === value)) select.value = value;
}
