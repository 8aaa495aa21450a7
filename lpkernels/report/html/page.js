"use strict";
// Draws the page from the data beside this script. Names come from users: they reach the page as
// text, or through `plain` where plotly would read tags.
const data = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("report");
// Okabe and Ito's colours, which the colour-blind can tell apart; dashes tell the next eight.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8c6d31"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const STATE = { filter: "", sort: null, down: false, field: data.metric.field, log: false, smooth: 0 };
const CONFIG = { responsive: true, displaylogo: false, toImageButtonOptions: { format: "svg" } };

// "%{" would begin a field of a template.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/%(?={)/g, "&#37;");
// The largest number; arguments of Math.max have a limit.
const most = (values) => values.reduce((one, other) => Math.max(one, other), 0);

function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

// Text in which `commands` stand between backticks.
const prose = (text) => text.split("`").map((part, place) => place % 2 ? el("code", { textContent: part }) : part);

function section(id, title, ...children) {
  main.append(el("section", { id }, el("h2", { textContent: title }), ...children));
}

// A number as a person reads it: five digits that count, and no power of ten unless it must be.
function shown(value, percent = false) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return typeof value === "string" ? value : JSON.stringify(value);
  if (percent) return (100 * value).toFixed(2) + "%";
  if (Number.isInteger(value)) return String(value);
  return Math.abs(value) >= 1e-4 && Math.abs(value) < 1e7
    ? String(Number(value.toPrecision(5))) : value.toExponential(3);
}

const isPercent = (field) => field === data.metric.field ? data.metric.percent : /accuracy/.test(field);
const titled = (field) => field === data.metric.field ? data.metric.label : field.replace(/_/g, " ");

function axis(title, more = {}) {
  return { title: { text: plain(title) }, exponentformat: "none", showexponent: "none", gridcolor: "#e4e8ec",
           zerolinecolor: "#afb8c1", automargin: true, ...more };
}

function epochAxis(last) {
  return axis("epoch", { tickformat: "d", dtick: Math.max(1, Math.ceil(last / 12)) });
}

function layout(more) {
  return { margin: { l: 60, r: 20, t: 20, b: 60 }, font: { family: "system-ui, sans-serif", size: 13 },
           paper_bgcolor: "#fff", plot_bgcolor: "#fff", hovermode: "closest", ...more };
}

const plot = (id, traces, shape) => Plotly.react(id, traces, shape, CONFIG);
const frame = (id) => el("div", { id, className: "plot" });

// ---- runs: the table

const arms = [...new Set(data.runs.map((run) => run.arm))];
const legend = (run) => run.arithmetic && !run.arm.includes(run.arithmetic)
  ? `${run.arm} (${run.arithmetic})` : run.arm;
const varied = data.settings.varied.filter((name) => name !== "seed");
const figures = [...new Set(data.runs.flatMap((run) => Object.keys(run.last)))]
  .filter((name) => !data.runs.some((run) => run.layers.includes(name)));
const first = [data.metric.field, "train_loss", "epoch", "seconds"].filter((n) => figures.includes(n));
const columns = [
  { title: "run", of: (run) => run.label },
  { title: "status", of: (run) => run.status },
  ...[...first, ...figures.filter((name) => !first.includes(name))].map((name) => (
    { title: titled(name), of: (run) => run.last[name], text: (value) => shown(value, isPercent(name)) })),
  ...varied.map((name) => (
    { title: name.replace(/_/g, " "), of: (run) => data.settings.rows[data.runs.indexOf(run)][data.settings.varied.indexOf(name)] })),
];
const cell = (column, run) => (column.text || shown)(column.of(run));
const rowText = (run) => columns.map((column) => cell(column, run)).join(" ").toLowerCase();

function shownRuns() {
  const found = data.runs.filter((run) => STATE.filter.split(/\s+/).every((word) => rowText(run).includes(word)));
  if (STATE.sort === null) return found;
  const of = columns[STATE.sort].of;
  const ordered = (a, b) => {
    const [x, y] = [of(a), of(b)];
    // What is not there comes last, whichever way the table is sorted.
    if (x === null || x === undefined) return y === null || y === undefined ? 0 : 1;
    if (y === null || y === undefined) return -1;
    const way = typeof x === "number" && typeof y === "number" ? x - y
      : String(x).localeCompare(String(y), undefined, { numeric: true });
    return STATE.down ? -way : way;
  };
  return found.slice().sort(ordered);
}

