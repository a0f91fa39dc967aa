// Which cells are selected. An empty set selects all.
const filter = { finding: new Set(), verdict: new Set(), scenario: new Set(), backend: new Set(), text: '' };
const FIELDS = ['finding', 'verdict', 'scenario', 'backend'];
let shown = [];

const filtering = () => Boolean(filter.text || FIELDS.some((field) => filter[field].size));

function select() {
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  shown = run.cells.filter((cell) => (!filter.finding.size || filter.finding.has(cell.finding.name))
    && (!filter.verdict.size || filter.verdict.has(cell.verdict.name))
    && (!filter.scenario.size || filter.scenario.has(cell.scenario.id))
    && (!filter.backend.size || filter.backend.has(cell.backend.id))
    && words.every((word) => cell.search.includes(word)));
}

function filterLink() {
  const pairs = FIELDS.filter((field) => filter[field].size)
    .map((field) => `${field}=${[...filter[field]].map(encode).join(',')}`);
  if (filter.text) pairs.push(`q=${encode(filter.text)}`);
  return `#${pairs.join('&')}`;
}

function readFilter(raw) {
  for (const field of FIELDS) {
    const pair = raw.split('&').find((text) => text.startsWith(`${field}=`));
    filter[field] = new Set(pair ? pair.slice(field.length + 1).split(',').map(decode) : []);
  }
  const text = raw.split('&').find((pair) => pair.startsWith('q='));
  filter.text = text ? decode(text.slice(2)) : '';
}

/** The toolbar: one switch per verdict that occurs, per scenario and per backend. */
function buildToolbar(changed) {
  const counts = new Map();
  for (const cell of run.cells) counts.set(cell.verdict.name, (counts.get(cell.verdict.name) || 0) + 1);
  const toggle = (field, value, label) => el('button', {
    type: 'button', class: 'switch', 'aria-pressed': 'false', 'data-field': field, 'data-value': value,
    onclick: () => {
      if (!filter[field].delete(value)) filter[field].add(value);
      changed();
    },
  }, label);
  byId('filter-verdict').append(...run.verdicts.filter((v) => counts.has(v.name)).map((verdict) => {
    const button = toggle('verdict', verdict.name, [mark(verdict), verdict.name, el('span', { class: 'count' }, counts.get(verdict.name).toLocaleString('en'))]);
    button.title = verdict.meaning;
    return button;
  }));
  const findings = run.findings.map((finding) => [finding.name, run.cells.filter((cell) => cell.finding === finding).length]).filter(([, count]) => count);
  byId('filter-finding').append(...findings.map(([name, count]) => toggle('finding', name, [name, el('span', { class: 'count' }, count.toLocaleString('en'))])));
  byId('filter-scenario').append(...run.scenarios.map((scenario) => toggle('scenario', scenario.id, own(scenario.id))));
  byId('filter-backend').append(...run.backends.map((backend) => toggle('backend', backend.id, own(backend.id))));
  let waiting = 0;
  byId('search').addEventListener('input', (event) => {
    filter.text = event.target.value.trim();
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(changed);
  });
  byId('clear').addEventListener('click', () => {
    readFilter('');
    changed();
    byId('search').focus();
  });
}

function showToolbar() {
  for (const button of document.querySelectorAll('.switch')) {
    button.setAttribute('aria-pressed', String(filter[button.dataset.field].has(button.dataset.value)));
  }
  if (byId('search').value.trim() !== filter.text) byId('search').value = filter.text;
  if (filter.scenario.size || filter.backend.size) document.querySelector('.further').open = true;
  byId('clear').hidden = !filtering();
  byId('found').textContent = filtering() ? `${shown.length.toLocaleString('en')} of ${plural(run.cells.length, 'cell')}` : plural(run.cells.length, 'cell');
}
