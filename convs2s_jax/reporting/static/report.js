"use strict";
// The report: builds each section of the page from the data embedded in it.

const data = JSON.parse(byId("data").textContent);
const names = data.runs.map((run) => run.name);
const drawn = new Set(names);
const charts = []; // {place, spec, log, view}

const dot = (name) => element("span", "", { class: "dot", style: `--dot: var(--run-${names.indexOf(name) % 6})`, "aria-hidden": "true" });
const who = (name) => (names.length > 1 && names.includes(name) ? element("span", [dot(name), name], { class: "run" }) : element("span", name));
const sentences = (place, texts) => place.replaceChildren(...texts.map((text) => element("li", text)));

// A text of a corpus, in its own writing direction; `run` and `side` ("source", "target") determine its language.
const prose = (content, run, side) => element("div", content, { dir: "auto", lang: language(data.runs[names.indexOf(run)][side]) });

function absent(id, texts) {
  byId(id).replaceChildren(byId(id).querySelector("h2"), ...texts.map((text) => element("p", text, { class: "absent" })));
}

// ---- colours ----
function color(name) {
  const probe = element("span", "", { style: `color: var(${name})` });
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function themed() {
  const soft = color("--soft"), grid = color("--grid"), font = "system-ui, sans-serif";
  return {
    background: "transparent", font,
    view: { stroke: null },
    axis: { labelColor: soft, titleColor: soft, titleFontWeight: 400, gridColor: grid, domainColor: color("--line"), tickColor: color("--line"), labelFontSize: 11, titleFontSize: 11 },
    legend: { labelColor: soft, titleColor: soft, titleFontWeight: 400 },
    range: { category: [0, 1, 2, 3, 4, 5].map((i) => color(`--run-${i}`)), ramp: [color("--grid"), color("--accent")], heatmap: [color("--grid"), color("--accent")] },
  };
}

function draw(chart) {
  const spec = structuredClone(chart.spec);
  if (chart.log) for (const layer of spec.layer || [spec]) layer.encoding.y.scale = { type: "log" };
  for (const param of spec.params || []) {
    if (param.name === "shown") param.value = [...drawn];
    if (param.name === "outline") param.value = color("--ink");
  }
  const tooltip = { theme: "custom", formatTooltip: shown };
  return vegaEmbed(chart.place, spec, { actions: false, renderer: "svg", config: themed(), tooltip })
    .then((result) => { if (chart.view) chart.view.finalize(); chart.view = result.view; });
}
// Tooltip content, line by line: numbers with six digits; the table of values has all digits.
function shown(values, safe) {
  const rows = Object.entries(values).map(([name, value]) => {
    const text = typeof value === "number" ? String(Number(value.toPrecision(6))) : safe(value);
    return `<tr><td class="key">${safe(name)}</td><td class="value">${text}</td></tr>`;
  });
  return `<table><tbody>${rows.join("")}</tbody></table>`;
}

const drawAll = () => Promise.all(charts.map(draw));

// A chart in a card, with a log scale button if all values are positive, and with its values as a table.
function card(title, spec, { scales = false, columns = [], rows = [] } = {}) {
  const place = element("div", "", { class: "plot" }), chart = { place, spec, log: false };
  const head = element("div", [element("h3", title)], { class: "head" });
  if (scales) {
    const button = element("button", "log scale", { type: "button", "aria-pressed": "false", "aria-label": `${title}: logarithmic scale` });
    button.addEventListener("click", () => {
      chart.log = !chart.log;
      button.setAttribute("aria-pressed", String(chart.log));
      window.drawn = draw(chart);
    });
    head.append(button);
  }
  const parts = [head, place];
  if (columns.length) {
    const table = element("table", "", { class: "plain" });
    const details = element("details", [element("summary", "Values"), element("div", [table], { class: "values", tabindex: "0", role: "region", "aria-label": `Values of ${title}` })]);
    details.addEventListener("toggle", () => { if (details.open) sortableTable(table, columns).update(rows); }, { once: true });
    parts.push(details);
  }
  charts.push(chart);
  return element("div", parts, { class: "chart" });
}
const plainColumn = (title, key, numeric = false, format = (value) => String(value)) =>
  ({ title, numeric, show: (row) => format(row[key]), value: (row) => row[key] });
const valuesOf = (spec) => Object.values(spec.datasets || {})[0] || (spec.data || {}).values || [];

// ---- sections ----
function showRuns() {
  byId("title").textContent = data.title;
  document.title = `${data.title} – report`;
  if (names.length > 1) {
    byId("legend").replaceChildren(...names.map((name) => {
      const button = element("button", [dot(name), name], { type: "button", "aria-pressed": "true" });
      button.addEventListener("click", () => {
        if (!drawn.delete(name)) drawn.add(name);
        button.setAttribute("aria-pressed", String(drawn.has(name)));
        for (const chart of charts) {
          if (chart.view && (chart.spec.params || []).some((param) => param.name === "shown")) chart.view.signal("shown", [...drawn]).runAsync();
        }
      });
      return button;
    }));
  }
  byId("run-list").replaceChildren(...data.runs.map((run) => {
    const facts = element("dl", run.facts.flatMap(([what, value]) => [element("dt", what), element("dd", value)]));
    return element("article", [
      element("h3", [who(run.name)]), element("p", run.paragraph),
      ...run.problems.map((text) => element("p", text, { class: "problem" })),
      element("details", [element("summary", "Details"), facts]),
    ], { class: "card" });
  }));
}

function showCurves() {
  const format = (value) => String(Number(value.toPrecision(6)));
  byId("curve-list").replaceChildren(...data.curves.charts.map((one) => {
    const rows = valuesOf(one.spec);
    const columns = [plainColumn("Step", "step", true), plainColumn("Run", "run"), plainColumn("Split", "split"), plainColumn(one.title, "value", true, format)];
    return card(one.title, one.spec, { scales: rows.every((row) => row.value > 0), columns, rows });
  }));
  sentences(byId("curve-notes"), data.curves.notes);
  if (!data.curves.charts.length) absent("curves", ["No run has reported numbers yet."]);
}

function showPlans() {
  byId("plan-list").replaceChildren(...data.plans.map((plan) => {
    const table = element("table", "", { class: "plain" });
    const about = element("div", [element("h3", names.length > 1 ? plan.runs.map(who) : ["Shapes"], { class: "runs" }), element("p", plan.note, { class: "hint" })]);
    if (!plan.rows) return about;
    sortableTable(table, [
      { title: `Rows x (${plan.sides.join(", ")})`, show: (row) => row[0] },
      { title: "Batches", numeric: true, show: (row) => row[1].toLocaleString("en"), value: (row) => row[1] },
      { title: plan.counted[0].toUpperCase() + plan.counted.slice(1), numeric: true, show: (row) => row[2].toLocaleString("en"), value: (row) => row[2] },
      { title: "Padding, %", numeric: true, show: (row) => shortNumber(row[3], 1), value: (row) => row[3] },
    ]).update(plan.rows);
    about.append(element("div", [table], { class: "scroll", tabindex: "0", role: "region", "aria-label": `Shapes of ${plan.runs.join(", ")}` }));
    return element("div", [about, card(`Lengths of training ${plan.counted}`, plan.spec)], { class: "plan" });
  }));
}

function showSamples() {
  if (!data.samples.length) return absent("samples", ["No run has samples. Validations write them with training.validate_bleu."]);
  const choice = byId("sample-choice");
  choice.replaceChildren(...data.samples.map((one, i) => element("option", one.source, { value: i, dir: "auto" })));
  const table = sortableTable(byId("sample-table"), [
    { title: "Step", numeric: true, show: (row) => [...new Set([row.step, row.last])].map((step) => step.toLocaleString("en")).join(" – "), value: (row) => row.step },
    ...(names.length > 1 ? [{ title: "Run", show: (row) => who(row.run), value: (row) => row.run }] : []),
    { title: data.output, show: (row) => prose(marked(row.pieces), row.run, "target") },
  ], { sorted: { column: 0, down: false } });
  const show = () => {
    const one = data.samples[choice.value];
    byId("sample-reference").replaceChildren("Reference: ", element("bdi", one.reference, { lang: language(data.runs[names.indexOf(one.versions[0].run)].target) }));
    table.update(one.versions);
  };
  choice.addEventListener("change", show);
  show();
}

function showLabels() {
  const found = data.labels;
  if (!found) return byId("labels").remove();
  byId("labels-about").textContent = found.about;
  sortableTable(byId("label-table"), [
    { title: "Label", show: (row) => element("bdi", row.label), value: (row) => row.label },
    ...found.runs.map((name, i) => ({ title: names.length > 1 ? name : "F1", numeric: true, show: (row) => shortNumber(row.f1[i]), value: (row) => row.f1[i] })),
  ], { sorted: { column: 1, down: false } }).update(found.rows);
}

function showScores() {
  const found = data.scores;
  if (!found) return absent("scores", data.absent.scores.length ? data.absent.scores : ["Nothing was translated."]);
  byId("scores-about").textContent = `${data.split} split: ${found.about}`
    + (names.length > 1 ? ` p is the probability of a difference from ${data.translations.runs[0]} this large arising by chance (paired bootstrap).` : "");
  const several = data.translations.runs.length > 1;
  sortableTable(byId("score-table"), [
    { title: "Metric", show: (row) => element("span", row.metric, { title: row.signature }), value: (row) => row.metric },
    ...(several ? [{ title: "Run", show: (row) => who(row.run), value: (row) => row.run }] : []),
    { title: "Score", numeric: true, show: (row) => shortNumber(row.score), value: (row) => row.score },
    { title: "95 % interval", numeric: true, show: (row) => `${shortNumber(row.low)} – ${shortNumber(row.high)}` },
    ...(several ? [{ title: "p", numeric: true, show: (row) => shortNumber(row.p, 3), value: (row) => row.p }] : []),
  ]).update(found.measured);
  const signatures = [...new Set(found.measured.map((row) => `${row.metric}: ${row.signature}`))];
  sentences(byId("score-notes"), ["For TER, lower is better.", ...signatures, ...data.absent.scores]);
  byId("length-list").replaceChildren(...found.charts.map((spec) => {
    const metric = spec.encoding.y.field;
    const columns = [plainColumn("Source tokens", "bin"), plainColumn("Run", "run"), plainColumn("Sentences", "sentences", true), plainColumn(metric, metric, true, (value) => shortNumber(value))];
    return card(metric, spec, { columns, rows: found.lengths });
  }));
}

function showTranslations() {
  const found = data.translations;
  if (!found) return absent("translations", data.absent.scores.length ? data.absent.scores : ["Nothing was translated."]);
  const several = found.runs.length > 1, first = found.runs[0], pair = byId("pair"), mark = byId("mark");
  byId("translations-about").textContent = `The score is the model's, in nats; chrF compares a line with its reference. ${found.searches.join("; ")}.`;
  byId("pair-field").hidden = !several;
  byId("pair-first").textContent = first;
  pair.replaceChildren(...found.runs.slice(1).map((name, i) => element("option", name, { value: i + 1 })));
  mark.replaceChildren(element("option", "the reference", { value: "reference" }), ...(several ? [element("option", "the other run", { value: "run" })] : []));
  byId("mark-field").hidden = !several;
  const other = () => Number(pair.value);
  const line = (name, content, title) => element("div", [element("span", [names.includes(title) ? who(title) : name], { class: "who", title }), prose(content, first, name === "Source" ? "source" : "target")]);
  const texts = (row) => {
    const against = mark.value === "run";
    const found1 = against ? row.runs[other()].other : row.runs[0].reference;
    const parts = [line("Source", row.source, "Source"), line("Reference", row.reference, "Reference"), line(first, marked(found1), first)];
    if (several) {
      const two = row.runs[other()];
      parts.push(line(found.runs[other()], marked(against ? two.first : two.reference), found.runs[other()]));
    }
    return parts;
  };
  const difference = (row) => row.runs[other()].chrf - row.runs[0].chrf;
  const signed = (value) => (value > 0 ? "+" : "") + value.toFixed(1);
  const table = sortableTable(byId("translation-table"), [
    { title: "Line", numeric: true, show: (row) => String(row.line), value: (row) => row.line },
    { title: "Texts", className: "texts", show: texts },
    { title: "Score", numeric: true, show: (row) => shortNumber(row.runs[0].score, 3), value: (row) => row.runs[0].score },
    { title: "chrF", numeric: true, show: (row) => shortNumber(row.runs[0].chrf, 1), value: (row) => row.runs[0].chrf },
    ...(several ? [{ title: "Difference", numeric: true, show: (row) => signed(difference(row)), value: difference }] : []),
    { title: "Length", numeric: true, show: (row) => String(row.length), value: (row) => row.length },
  ], {
    most: 20, sorted: { column: 3, down: false },
    grown: (shown, all) => {
      byId("found").textContent = `${shown} of ${all} lines`;
      byId("more").hidden = shown === all;
    },
  });
  const update = () => {
    const wanted = byId("find").value.toLowerCase();
    const text = (row) => [row.source, row.reference, ...row.runs.map((run) => run.reference.map((piece) => piece[0]).join(""))].join("\n").toLowerCase();
    table.update(wanted ? found.lines.filter((row) => text(row).includes(wanted)) : found.lines);
  };
  for (const control of [pair, mark]) control.addEventListener("change", update);
  byId("find").addEventListener("input", update);
  byId("more").addEventListener("click", () => table.more());
  update();
}

function showAttention() {
  if (!data.attention.length) return absent("attention", data.absent.attention.length ? data.absent.attention : ["There are no translations whose attention could be shown."]);
  const run = byId("attention-run"), choice = byId("attention-line");
  const runs = [...new Set(data.attention.map((one) => one.run))];
  run.replaceChildren(...runs.map((name) => element("option", name, { value: name })));
  byId("attention-run-field").hidden = names.length < 2;
  let layer = 0;
  const plain = (tokens) => tokens.slice(0, -1).join("").includes("▁") ? tokens.slice(0, -1).join("").replaceAll("▁", " ") : tokens.slice(0, -1).join(" ");
  const own = () => data.attention.filter((one) => one.run === run.value);
  const lines = () => choice.replaceChildren(...own().map((one, i) => element("option", `${one.line}: ${isolated(plain(one.source).trim())}`, { value: i })));
  const ended = (tokens) => [...tokens.slice(0, -1), "⏎"];
  function picture(weights) {
    const canvas = element("canvas", "", { width: weights[0].length, height: weights.length, "aria-hidden": "true" });
    canvas.style.width = `${Math.max(3, 96 / Math.max(weights.length, weights[0].length)) * weights[0].length}px`;
    const context = canvas.getContext("2d");
    context.fillStyle = color("--accent");
    weights.forEach((row, t) => row.forEach((weight, s) => { context.globalAlpha = weight; context.fillRect(s, t, 1, 1); }));
    return canvas;
  }
  function show(focus = false) {
    const one = own()[choice.value];
    layer = Math.min(layer, one.layers.length - 1);
    byId("layers").replaceChildren(...one.layers.map(({ name, weights }, i) => {
      const button = element("button", [picture(weights), name], { type: "button", "aria-pressed": String(i === layer) });
      button.addEventListener("click", () => { layer = i; show(true); });
      return button;
    }));
    if (focus) byId("layers").children[layer].focus();
    const places = { source: byId("source-words"), target: byId("target-words"), matrix: byId("matrix") };
    for (const side of ["source", "target"]) places[side].lang = language(data.runs[names.indexOf(one.run)][side]);
    drawAttention(places, ended(one.source), ended(one.target), one.layers[layer].weights);
  }
  run.addEventListener("change", () => { lines(); show(); });
  choice.addEventListener("change", () => show());
  lines();
  choice.selectedIndex = Math.floor((own().length - 1) / 2);
  show();
  return show;
}

function showFields() {
  const found = data.fields;
  if (!found.length) return absent("fields", data.absent.fields.length ? data.absent.fields : ["No run has layers with a bounded receptive field."]);
  const columns = [plainColumn("Run", "run"), plainColumn("Layers", "layer", true), plainColumn("Tokens seen", "tokens", true)];
  const titles = { encoder: "Encoder: source tokens", decoder: "Decoder: target tokens" };
  byId("field-list").replaceChildren(...found.map(({ side, spec, rows }) => card(titles[side], spec, { columns, rows })), ...data.absent.fields.map((text) => element("p", text, { class: "absent" })));
}

showRuns();
showCurves();
showPlans();
showSamples();
showLabels();
showScores();
showTranslations();
const redrawAttention = showAttention();
showFields();
byId("nav").replaceChildren(...[...document.querySelectorAll("main section")].map((section) => element("a", section.querySelector("h2").textContent, { href: `#${section.id}` })));
byId("footer").textContent = `Generated ${data.when} by convs2s report with ${data.versions}. This file loads nothing from the network.`;

// ---- light and dark ----
function theme(value) {
  if (value) document.documentElement.dataset.theme = value;
  else delete document.documentElement.dataset.theme;
  for (const button of byId("theme").children) button.setAttribute("aria-pressed", String(button.dataset.value === value));
}
function redraw() {
  window.drawn = drawAll().then(() => { if (redrawAttention) redrawAttention(); });
}
for (const button of byId("theme").children) button.addEventListener("click", () => { theme(button.dataset.value); redraw(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
theme("");
redraw();
