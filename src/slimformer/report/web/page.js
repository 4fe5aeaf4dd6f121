// The page: what the report says, and what the slider says. Every number of the report carries the path it came by.

const { report, folder, verdict } = JSON.parse(byId("data").textContent);
const front = report.front;
const ladders = front ? laddersOf(front) : [];
const blocks = [...new Set(report.sites.map((site) => site.block))].sort((a, b) => a - b);
const NOUNS = { macs: "block MACs", params: "block parameters", latency: "measured block latency" };
const KINDS = [["attn.heads", "heads"], ["ffn.hidden", "neurons"], ["attn.qk", "queries–keys"], ["attn.vo", "values"]];
// What the probes measured: models without probabilities have no divergence.
const distributions = report.metrics.length ? report.metrics.some((metric) => metric.name === "kl") : report.load_class !== "AutoModel";
const HARM = distributions ? { name: "predicted KL", unit: "nats" } : { name: "predicted change", unit: "of the energy of the outputs" };
const at = (path) => path.split(".").reduce((value, key) => value?.[key], report);
const num = (path, format = short) => (at(path) === null || at(path) === undefined ? "–" : h("span", { "data-path": path }, format(at(path))));
const said = (path) => h("span", { "data-text": path }, String(at(path)));
const quotient = (above, below) => h("span", { "data-ratio": `${above}|${below}` }, (at(above) / at(below)).toFixed(3));

function heading() {
  byId("verdict").append(verdict.sentence);
  byId("light").className = verdict.colour;
  byId("light").append(h("b", {}, verdict.colour), `: ${verdict.why}`);
  const title = `${report.model} at ${percent(report.macs_kept, 0)} of its block MACs`;
  byId("title").append(`${report.model} at `, num("macs_kept", (v) => percent(v, 0)), " of its block MACs");
  document.title = `${title} · slimformer`;
  byId("subtitle").append(`recipe ${report.recipe} · ${report.format} · ${report.model_type} · `, num("budget", (v) => percent(v)),
    ` of the ${NOUNS[report.budget_by] || report.budget_by} asked for`);
  for (const section of document.querySelectorAll("main section:not([hidden])")) {
    byId("contents").append(h("li", {}, h("a", { href: `#${section.id}` }, section.querySelector("h2").textContent)));
  }
}

function tiles() {
  const tile = (what, ...value) => byId("tiles").append(h("div", { class: "tile" }, h("b", {}, ...value), h("span", { class: "what" }, what)));
  tile("of the block MACs", quotient("small.block_macs", "dense.block_macs"));
  tile("of all parameters", quotient("small.params", "dense.params"));
  if (report.latency) tile("of the latency, end to end", num("latency.end_to_end.ratio", (v) => v.toFixed(3)));
  report.metrics.slice(0, 3).forEach((metric, i) => {
    const before = metric.dense === null ? [] : [", dense ", num(`metrics.${i}.dense`)];
    tile(h("span", {}, metric.name, ...before), num(`metrics.${i}.small`));
  });
  if (report.elsewhere) {
    const known = (path) => (at(path) ?? null) !== null;
    const between = (low, high) => (known(low) && known(high) ? [", ", num(low), " … ", num(high)] : []);
    const nats = (path) => (known(path) ? ["; nats per token ", num(path, signed)] : []);
    tile(h("span", {}, said("elsewhere.metric"), " on text like the calibration text", ...between("elsewhere.home_low", "elsewhere.home_high"), ...nats("elsewhere.nats_home")), num("elsewhere.home"));
    tile(h("span", {}, "the same on other text", ...between("elsewhere.low", "elsewhere.high"), ...nats("elsewhere.nats_elsewhere"), " (",
      num("elsewhere.sources", commas), " sources, not fitted; worst ", num("elsewhere.worst.loss"), ", ", said("elsewhere.worst.name"), ")"), num("elsewhere.elsewhere"));
  }
}

