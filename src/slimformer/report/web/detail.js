// Heat maps, curves, errors, texts, how to load, provenance.

const COLOURS = 7;
const of = (kind) => ladders.filter((ladder) => ladder.kind === kind);

// Share of the error left with k units: straight between the sizes that are known; all of it with none.
function errorLeft(ladder, k) {
  let [a, left] = [0, 1];
  for (let i = 0; i < ladder.units.length; i++) {
    if ((ladder.ranks && ladder.ranks[i]) || goesWhole(ladder, i)) continue; // what units alone are worth, one by one
    const [b, next] = [ladder.units[i], Math.min(1, scaled(ladder, "error", i))];
    if (k <= b) return b === a ? next : left + ((next - left) * (k - a)) / (b - a);
    [a, left] = [b, next];
  }
  return left;
}

// How much error the units from a to b take away, in seven steps: from a hundredth of the average to thirty times it.
function worth(ladder, a, b) {
  const density = ((errorLeft(ladder, a) - errorLeft(ladder, b)) * ladder.of) / (b - a);
  return Math.max(0, Math.min(COLOURS - 1, Math.floor((Math.log10(Math.max(density, 1e-9)) + 2) * 2)));
}

function mapsSection() {
  const swatch = (n) => s("rect", { x: 4 + 22 * n, y: 2, width: 20, height: 14, class: `q${n}` });
  const gone = s("rect", { x: 7, y: 5, width: 10, height: 8, class: "gone" });
  const drawn = s("svg", { viewBox: "0 0 160 18", width: 160, height: 18, "aria-hidden": "true" }, ...Array.from({ length: COLOURS }, (_, n) => swatch(n)));
  byId("legend").append(h("p", { class: "quiet" }, "little ", drawn, " much of the held-out error is taken away by a unit · ",
    s("svg", { viewBox: "0 0 24 18", width: 24, height: 18, "aria-hidden": "true" }, gone), " dropped at the budget of the slider"));
  const ranked = front.parts.length > 0;
  byId("heads-caption").textContent = "Heads, by block and number."
    + (ranked ? " Right of them, where attention is cut by rank: the shares of the ranks of queries–keys (QK) and values (VO) that stay." : "");
  byId("neurons-caption").textContent = "Neurons of every block, in the order of their worth, the best on the left.";
  byId("maps").hidden = !of("ffn.hidden").length;
  chart("heads-chart", headsChart);
  chart("neurons-chart", neuronsChart);
}

function rowsFrame(width, left, high, extra) {
  return { top: 24, left, right: width - extra, high, height: 24 + high * blocks.length + 6, y: (i) => 24 + high * i };
}
const rowNames = (box) => blocks.map((block, i) => (box.high >= 13 || block % 2 === 0 ? tick(box.left - 6, box.y(i) + box.high / 2 + 4, String(block), "end") : null));

// Heads as they are kept: where key/value heads go whole, in the order of that.
function orderOf(ladder, { keep, groups }) {
  const whole = groups < Math.min(keep, ladder.groups.at(-1));
  return (whole && ladder.orders?.[keep / groups]) || ladder.order;
}

function headsChart(width) {
  const rows = rowsOf(state.keep), ranked = front.parts.length > 0, all = Math.max(...rows.map((each) => each["attn.heads"].of));
  const box = rowsFrame(width, 30, blocks.length > 24 ? 13 : 18, ranked ? 100 : 8), cell = Math.min((box.right - box.left) / all, 44);
  box.right = box.left + cell * all; // the ranks stand beside the heads
  const parts = rows.map((each, i) => {
    const ladder = of("attn.heads").find((one) => one.block === each.block), heads = each["attn.heads"];
    const order = ladder ? orderOf(ladder, heads) : Array.from({ length: heads.of }, (_, j) => j);
    const cells = order.map((head, j) => headCell(ladder, head, j, j < heads.keep, box.left + cell * head, box.y(i), cell, box.high, each.block));
    return [...cells, ...(ranked ? ["attn.qk", "attn.vo"].map((kind, n) => rankBar(each, kind, n, box, i)) : [])];
  });
  const by = cell < 14 ? 8 : cell < 22 ? 2 : 1;
  const names = Array.from({ length: all }, (_, j) => (j % by === 0 ? tick(box.left + cell * (j + 0.5), 16, String(j)) : null));
  const ranks = ranked ? [tick(box.right + 28, 16, "QK"), tick(box.right + 74, 16, "VO")] : [];
  const kept = sum(rows.map((each) => each["attn.heads"].keep)), total = sum(rows.map((each) => each["attn.heads"].of));
  return canvas(width, box.height, `Heat map of heads: ${kept} of ${total} are kept at the budget of the slider.`, ...names, ...ranks, ...rowNames(box), ...parts.flat());
}

