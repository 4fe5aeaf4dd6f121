// Spectra of every block as the report has them: the share of the output beyond the k best directions.

const TAILS = [0.1, 0.01, 0.001];
const hasTail = (ladder) => ladder.of > 0 && ladder.floor.some((value, i) => value > 0 && ladder.units[i] > 0);
const tailsOf = (n) => ladders.filter((ladder) => kindOf(ladder) === n && hasTail(ladder)).sort((a, b) => a.block - b.block);
const shade = (block) => 2 + Math.round((4 * blocks.indexOf(block)) / Math.max(1, blocks.length - 1));

function spectraSection() {
  const kinds = front ? KINDS.map((_, n) => n).filter((n) => tailsOf(n).length) : [];
  byId("spectra").hidden = !kinds.length;
  if (!kinds.length) return;
  const select = byId("spectrum");
  select.append(...kinds.map((n) => h("option", { value: n }, KINDS[n][1])));
  select.addEventListener("change", () => (redraw("spectra-chart"), spectraTable()));
  byId("spectra-caption").textContent = "Share of the output of a part that lies beyond its best directions, a line for each block, the stronger the later the block: "
    + "how low-rank the part is on these data, whatever method cuts it. Singular values of weights, activations and attention: slimformer inspect MODEL --data DATA --figures DIR.";
  chart("spectra-chart", spectraChart);
  spectraTable();
}

function spectraChart(width) {
  const found = tailsOf(Number(byId("spectrum").value));
  const box = { left: 52, right: width - 14, top: 30, bottom: 270 }, x = linear([0, 1], [box.left, box.right]);
  const { y, parts } = frame(width, 310, box, [1e-4, 1], "share beyond");
  const lines = found.map((ladder) => {
    const rungs = ladder.units.map((_, i) => i).filter((i) => !goesWhole(ladder, i));
    const points = rungs.map((i) => [x(ladder.units[i] / ladder.of), y(Math.min(1, ladder.floor[i]))]);
    return s("path", { d: path([[x(0), y(1)], ...points]), class: `curve t${shade(ladder.block)}` }, tooltip(`block ${ladder.block}`));
  });
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((v) => tick(x(v), box.bottom + 18, `${100 * v} %`));
  return canvas(width, 310, "Spectra: share of the output beyond the best directions, against the share of the width, by block. The table below has numbers.",
    ...parts, s("line", { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, class: "axis" }), ...ticks, tick(box.right, box.bottom + 36, "of the width", "end"), ...lines);
}

// The fewest units, of the sizes that are known, beyond which so little is left.
function spectraTable() {
  const fewest = (ladder, tail) => ladder.units.find((_, i) => ladder.floor[i] <= tail);
  const rows = tailsOf(Number(byId("spectrum").value)).map((ladder) => row(h("span", { "data-plan": "block" }, String(ladder.block)),
    ...TAILS.map((tail) => h("span", { "data-plan": "tail" }, `${fewest(ladder, tail) ?? ladder.of}/${ladder.of}`))));
  table("spectra-table", ["block", ...TAILS.map((tail) => h("span", { "data-plan": "tail" }, `≤ ${100 * tail} % beyond`))], rows);
}