function table(id, head, rows) {
  const cells = head.map((text) => h("th", { scope: "col" }, text));
  byId(id).replaceChildren(h("thead", {}, h("tr", {}, cells)), h("tbody", {}, rows));
}
const row = (name, ...cells) => h("tr", {}, h("th", { scope: "row" }, name), cells.map((cell) => h("td", {}, cell)));

function metricRow(path) {
  const metric = at(path), on = metric.on ? [", ", num(`${path}.on`, commas), " tokens"] : [];
  const name = h("span", {}, said(`${path}.name`), ` (${metric.better} is better`, ...on, ")");
  const interval = metric.low === null ? "" : h("span", {}, num(`${path}.low`, signed), " … ", num(`${path}.high`, signed));
  return row(name, metric.dense === null ? "" : num(`${path}.dense`), num(`${path}.small`), interval);
}

// The same metrics on other data.
function elsewhere() {
  const part = (path) => h("tr", {}, h("th", { scope: "colgroup", colspan: "4", class: "part" }, "on ", said(`${path}.name`)));
  return (report.other_data || []).flatMap((each, i) => [part(`other_data.${i}`), ...each.metrics.map((_, j) => metricRow(`other_data.${i}.metrics.${j}`))]);
}

// A recipe that changes no output says how it knows, and what each rewrite saved.
function lossless() {
  const saved = report.lossless.rewrites.map((_, i) => `lossless.rewrites.${i}`).filter((path) => at(`${path}.possible`) && at(`${path}.sites`));
  const line = (...text) => byId("notes").append(h("p", { class: "note" }, ...text));
  line("Lossless: no output moved by more than ", num("lossless.largest_change"), " of the largest, in ", said("lossless.dtype"), ".");
  for (const path of saved) line(said(`${path}.rewrite`), ": ", num(`${path}.params`, count), " parameters and ", num(`${path}.macs`, count), " MACs per token saved.");
}

// Fewer tokens: what they cover, and what that does to texts and tables.
function vocabulary() {
  const pair = (path, format) => [num(`vocabulary.${path}.0`, format), " → ", num(`vocabulary.${path}.1`, format)];
  byId("notes").append(h("p", { class: "note" }, "Vocabulary: ", num("vocabulary.keep", commas), " of ", num("vocabulary.of", commas),
    " tokens stay, the most frequent of ", said("vocabulary.on"), ", and cover ", num("vocabulary.covered"), " of held-out text; tokens a text: ",
    ...pair("tokens_per_text"), "; embedding and head: ", ...pair("bytes", megabytes), "."));
}

// The rank of the tables at both ends.
function ends() {
  byId("notes").append(h("p", { class: "note" }, "Ends: rank ", num("ends.rank", commas), " in place of ", num("ends.of", commas),
    "; divergence by this alone ", num("ends.harm"), "; embedding and head: ", num("ends.bytes.0", megabytes), " → ", num("ends.bytes.1", megabytes), "."));
}

// Bits, and what a size was spent on: what was tried to store, and what was taken.
function stored() {
  const line = (...text) => byId("notes").append(h("p", { class: "note" }, ...text));
  const way = (path) => [at(`${path}.bits`) === null ? "no fewer bits" : [num(`${path}.bits`, commas), " bits"], at(`${path}.tables`) ? " with the tables" : "",
    ", ", num(`${path}.params`, percent), " of the blocks"].flat();
  if (report.quantization?.bits) {
    line("Stored in ", num("quantization.bits", commas), " bits", report.quantization.tables ? " with the tables" : "", ", with the steps ",
      num("quantization.bits_per_weight"), " a weight.");
  }
  const { chosen, losses, candidates } = report.sizing || {};
  if (report.sizing) {
    const tried = candidates.flatMap((_, i) => [i ? "; " : "", ...way(`sizing.candidates.${i}`), " (", num(`sizing.candidates.${i}.bytes`, megabytes), ", harm ", num(`sizing.candidates.${i}.harm`), ")"]);
    line("For ", num("sizing.size", megabytes), " there were made, with all tokens: ", ...tried, ".");
  }
  if (chosen && losses) {
    line("Taken: ", num("sizing.chosen.tokens", commas), " tokens, ", ...way("sizing.chosen"), "; on the texts this was chosen on it loses ",
      num("sizing.losses.fewer"), ", the best with all tokens ", num("sizing.losses.all"), ".");
  }
}

