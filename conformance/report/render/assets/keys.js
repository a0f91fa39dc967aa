// Keys that work everywhere but in a text field; `?` lists them.
function buildKeys() {
  const help = byId('help');
  byId('keys').addEventListener('click', () => help.showModal());
  document.addEventListener('keydown', (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || help.open) return;
    if (event.target.closest('input, select, textarea')) {
      if (event.key === 'Escape') event.target.blur();
      return;
    }
    const act = {
      '/': () => { location.hash = filterLink(); byId('search').focus(); },
      '?': () => help.showModal(),
      t: toggleTheme,
      n: () => stepTo('next'),
      p: () => stepTo('worse'),
      o: () => { location.hash = filterLink(); },
      Escape: up,
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

/** Go from a cell to the next problem, from elsewhere to the worst one. */
function stepTo(which) {
  const next = neighbours(run.byId.get(readRoute().cell))[which];
  if (next) location.hash = cellLink(next);
}

function up() {
  const view = readRoute();
  const cell = view.cell && run.byId.get(view.cell);
  if (cell) location.hash = modelLink(cell.model);
  else if (view.model) location.hash = filterLink();
}

function toggleTheme() {
  const dark = getComputedStyle(document.documentElement).colorScheme === 'dark';
  document.documentElement.dataset.theme = dark ? 'light' : 'dark';
  try {
    localStorage.setItem('theme', document.documentElement.dataset.theme);
  } catch { /* a page from disk may have no storage; the choice then lasts until it is closed */ }
}