function headCell(ladder, head, j, kept, x, y, cell, high, block) {
  const title = tooltip(`block ${block}, head ${head}: ${kept ? "kept" : "dropped"}`);
  if (!kept) return s("rect", { x: x + cell * 0.3, y: y + high * 0.3, width: cell * 0.4, height: high * 0.4, class: "gone" }, title);
  return s("rect", { x: x + 0.5, y: y + 0.5, width: cell - 1, height: high - 1, class: ladder ? `q${worth(ladder, j, j + 1)}` : "q3" }, title);
}

function rankBar(each, kind, n, box, i) {
  const found = each[kind], x = box.right + 8 + 46 * n;
  if (!found) return null;
  const title = `block ${each.block}, ${n ? "values" : "queries–keys"}: rank ${found.keep} of ${found.of}`;
  return [
    s("rect", { x, y: box.y(i) + 2, width: 40, height: box.high - 4, class: "track" }),
    s("rect", { x, y: box.y(i) + 2, width: (40 * found.keep) / found.of, height: box.high - 4, class: "f2" }, tooltip(title)),
  ];
}

function neuronsChart(width) {
  const box = rowsFrame(width, 30, blocks.length > 24 ? 13 : 18, 8), all = Math.max(...of("ffn.hidden").map((ladder) => ladder.of));
  const bins = Math.max(8, Math.min(all, Math.floor((box.right - box.left) / 12)));
  const parts = of("ffn.hidden").map((ladder) => {
    const i = blocks.indexOf(ladder.block), units = ladder.units[rungOf(ladder, state.keep[ladder.index])], n = Math.ceil((bins * ladder.of) / all);
    const cell = (box.right - box.left) / bins;
    return Array.from({ length: n }, (_, j) => {
      const [a, b] = [(j * ladder.of) / n, ((j + 1) * ladder.of) / n], share = Math.max(0, Math.min(1, (units - a) / (b - a)));
      const x = box.left + cell * j, y = box.y(i);
      const title = tooltip(`block ${ladder.block}: ${units} of ${ladder.of} neurons kept`);
      return share > 0
        ? s("rect", { x: x + 0.5, y: y + 0.5, width: Math.max(0.5, (cell - 1) * share), height: box.high - 1, class: `q${worth(ladder, a, b)}` }, title)
        : s("rect", { x: x + cell * 0.35, y: y + box.high * 0.35, width: cell * 0.3, height: box.high * 0.3, class: "gone" }, title);
    });
  });
  const ends = [tick(box.left, 16, "best", "start"), tick(box.right, 16, "least worth", "end")];
  return canvas(width, box.height, "Heat map of neurons: how much each part of a block's neurons is worth, and what is dropped. The table above has the numbers.",
    ...ends, ...rowNames(box), ...parts.flat());
}

function errorsSection() {
  const select = byId("block");
  select.append(...blocks.map((block) => h("option", { value: block }, String(block))));
  select.addEventListener("change", () => redraw("curve-chart"));
  byId("curve-caption").textContent = "Share of the output of each part that is lost, on documents that were not fitted, when only so much of it is kept. "
    + (front.metric === "fisher" ? "Errors are weighed by what they do to the model's outputs (Fisher metric). " : "")
    + "Dashed: the spectrum's tail, which no linear reduction of that size can beat. The mark is the budget of the slider; what is kept whole has none.";
  byId("error-caption").textContent = "The same share for every block, at the budget of the slider; parts that are kept whole have no mark.";
  chart("curve-chart", curveChart);
  chart("error-chart", errorChart);
  byId("correction-details").hidden = !report.correction.length;
  const rows = report.correction.map((each, i) => row(each.site, num(`correction.${i}.before`), num(`correction.${i}.after`),
    each.before > 0 ? quotient(`correction.${i}.after`, `correction.${i}.before`) : ""));
  table("correction", ["reader", "held-out error before", "after", "ratio"], rows);
}

