// Inline SVG. Shapes repeat what colours show; every figure has an aria-label.
const WIDTH = 760;
const LEFT = 56;

const finite = (value) => typeof value === 'number' && Number.isFinite(value);
const label = (x, y, words, attributes) => svg('text', { x, y, ...attributes }, words);
const lineName = (line) => [line.run && `${line.run} run`, `prompt ${line.prompt}`].filter(Boolean).join(', ');

/** Error per layer in multiples of the noise floor, on a logarithmic axis: median and worst token. */
function layerPlot(line, boundaries, observations) {
  const points = line.layers.map(([layer, index, verdict]) => [layer, observations[index], verdict])
    .filter(([, row]) => row[2] !== null || row[3] !== null)
    .map(([layer, [, , median, largest, , error, floor], verdict]) => ({ layer, error, floor, median, largest, off: !['pass', 'neutral'].includes(run.byVerdict.get(verdict).family), verdict }));
  if (!points.length) return null;
  const { k_med: kMed, k_max: kMax } = run.limits;
  const values = points.flatMap((point) => [point.median, point.largest]).filter((value) => finite(value) && value > 0);
  const low = Math.log10(Math.min(0.5, ...values) * 0.8);
  const high = Math.log10(Math.max(kMax * 1.6, ...values) * 1.35);
  const height = 260;
  const bottom = height - 36;
  const first = points[0].layer;
  const last = points[points.length - 1].layer;
  const x = (layer) => LEFT + 16 + (last === first ? 0.5 : (layer - first) / (last - first)) * (WIDTH - LEFT - 48);
  const scale = (value) => 22 + ((high - Math.log10(value)) / (high - low)) * (bottom - 22);
  const y = (value) => (finite(value) ? (value > 0 ? Math.min(bottom, scale(value)) : bottom) : 22);
  const path = (key) => points.filter((point) => finite(point[key])).map((point, i) => `${i ? 'L' : 'M'}${x(point.layer).toFixed(1)},${y(point[key]).toFixed(1)}`).join('');
  const right = WIDTH - 16;
  const drawn = svg('svg', { viewBox: `0 0 ${WIDTH} ${height}`, class: 'plot', role: 'img', 'aria-label': layerWords(points) },
    svg('rect', { class: 'floor', x: LEFT, width: right - LEFT, y: y(1), height: bottom - y(1) }),
    label(right - 6, y(1) + 15, 'noise floor', { 'text-anchor': 'end' }));
  for (const tick of [0.01, 0.1, 1, 10, 100, 1000, 1e4, 1e5, 1e6, 1e8, 1e10]) {
    if (Math.log10(tick) < low || Math.log10(tick) > high) continue;
    drawn.append(svg('line', { class: 'grid', x1: LEFT, x2: right, y1: y(tick), y2: y(tick) }), label(LEFT - 8, y(tick) + 4, `${number(tick)}×`, { 'text-anchor': 'end' }));
  }
  for (const [limit, kind, words] of [[kMed, 'limit median', 'median'], [kMax, 'limit', 'worst']]) {
    drawn.append(svg('line', { class: kind, x1: LEFT, x2: right, y1: y(limit), y2: y(limit) }), label(right - 6, y(limit) - 4, `${number(limit)}× for the ${words} token`, { 'text-anchor': 'end' }));
  }
  for (const bound of boundaries) {
    if (bound <= first || bound > last) continue;
    const at = (x(bound - 1) + x(bound)) / 2;
    drawn.append(svg('line', { class: 'bound', x1: at, x2: at, y1: 4, y2: bottom }), label(at + 5, 14, 'stage boundary', { class: 'strong' }));
  }
  drawn.append(svg('path', { class: 'error median', d: path('median') }), svg('path', { class: 'error', d: path('largest') }));
  for (const point of points) {
    const [cx, cy] = [x(point.layer), y(point.largest)];
    const title = svg('title', {}, `layer ${point.layer}: worst token ${times(point.largest)}, median ${times(point.median)}; relative error ${number(point.error)}, floor ${number(point.floor)} — ${point.verdict}`);
    drawn.append(point.off ? svg('path', { class: 'off', d: `M${cx},${cy - 6}l6,6l-6,6l-6,-6Z` }, title) : svg('circle', { class: 'fine', cx, cy, r: 3.5 }, title));
    if (!finite(point.largest)) drawn.append(label(cx, cy - 8, number(point.largest), { 'text-anchor': 'middle', class: 'strong' }));
  }
  const every = Math.ceil(points.length / 16);
  points.forEach((point, i) => { if (i % every === 0) drawn.append(label(x(point.layer), bottom + 16, point.layer, { 'text-anchor': 'middle' })); });
  drawn.append(label((LEFT + WIDTH) / 2, height - 4, 'layer', { 'text-anchor': 'middle' }));
  return figure(drawn, [
    ['key error', 'worst token'], ['key error median', 'median token'], ['key limit', 'limits'], ['key off', 'judged to be off'],
  ], 'Error per layer, in multiples of the noise floor');
}