// Fewer experts: how many of how many, and by which order.
function experts() {
  byId("notes").append(h("p", { class: "note" }, "Experts: ", num("experts.keep", commas), " of ", num("experts.of", commas), " stay in every block, by ",
    said("experts.by"), report.experts.instead === "drop" ? "; the others are gone." : "; the others were merged into these."));
}

// Shorter embeddings: what they keep of held-out texts.
function embedding() {
  byId("notes").append(h("p", { class: "note" }, "Embeddings: ", num("embedding.dim", commas), " of ", num("embedding.of", commas), " numbers keep ",
    num("embedding.energy"), " of held-out ones; cosines of pairs move by ", num("embedding.cosine_change"), "."));
}

function beforeAfter() {
  const length = () => num("seq_len", commas);
  const cost = (name, field, format) => row(name, num(`dense.${field}`, format), num(`small.${field}`, format),
    at(`dense.${field}`) ? quotient(`small.${field}`, `dense.${field}`) : "");
  const rows = [
    cost(h("span", {}, "block MACs per token (length ", length(), ")"), "block_macs", count),
    cost("MACs outside blocks per token", "outside_macs", count),
    cost("parameters", "params", count),
    cost("parameters in blocks", "block_params", count),
    cost("weights", "bytes", megabytes),
  ];
  if (report.dense.kv_cache_bytes) rows.push(cost(h("span", {}, "KV cache (length ", length(), ")"), "kv_cache_bytes", megabytes));
  for (const [part, name] of report.latency ? [["body", "latency, blocks"], ["end_to_end", "latency, end to end"]] : []) {
    const [dense, small] = ["dense", "small"].map((which) => num(`latency.${part}.${which}`, milliseconds));
    rows.push(row(name, dense, small, num(`latency.${part}.ratio`, (v) => v.toFixed(3))));
  }
  rows.push(...report.metrics.map((_, i) => metricRow(`metrics.${i}`)), ...elsewhere());
  table("before-after", ["", "dense", "small", "ratio, or 95 % interval"], rows);
  const how = [];
  if (report.metrics.length && report.data.tokens) how.push("Metrics on ", num("data.tokens.report", commas), ` held-out ${report.data.unit} of `, said("data.name"),
    ...(report.metrics[0].documents ? [" (", num("metrics.0.documents", commas), " ", said("data.document"), report.metrics[0].documents === 1 ? ")" : "s)"] : []),
    ...(report.data.read_as || []).flatMap((_, i) => ["; ", said(`data.read_as.${i}`)]), ". ");
  if (report.latency) how.push("Latency: medians of ", num("latency.repeats", commas), " interleaved runs, threads: ", num("latency.threads", commas), ".");
  byId("measured").append(...how);
  if (report.vocabulary) vocabulary();
  if (report.ends) ends();
  stored();
  if (report.experts) experts();
  if (report.embedding) embedding();
  if (report.lossless) lossless();
  if (report.certificate) byId("notes").append(h("p", { class: "note", "data-text": "certificate.statement" }, `Certified: ${report.certificate.statement}`));
  report.warnings.forEach((text, i) => byId("notes").append(h("p", { class: "note", "data-text": `warnings.${i}` }, `Note: ${text}`)));
}

