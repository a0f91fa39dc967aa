// The overview: a row a model, a block a backend, a tile a scenario with its worst case.
const rows = [];

function buildMatrix() {
  const host = byId('matrix');
  const scenarios = run.scenarios;
  host.style.setProperty('--scenarios', scenarios.length);
  addEventListener('resize', fitTiles);
  host.append(el('div', { role: 'row', class: 'row head' },
    el('div', { role: 'columnheader', class: 'name' }, 'model'),
    run.backends.map((backend) => el('div', { role: 'columnheader', class: 'block', 'data-backend': backend.id },
      el('span', { class: 'backend' }, own(backend.id)),
      el('span', { class: 'strip', 'aria-hidden': 'true' }, scenarios.map((scenario) => el('span', { class: 'label' }, own(scenario.id))))))));
  byId('order').append('tiles, in order: ', own(scenarios.map((scenario) => scenario.id).join(', ')));
  const byModel = new Map();
  for (const group of run.groups) byModel.set(group.model, [...(byModel.get(group.model) || []), group]);
  for (const [model, groups] of byModel) {
    const row = { model, blocks: [] };
    row.node = el('div', { role: 'row', class: 'row' },
      el('div', { role: 'rowheader', class: 'name' },
        el('a', { href: modelLink(model) }, own(model.id)),
        model.architecture !== model.id && el('span', { class: 'kind' }, own(model.architecture))),
      run.backends.map((backend) => buildBlock(row, backend, groups.find((group) => group.backend === backend))));
    rows.push(row);
    host.append(row.node);
  }
  host.classList.toggle('many', rows.length > 40);
  host.addEventListener('keydown', walk);
  for (const name of ['mouseover', 'focusin']) host.addEventListener(name, (event) => say(event.target.closest('.tile')));
  host.addEventListener('mouseleave', () => say(null));
}

/** Make tiles as large as fits all columns, within limits; else the matrix scrolls. */
function fitTiles() {
  const host = byId('matrix');
  const columns = Number(host.style.getPropertyValue('--backends')) || run.backends.length;
  const room = (host.clientWidth - 120 - 34 * columns) / Math.max(columns * run.scenarios.length, 1);
  const tile = Math.max(12, Math.min(28, Math.floor(room) - 2));
  host.style.setProperty('--tile', `${tile}px`);
  host.style.setProperty('--between', tile < 20 ? '2px' : '0.2rem');
}

function buildBlock(row, backend, group) {
  const byScenario = new Map();
  for (const cell of group ? group.cells : []) byScenario.set(cell.scenario, [...(byScenario.get(cell.scenario) || []), cell]);
  const found = { backend, group, byScenario, tiles: new Map() };
  found.word = el('span', { class: 'word' });
  found.note = el('p', { class: 'note', hidden: true });
  const strip = el('span', { class: 'strip' }, run.scenarios.map((scenario) => {
    if (!byScenario.has(scenario)) return el('span', { class: 'gap' });
    const tile = el('a', { class: 'tile', tabindex: '-1' });
    tile.found = { scenario, row, block: found };
    found.tiles.set(scenario, tile);
    return tile;
  }));
  found.node = el('div', { role: 'cell', class: 'block', 'data-backend': backend.id },
    el('span', { class: 'backend', 'aria-hidden': 'true' }, own(backend.id)), found.word, strip, found.note);
  row.blocks.push(found);
  return found.node;
}

