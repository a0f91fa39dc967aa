// One cell: the verdict with its reasons first, then the evidence for the sceptic.
const COLUMNS = ['observation', 'verdict', 'median', 'worst', 'spread', 'error', 'floor', 'detectable', 'gain', 'shape', 'type', 'message'];
const HINTS = {
  median: 'median over tokens, in multiples of the noise floor', worst: 'worst token, in multiples of the noise floor',
  spread: 'near 1: all tokens alike; near 0: one token', error: 'relative error', floor: 'what bf16 baseline runs show',
  detectable: 'the smallest relative error that would have been found', gain: 'gain ± σ, off-axis: 1 the write landed, 0 it had no effect',
};
let current = null;

async function showCell(cell) {
  current = cell;
  const host = byId('cell');
  host.replaceChildren(cellHead(cell), el('p', { class: 'quiet' }, 'reading …'));
  const loaded = await part(cell.group);
  if (current !== cell) return;
  const detail = loaded.cells[cell.within];
  run.limits = run.thresholds[detail.precision];
  host.replaceChildren(...[cellHead(cell), verdictPart(cell, detail), precisionPart(cell, detail), siblingPart(cell), failurePart(cell, detail, loaded.log),
    plotPart(cell, detail), tokenPart(detail), relationPart(detail), tablePart(detail), besidePart(detail), scenarioPart(cell, detail), environmentPart(cell, detail)].filter(Boolean));
  host.dataset.ready = cell.id;
}

function cellHead(cell) {
  const { next, worse: before } = neighbours(cell);
  const step = (to, words) => to && el('a', { href: cellLink(to), class: 'step' }, words);
  return el('header', {},
    el('nav', { class: 'crumbs', 'aria-label': 'where you are' },
      el('a', { href: filterLink() }, 'matrix'), ' / ', el('a', { href: modelLink(cell.model) }, own(cell.model.id)), ' / ', own(cell.backend.id),
      el('span', { class: 'steps' }, step(before, '‹ worse'), step(next, 'next problem ›'))),
    el('h2', { tabindex: '-1', class: 'id' }, own(cell.id)));
}

function verdictPart(cell, detail) {
  const [first, ...rest] = detail.words;
  return el('section', { class: `verdict ${cell.verdict.family}` },
    el('p', { class: 'big' }, mark(cell.verdict), el('span', {}, own(first))),
    rest.map((words) => el('p', {}, own(words))),
    el('h3', {}, 'Run this cell again'), copyable(detail.command, 'the command'),
    el('h3', {}, 'Write a script that shows it without the harness'), copyable(detail.repro, 'the command for a script'));
}

/** What each precision says: float32 about correctness, bf16 about numerics. */
function precisionPart(cell, detail) {
  if (!detail.beside) return null;
  const card = (title, verdict, words) => el('section', { class: 'card' }, el('h4', {}, title), el('p', {}, verdict ? badge(verdict) : 'not gathered'), words && el('p', {}, own(words)));
  const words = { [detail.precision]: detail.reason, [detail.beside.precision]: detail.beside.reason };
  return el('section', {}, el('h3', {}, 'In both precisions'), el('div', { class: 'cards' },
    card('float32: what it means', cell.float32, words.float32), card('bf16: numerics', cell.bf16, words.bf16)));
}

/** The other precision's evidence. */
function besidePart(detail) {
  const { beside } = detail;
  if (!beside || (!beside.observations.length && !beside.detail)) return null;
  return el('section', {}, el('h3', {}, `In ${beside.precision} besides`),
    beside.diagnosis && el('p', {}, own(beside.diagnosis)),
    beside.detail && block(beside.detail, `what was said in ${beside.precision}`),
    beside.observations.length > 0 && tableOf(beside.observations, `observations in ${beside.precision}`),
    beside.left > 0 && el('p', { class: 'quiet' }, `${beside.left} more that pass are in results.json`));
}

/** The same case on the other backends, and the other cases here. */
function siblingPart(cell) {
  const same = run.cells.filter((other) => other.model === cell.model && other.scenario === cell.scenario);
  const link = (other, words) => el('li', {}, el('a', { href: cellLink(other), class: `chip ${other.verdict.family}`, 'aria-current': other === cell ? 'true' : null, 'aria-label': `${words}: ${other.verdict.name}` }, mark(other.verdict), own(words)));
  return el('section', { class: 'siblings' },
    el('div', {}, el('h3', {}, 'Same case on'), el('ul', { class: 'chips' }, same.filter((o) => o.case === cell.case).map((o) => link(o, o.backend.id)))),
    el('div', {}, el('h3', {}, 'Other cases here'), el('ul', { class: 'chips' }, same.filter((o) => o.backend === cell.backend).map((o) => link(o, o.case)))));
}

