// What was recorded beside the compression: scores on tasks of the papers, and figures of serving.

const bracket = (...numbers) => h("span", { class: "interval" }, " [", numbers[0], ", ", numbers[1], "]");
const within = (path, low, high, format) => (at(path) === null ? "–" : h("span", {}, num(path, format), bracket(num(low, format), num(high, format))));
const hundredths = (value) => value.toFixed(2);
const change = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;
const tenths = (value) => value.toFixed(1);
const rate = (value) => value.toFixed(1).replace(/\B(?=(\d{3})+(?!\d))/g, ",");

function scoreRow(path) {
  const side = (name) => within(`${path}.${name}`, `${path}.${name}_low`, `${path}.${name}_high`, hundredths);
  return row(h("span", {}, said(`${path}.name`), ` (${at(path).better} is better)`), side("dense"), side("small"),
    within(`${path}.difference`, `${path}.low`, `${path}.high`, change), num(`${path}.p`, (v) => v.toFixed(3)),
    within(`${path}.recovery`, `${path}.recovery_low`, `${path}.recovery_high`, tenths));
}

// Whatever a score depends on: numbers, texts, and numbers by name.
function settingsOf(path) {
  return Object.entries(at(path)).flatMap(([name, value], i) => {
    const place = `${path}.${name}`, label = h("span", { "data-plan": "name" }, `${i ? " · " : ""}${name.replaceAll("_", " ")} `);
    if (value !== null && typeof value === "object") return [label, "(", ...settingsOf(place), ")"];
    return [label, typeof value === "number" ? num(place) : said(place)];
  });
}

function tasksSection() {
  const names = Object.keys(report.tasks || {});
  byId("tasks").hidden = !names.length;
  for (const name of names) {
    const path = `tasks.${name}`, task = report.tasks[name], files = task.files || [];
    const where = files.length ? files.flatMap((_, i) => [i ? ", " : "", said(`${path}.files.${i}`)]) : [said(`${path}.data`)];
    byId("task-tables").append(
      h("h3", {}, said(`${path}.task`)),
      scrolled(`scores on ${name}`, ["", "dense", "small", "difference", "p", "recovery, %"], task.metrics.map((_, i) => scoreRow(`${path}.metrics.${i}`))),
      h("p", { class: "quiet" }, num(`${path}.examples`, commas), " ", said(`${path}.unit`), " of ", ...where, " · ", ...settingsOf(`${path}.settings`)),
      ...task.notes.map((_, i) => h("p", { class: "note" }, "Note: ", said(`${path}.notes.${i}`))));
  }
}

function scrolled(label, head, rows) {
  const cells = head.map((text) => h("th", { scope: "col" }, text));
  const body = h("table", {}, h("thead", {}, h("tr", {}, cells)), h("tbody", {}, rows));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table: ${label}` }, body);
}

function servingRow(path) {
  const both = (field, format) => ["dense", "small"].map((which) => num(`${path}.${which}_${field}`, format));
  return row(h("span", {}, said(`${path}.phase`), ", batch ", num(`${path}.batch`, commas)), ...both("seconds", milliseconds),
    within(`${path}.ratio`, `${path}.ratio_low`, `${path}.ratio_high`, (v) => v.toFixed(3)), ...both("rate", rate), ...both("peak_bytes", megabytes));
}

function servingSection() {
  byId("serving").hidden = !report.bench;
  if (!report.bench) return;
  const { unit, measurements, kv_cache_bytes: cache } = report.bench;
  const head = ["", "dense", "small", "small / dense, quartiles", `dense, ${unit}/s`, `small, ${unit}/s`, "dense peak", "small peak"];
  const sizes = (name, path) => [name, num(`${path}.dense`, megabytes), " dense, ", num(`${path}.small`, megabytes), " small. "];
  byId("serving-table").append(scrolled("figures of serving", head, measurements.map((_, i) => servingRow(`bench.measurements.${i}`))),
    h("p", { class: "quiet" }, "Medians of ", num("bench.repeats", commas), " interleaved rounds after ", num("bench.warmup", commas), " to warm up; length ",
      num("bench.seq_len", commas), ", new tokens: ", num("bench.new_tokens", commas), "; threads: ", num("bench.threads", commas), " on ", said("bench.device"),
      ". In brackets the quartiles of the ratio over the rounds, not a confidence interval. Peak: tensors alive at once besides the weights. ",
      ...sizes("Weights: ", "bench.weights_bytes"), ...(cache.dense ? sizes("KV cache of one sequence: ", "bench.kv_cache_bytes") : [])));
}