function layerWords(points) {
  const off = points.filter((point) => point.off);
  const worstPoint = points.reduce((a, b) => (size(b.largest) > size(a.largest) ? b : a));
  const begins = off.length ? `${off.length} of ${plural(points.length, 'layer')} judged to be off, the first is ${off[0].layer}` : `none of ${plural(points.length, 'layer')} is off`;
  return `Error per layer in multiples of the noise floor: ${begins}; the worst is layer ${worstPoint.layer} at ${times(worstPoint.largest)}.`;
}

function figure(drawn, keys, title, ...more) {
  return el('figure', {}, el('figcaption', {}, title), el('div', { class: 'wide', tabindex: '0', role: 'region', 'aria-label': title }, drawn), ...more,
    el('ul', { class: 'keys' }, keys.map(([kind, words]) => el('li', {}, el('span', { class: kind, 'aria-hidden': 'true' }), words))));
}

const STEPS = [['h0', 1], ['h1', null], ['h2', 5], ['h3', 10], ['h4', 100], ['h5', Infinity]];

function heatClass(ratio) {
  if (!finite(ratio)) return ratio === null ? 'none' : 'h5';
  const limit = run.limits.k_max;
  return STEPS.find(([, most]) => ratio <= (most ?? limit))[0];
}

/** Ratio to the noise floor by token and layer: which tokens are affected, and from where. */
function heatMap(line, boundaries, ids) {
  const lines = line.heat;
  const columns = Math.max(0, ...lines.map(([, values]) => values.length));
  if (!columns || !lines.length) return null;
  const tall = Math.max(6, Math.min(22, 420 / lines.length));
  const wide = (WIDTH - LEFT - 24) / Math.max(columns, 8);
  const height = lines.length * tall + 48;
  const drawn = svg('svg', { viewBox: `0 0 ${WIDTH} ${height}`, class: 'plot heat', role: 'img', 'aria-label': heatWords(lines) });
  lines.forEach(([name, values], row) => {
    let start = 0;
    for (let i = 1; i <= values.length; i += 1) {
      if (i < values.length && heatClass(values[i]) === heatClass(values[start]) && wide < 6) continue;
      const kind = heatClass(values[start]);
      drawn.append(svg('rect', { class: kind, x: LEFT + start * wide, y: row * tall + 4, width: (i - start) * wide - (wide > 6 ? 1 : 0), height: tall - (tall > 8 ? 1 : 0) }));
      if (wide > 9 && tall > 9 && ['h2', 'h3', 'h4', 'h5'].includes(kind)) {
        drawn.append(label(LEFT + (start + 0.5) * wide, row * tall + tall / 2 + 7, '×', { class: `over ${kind}`, 'text-anchor': 'middle' }));
      }
      start = i;
    }
    if (row % Math.ceil(14 / tall) === 0 || row === lines.length - 1) drawn.append(label(LEFT - 6, row * tall + tall / 2 + 7, name, { 'text-anchor': 'end' }));
    if (row > 0 && boundaries.includes(name)) {
      drawn.append(svg('line', { class: 'bound', x1: LEFT - 30, x2: WIDTH - 8, y1: row * tall + 3.5, y2: row * tall + 3.5 }));
    }
  });
  const generated = line.length / line.bin;
  if (generated < columns) {
    const at = LEFT + Math.round(generated) * wide - 0.5;
    drawn.append(svg('line', { class: 'bound', x1: at, x2: at, y1: 2, y2: height - 36 }), label(at + 4, height - 6, 'generated', { class: 'strong' }));
  }
  const every = Math.ceil(columns / 20);
  for (let i = 0; i < columns; i += every) drawn.append(label(LEFT + (i + 0.5) * wide, height - 26, i * line.bin, { 'text-anchor': 'middle' }));
  drawn.append(label((LEFT + WIDTH) / 2 - 60, height - 6, line.bin > 1 ? `token (${line.bin} to a column, the worst is shown)` : 'token', { 'text-anchor': 'middle' }),
    ...(typeof lines[0][0] === 'number' ? [label(4, 12, 'layer', {})] : []));
  const readout = el('p', { class: 'readout', 'aria-hidden': 'true' }, 'point at a square to read its value');
  drawn.addEventListener('mousemove', (event) => {
    const box = drawn.getBoundingClientRect();
    const scale = WIDTH / box.width;
    const column = Math.floor(((event.clientX - box.left) * scale - LEFT) / wide);
    const row = Math.floor(((event.clientY - box.top) * scale - 4) / tall);
    const found = lines[row];
    if (!found || !(column in found[1])) return;
    const token = column * line.bin;
    const id = line.bin > 1 ? '' : token >= line.length ? ' (generated)' : ids && token in ids ? ` (id ${ids[token]})` : '';
    readout.textContent = `${typeof found[0] === 'number' ? `layer ${found[0]}` : found[0]}, token ${token}${id}: ${times(found[1][column])} the noise floor`;
  });
  const limit = number(run.limits.k_max);
  return figure(drawn, [['key h0', 'at most the noise floor'], ['key h1', `within the limit of ${limit}×`], ['key h2', 'to 5×'], ['key h3', 'to 10×'], ['key h4', 'to 100×'], ['key h5', 'beyond, or not finite']], 'By token and layer, in multiples of the noise floor', readout);
}