function failurePart(cell, detail, log) {
  if (!detail.detail && cell.verdict.family === 'pass') return null;
  return el('section', {},
    detail.detail && [el('h3', {}, 'In its own words'), block(detail.detail, 'what was said')],
    log && el('details', { open: !detail.detail && cell.verdict.family === 'broken' }, el('summary', {}, 'end of the log'), block(log, 'end of the log')));
}

function plotPart(cell, detail) {
  const boundaries = cell.group.about.boundaries || [];
  const lines = detail.series.filter((line) => line.layers.length || line.heat.length);
  if (!lines.length && !detail.gains.length) return null;
  const host = el('div', { class: 'figures' });
  const draw = (line) => host.replaceChildren(...[layerPlot(line, boundaries, detail.observations), heatMap(line, boundaries, detail.prompts[line.prompt])].filter(Boolean));
  const chooser = el('select', { onchange: (event) => draw(lines[event.target.value]) },
    lines.map((line, i) => el('option', { value: i }, `${lineName(line)}${line.worst === null ? '' : ` — worst ${times(line.worst)}`}`)));
  const choice = lines.length > 1 && el('p', {}, el('label', {}, 'by layer: ', chooser));
  const pick = (line) => {
    chooser.value = String(lines.indexOf(line));
    draw(line);
  };
  if (lines.length) draw(lines[0]);
  return el('section', {}, el('h3', {}, 'Evidence'), promptMap(lines, pick), choice, host, gainPart(detail.gains.map(([index, tokens]) => {
    const [site, verdict, , , , , , , [g, h, sigma]] = detail.observations[index];
    return { site, verdict, g, h, sigma, tokens };
  })));
}

function gainPart(gains) {
  if (!gains.length) return null;
  const off = gains.filter((gain) => !['pass', 'neutral'].includes(run.byVerdict.get(gain.verdict).family)).length;
  const few = Math.min(24, Math.max(6, off + 3));
  const host = el('div', {}, gainPlot(gains.slice(0, few)));
  if (gains.length <= few) return host;
  const button = el('button', { type: 'button', onclick: () => { host.replaceChildren(gainPlot(gains)); } }, `all ${gains.length} sites`);
  host.append(button);
  return host;
}

