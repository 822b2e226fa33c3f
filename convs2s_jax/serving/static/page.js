"use strict";
// The web page: sends what is typed, shows translations, and highlights the attention.

const PAUSE = 250; // milliseconds after the last keystroke before the text is sent
let about = null, waiting = null, sent = null, search = {}, answers = [], chosen = 0;

async function connect() {
  try {
    const response = await fetch("about");
    about = await response.json();
    byId("title").textContent = `${about.source} → ${about.target}`;
    for (const id of ["source", "source-words"]) byId(id).lang = language(about.source);
    for (const id of ["target", "target-words"]) byId(id).lang = language(about.target);
    byId("source-label").textContent = `Source (${about.source})`;
    byId("target-label").textContent = `Translation (${about.target})`;
    if (!byId("beam").options.length) {
      for (const size of about.beam_sizes) byId("beam").append(element("option", size, { value: size }));
    }
    const ready = (await fetch("ready")).ok;
    byId("state").textContent = ready ? "Ready" : "Compiling programs …";
    if (ready) return later(0);
  } catch {
    byId("state").textContent = "Cannot reach the server; retrying …";
  }
  setTimeout(connect, 1000);
}

function later(pause) {
  clearTimeout(waiting);
  waiting = setTimeout(translate, pause);
}

async function translate() {
  const typed = byId("source").value.split("\n").map((line) => line.trim());
  while (typed.length && !typed[typed.length - 1]) typed.pop();
  if (sent) sent.abort();
  if (!typed.length) return show([], []);
  sent = new AbortController();
  const beam = Number(byId("beam").value), penalty = byId("penalty").value;
  search = { beam_size: beam, nbest: beam };
  if (penalty !== "") search.length_penalty = Number(penalty);
  byId("target").classList.add("old");
  const translations = await ask({ lines: typed, ...search });
  if (translations) show(typed, translations);
}

// Returns the translations of a request, or null on an error, which the page then shows.
async function ask(asked) {
  try {
    const response = await fetch("translate", {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(asked), signal: sent.signal,
    });
    const answer = await response.json();
    problem(response.ok ? "" : answer.error);
    return response.ok ? answer.translations : null;
  } catch (error) {
    if (error.name !== "AbortError") problem("Cannot reach the server.");
    return null;
  }
}

function problem(sentence) {
  byId("problem").textContent = sentence;
  byId("problem").hidden = !sentence;
}

function show(typed, translations) {
  answers = translations.map((one, i) => ({ ...one, source: typed[i], looked: about.attention ? 0 : Infinity }));
  byId("target").classList.remove("old");
  byId("target").textContent = translations.map((one) => one.text).join("\n");
  byId("details").hidden = !translations.length;
  const before = Math.min(byId("line").selectedIndex, translations.length - 1);
  byId("line").replaceChildren(...typed.map((line, i) => element("option", `${i + 1}: ${isolated(line.slice(0, 40))}`, { value: i })));
  byId("line").selectedIndex = Math.max(0, before);
  chosen = 0;
  if (translations.length) showLine();
}

function showLine() {
  const line = answers[byId("line").selectedIndex];
  const best = new Set(line.hypotheses[0].text.split(" "));
  byId("nbest").replaceChildren(...line.hypotheses.map((one, i) => {
    const button = element("button", "", { type: "button", "aria-pressed": i === chosen });
    const text = element("span", "", { dir: "auto", lang: language(about.target) });
    one.text.split(" ").forEach((word, k) => {
      if (k) text.append(" ");
      text.append(i && !best.has(word) ? element("mark", word) : word);
    });
    button.append(text, element("span", one.score === null ? "" : one.score.toFixed(3), { class: "score", title: "score in nats" }));
    button.addEventListener("click", () => { chosen = i; showLine(); byId("nbest").children[i].firstChild.focus(); });
    const item = document.createElement("li");
    item.append(button);
    return item;
  }));
  showAttention(line);
  if (line.looked <= chosen) look(line);
}

// Requests the attention of the selected hypothesis only, since answers with that of all lines would be large.
async function look(line) {
  const count = chosen + 1;
  const found = await ask({ lines: [line.source], attention: true, ...search, nbest: count });
  if (!found) return;
  line.looked = count;
  for (const one of line.hypotheses) {
    const same = found[0].hypotheses.find((other) => String(other.tokens) === String(one.tokens));
    one.attention = same ? same.attention : null;
  }
  if (line === answers[byId("line").selectedIndex]) showAttention(line);
}

function showAttention(line) {
  const hypothesis = line.hypotheses[chosen], weights = hypothesis.attention;
  byId("attention").hidden = !weights || !weights.length;
  if (!weights || !weights.length) return;
  const source = [...line.source_tokens.slice(0, weights[0].length - 1), "⏎"];
  const target = hypothesis.tokens.map((token, t) => (t === hypothesis.tokens.length - 1 ? "⏎" : token));
  const places = { source: byId("source-words"), target: byId("target-words"), matrix: byId("matrix") };
  drawAttention(places, source, target, weights);
}

byId("source").addEventListener("input", () => later(PAUSE));
byId("beam").addEventListener("change", () => later(0));
byId("penalty").addEventListener("input", () => later(PAUSE));
byId("line").addEventListener("change", () => { chosen = 0; showLine(); });
document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
connect();
