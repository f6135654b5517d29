// node render.mjs [--out DIR] FILE.puml ...
// Writes FILE.svg beside each file, or into DIR. Stops at the first diagram that PlantUML refuses:
// it would otherwise draw the error as a picture and call that a success.

import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { basename, dirname, join } from 'node:path';
import vm from 'node:vm';

import { installDom, measureText } from './dom.mjs';
import { withoutStruckWords } from './lifelines.mjs';
import { withLinks } from './links.mjs';

// What the picture of an error says: a mistake and the kind of diagram it was taken for.
const ERRORS = /Syntax Error|\(Assumed diagram type|not supported by this release/;
const FONT = 'Arial, Helvetica, Liberation Sans, sans-serif'; // what font-widths.json measures

const widths = JSON.parse(readFileSync(new URL('../../minisched/export/font-widths.json', import.meta.url), 'utf8'));
const measure = (font, text) => measureText(widths, font, text);

async function loadPlantUml() {
  installDom(widths);
  const graphviz = createRequire(import.meta.url).resolve('@plantuml/core/viz-global.js');
  vm.runInThisContext(readFileSync(graphviz, 'utf8'), { filename: graphviz });
  console.log = () => {}; // the engine reports its progress there
  return import('@plantuml/core');
}

function render(plantuml, source) {
  const lines = source.split(/\r?\n/);
  return new Promise((resolve, reject) => {
    plantuml.renderToString(lines, resolve, (message) => reject(new Error(message)));
  });
}

// A page behind the diagram, so that it is legible on a dark site too; and the font it was laid
// out for.
function finish(svg) {
  const paper = '<rect width="100%" height="100%" rx="6" fill="#FFFFFF"/>';
  return `${withoutStruckWords(svg, measure)
    .replace(/^(<svg[^>]*>)/, `$1${paper}`)
    .replaceAll('font-family="sans-serif"', `font-family="${FONT}"`)}\n`;
}

// The message of the error picture that PlantUML draws instead of a diagram, or null.
function syntaxError(svg) {
  const texts = [...svg.matchAll(/<text[^>]*>([^<]*)/g)].map((match) => match[1].trim());
  const at = texts.findIndex((text) => ERRORS.test(text));
  if (at < 0) return null;
  const line = /\(line (\d+)\)/.exec(texts.join(' '))?.[1] ?? '?';
  const what = texts[at].replace(/\s*\(Assumed.*/, '');
  return `${what} in line ${line}, near "${texts[at - 1] ?? ''}"`;
}

function linked(path, svg, source) {
  try {
    return withLinks(svg, source);
  } catch (error) {
    throw new Error(`${path}: ${error.message}`);
  }
}

async function main(args) {
  const out = args[0] === '--out' ? args.splice(0, 2)[1] : null;
  const plantuml = await loadPlantUml();
  for (const path of args) {
    const source = readFileSync(path, 'utf8');
    const svg = await render(plantuml, source);
    const problem = syntaxError(svg);
    if (problem) throw new Error(`${path} is not a PlantUML diagram: ${problem}.`);
    const target = join(out ?? dirname(path), basename(path).replace(/\.puml$/, '.svg'));
    writeFileSync(target, finish(linked(path, svg, source)));
  }
}

try {
  await main(process.argv.slice(2));
  process.exit(0); // the engine leaves timers behind
} catch (error) {
  console.error(error.message.replace(/^java\.\S+ /, ''));
  process.exit(1);
}
