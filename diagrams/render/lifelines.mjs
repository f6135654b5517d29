// Lifelines. PlantUML draws them through the words of messages that pass. This cuts a lifeline where
// words stand on it, so that every message can be read.

const LIFELINE = /<line x1="([\d.]+)" y1="([\d.]+)" x2="\1" y2="([\d.]+)"([^>]*stroke-dasharray="5,5"[^>]*)\/>/g;
const TEXT = /<text x="([\d.]+)" y="([\d.]+)" font-size="([\d.]+)"([^>]*)>([^<]*)<\/text>/g;
const ABOVE = 0.8; // of the size of letters: the height of words over their line
const BELOW = 0.25;
const ASIDE = 1; // pixels
const decoded = (text) => text.replace(/&(lt|gt|amp|quot|#\d+);/g, '<');

function wordsOf(svg, measure) {
  return [...svg.matchAll(TEXT)].map(([, x, y, size, more, text]) => {
    const left = Number(x);
    const font = `${/font-weight="(\w+)"/.exec(more)?.[1] ?? ''} ${size}px`;
    const right = left + measure(font, decoded(text)).width;
    return { left, right, top: y - ABOVE * size, bottom: Number(y) + BELOW * size };
  });
}

// The SVG with each lifeline in the pieces between the words that stand on it.
export function withoutStruckWords(svg, measure) {
  const words = wordsOf(svg, measure);
  return svg.replace(LIFELINE, (_, at, top, bottom, look) => {
    const x = Number(at);
    const on = words.filter((one) => one.left - ASIDE < x && x < one.right + ASIDE);
    const pieces = [];
    let y = Number(top);
    for (const one of on.sort((a, b) => a.top - b.top)) {
      if (one.bottom <= y || one.top >= Number(bottom)) continue;
      if (one.top > y) pieces.push([y, one.top]);
      y = one.bottom;
    }
    pieces.push([y, Number(bottom)]);
    return pieces
      .filter(([from, to]) => to > from)
      .map(([from, to]) => {
        const [y1, y2] = [from.toFixed(2), to.toFixed(2)];
        return `<line x1="${at}" y1="${y1}" x2="${at}" y2="${y2}"${look}/>`;
      })
      .join('');
  });
}
