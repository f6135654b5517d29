// Links. PlantUML's build for the browser paints `[[address label]]` in the colour of hyperlinks and
// drops the address; its build for Java makes an anchor. This puts the anchor back.

const LINK = /\[\[([^\s[\]{}]+) ([^[\]{}]+)\]\]/g;
const COLOUR = /^skinparam hyperlinkColor (#[0-9A-Fa-f]{6})$/m;

// The address that each label leads to. One label is one place, or nobody could tell them apart.
function linksOf(source) {
  const links = new Map();
  for (const [, address, label] of source.matchAll(LINK)) {
    if ((links.get(label) ?? address) !== address) {
      throw new Error(`"${label}" links to ${links.get(label)} and to ${address}.`);
    }
    links.set(label, address);
  }
  return links;
}

const ENTITIES = { '&': '&amp;', '<': '&lt;', '"': '&quot;' };
const escape = (text) => text.replace(/[&<"]/g, (char) => ENTITIES[char]);

// `../minisched/policy/decode.py#DecodeManager.add` as a reader says it.
const spoken = (address) => address.replace(/^(\.\.\/)+/, '').replace('#', ': ');

// The SVG with an anchor around every text that is a link in the source.
export function withLinks(svg, source) {
  const links = linksOf(source);
  if (!links.size) return svg;
  const colour = COLOUR.exec(source)?.[1];
  if (!colour) throw new Error('a diagram with links needs a line "skinparam hyperlinkColor #…".');
  const found = new Set();
  const linked = svg.replace(/<text [^>]*>([^<]*)<\/text>/g, (text, label) => {
    if (!text.includes(`fill="${colour}"`)) return text;
    const address = links.get(label);
    if (!address) throw new Error(`"${label}" looks like a link and is none.`);
    found.add(label);
    const title = `<title>${escape(spoken(address))}</title>`;
    return `<a href="${escape(address)}" target="_top">${title}${text}</a>`;
  });
  for (const label of links.keys()) {
    if (!found.has(label)) throw new Error(`the link "${label}" is not in the picture.`);
  }
  return linked;
}
