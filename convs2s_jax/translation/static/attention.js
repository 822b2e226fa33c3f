"use strict";
// Helpers for elements, and the attention between two sentences as highlighted words and as a matrix. Shared by the
// server's page and reports, which provide styles (attention.css) and the variable --accent.

const byId = (id) => document.getElementById(id);

// Create an element. `content` is a string or an element, or a list of them.
function element(name, content = [], attributes = {}) {
  const made = document.createElement(name);
  made.append(...(Array.isArray(content) ? content : [content]));
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Return the lang attribute for a text of a corpus: `side`, the name of its side, if that is a language code.
const language = (side) => (/^(?!src$|tgt$)[a-z]{2,3}([-_][A-Za-z0-9]{2,8})*$/.test(side) ? side.replaceAll("_", "-") : "");

// Isolate a text inside another one, so that they do not mix if one of them runs from right to left.
const isolated = (text) => `\u2068${text}\u2069`;

// Draw into `places`, {source, target, matrix}: two paragraphs for words, and a table that keeps its caption.
// The paragraphs run in the direction of their words, and the columns of the matrix from left to right, in token order.
// `source` and `target` are lists of tokens; `weights` has one row per target token with one number per source token.
function drawAttention(places, source, target, weights) {
  const readable = (token) => token.replaceAll("▁", " ").replaceAll("@@", "").trim() || "␣";
  const shade = (weight) => (weight > 0 ? `color-mix(in srgb, var(--accent) ${(100 * weight).toFixed(1)}%, transparent)` : "");
  const onPointer = (thing, begin) => {
    for (const kind of ["mouseenter", "focus"]) thing.addEventListener(kind, begin);
    for (const kind of ["mouseleave", "blur"]) thing.addEventListener(kind, () => light(null, null));
  };
  const words = (tokens, side) => tokens.map((token, i) => {
    const word = element("span", readable(token), { tabindex: 0 });
    onPointer(word, () => (side === "target" ? light(i, null) : light(null, i)));
    return word;
  });
  places.source.replaceChildren(...words(source, "source"));
  places.target.replaceChildren(...words(target, "target"));
  for (const side of ["source", "target"]) places[side].dir = "auto";

  const head = element("thead"), body = element("tbody"), top = element("tr");
  top.append(element("td"), ...source.map((token) => element("th", readable(token), { scope: "col", dir: "auto" })));
  head.append(top);
  weights.forEach((row, t) => {
    const line = element("tr");
    line.append(element("th", readable(target[t]), { scope: "row", dir: "auto" }));
    row.forEach((weight, s) => {
      const cell = element("td", "", { title: `${isolated(readable(target[t]))} → ${isolated(readable(source[s]))}: ${weight.toFixed(2)}` });
      cell.style.backgroundColor = shade(weight);
      onPointer(cell, () => light(t, s));
      line.append(cell);
    });
    body.append(line);
  });
  places.matrix.replaceChildren(...[places.matrix.caption, head, body].filter(Boolean));

  // Highlight what target token `t` attends to and what attends to source token `s`. A matrix cell sets both.
  function light(t, s) {
    const strengths = {
      source: source.map((_, i) => (t === null ? 0 : s === null || s === i ? weights[t][i] : 0)),
      target: target.map((_, i) => (s === null ? 0 : t === null || t === i ? weights[i][s] : 0)),
    };
    for (const [side, at] of [["source", s], ["target", t]]) {
      [...places[side].children].forEach((word, i) => {
        word.style.backgroundColor = shade(strengths[side][i]);
        word.classList.toggle("here", i === at);
      });
    }
    [...body.rows].forEach((row, i) => [...row.cells].slice(1).forEach((cell, j) =>
      cell.classList.toggle("here", (t !== null || s !== null) && (t === null || t === i) && (s === null || s === j))));
  }
}