function drawTable() {
  const head = columns.map((column, place) => el("th", { scope: "col" }, el("button", {
    textContent: column.title + (STATE.sort === place ? (STATE.down ? " ▼" : " ▲") : ""),
    title: "sort by this column",
    onclick: () => {
      STATE.down = STATE.sort === place ? !STATE.down : false;
      STATE.sort = place;
      drawTable();
    },
  })));
  const runs = shownRuns();
  const rows = runs.map((run) => el("tr", {}, ...columns.map((column) => el("td", { textContent: cell(column, run) }))));
  const table = el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows));
  document.getElementById("runs-table").replaceChildren(table);
  document.getElementById("runs-count").textContent = `${runs.length} of ${data.runs.length} runs`;
}

// ---- curves

const last = most(data.runs.flatMap((run) => run.epochs.epoch || []));
const curves = [...new Set(data.runs.flatMap((run) => Object.keys(run.epochs)))].filter((name) => name !== "epoch");

// A mean that forgets: each value is taken in by the share 1 - strength; gaps stay gaps.
function smoothed(values, strength) {
  let mean = null;
  return values.map((value) => {
    if (value === null) return null;
    mean = mean === null ? value : strength * mean + (1 - strength) * value;
    return mean;
  });
}

function drawCurves() {
  if (!last) return;
  const percent = isPercent(STATE.field);
  const named = new Set();
  const traces = [];
  for (const run of shownRuns()) {
    const values = run.epochs[STATE.field];
    if (!values) continue;
    const place = arms.indexOf(run.arm);
    const y = percent ? values.map((value) => value === null ? null : 100 * value) : values;
    const style = { color: COLOURS[place % 8], dash: DASHES[Math.floor(place / 8) % 4] };
    const shared = { x: run.epochs.epoch, name: plain(legend(run)), legendgroup: plain(run.arm), meta: run.label,
                     hovertemplate: `${plain(run.label)}<br>epoch %{x}: %{y}<extra></extra>` };
    traces.push({ ...shared, y, mode: last > 1 ? "lines" : "markers", line: { ...style, width: STATE.smooth ? 1 : 1.6 },
                  marker: { color: style.color }, opacity: STATE.smooth ? 0.3 : 0.9, showlegend: !STATE.smooth && !named.has(run.arm) });
    if (STATE.smooth) {
      traces.push({ ...shared, y: smoothed(y, STATE.smooth), mode: "lines", line: { ...style, width: 2 }, showlegend: !named.has(run.arm) });
    }
    named.add(run.arm);
  }
  plot("curves-plot", traces, layout({
    xaxis: epochAxis(last),
    yaxis: axis(titled(STATE.field) + (percent ? " (%)" : ""), STATE.log ? { type: "log", dtick: "D2" } : {}),
    height: 430, showlegend: true, legend: { orientation: "h", y: -0.2 },
  }));
}

// ---- what some runs have: bits, a diagnosis, differences, a frontier

const BITS = ["bits", "grad_bits", "accumulator_bits"];

function drawStrip(field) {
  const runs = data.runs.filter((run) => run.epochs[field]);
  plot("precision-plot", [{
    type: "heatmap", x: runs[0].epochs.epoch, y: runs.map((_, place) => place), z: runs.map((run) => run.epochs[field]),
    colorscale: "Cividis", colorbar: { title: { text: "bits" }, tickformat: "d" }, xgap: 1, ygap: 1,
    customdata: runs.map((run) => run.epochs.epoch.map(() => plain(run.label))),
    hovertemplate: "%{customdata}<br>epoch %{x}: %{z} bits<extra></extra>",
  }], layout({
    xaxis: epochAxis(last), height: Math.max(190, 90 + 22 * runs.length),
    yaxis: axis("", { tickvals: runs.map((_, place) => place), ticktext: runs.map((run) => plain(run.label)), autorange: "reversed" }),
  }));
}

function drawDiagnosis(place, what) {
  const found = data.runs[place].diagnosis;
  const z = found[what].map((row) => row.map((share) => share === null ? null : 100 * share));
  plot("diagnosis-plot", [{
    type: "heatmap", x: found.epochs, y: found.tensors.map((_, row) => row), z, colorscale: "Cividis",
    colorbar: { title: { text: `${what} (%)` }, exponentformat: "none" }, zmin: 0, zmax: most(z.flat()) || 1, xgap: 1, ygap: 1,
    customdata: found.tensors.map((name) => found.epochs.map(() => plain(name))),
    hovertemplate: "%{customdata}<br>epoch %{x}: %{z:.3f}%<extra></extra>",
  }], layout({
    xaxis: epochAxis(most(found.epochs)), height: Math.max(190, 90 + 18 * found.tensors.length),
    yaxis: axis("", { tickvals: found.tensors.map((_, row) => row), ticktext: found.tensors.map(plain), autorange: "reversed" }),
  }));
}

