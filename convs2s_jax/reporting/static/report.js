"use strict";
// Draws the charts and the attention of a report, and sorts and searches its tables. The rest is made by report.html.

const dark = matchMedia("(prefers-color-scheme: dark)");

function draw() {
  const options = { actions: false, renderer: "svg", theme: dark.matches ? "dark" : undefined, config: { background: "transparent" } };
  const places = [...document.querySelectorAll("[data-chart]")];
  window.drawn = Promise.all(places.map((place) => vegaEmbed(place, JSON.parse(place.dataset.chart), options)));
}

// A button in each head of a column, which sorts by the numbers that cells begin with, then by text.
for (const head of document.querySelectorAll("table.sortable thead th")) {
  const button = element("button", head.textContent, { type: "button" });
  head.replaceChildren(button);
  button.addEventListener("click", () => {
    const sign = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign < 0 ? "descending" : "ascending");
    const text = (row) => row.cells[head.cellIndex].textContent.trim();
    const number = (row) => { const found = parseFloat(text(row)); return Number.isNaN(found) ? -1e9 : found; };
    const body = head.closest("table").tBodies[0];
    body.append(...[...body.rows].sort((a, b) => sign * (number(a) - number(b) || text(a).localeCompare(text(b)))));
  });
}

byId("find")?.addEventListener("input", () => {
  const wanted = byId("find").value.toLowerCase();
  for (const row of byId("lines").tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
});

function drawChosen() {
  const one = JSON.parse(byId("attention-data").textContent)[byId("sentence").value];
  const layer = byId("layer"), chosen = layer.value, names = Object.keys(one.layers);
  layer.replaceChildren(...names.map((name) => element("option", name)));
  layer.value = names.includes(chosen) ? chosen : names[0];
  const places = { source: byId("source-words"), target: byId("target-words"), matrix: byId("matrix") };
  const ended = (tokens) => [...tokens.slice(0, -1), "⏎"];
  drawAttention(places, ended(one.source), ended(one.target), one.layers[layer.value]);
}

if (byId("sentence")) {
  for (const control of [byId("sentence"), byId("layer")]) control.addEventListener("change", drawChosen);
  drawChosen();
}
dark.addEventListener("change", draw);
draw();