function heatWords(lines) {
  const off = new Set();
  let rowsOff = 0;
  for (const [, values] of lines) {
    const bad = values.map((value, i) => [value, i]).filter(([value]) => ['h2', 'h3', 'h4', 'h5'].includes(heatClass(value)));
    bad.forEach(([, i]) => off.add(i));
    rowsOff += bad.length > 0;
  }
  return `Ratio to the noise floor by token and layer: ${off.size ? `${plural(off.size, 'token column')} in ${rowsOff} of ${lines.length} rows beyond the limit` : 'every token is within the limit'}.`;
}

/** Which prompts and tokens are affected: a row for each run and prompt, its worst layer a token. */
function promptMap(lines, pick) {
  const shownLines = lines.filter((line) => line.heat.length);
  if (shownLines.length < 2) return null;
  const ordered = [...shownLines].sort((a, b) => a.run.localeCompare(b.run) || a.prompt - b.prompt);
  const rowsOf = ordered.map((line) => {
    const columns = Math.max(...line.heat.map(([, values]) => values.length));
    return Array.from({ length: columns }, (_, i) => {
      // A value with a single row (the logits) is aligned with the last token, where it belongs.
      const at = line.heat.map(([, values]) => values[i - columns + values.length]).filter((value) => value !== undefined && value !== null);
      return at.reduce((worst, value) => (worst === null || size(value) > size(worst) ? value : worst), null);
    });
  });
  const names = 150;
  const columns = Math.max(...rowsOf.map((values) => values.length));
  const wide = Math.min(40, (WIDTH - names - 24) / Math.max(columns, 8));
  const tall = 22;
  const height = ordered.length * tall + 36;
  const words = ordered.map((line, i) => {
    const off = rowsOf[i].filter((value) => ['h2', 'h3', 'h4', 'h5'].includes(heatClass(value))).length;
    return `${lineName(line)}: ${off ? `${off} of ${plural(rowsOf[i].length, 'token column')} beyond the limit` : 'none beyond the limit'}`;
  });
  const drawn = svg('svg', { viewBox: `0 0 ${WIDTH} ${height}`, class: 'plot heat prompts', role: 'img', 'aria-label': `Prompts by tokens. ${words.join('; ')}.` });
  ordered.forEach((line, row) => {
    drawn.append(label(names - 8, row * tall + tall / 2 + 7, lineName(line), { 'text-anchor': 'end' }));
    rowsOf[row].forEach((value, i) => {
      const kind = heatClass(value);
      const square = svg('rect', { class: kind, x: names + i * wide, y: row * tall + 4, width: Math.max(wide - (wide > 6 ? 1 : 0), 0.5), height: tall - 1 },
        svg('title', {}, `${lineName(line)}, token ${i * line.bin}: ${times(value) || 'not measured'} at its worst layer`));
      square.addEventListener('click', () => pick(line));
      drawn.append(square);
      if (wide > 9 && ['h2', 'h3', 'h4', 'h5'].includes(kind)) drawn.append(label(names + (i + 0.5) * wide, row * tall + tall / 2 + 7, '×', { class: `over ${kind}`, 'text-anchor': 'middle' }));
    });
  });
  const every = Math.ceil(columns / 20);
  for (let i = 0; i < columns; i += every) drawn.append(label(names + (i + 0.5) * wide, height - 16, i * ordered[0].bin, { 'text-anchor': 'middle' }));
  drawn.append(label(names, height - 2, 'token', {}));
  const limit = number(run.limits.k_max);
  return figure(drawn, [['key h0', 'at most the noise floor'], ['key h1', `within the limit of ${limit}×`], ['key h2', 'to 5×'], ['key h3', 'to 10×'], ['key h4', 'to 100×'], ['key h5', 'beyond, or not finite']], 'By prompt and token, the worst layer of each');
}

