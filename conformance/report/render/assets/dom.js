// Everything shown is built from nodes and text: no markup is ever made from data.
const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'class') node.setAttribute('class', value);
    else if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);

/** Format with three digits. Strings stand for numbers that JSON lacks. */
function number(value) {
  if (value === null || value === undefined) return '–';
  if (typeof value === 'string') return value.replace('-Infinity', '−∞').replace('Infinity', '∞');
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 0.001 && size < 100000) return String(Number(value.toPrecision(3)));
  return value.toExponential(1);
}

/** Format a multiple of the noise floor; never show it equal to a limit that it differs from. */
function times(value) {
  if (value === null || value === undefined) return '';
  const limits = [run.limits.k_med, run.limits.k_max];
  const text = number(value);
  return `${limits.some((limit) => text === number(limit) && value !== limit) ? Number(value.toPrecision(5)) : text}×`;
}

function duration(value) {
  if (value === null || value === undefined) return '';
  return value < 1 ? `${Math.ceil(1000 * value)} ms` : `${number(value)} s`;
}
const plural = (count, word) => `${count.toLocaleString('en')} ${word}${count === 1 ? '' : 's'}`;

/** A verdict's symbol in its family's shape. */
const mark = (verdict) => el('span', { class: `mark ${verdict.family}`, 'aria-hidden': 'true' }, verdict.symbol);
const badge = (verdict, words) => el('span', { class: 'badge' }, mark(verdict), words || verdict.name);

/** Text from the run, isolated so that it cannot reorder the text around it. */
const own = (text, tag = 'bdi') => el(tag, {}, text);

/** `command` with a button that copies it. */
function copyable(text, label) {
  const code = el('code', {}, text);
  const said = el('span', { class: 'said', role: 'status' });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      said.textContent = 'copied';
    } catch {
      getSelection().selectAllChildren(code);
      said.textContent = 'selected';
    }
    setTimeout(() => { said.textContent = ''; }, 2000);
  };
  return el('div', { class: 'copyable' }, code, el('button', { type: 'button', onclick: copy, 'aria-label': `copy ${label}` }, 'copy'), said);
}

/** A scrolling block of program text or log. */
function block(text, label) {
  return el('pre', { tabindex: '0', role: 'region', 'aria-label': label, dir: 'auto' }, text);
}