function drawForest() {
  const scale = data.metric.percent ? 100 : 1;
  const rows = data.sweep.rows.filter((row) => row.difference !== null);
  const names = rows.map((row) => plain([row.arm, row.place].filter(Boolean).join(", ")));
  const end = (row, side) => row.interval ? scale * Math.abs(row.interval[side] - row.difference) : 0;
  plot("forest-plot", [{
    x: rows.map((row) => scale * row.difference), y: names.map((_, place) => place), mode: "markers",
    marker: { color: COLOURS[0], symbol: "diamond", size: 10 },
    error_x: { type: "data", symmetric: false, array: rows.map((row) => end(row, 1)), arrayminus: rows.map((row) => end(row, 0)), color: COLOURS[0] },
    customdata: rows.map((row, place) => [names[place], shown(row.p), row.pairs]),
    hovertemplate: "%{customdata[0]}<br>difference %{x}, p after Holm %{customdata[1]}, %{customdata[2]} pairs<extra></extra>",
  }], layout({
    height: 130 + 26 * rows.length, showlegend: false,
    xaxis: axis(`${data.metric.label}, difference to ${data.sweep.reference}` + (data.metric.percent ? " (points)" : ""), { zeroline: true, zerolinewidth: 2 }),
    yaxis: axis("", { tickvals: names.map((_, place) => place), ticktext: names, autorange: "reversed" }),
  }));
}

function drawFrontier(place) {
  const task = data.frontier[place];
  const kib = (index) => task.memory[index] / 1024;
  const every = task.memory.map((_, index) => index);
  const seen = every.filter((index) => task.measured[index] !== null);
  const guessed = every.filter((index) => task.measured[index] === null);
  const hover = (of) => of.map((index) => plain(task.names[index] || `configuration ${index}`));
  const points = (of, name, symbol, colour) => ({
    x: of.map(kib), y: of.map((index) => task.error[index]), text: hover(of), name, mode: "markers", marker: { symbol, color: colour, size: 8 },
    error_y: { type: "data", symmetric: false, array: of.map((i) => task.high[i] - task.error[i]), arrayminus: of.map((i) => task.error[i] - task.low[i]), thickness: 0.8 },
    hovertemplate: "%{text}<br>%{x:.1f} KiB, error %{y}<extra></extra>",
  });
  plot("frontier-plot", [
    points(guessed, "predicted", "circle-open", COLOURS[5]),
    points(seen, "measured", "circle", COLOURS[0]),
    { x: task.front.map(kib), y: task.front.map((index) => task.error[index]), text: hover(task.front), mode: "lines+text", name: "frontier",
      textposition: "top right", textfont: { size: 10 }, line: { shape: "hv", color: COLOURS[1] }, hoverinfo: "skip" },
  ], layout({ height: 460, xaxis: axis("memory of a step, KiB"), yaxis: axis("error"), legend: { orientation: "h", y: -0.2 } }));
}

// ---- the page

function choice(label, names, onchange, texts = names) {
  const made = el("select", { onchange: (event) => onchange(event.target.value) },
    ...names.map((name, place) => el("option", { value: name, textContent: texts[place] })));
  return [el("label", {}, label + " ", made), made];
}

function words(head, rows, kind = "words") {
  return el("div", { className: `scroll ${kind}` }, el("table", {},
    el("thead", {}, el("tr", {}, ...head.map((name) => el("th", { textContent: name })))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((value) => el("td", { textContent: shown(value) })))))));
}

main.replaceChildren(el("h1", { textContent: data.title }));
for (const note of data.notes) main.append(el("p", { className: "note" }, ...prose(note)));

section("runs", "Runs",
  el("div", { className: "controls" },
    el("label", {}, "filter ", el("input", { type: "search", id: "filter", placeholder: "words that a row must have",
      oninput: (event) => { STATE.filter = event.target.value.toLowerCase().trim(); drawTable(); drawCurves(); } })),
    el("span", { id: "runs-count", className: "note" })),
  el("div", { id: "runs-table", className: "scroll" }));
drawTable();

if (last) {
  if (!curves.includes(STATE.field)) STATE.field = curves[0];
  const [label, select] = choice("figure", curves, (name) => { STATE.field = name; drawCurves(); }, curves.map(titled));
  select.value = STATE.field;
  section("curves", "Curves",
    el("div", { className: "controls" }, label,
      el("label", {}, el("input", { type: "checkbox", id: "log", onchange: (event) => { STATE.log = event.target.checked; drawCurves(); } }), " log axis"),
      el("label", {}, "smoothing ", el("input", { type: "range", id: "smooth", min: 0, max: 0.95, step: 0.05, value: 0,
        oninput: (event) => { STATE.smooth = Number(event.target.value); drawCurves(); } }))),
    frame("curves-plot"));
  drawCurves();
}