// What a block keeps, by kind, for a plan of the slider or, without one, as the report says.
function rowsOf(keep) {
  return blocks.map((block) => {
    const found = { block };
    for (const site of report.sites.filter((each) => each.block === block)) {
      if (site.site.includes(".experts.") && found[site.kind]?.keep > site.keep) continue; // of experts those that stay
      found[site.kind] = { keep: site.keep, of: site.of, groups: site.groups, ofGroups: site.of_groups, beside: site.path };
      for (const [rank, kind] of [["qk", "attn.qk"], ["vo", "attn.vo"]]) {
        if (rank in site) found[kind] = { keep: site[rank], of: site.of_rank };
      }
    }
    if (!keep) return found;
    delete found["attn.qk"], delete found["attn.vo"];
    found["attn.heads"] = { ...found["attn.heads"], keep: found["attn.heads"].of, groups: found["attn.heads"].ofGroups };
    for (const ladder of ladders.filter((each) => each.block === block && keep[each.index] !== null)) {
      const rung = rungOf(ladder, keep[ladder.index]), last = ladder.groups.length - 1;
      const rank = ladder.ranks ? ladder.ranks[rung] : 0, units = ladder.units[rung] + (ladder.paired ? 2 * rank : 0);
      found[ladder.kind] = ladder.kind.match(/qk|vo/)
        ? { keep: (units * ladder.width) / ladder.of, of: ladder.width }
        : { keep: units, of: ladder.of, groups: ladder.groups[rung], ofGroups: ladder.groups[last], beside: ladder.paired ? 0 : rank };
    }
    return found;
  });
}

function keptTable(rows) {
  const ranked = front ? front.parts.length > 0 : rows.some((each) => each["attn.qk"] || each["attn.vo"]);
  const grouped = rows.some((each) => each["attn.heads"].ofGroups !== each["attn.heads"].of);
  const columns = KINDS.filter(([kind]) => ranked || !kind.match(/qk|vo/));
  const cell = (each, kind) => h("td", { "data-block": each.block, "data-kind": kind, "data-keep": each[kind]?.keep },
    each[kind] ? `${each[kind].keep}/${each[kind].of}${each[kind].beside ? ` + rank ${each[kind].beside}` : ""}` : "");
  const names = columns.map(([kind, name]) => (kind.match(/qk|vo/) ? `rank, ${name}` : name));
  const kv = (each) => (grouped ? [h("td", { "data-kv": each.block }, `${each["attn.heads"].groups}/${each["attn.heads"].ofGroups}`)] : []);
  table("kept", ["block", ...names, ...(grouped ? ["key/value heads"] : [])], rows.map((each) =>
    h("tr", {}, h("th", { scope: "row" }, String(each.block)), columns.map(([kind]) => cell(each, kind)), kv(each))));
}

// Share of attention and of neurons left in a block; attention cut by rank counts the ranks.
function shares(each) {
  const ranks = ["attn.qk", "attn.vo"].filter((kind) => each[kind]);
  const part = (kind) => each[kind].keep / (each[kind].of || 1);
  const attention = ranks.length ? ranks.map(part).reduce((a, b) => a + b) / ranks.length : part("attn.heads");
  return { attention, neurons: part("ffn.hidden"), ranked: ranks.length > 0 };
}

function sizesChart(width) {
  const now = rowsOf(state.keep).map(shares), own = rowsOf(null).map(shares);
  const box = { left: 44, right: width - 8 }, step = (box.right - box.left) / blocks.length;
  const x = (block) => box.left + (blocks.indexOf(block) + 0.5) * step, bar = Math.max(2, Math.min(step * 0.7, 34));
  const panel = (name, field, n, top) => {
    const y = linear([0, 1], [top + 110, top]);
    const grid = [0, 0.5, 1].map((v) => [s("line", { x1: box.left, x2: box.right, y1: y(v), y2: y(v), class: "gridline" }), tick(box.left - 6, y(v) + 4, `${100 * v} %`, "end")]);
    const bars = blocks.map((block, i) => {
      const share = now[i][field], left = x(block) - bar / 2, title = `block ${block}: ${percent(share)} of ${name}`;
      const byRank = field === "attention" && now[i].ranked;
      return [
        s("rect", { x: left, y: y(1), width: bar, height: y(0) - y(1), class: "track" }),
        s("rect", { x: left, y: y(share), width: bar, height: y(0) - y(share), class: byRank ? "f2" : `f${n}` }, tooltip(title + (byRank ? ", cut by rank" : ""))),
        s("line", { x1: left - 1, x2: left + bar + 1, y1: y(own[i][field]), y2: y(own[i][field]), class: "ghost" }),
      ];
    });
    return [s("text", { x: box.left, y: top - 10, class: "strong tick" }, name), ...grid, ...bars.flat(), ...blockTicks(blocks, x, top + 126, step)];
  };
  return canvas(width, 324, "Bars: share of attention and of neurons every block keeps. The table below has the numbers.",
    ...panel("attention kept", "attention", 0, 26), ...panel("neurons kept", "neurons", 1, 194));
}

