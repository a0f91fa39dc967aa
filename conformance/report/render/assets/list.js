// Every selected cell, the worst first: the details behind the matrix.
const PAGE = 50;
let listed = PAGE;

function showList() {
  listed = PAGE;
  drawList();
}

function drawList() {
  const sorted = [...shown].sort(worse);
  byId('cells').replaceChildren(...sorted.slice(0, listed).map((cell) => el('tr', { class: cell.verdict.family },
    el('td', {}, badge(cell.verdict), !['passed', 'unexpected'].includes(cell.finding.name) && el('span', { class: 'tag' }, cell.finding.name)),
    el('th', { scope: 'row' }, el('a', { href: cellLink(cell), class: 'id' }, own(cell.id))),
    el('td', { class: 'figure' }, times(cell.ratio)),
    el('td', { class: 'figure' }, duration(cell.seconds)),
    el('td', { class: 'line' }, own(cell.line)))));
  const left = sorted.length - listed;
  byId('more').hidden = left <= 0;
  byId('more').textContent = `show ${Math.min(left, 10 * PAGE)} more of ${plural(sorted.length, 'cell')}`;
  byId('list-table').hidden = !sorted.length;
}

function buildList() {
  byId('more').addEventListener('click', () => {
    listed += 10 * PAGE;
    drawList();
  });
}

/** The problems before and after a cell, the worst first; from any other cell, the worst one. */
function neighbours(cell) {
  const problems = [...shown].sort(worse).filter((each) => each.finding.concern < 2);
  const at = problems.indexOf(cell);
  return { next: problems[at + 1], worse: problems[at - 1] };
}

/** Buttons that show the rest of a shortened list. */
function buildMore() {
  for (const button of document.querySelectorAll('[data-shows-more]')) {
    button.addEventListener('click', () => {
      for (const line of button.parentElement.querySelectorAll('[data-more]')) line.hidden = false;
      button.remove();
    });
  }
}