/** Token observations: what was chosen, and where it first differs from the reference. */
function tokenPart(detail) {
  const tokens = detail.observations.filter((row) => /\/tokens$/.test(row[0]));
  if (!tokens.length) return null;
  const runs = new Map();
  for (const row of tokens) {
    const [name, step] = [row[0].replace(/\/s\d+\//, ' '), Number(/\/s(\d+)\//.exec(row[0])?.[1] ?? 0)];
    runs.set(name, [...(runs.get(name) || []), { step, verdict: run.byVerdict.get(row[1]), message: row[11], extra: row[12] || {} }]);
  }
  return el('section', {}, el('h3', {}, 'Tokens'), [...runs].map(([name, steps]) => {
    steps.sort((a, b) => a.step - b.step);
    const first = steps.find((step) => step.verdict.family !== 'pass' || tokenDiffers(step.extra));
    return el('div', { class: 'tokens' }, el('p', {}, el('b', {}, own(name)), first ? ` parts from the reference at step ${first.step}${first.message ? `: ${first.message}` : ''}` : ' chooses as the reference does'),
      el('ol', { start: steps[0].step }, steps.map((step) => el('li', { class: tokenDiffers(step.extra) ? `differs ${step.verdict.family}` : step.verdict.family, title: Object.entries(step.extra).map(([key, value]) => `${key}: ${value}`).join('\n') },
        own(tokenWords(step))))));
  }));
}

const tokenDiffers = (extra) => extra.best !== undefined && extra.chosen !== undefined && String(extra.best) !== String(extra.chosen);
const tokenWords = (step) => (step.extra.chosen === undefined ? `${step.verdict.symbol} ${step.step}` : tokenDiffers(step.extra) ? `${step.extra.chosen} (reference ${step.extra.best})` : String(step.extra.chosen));

function relationPart(detail) {
  if (!detail.relations.length) return null;
  return el('section', {}, el('h3', {}, 'Rules that need no tolerance'), el('ul', { class: 'relations' }, detail.relations.map(([name, holds, words]) => el('li', {},
    mark(run.byVerdict.get(holds ? 'exact' : 'wrong')), el('span', {}, el('b', {}, holds ? 'holds: ' : 'broken: '), own(name), words && el('span', { class: 'quiet' }, ' — ', own(words)))))));
}

function tablePart(detail) {
  const all = detail.observations;
  if (!all.length) return null;
  const some = 30;
  const sorted = causesFirst(all);
  const body = el('tbody', {}, sorted.slice(0, some).map(observation));
  const button = all.length > some && el('button', { type: 'button', onclick: (event) => { body.append(...sorted.slice(some).map(observation)); event.target.remove(); } }, `show all ${all.length} observations`);
  return el('section', {}, el('h3', {}, `Observations in ${detail.precision}, causes first`), tableAround(body, 'observations'), button);
}

/** Failing observations in the order they were made; then the others, the closest to failing first. */
function causesFirst(rows) {
  const fails = (name) => name !== 'drift' && !['pass', 'neutral'].includes(run.byVerdict.get(name).family);
  const rank = (row) => (fails(row[1]) ? -1 : run.byVerdict.get(row[1]).rank);
  return rows.map((row, i) => [row, i]).sort(([a, i], [b, j]) => rank(a) - rank(b) || (fails(a[1]) ? 0 : size(b[3]) - size(a[3])) || i - j).map(([row]) => row);
}

const tableOf = (rows, label) => tableAround(el('tbody', {}, rows.map(observation)), label);
const tableAround = (body, label) => el('div', { class: 'wide', tabindex: '0', role: 'region', 'aria-label': label }, el('table', { class: 'observations' },
  el('thead', {}, el('tr', {}, COLUMNS.map((name, i) => el('th', { scope: 'col', class: i > 1 && i < 9 ? 'figure' : null, title: HINTS[name] }, name)))), body));

function observation([site, verdict, median, largest, spread, error, floor, smallest, gain, shape, type, message]) {
  const figureCell = (text) => el('td', { class: 'figure' }, text);
  return el('tr', {}, el('th', { scope: 'row' }, own(site)), el('td', {}, badge(run.byVerdict.get(verdict))),
    figureCell(times(median)), figureCell(times(largest)), figureCell(number(spread)), figureCell(number(error)), figureCell(number(floor)), figureCell(number(smallest)),
    figureCell(gain ? `${number(gain[0])} ± ${number(gain[2])}, ${number(gain[1])}` : '–'), el('td', {}, shape.length ? shape.join('×') : '–'), el('td', {}, own(type || '–')), el('td', { class: 'line' }, own(message)));
}

function scenarioPart(cell, detail) {
  const { meaning, trace_source: trace, reference_source: reference, path } = cell.scenario;
  const chosen = Object.entries(detail.layers).map(([name, layer]) => `${name} = layer ${layer}`).join(', ');
  return el('section', {}, el('h3', {}, 'What the scenario does'),
    (meaning || '').split(/\n\s*\n/).map((words) => words && el('p', {}, own(words))),
    el('p', { class: 'quiet' }, `case `, own(cell.case), chosen && ` (${chosen})`, path && [', ', own(path)]),
    el('div', { class: 'sources' },
      trace && el('details', {}, el('summary', {}, 'the trace'), block(trace, 'the trace')),
      reference && el('details', {}, el('summary', {}, 'the same in plain PyTorch'), block(reference, 'the reference'))));
}

function environmentPart(cell, detail) {
  const about = cell.group.about;
  const ids = detail.prompts.map((prompt, i) => `prompt ${i}: ${prompt.length} tokens`).join(', ');
  return el('section', {}, el('h3', {}, 'Where it ran'), el('div', { class: 'cards' },
    el('section', { class: 'card' }, el('h4', {}, 'engine'), factList([['layout', about.layout], ['prompts', ids], ['seconds', number(cell.seconds)], ...Object.entries(about.identity || {})])),
    el('section', { class: 'card' }, el('h4', {}, 'versions'), factList(Object.entries(about.versions && Object.keys(about.versions).length ? about.versions : run.environment)))));
}