function frontChart(width) {
  const probed = front.points.some((point) => point.predicted_kl !== null);
  const harm = (keep) => sum(ladders.map((each) => (keep[each.index] === null ? 0 : each.harm[rungOf(each, keep[each.index])])));
  const height = (point) => (probed ? point.predicted_kl : harm(point.keep));
  const points = front.points.filter((point) => height(point) > 0).sort((a, b) => a.budget - b.budget);
  const measured = probed && report.budget_by === "macs" ? report.metrics.find((metric) => metric.name === "kl") : null;
  const here = probed ? consequences(front, ladders, state.keep).kl : harm(state.keep);
  const values = [...points.map(height), ...(measured && measured.small > 0 ? [measured.small] : [])].filter((v) => v > 0);
  if (!values.length) return canvas(width, 30, "Nothing to draw", tick(8, 20, "no harm is expected at any budget", "start"));
  const floor = Math.max(Math.min(...values), Math.max(...values) * 1e-5);
  const range = [10 ** Math.floor(Math.log10(floor)), 10 ** Math.ceil(Math.log10(Math.max(...values)) + 1e-9)];
  const box = { left: 52, right: width - 14, top: 26, bottom: 270 };
  const { y, parts } = frame(width, 310, box, range, probed ? `${HARM.name}, ${HARM.unit}` : "expected harm, relative");
  const low = Math.min(front.least, report.budget), x = linear([low, 1], [box.left, box.right]);
  const marks = points.map((point) => mark(0, x(point.budget), y(height(point)), 3.5, {}, `${percent(point.budget)}: ${short(height(point))}`));
  const chosen = points.find((point) => point.budget === report.budget);
  const ticks = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1].filter((v) => v >= low && (width > 460 || Math.round(v * 10) % 2 === 0));
  const picture = canvas(width, 310, `Front: ${probed ? HARM.name : "expected harm"} against the budget, with this model and the slider marked.`,
    ...parts, s("line", { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, class: "axis" }),
    ...ticks.map((v) => tick(x(v), box.bottom + 18, `${Math.round(100 * v)} %`)),
    tick(box.right, box.bottom + 36, `${NOUNS[front.by]} kept`, "end"),
    s("path", { d: path(points.map((point) => [x(point.budget), y(height(point))])), class: "curve s0" }), ...marks,
    s("line", { x1: x(state.fraction), x2: x(state.fraction), y1: box.top, y2: box.bottom, class: "cursor" }),
    here > 0 ? s("circle", { cx: x(state.fraction), cy: y(here), r: 9, class: "hollow s1" }, tooltip(`slider: ${short(here)}`)) : null,
    chosen ? mark(3, x(chosen.budget), y(height(chosen)), 6, {}, `this model, predicted: ${short(height(chosen))}`) : null,
    measured && measured.small > 0 ? mark(2, x(report.macs_kept), y(measured.small), 5, {}, `this model, measured: ${short(measured.small)}`) : null);
  picture.addEventListener("click", (event) => {
    const inside = ((event.clientX - picture.getBoundingClientRect().left) / picture.getBoundingClientRect().width) * width;
    moveTo(Math.min(1, Math.max(low, low + ((inside - box.left) / (box.right - box.left)) * (1 - low))));
  });
  return picture;
}