// Names of the parts in the colours and shapes of their curves.
function key(kinds, x, y, width) {
  let [left, down] = [x, y];
  return kinds.flatMap((n) => {
    const name = KINDS[n][1], room = 26 + 7 * name.length;
    if (left + room > width && left > x) [left, down] = [x, down + 18];
    const drawn = [mark(n, left + 6, down - 4, 4, {}), tick(left + 16, down, name, "start")];
    left += room;
    return drawn;
  });
}

const curvesOf = (block) => ladders.filter((each) => each.block === block && each.of > 0);
const kindOf = (ladder) => KINDS.findIndex(([kind]) => kind === ladder.kind);

function curveChart(width) {
  const found = curvesOf(Number(byId("block").value || blocks[0]));
  const box = { left: 52, right: width - 14, top: 66, bottom: 300 }, x = linear([0, 1], [box.left, box.right]);
  const { y, parts } = frame(width, 330, box, [1e-4, 1], "share of the output lost");
  const lines = found.flatMap((ladder) => {
    const n = kindOf(ladder), last = ladder.units.length - 1;
    const share = ladder.units.map((units, i) => (ladder.ranks || ladder.orders ? ladder.macs[i] / ladder.macs[last] : units / ladder.of));
    const line = (values) => path([[x(0), y(1)], ...values.map((value, i) => [x(share[i]), y(Math.min(1, value))])]);
    const keep = state.keep[ladder.index], rung = keep === null || keep === ladder.of ? -1 : rungOf(ladder, keep);
    return [
      ladder.floor.some((value, i) => value > 0 && ladder.units[i] > 0) ? s("path", { d: line(ladder.floor), class: `curve dashed s${n}` }) : null,
      s("path", { d: line(ladder.units.map((_, i) => scaled(ladder, "error", i))), class: `curve s${n}` }),
      rung < 0 ? null : mark(n, x(share[rung]), y(scaled(ladder, "error", rung)), 5, {}, `${KINDS[n][1]}: ${keep} of ${ladder.of}`),
    ];
  });
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((v) => tick(x(v), box.bottom + 18, `${100 * v} %`));
  return canvas(width, 330, "Error curves of one block: share of the output lost against the share kept.", ...key([...new Set(found.map(kindOf))].sort(), box.left, 16, width),
    ...parts, s("line", { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, class: "axis" }), ...ticks, ...lines);
}

function errorChart(width) {
  const box = { left: 52, right: width - 8, top: 66, bottom: 250 }, step = (box.right - box.left) / blocks.length;
  const x = (block) => box.left + (blocks.indexOf(block) + 0.5) * step;
  const { y, parts } = frame(width, 280, box, [1e-4, 1], "share of the output lost");
  const kinds = [...new Set(ladders.map(kindOf))].sort();
  const marks = ladders.filter((each) => state.keep[each.index] !== null && state.keep[each.index] !== each.of).map((ladder) => {
    const value = scaled(ladder, "error", rungOf(ladder, state.keep[ladder.index])), n = kindOf(ladder);
    const shift = (kinds.indexOf(n) - (kinds.length - 1) / 2) * Math.min(step / (kinds.length + 1), 10);
    return mark(n, x(ladder.block) + shift, y(value), 4, {}, `block ${ladder.block}, ${KINDS[n][1]}: ${short(value)}`);
  });
  return canvas(width, 280, "Held-out error of every block at the budget of the slider.", ...key(kinds, box.left, 16, width),
    ...parts, s("line", { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, class: "axis" }), ...blockTicks(blocks, x, box.bottom + 18, step), ...marks);
}

