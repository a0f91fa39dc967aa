// One model: scenario × backend with every case, and what its engines said about themselves.
function showModel(model) {
  const groups = run.groups.filter((group) => group.model === model);
  const host = byId('model');
  const scenarios = run.scenarios.filter((scenario) => groups.some((group) => group.cells.some((cell) => cell.scenario === scenario)));
  const others = run.others.filter((group) => group.model === model);
  host.replaceChildren(...[
    el('nav', { class: 'crumbs', 'aria-label': 'where you are' }, el('a', { href: filterLink() }, 'matrix'), ' / ', own(model.id)),
    el('h2', { tabindex: '-1' }, own(model.id)),
    el('p', { class: 'lead' }, modelWords(model), run.files[model.architecture] && [' · ', el('a', { href: encodeURI(run.files[model.architecture]) }, 'this architecture as a page of its own')]),
    el('div', { class: 'wide', tabindex: '0', role: 'region', 'aria-label': 'scenarios by backend' }, el('table', { class: 'cases' },
      el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, 'scenario'), groups.map((group) => el('th', { scope: 'col' }, own(group.backend.id))))),
      el('tbody', {}, scenarios.map((scenario) => el('tr', {},
        el('th', { scope: 'row' }, own(scenario.id), el('span', { class: 'kind' }, own(firstSentence(scenario.meaning)))),
        groups.map((group) => el('td', {}, caseBlock(group.cells.filter((cell) => cell.scenario === scenario))))))))),
    el('h3', {}, 'What the engines said about themselves'),
    el('div', { class: 'cards' }, groups.map(groupCard)),
    others.length > 0 && [el('h3', {}, 'What they were compared with'), el('div', { class: 'cards' }, others.map(groupCard))]].flat().filter(Boolean));
}

const firstSentence = (text) => (text || '').split(/\n\s*\n/)[0].split(/(?<=[.!?])\s/)[0];

function modelWords(model) {
  const said = [`architecture ${model.architecture}`];
  if (model.layers) said.push(plural(model.layers, 'layer'));
  if (model.width) said.push(`width ${model.width}`);
  if (model.source) said.push(model.source);
  if (model.digest) said.push(`checkpoint ${model.digest.slice(0, 16)}`);
  return own(said.join(', '));
}

function caseBlock(cells) {
  const found = tally(cells);
  if (!found) return el('span', { class: 'quiet' }, 'not in this run');
  const figures = [times(found.ratio), duration(found.seconds)].filter(Boolean).join(' · ');
  return [
    el('div', { class: 'sum' }, badge(found.verdict, inWords(found)), el('span', { class: 'quiet' }, figures)),
    el('ul', { class: 'chips' }, cells.map((cell) => el('li', {}, el('a', {
      href: cellLink(cell), class: `chip ${cell.verdict.family}`, 'aria-label': `${cell.case}: ${cell.verdict.name}`,
      title: `${cell.verdict.name}${cell.ratio === null ? '' : `, worst ${times(cell.ratio)} the noise floor`}`,
    }, mark(cell.verdict), own(cell.case))))),
  ];
}

function groupCard(group) {
  const about = group.about;
  const facts = [['layout', about.layout || about.reason || about.status], ...Object.entries(about.identity || {})];
  const tried = Object.entries(about.layout_tried || {});
  if (tried.length) facts.push(['layouts tried (× noise)', tried.map(([name, ratio]) => `${name} ${number(ratio)}`).join(', ')]);
  if (about.load_seconds) facts.push(['load', duration(about.load_seconds)]);
  if (about.seconds) facts.push(['whole worker', duration(about.seconds)]);
  if (about.peak_mib) facts.push(['peak memory', `${number(about.peak_mib)} MiB`]);
  if (about.starts > 1) facts.push(['starts', about.starts]);
  if (about.machine) facts.push(['machine', about.machine]);
  if (about.lost && about.lost.length) facts.push(['begun before on', about.lost.join(', ')]);
  if (about.reused) facts.push(['reused', 'observations of an earlier run']);
  return el('section', { class: 'card' }, el('h4', {}, own(group.backend.id)), factList(facts),
    group.cells && logPart(group), versionPart(about.versions));
}

function factList(facts) {
  return el('dl', {}, facts.filter(([, value]) => value !== undefined && value !== '' && value !== null).map(([name, value]) => [
    el('dt', {}, own(String(name).replaceAll('_', ' '))),
    el('dd', {}, own(typeof value === 'object' ? JSON.stringify(value) : String(value))),
  ]));
}

function versionPart(versions) {
  const entries = Object.entries(versions || {});
  return entries.length > 0 && el('details', {}, el('summary', {}, 'exact versions'), factList(entries));
}

/** The group's log, read when it is opened. */
function logPart(group) {
  const host = el('details', {}, el('summary', {}, 'end of the log'));
  host.addEventListener('toggle', async () => {
    if (host.childElementCount > 1) return;
    const { log } = await part(group);
    host.append(log ? block(log, 'end of the log') : el('p', { class: 'quiet' }, 'the worker wrote nothing'));
  });
  return host;
}