const strips = BITS.filter((name) => data.runs.some((run) => run.epochs[name]));
if (strips.length) {
  const [label] = choice("bits of", strips, drawStrip, strips.map((name) => ({ bits: "forward", grad_bits: "gradients", accumulator_bits: "accumulators" })[name]));
  section("precision", "Precision schedule, at the end of each epoch", el("div", { className: "controls" }, label), frame("precision-plot"));
  drawStrip(strips[0]);
}

const diagnosed = data.runs.map((run, place) => place).filter((place) => data.runs[place].diagnosis);
if (diagnosed.length) {
  const now = { place: diagnosed[0], what: "underflow" };
  const [runs] = choice("run", diagnosed.map(String), (place) => { now.place = Number(place); drawDiagnosis(now.place, now.what); }, diagnosed.map((place) => data.runs[place].label));
  const [whats] = choice("share of", ["underflow", "overflow"], (what) => { now.what = what; drawDiagnosis(now.place, what); });
  section("diagnosis", "Underflow and overflow by layer", el("div", { className: "controls" }, runs, whats), frame("diagnosis-plot"));
  drawDiagnosis(now.place, now.what);
}

if (data.sweep) {
  const placed = data.sweep.rows.some((row) => row.place);
  const unit = data.metric.percent ? " (points)" : "";
  section("forest", `Paired differences, ${100 * data.sweep.level}% t intervals`, frame("forest-plot"),
    words(["arm", ...(placed ? ["at"] : []), "mean", "standard error", "figures", `difference${unit}`, "from", "to", "p after Holm", "pairs", "diverged", "failed"],
      data.sweep.rows.map((row) => {
        const figure = (value) => shown(value, data.metric.percent);
        const points = (value) => value === null || !data.metric.percent ? shown(value) : (100 * value).toFixed(2);
        return [row.arm, ...(placed ? [row.place] : []), figure(row.mean), figure(row.error), row.figures,
                ...[row.difference, ...(row.interval || [null, null])].map(points), row.p, row.pairs, row.diverged, row.failed];
      }), "numbers"));
  if (data.sweep.rows.some((row) => row.difference !== null)) drawForest();
}

if (data.frontier) {
  const [label] = choice("task", data.frontier.map((_, place) => String(place)), (place) => drawFrontier(Number(place)), data.frontier.map((task) => task.task));
  section("frontier", "Frontier of memory and error", el("div", { className: "controls" }, label), frame("frontier-plot"));
  drawFrontier(0);
}

// Runs that differ in the seed alone share a row.
const settingRows = new Map();
data.runs.forEach((run, place) => {
  const values = varied.map((name) => data.settings.rows[place][data.settings.varied.indexOf(name)]);
  const key = JSON.stringify([run.arm, values]);
  if (!settingRows.has(key)) settingRows.set(key, [run.arm, ...values, 0]);
  settingRows.get(key)[varied.length + 1] += 1;
});
section("settings", "Settings",
  varied.length ? words(["run", ...varied.map((name) => name.replace(/_/g, " ")), "runs"], [...settingRows.values()])
    : el("p", { textContent: "All runs have the same settings, but for the seed." }),
  el("details", {}, el("summary", { textContent: "settings that all runs share" }), words(["setting", "value"], Object.entries(data.settings.shared))));

const environments = data.environments.length ? data.environments : (data.sweep ? data.sweep.environments.map((of) => ({ of, runs: [] })) : []);
section("environment", "Environment",
  words(["device", "versions", "platform", "commit", "runs"], environments.map(({ of, runs }) => [
    of.device || "", Object.entries(of.versions || {}).map((pair) => pair.join(" ")).join(", "), of.platform || "", of.commit || "", runs.length ? runs.join("; ") : ""])));

const commands = data.runs.filter((run) => run.command).map((run) => `# ${run.label.replace(/\s+/g, " ")}\n${run.command}`);
section("repeat", "Repeat it",
  ...(data.sweep ? [el("p", {}, ...prose("The sweep is repeated by `lpkernels sweep run SPEC.toml --out DIR`; its specification as JSON:")),
                    el("details", {}, el("summary", { textContent: "specification" }), el("pre", { textContent: JSON.stringify(data.sweep.spec, null, 1) }))] : []),
  ...(commands.length ? [el("details", { open: commands.length === 1 }, el("summary", { textContent: "the command of each run" }), el("pre", { textContent: commands.join("\n\n") }))] : []),
  ...(data.command ? [el("p", {}, "This page: ", el("code", { textContent: data.command }))] : []));
// Tests read here that everything above ran.
document.body.dataset.drawn = "true";
