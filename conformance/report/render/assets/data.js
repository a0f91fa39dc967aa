// The run, unpacked: cells as objects, and the parts that are read when a cell is opened.
const run = { cells: [], byId: new Map(), groups: [], models: [], backends: [], scenarios: [], verdicts: [] };
const parts = new Map();

async function unpack(id) {
  const text = atob(byId(id).textContent.trim());
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Response(stream).json();
}

/** What only an opened cell needs: fetched from the page once per group. */
function part(group) {
  if (!parts.has(group.index)) parts.set(group.index, unpack(`part-${group.index}`).then(byCell));
  return parts.get(group.index);
}

/** A part is stored as columns: of cells, and of the rows of all their observations. */
function byCell({ log, cells, rows }) {
  let next = 0;
  const row = () => {
    next += 1;
    return rows.map((column) => column[next - 1]);
  };
  const columns = Object.entries(cells);
  const details = cells.observations.map((count, i) => ({
    ...Object.fromEntries(columns.map(([name, column]) => [name, column[i]])),
    observations: Array.from({ length: count }, row),
  }));
  return { log, cells: details };
}

async function load() {
  const index = await unpack('index');
  run.verdicts = index.verdicts.map(([name, family, symbol, meaning], rank) => ({ name, family, symbol, meaning, rank }));
  run.findings = index.findings.map(([name, concern]) => ({ name, concern }));
  run.byVerdict = new Map(run.verdicts.map((verdict) => [verdict.name, verdict]));
  for (const key of ['families', 'thresholds', 'environment', 'models', 'backends', 'scenarios', 'files', 'gaps']) run[key] = index[key];
  run.limits = run.thresholds.bf16;
  run.others = index.others.map(([model, name, about]) => ({ model: run.models[model], backend: { id: name }, about }));
  const columns = index.cells;
  let next = 0;
  index.groups.forEach(([model, backend, count, about], position) => {
    const group = { index: position, model: run.models[model], backend: run.backends[backend], about, cells: [] };
    run.groups.push(group);
    for (let i = 0; i < count; i += 1, next += 1) {
      const scenario = run.scenarios[columns.scenario[next]];
      const name = index.cases[columns.case[next]];
      const cell = {
        group, within: i, scenario, case: name, model: group.model, backend: group.backend,
        verdict: run.verdicts[columns.verdict[next]], ratio: columns.ratio[next], seconds: columns.seconds[next],
        float32: run.verdicts[columns.float32[next]], bf16: run.verdicts[columns.bf16[next]],
        finding: run.findings[columns.finding[next]], gap: columns.gap[next], line: columns.line[next],
        id: columns.id[next] ?? `${scenario.id}[${group.model.id}-${group.backend.id}-${name}]`,
      };
      cell.search = `${cell.id} ${group.model.architecture} ${cell.verdict.name} ${cell.finding.name} ${cell.line}`.toLowerCase();
      group.cells.push(cell);
      run.cells.push(cell);
      run.byId.set(cell.id, cell);
    }
  });
}

const size = (ratio) => (ratio === null ? -1 : typeof ratio === 'string' ? Infinity : ratio);
/** Sort new before drifting before known cells; then by the worst verdict. */
const worse = (a, b) => a.finding.concern - b.finding.concern || a.verdict.rank - b.verdict.rank || size(b.ratio) - size(a.ratio);

/** The verdicts in both precisions, if they differ in kind. */
const twoMarks = (cell) => (cell.float32 && cell.bf16 && cell.float32.family !== cell.bf16.family ? [cell.float32, cell.bf16] : null);
const twoWords = (cell) => (twoMarks(cell) ? `${cell.float32.name} in float32, ${cell.bf16.name} in bf16` : '');

/** Summarize several cells: the worst verdict, and how many have it. */
function tally(cells) {
  if (!cells.length) return null;
  let first = cells[0];
  let ratio = null;
  let seconds = 0;
  let passed = 0;
  for (const cell of cells) {
    if (worse(cell, first) < 0) first = cell;
    if (size(cell.ratio) > size(ratio)) ratio = cell.ratio;
    if (typeof cell.seconds === 'number') seconds += cell.seconds;
    if (cell.verdict.family === 'pass') passed += 1;
  }
  const same = cells.filter((cell) => cell.verdict === first.verdict && cell.finding === first.finding).length;
  return { cell: first, verdict: first.verdict, finding: first.finding, ratio, seconds, passed, total: cells.length, same };
}

/** `3 of 6 dropped`, `5 pass, 1 known`, `6 match`. */
function inWords(found) {
  if (found.finding.name === 'stale') return `${found.same} of ${found.total} no longer fail`;
  if (found.finding.name === 'known') return found.passed ? `${found.passed} pass, ${found.total - found.passed} known` : `${found.total} known`;
  if (found.passed === found.total) return found.same === found.total ? `${found.total} ${found.verdict.name}` : `${found.total} pass`;
  return found.same === found.total ? `${found.total} ${found.verdict.name}` : `${found.same} of ${found.total} ${found.verdict.name}`;
}
