// Puts the parts together and follows the address.
const views = ['overview', 'model', 'cell'];
let left = null;

function open(name, title) {
  for (const view of views) byId(view).hidden = view !== name;
  document.title = title ? `${title} · ${byId('title').textContent.trim()}` : byId('title').textContent.trim();
}

async function follow(event) {
  const route = readRoute();
  const cell = route.cell !== undefined && run.byId.get(route.cell);
  const model = route.model !== undefined && run.models.find((each) => each.id === route.model);
  byId('lost').hidden = !((route.cell !== undefined && !cell) || (route.model !== undefined && !model));
  if (!byId('lost').hidden) byId('lost').textContent = `There is no ${route.cell !== undefined ? `cell ${route.cell}` : `model ${route.model}`} in this run.`;
  if (!byId('overview').hidden) left = { y: scrollY, focus: document.activeElement };
  if (cell) {
    open('cell', cell.id);
    await showCell(cell);
  } else if (model) {
    current = null;
    open('model', model.id);
    showModel(model);
  } else {
    current = null;
    open('overview', '');
    const wanted = location.hash.slice(1);
    if (byId('lost').hidden && wanted !== filterLink().slice(1)) {
      readFilter(wanted);
      refresh();
    }
    if (event && left) {
      scrollTo(0, left.y);
      if (left.focus && left.focus !== document.body) left.focus.focus({ preventScroll: true });
    }
    return;
  }
  if (event) {
    scrollTo(0, 0);
    document.querySelector(`#${cell ? 'cell' : 'model'} h2`).focus({ preventScroll: true });
  }
}

function refresh() {
  select();
  showToolbar();
  showMatrix();
  showList();
}

/** Write a changed filter into the address without a history entry. */
function filtered() {
  refresh();
  history.replaceState(null, '', filterLink() === '#' ? location.pathname + location.search : filterLink());
}

async function begin() {
  byId('theme').addEventListener('click', toggleTheme);
  byId('skip').addEventListener('click', () => document.querySelector('.tile[tabindex="0"]')?.focus());
  for (const link of document.querySelectorAll('[data-to]')) {
    link.addEventListener('click', (event) => {
      event.preventDefault();
      byId(link.dataset.to).scrollIntoView();
      byId(link.dataset.to).focus({ preventScroll: true });
    });
  }
  await load();
  readFilter(location.hash.slice(1));
  buildToolbar(filtered);
  buildMatrix();
  buildList();
  buildMore();
  buildKeys();
  refresh();
  addEventListener('hashchange', follow);
  await follow();
  document.documentElement.dataset.ready = 'yes';
}

try {
  const theme = localStorage.getItem('theme');
  if (theme) document.documentElement.dataset.theme = theme;
} catch { /* no storage: the system's preference is used */ }
begin().catch((error) => {
  byId('lost').hidden = false;
  byId('lost').textContent = `This page could not be shown: ${error.message}. results.json beside it holds the same data.`;
});
