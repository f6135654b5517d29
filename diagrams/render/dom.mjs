// The little of a browser that @plantuml/core needs: elements to build an SVG tree from, a canvas to
// measure text with, and serializing. Text is measured from a table of widths
// (minisched/export/font-widths.json), so the same diagram gives the same bytes on every machine.

const ENTITIES = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' };
const escape = (text) => String(text).replace(/[&<>"]/g, (char) => ENTITIES[char]);

class Text {
  constructor(data) {
    this.nodeType = 3;
    this.data = String(data);
  }

  get textContent() {
    return this.data;
  }

  get outerHTML() {
    return escape(this.data);
  }
}

// Markup that is passed through as it is: what Graphviz drew for a class or a state diagram.
class Markup extends Text {
  get outerHTML() {
    return this.data;
  }
}

class Element {
  constructor(tagName, widths) {
    this.nodeType = 1;
    this.widths = widths;
    this.tagName = this.nodeName = this.localName = tagName;
    this.attributes = new Map();
    this.childNodes = [];
    this.parentNode = null;
    this.style = {};
  }

  setAttribute(name, value) {
    this.attributes.set(name, String(value));
  }

  setAttributeNS(_, name, value) {
    this.setAttribute(name, value);
  }

  getAttribute(name) {
    return this.attributes.get(name) ?? null;
  }

  hasAttribute(name) {
    return this.attributes.has(name);
  }

  removeAttribute(name) {
    this.attributes.delete(name);
  }

  appendChild(node) {
    return this.insertBefore(node, null);
  }

  insertBefore(node, reference) {
    node.parentNode?.removeChild(node);
    const at = reference ? this.childNodes.indexOf(reference) : -1;
    this.childNodes.splice(at < 0 ? this.childNodes.length : at, 0, node);
    node.parentNode = this;
    return node;
  }

  removeChild(node) {
    this.childNodes = this.childNodes.filter((child) => child !== node);
    node.parentNode = null;
    return node;
  }

  remove() {
    this.parentNode?.removeChild(this);
  }

  get firstChild() {
    return this.childNodes[0] ?? null;
  }

  get lastChild() {
    return this.childNodes.at(-1) ?? null;
  }

  get children() {
    return this.childNodes.filter((node) => node.nodeType === 1);
  }

  get textContent() {
    return this.childNodes.map((node) => node.textContent).join('');
  }

  set textContent(text) {
    this.childNodes = [new Text(text)];
  }

  set innerHTML(markup) {
    this.childNodes = markup ? [new Markup(markup)] : [];
  }

  get ownerDocument() {
    return globalThis.document;
  }

  getBBox() {
    const size = this.getAttribute('font-size') ?? 13;
    const font = `${this.getAttribute('font-weight') ?? ''} ${size}px`;
    const box = measureText(this.widths, font, this.textContent);
    const { width, fontBoundingBoxAscent: ascent, fontBoundingBoxDescent: descent } = box;
    return { x: 0, y: -ascent, width, height: ascent + descent };
  }

  get outerHTML() {
    const attributes = [...this.attributes].map(([name, value]) => ` ${name}="${escape(value)}"`);
    const content = this.childNodes.map((node) => node.outerHTML).join('');
    const start = `<${this.tagName}${attributes.join('')}`;
    return content ? `${start}>${content}</${this.tagName}>` : `${start}/>`;
  }
}

// What a canvas says about a text: `widths` are advances in thousandths of the font's size.
export function measureText(widths, font, text) {
  const size = Number(/([\d.]+)px/.exec(font)?.[1] ?? 13);
  const table = /bold|[6-9]00/.test(font) ? widths.bold : widths.regular;
  const thousandths = [...text].reduce((sum, char) => sum + (table[char] ?? widths.other), 0);
  const width = (thousandths * size) / 1000;
  return {
    width,
    actualBoundingBoxLeft: 0,
    actualBoundingBoxRight: width,
    actualBoundingBoxAscent: 0.73 * size,
    actualBoundingBoxDescent: 0.21 * size,
    fontBoundingBoxAscent: 0.905 * size,
    fontBoundingBoxDescent: 0.212 * size,
  };
}

function createElement(tagName, widths) {
  const element = new Element(tagName, widths);
  if (tagName === 'canvas') {
    const context = { font: '', measureText: (text) => measureText(widths, context.font, text) };
    element.getContext = () => context;
  }
  return element;
}

// Puts `document`, `window` and the rest where @plantuml/core looks for them.
export function installDom(widths) {
  globalThis.window = globalThis.self = globalThis;
  globalThis.document = {
    createElement: (tagName) => createElement(tagName, widths),
    createElementNS: (_, tagName) => createElement(tagName, widths),
    createTextNode: (text) => new Text(text),
    createComment: () => new Text(''),
    createProcessingInstruction: () => new Text(''),
    importNode: (node) => node,
    getElementById: () => null,
    body: new Element('body'),
    head: new Element('head'),
    currentScript: null,
    baseURI: 'http://localhost/',
  };
  globalThis.XMLSerializer = class {
    serializeToString(node) {
      return node.outerHTML;
    }
  };
  globalThis.DOMParser = class {
    parseFromString(markup) {
      const root = new Element('svg');
      root.innerHTML = markup;
      return { documentElement: root };
    }
  };
}