/** The write's gain at each site: 1 is landed, 0 is dropped; faint dots are single tokens. */
function gainPlot(gains) {
  const [low, high] = [-1.25, 2.25];
  const tall = 20;
  const names = 190;
  const x = (value) => names + ((Math.max(low, Math.min(high, value)) - low) / (high - low)) * (WIDTH - names - 24);
  const height = gains.length * tall + 44;
  const drawn = svg('svg', { viewBox: `0 0 ${WIDTH} ${height}`, class: 'plot', role: 'img', 'aria-label': `Gain of the write at ${plural(gains.length, 'site')}; furthest from 1 at ${gains[0].site}: ${number(gains[0].g)} ± ${number(gains[0].sigma)}.` });
  for (const at of [-1, 0, 1, 2]) {
    drawn.append(svg('line', { class: at === 1 ? 'aim' : 'grid', x1: x(at), x2: x(at), y1: 4, y2: height - 34 }),
      label(x(at), height - 18, { '-1': '−1 sign', 0: '0 dropped', 1: '1 landed', 2: '2 twice' }[at], { 'text-anchor': 'middle', class: at === 1 ? 'strong' : null }));
  }
  gains.forEach((gain, row) => {
    const y = row * tall + 16;
    const off = !['pass', 'neutral'].includes(run.byVerdict.get(gain.verdict).family);
    drawn.append(label(names - 10, y + 4, gain.site.length > 26 ? `${gain.site.slice(0, 25)}…` : gain.site, { 'text-anchor': 'end' }));
    for (const value of gain.tokens) if (finite(value)) drawn.append(svg('circle', { class: 'token', cx: x(value), cy: y, r: 2.5 }));
    const title = svg('title', {}, `${gain.site}: gain ${number(gain.g)} ± ${number(gain.sigma)}, off-axis ${number(gain.h)} — ${gain.verdict}`);
    if (!finite(gain.g)) {
      drawn.append(label(x(-1.1), y + 4, number(gain.g), { class: 'strong' }));
      return;
    }
    const room = Math.max(run.limits.gain_tolerance, run.limits.gain_sigmas * (finite(gain.sigma) ? gain.sigma : 0));
    drawn.append(svg('line', { class: 'whisker', x1: x(gain.g - room), x2: x(gain.g + room), y1: y, y2: y }),
      off ? svg('path', { class: 'off', d: `M${x(gain.g)},${y - 6}l6,6l-6,6l-6,-6Z` }, title) : svg('circle', { class: 'fine', cx: x(gain.g), cy: y, r: 4 }, title));
  });
  drawn.append(label((names + WIDTH) / 2, height - 2, 'gain of the write', { 'text-anchor': 'middle' }));
  return figure(drawn, [['key fine', 'gain, and how far off it may be'], ['key token', 'single tokens'], ['key off', 'beyond']], 'Did the write land?');
}