/** Update the matrix to show the selected cells. */
function showMatrix() {
  const asked = filtering() ? new Set(shown) : null;
  const wanted = (cells) => (asked ? cells.filter((cell) => asked.has(cell)) : cells);
  byId('matrix').style.setProperty('--backends', filter.backend.size ? run.backends.filter((b) => filter.backend.has(b.id)).length : run.backends.length);
  fitTiles();
  for (const node of byId('matrix').querySelectorAll('.head .block')) node.hidden = filter.backend.size > 0 && !filter.backend.has(node.dataset.backend);
  let any = false;
  for (const row of rows) {
    let seen = false;
    for (const found of row.blocks) {
      found.node.hidden = filter.backend.size > 0 && !filter.backend.has(found.backend.id);
      const cells = [];
      for (const [scenario, tile] of found.tiles) {
        const members = wanted(found.byScenario.get(scenario));
        cells.push(...members);
        showTile(tile, tally(members));
      }
      showBlock(found, tally(cells));
      seen = seen || cells.length > 0;
    }
    row.node.hidden = !seen;
    any = any || seen;
  }
  byId('nothing').hidden = any;
  if (!document.querySelector('.tile[tabindex="0"]:not(.off)')) {
    const first = document.querySelector('.row:not([hidden]) .block:not([hidden]) .tile:not(.off)');
    if (first) first.tabIndex = 0;
  }
}

function showTile(tile, found) {
  const look = found ? `tile ${found.finding.name === 'known' ? 'known' : found.verdict.family}` : 'tile off';
  const two = found && found.finding.name !== 'known' && twoMarks(found.cell);
  const shape = two ? 'tile two' : look;
  if (tile.className !== shape) tile.className = shape;
  const symbol = found ? found.verdict.symbol : '';
  if (two) tile.replaceChildren(...two.map((verdict) => el('span', { class: `half ${verdict.family}` }, verdict.symbol)));
  else if (tile.textContent !== symbol) tile.textContent = symbol;
  tile.tally = found;
  if (!found) {
    tile.removeAttribute('href');
    tile.tabIndex = -1;
    return;
  }
  tile.href = cellLink(found.cell);
  tile.setAttribute('aria-label', [`${tile.found.scenario.id}: ${inWords(found)}`, twoWords(found.cell)].filter(Boolean).join(', '));
}

function showBlock(found, total) {
  const word = total ? inWords(total) : '';
  if (found.said !== word) {
    found.said = word;
    found.word.replaceChildren(...(total ? [mark(total.verdict), word] : []));
  }
  const line = total && total.finding.concern < 2 ? total.cell.line : '';
  found.note.hidden = !line;
  if (found.note.textContent !== line) found.note.replaceChildren(el('a', { href: line ? cellLink(total.cell) : null }, own(line)));
}

/** Describe what the pointer or the focus is on, in one line. */
function say(tile) {
  const line = byId('reading');
  if (!tile || !tile.tally) {
    line.textContent = line.dataset.idle;
    return;
  }
  const { row, block: found, scenario } = tile.found;
  const details = [inWords(tile.tally), twoWords(tile.tally.cell)].filter(Boolean);
  if (tile.tally.ratio !== null) details.push(`worst ${times(tile.tally.ratio)} the noise floor`);
  details.push(duration(tile.tally.seconds));
  line.replaceChildren(el('b', {}, own(row.model.id), ' · ', own(found.backend.id), ' · ', own(scenario.id)), ` ${details.join(', ')}`);
}

/** Arrow keys walk the tiles; Home and End go to a row's ends. */
function walk(event) {
  const from = event.target.closest('.tile');
  const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0], Home: [0, -Infinity], End: [0, Infinity] };
  if (!from || !steps[event.key] || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  const [down, right] = steps[event.key];
  const visible = rows.filter((row) => !row.node.hidden);
  let next = null;
  if (right) {
    const line = [...from.found.row.node.querySelectorAll('.block:not([hidden]) .tile:not(.off)')];
    next = line[Math.max(0, Math.min(line.length - 1, line.indexOf(from) + right))];
  } else {
    for (let i = visible.indexOf(from.found.row) + down; visible[i] && !next; i += down) {
      const found = visible[i].blocks.find((each) => each.backend === from.found.block.backend);
      const tile = found.tiles.get(from.found.scenario);
      if (tile && tile.tally) next = tile;
    }
  }
  if (!next) return;
  from.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