// The front in numbers, for whoever has no mouse to hold over a mark.
function frontTable() {
  const order = front.points.map((_, i) => i).sort((a, b) => front.points[b].budget - front.points[a].budget);
  const rows = order.map((i) => {
    const found = consequences(front, ladders, front.points[i].keep), place = `front.points.${i}`;
    const own = front.points[i].budget === report.budget ? " (this model)" : "";
    return row(h("span", {}, num(`${place}.budget`, percent), own), h("span", { "data-plan": "macs" }, percent(found.macs)), h("span", { "data-plan": "params" }, percent(found.params)), num(`${place}.predicted_kl`));
  });
  table("front-table", [`${NOUNS[front.by]} asked for`, "block MACs kept", "block parameters kept", `${HARM.name}, ${HARM.unit}`], rows);
}

const state = { fraction: report.budget, keep: null, exact: false };
const same = (one, other) => one !== null && one.every((value, i) => value === other[i]);

// The plan for a fraction: made here where this gives the plans that were stored, otherwise the stored one below it.
function planFor(fraction) {
  const stored = front.points.find((point) => point.budget === fraction);
  if (stored) return { fraction, keep: stored.keep };
  const made = state.exact ? planAt(front, ladders, fraction) : null;
  if (made) return { fraction, keep: made };
  const below = front.points.filter((point) => point.budget <= fraction).sort((a, b) => b.budget - a.budget)[0];
  const point = below || front.points.at(-1);
  return { fraction: point.budget, keep: point.keep };
}

function show() {
  keptTable(rowsOf(state.keep));
  if (!front) return;
  const found = consequences(front, ladders, state.keep);
  byId("budget-value").textContent = percent(state.fraction);
  const says = [["keeps ", "macs", percent(found.macs)], [" of the block MACs and ", "params", percent(found.params)], [" of the block parameters", null, ""]];
  if (found.kl !== null) says.push([`; ${HARM.name} `, "kl", short(found.kl)], [` ${HARM.unit}`, null, ""]);
  const size = weightsOf(found), time = latencyOf(found);
  if (size !== null) says.push(["; weights ", "bytes", megabytes(size)]);
  if (time !== null) says.push(["; blocks about ", "latency", milliseconds(time)], [" if latency follows MACs", null, ""]);
  byId("consequences").replaceChildren("This plan ", ...says.flatMap(([text, name, value]) => [text, name ? h("b", { "data-plan": name }, value) : ""]), ".");
  byId("command").textContent = command();
  byId("command-many").textContent = commands();
  if (front.plan) {
    byId("plan-file").href = `data:application/json;charset=utf-8,${encodeURIComponent(planFile(front, ladders, state.fraction, state.keep))}`;
    byId("command-plan").textContent = [calibration(), "slimformer apply stats plan.json --out smaller"].join("\n");
  }
  redraw("front-chart", "sizes-chart", "heads-chart", "neurons-chart", "curve-chart", "error-chart");
}

// Bytes of the weights of a plan; null where they are stored in fewer bits, which the plan does not know.
function weightsOf(found) {
  if (report.quantization?.bits || report.sizing || report.vocabulary || report.ends) return null;
  return report.dense.bytes - (report.dense.bytes / report.dense.params) * front.dense.params * (1 - found.params);
}

// Seconds of the blocks, on the line through both measurements; null without them, or where they are too near for a line.
function latencyOf(found) {
  if (!report.latency || report.macs_kept > 0.95) return null;
  const { dense, ratio } = report.latency.body;
  return dense * (1 - ((1 - ratio) * (1 - found.macs)) / (1 - report.macs_kept));
}