// Texts side by side; what differs from the dense one is marked.
function samplesSection() {
  byId("samples").hidden = !report.samples && !report.neighbours;
  byId("samples-title").textContent = report.samples ? "What it writes" : "What it finds alike";
  if (report.samples) byId("sample-texts").append(continuations());
  if (report.neighbours) byId("sample-texts").append(...report.neighbours.map(neighbour));
  byId("sample-texts").append(h("p", { class: "quiet" }, report.samples ? "Marked: from where the two part." : "Cosines of mean states. Marked: not among the nearest of the dense model."));
}

function continuations() {
  const { dense, small } = report.samples;
  let n = 0;
  while (n < dense.length && n < small.length && dense[n] === small[n]) n++;
  const panel = (name, text) => h("div", {}, h("h3", {}, name), h("p", { "data-text": `samples.${name}` }, text.slice(0, n), text.length > n ? h("mark", {}, text.slice(n)) : ""));
  return h("div", { class: "texts" }, panel("dense", dense), panel("small", small));
}

function neighbour(each, i) {
  const list = (which) => h("div", {}, h("h3", {}, which), h("ol", {}, each[which].map((found, j) => {
    const agreed = each.dense.some((one) => one.text === found.text);
    return h("li", {}, agreed ? h("span", { "data-text": `neighbours.${i}.${which}.${j}.text` }, found.text) : h("mark", { "data-text": `neighbours.${i}.${which}.${j}.text` }, found.text),
      " (", num(`neighbours.${i}.${which}.${j}.cosine`, (v) => v.toFixed(3)), ")");
  })));
  return h("div", {}, h("h3", { "data-text": `neighbours.${i}.text` }, each.text), h("div", { class: "texts" }, list("dense"), list("small")));
}

function loadSection() {
  const place = JSON.stringify(folder), kind = /^\w+$/.test(report.load_class) ? report.load_class : "AutoModel";
  const plain = [`from transformers import ${kind}`, "", `model = ${kind}.from_pretrained(${place})`];
  const ragged = ["import slimformer  # teaches the Auto classes to read blocks of different sizes", ...plain, `model = slimformer.load(${place})`, "",
    "# without slimformer: the file modeling_slimformer.py beside the weights does the same", `model = ${kind}.from_pretrained(${place}, trust_remote_code=True)`];
  byId("load-code").textContent = (report.format === "plain" ? plain : ragged).join("\n");
}

function facts() {
  const fact = (name, ...value) => byId("facts").append(h("dt", {}, name), h("dd", {}, ...value));
  const list = (path, format) => Object.keys(at(path)).flatMap((name, i) => [i ? ", " : "", `${name} `, num(`${path}.${name}`, format)]);
  fact("dense model", said("model"), " (", said("model_type"), ")");
  fact("recipe", said("recipe"), ", format ", said("format"));
  if (report.data.name !== undefined) {
    fact("data", said("data.name"));
    fact("data hash", h("code", {}, said("data.hash")));
    fact("seed", num("data.seed", commas));
    fact(`${report.data.unit || "tokens"} by split`, ...list("data.tokens", commas));
  }
  fact("sequence length", num("seq_len", commas));
  if (Object.keys(report.versions).length) {
    fact("versions", ...Object.keys(report.versions).flatMap((name, i) => [i ? ", " : "", `${name} `, h("span", { "data-text": `versions.${name}` }, report.versions[name])]));
  }
  if (Object.keys(report.seconds).length) fact("seconds by stage", ...list("seconds", (v) => v.toFixed(1)));
  if (report.opening.device !== undefined) fact("computed on", said("opening.device"));
  if (report.opening.revision !== undefined) fact("revision", said("opening.revision"));
  if (report.opening.commit !== undefined) fact("commit", h("code", {}, said("opening.commit")));
  if (report.opening.model_class !== undefined) fact("opened as", said("opening.model_class"));
  if (report.opening.trust_remote_code) fact("code of the checkpoint", "was trusted (config and tokenizer)");
  if (report.latency) fact("latency measured on", said("latency.device"), ", threads: ", num("latency.threads", commas));
}

start();
