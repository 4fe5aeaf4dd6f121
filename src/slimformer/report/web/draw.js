// Elements and charts, by hand. Text goes in as text nodes only, so nothing a report says can become markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const h = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
const s = (tag, attributes = {}, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);
const tooltip = (text) => s("title", {}, text);
const tick = (x, y, text, anchor = "middle") => s("text", { x, y, "text-anchor": anchor, class: "tick" }, text);

// Numbers as people read them.
const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)} %`;
const short = (value) => (value === null ? "–" : String(Number(value.toPrecision(4))));
const commas = (value) => (value === null ? "–" : String(value).replace(/\B(?=(\d{3})+(?!\d))/g, ","));
const megabytes = (value) => `${(value / 1e6).toFixed(1)} MB`;
const milliseconds = (value) => `${(1e3 * value).toFixed(1)} ms`;
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;
function count(value) {
  const [unit, size] = [["G", 1e9], ["M", 1e6], ["k", 1e3]].find(([, size]) => value >= size) || ["", 1];
  return unit ? `${(value / size).toFixed(2)} ${unit}` : String(value);
}

// Charts are drawn at the width they have, so that letters keep their size on a phone.
const charts = new Map();
function chart(id, draw) {
  charts.set(id, draw);
  redraw(id);
}
function redraw(...ids) {
  for (const id of ids.length ? ids : charts.keys()) {
    const place = byId(id), draw = charts.get(id);
    if (!draw || !place.clientWidth) continue;
    place.replaceChildren(draw(place.clientWidth));
  }
}
let drawnAt = 0;
function watchWidth() {
  new ResizeObserver(() => {
    if (document.body.clientWidth === drawnAt) return;
    drawnAt = document.body.clientWidth;
    redraw();
  }).observe(document.body);
}

function canvas(width, height, label, ...children) {
  return s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...children);
}

const linear = ([a, b], [x, y]) => (value) => x + ((value - a) / (b - a || 1)) * (y - x);
const logarithmic = ([a, b], range) => {
  const scale = linear([Math.log10(a), Math.log10(b)], range);
  return (value) => scale(Math.log10(Math.min(Math.max(value, a), b)));
};

// Powers of ten from a to b, not more than fit.
function decades(a, b) {
  const first = Math.ceil(Math.log10(a) - 1e-9), last = Math.floor(Math.log10(b) + 1e-9);
  const by = Math.max(1, Math.ceil((last - first) / 6));
  return Array.from({ length: Math.max(0, Math.floor((last - first) / by) + 1) }, (_, i) => 10 ** (first + i * by));
}
const power = (value) => (value >= 1e-3 && value <= 1e3 ? String(Number(value.toPrecision(1))) : value.toExponential(0));

// A frame with a vertical axis of powers of ten and a horizontal one of shares.
function frame(width, height, box, yRange, name) {
  const y = logarithmic(yRange, [box.bottom, box.top]);
  const lines = decades(...yRange).map((value) => [
    s("line", { x1: box.left, x2: box.right, y1: y(value), y2: y(value), class: "gridline" }),
    tick(box.left - 6, y(value) + 4, power(value), "end"),
  ]);
  return { y, parts: [...lines, tick(box.left, box.top - 8, name, "start")] };
}

// A few block numbers that have room under an axis.
function blockTicks(blocks, x, y, room) {
  const by = [1, 2, 3, 4, 5, 6, 8, 10, 16, 20, 32, 50].find((n) => room * n >= 22) || 100;
  return blocks.filter((block) => block % by === 0).map((block) => tick(x(block), y, String(block)));
}

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// Marks that differ in shape, not only in colour.
const SHAPES = [
  (x, y, r) => ["circle", { cx: x, cy: y, r }],
  (x, y, r) => ["rect", { x: x - r, y: y - r, width: 2 * r, height: 2 * r }],
  (x, y, r) => ["path", { d: `M${x} ${y - 1.2 * r}L${x + 1.2 * r} ${y + r}L${x - 1.2 * r} ${y + r}Z` }],
  (x, y, r) => ["path", { d: `M${x} ${y - 1.4 * r}L${x + 1.4 * r} ${y}L${x} ${y + 1.4 * r}L${x - 1.4 * r} ${y}Z` }],
];
function mark(n, x, y, r, attributes, title) {
  const [tag, shape] = SHAPES[n](x, y, r);
  return s(tag, { ...shape, class: `f${n}`, ...attributes }, title ? tooltip(title) : null);
}