// A button beside every command. Pages opened from a file may have no clipboard; then the text is selected and copied.
function copyButtons() {
  for (const code of document.querySelectorAll("pre > code[id^=command]")) {
    const button = h("button", { type: "button", class: "copy", "aria-label": "Copy this command" }, "Copy");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    code.parentElement.before(button);
  }
}

// Lines for a shell. Names are the last ones, so whoever calls them from elsewhere puts the places in front.
const quoted = (text) => (/^[\w@%+=:,.\/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
function asked() {
  const known = report.data.name !== undefined && !/ in memory$/.test(report.data.name);
  const data = (known ? report.data.name.split(", ") : ["DATA"]).flatMap((name) => ["--data", quoted(name)]);
  return [quoted(report.model), ...data, "--seq-len", report.seq_len, ...(report.data.seed ? ["--seed", report.data.seed] : [])];
}
const chosen = () => [`--${front.by}`, state.fraction, "--recipe", quoted(report.recipe), "--format", report.format, "--out", "smaller"];
const command = () => ["slimformer compress", ...asked(), ...chosen()].join(" ");
const calibration = () => ["slimformer calibrate", ...asked(), "--out", "stats"].join(" ");
const commands = () => [calibration(), ["slimformer cut stats", ...chosen()].join(" ")].join("\n");

function moveTo(fraction) {
  const slider = byId("budget");
  slider.value = String(fraction);
  Object.assign(state, planFor(Number(slider.value)));
  slider.setAttribute("aria-valuetext", `${percent(state.fraction)} of the ${NOUNS[front.by]}`);
  show();
}

function back() {
  byId("budget").value = String(report.budget);
  Object.assign(state, planFor(report.budget));
  show();
}

function budgetSection() {
  state.exact = front.points.every((point) => same(planAt(front, ladders, point.budget), point.keep));
  const slider = byId("budget"), least = Math.ceil(front.least / 0.005 - 1e-9) * 0.005;
  for (const [name, value] of [["min", least.toFixed(3)], ["max", "1"], ["step", "0.005"]]) slider.setAttribute(name, value);
  byId("budget-by").textContent = NOUNS[front.by];
  slider.addEventListener("input", () => moveTo(Number(slider.value)));
  byId("reset").addEventListener("click", back);
  byId("planner").textContent = state.exact
    ? "Checked when this page was opened: the plans made here are those the program made along the front."
    : "This allocation is not one the page can repeat, so the slider goes along the plans that were stored.";
  byId("planner").dataset.exact = String(state.exact);
  const measured = report.budget_by === "macs" && report.metrics.some((metric) => metric.name === "kl") ? " ▲ as measured on held-out data," : "";
  byId("front-caption").textContent = `● the program's plans, ◆ this model as predicted,${measured} ○ the slider. `
    + "Predictions add up what cutting each part alone does; the refinement of compress, if it was used, is not in them.";
}

function themes() {
  const names = ["system", "light", "dark"];
  let n = 0;
  byId("theme").addEventListener("click", () => {
    n = (n + 1) % names.length;
    if (n) document.documentElement.dataset.theme = names[n];
    else delete document.documentElement.dataset.theme;
    byId("theme").textContent = `Theme: ${names[n]}`;
  });
}

function start() {
  themes();
  copyButtons();
  for (const id of front ? [] : ["budget-section", "maps", "errors"]) byId(id).hidden = true;
  if (!report.sites.length) byId("sizes").hidden = true;
  byId("plan-part").hidden = !front?.plan;
  samplesSection();
  tasksSection();
  servingSection();
  spectraSection();
  heading();
  tiles();
  beforeAfter();
  loadSection();
  facts();
  byId("sizes-caption").textContent = "Filled: what is kept; green: attention cut by rank (mean share of its ranks)."
    + (front ? " The line across a bar is this model; the bars follow the slider." : "");
  if (front) {
    budgetSection();
    back();
    mapsSection();
    errorsSection();
    chart("front-chart", frontChart);
    frontTable();
  } else show();
  chart("sizes-chart", sizesChart);
  watchWidth();
}
