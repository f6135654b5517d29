// What a learner has written and got right, kept in this browser.

const PREFIX = "minisched ";
const MINE = `${PREFIX}mine.py`;

export function read(lesson, name) {
  return JSON.parse(item(`${PREFIX}${lesson} ${name}`) ?? "{}");
}

export function write(lesson, name, answer) {
  put(`${PREFIX}${lesson} ${name}`, JSON.stringify(answer));
}

export function forget(lesson, name) {
  put(`${PREFIX}${lesson} ${name}`, null);
}

// The file with what is right, as `learn` writes it.
export function mine(text) {
  if (text !== undefined) put(MINE, text);
  return item(MINE) ?? "";
}

function item(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null; // no storage: the page works, and forgets
  }
}

function put(key, text) {
  try {
    if (text === null) localStorage.removeItem(key);
    else localStorage.setItem(key, text);
  } catch {
    // as above
  }
}
