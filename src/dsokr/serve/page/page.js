"use strict";

const at = (id) => document.getElementById(id);
const form = at("ask"), query = at("query"), hits = at("hits"), alertBox = at("alert");
const KINDS = {
  text: ["Describe what you are looking for", "e.g. an aromatic alcohol with two rings"],
  smiles: ["SMILES of the input molecule", "e.g. CC(=O)Oc1ccccc1C(=O)O"],
  string: ["Input string", ""],
  vector: ["Input numbers", "e.g. 0.2 -1.3 4"],
  "": ["Coefficients", "numbers with spaces or commas between"],
};
const RULES = {
  cosine: "the angle between prediction and candidate",
  kernel: "the distance in the whole feature space, the paper's rule",
  projected: "the distance within the span of the basis",
};
let model = null, shown = null, running = null;

const number = (x) => (Math.abs(x) >= 1e-3 && Math.abs(x) < 1e4 ? x.toFixed(3) : x.toExponential(2)).replace("-", "−");
const numbersIn = (text) => text.trim().split(/[\s,;]+/).map(Number);
const rule = () => form.elements.rule?.value ?? "";
const count = () => Math.min(Math.max(parseInt(at("k").value, 10) || 10, 1), model.limits.k);

function say(message) {
  alertBox.hidden = !message;
  alertBox.textContent = message || "";
}

function grow() {
  query.style.height = "auto";
  query.style.height = `${query.scrollHeight + 2}px`;
}

async function start() {
  try {
    const answer = await fetch("health");
    if (!answer.ok) throw new Error();
    model = await answer.json();
  } catch {
    say("The server does not answer. Is it still running? Reload the page to try again.");
    return;
  }
  const [label, placeholder] = KINDS[model.input] ?? KINDS.string;
  at("query-label").textContent = model.input === "vector" ? `${label} (${model.width})` : label;
  query.placeholder = placeholder;
  if (model.input === "text") query.maxLength = model.limits.text;
  else query.classList.add("letters");
  at("about").textContent = `${model.candidates.toLocaleString("en")} ${model.output === "smiles" ? "molecules" : "candidates"}`;
  at("empty-text").textContent = waiting();
  at("k").max = model.limits.k;
  hits.classList.toggle("plain", !draws());
  for (const name of model.rules) {
    const choice = document.createElement("label");
    choice.title = RULES[name] ?? "";
    choice.innerHTML = "<input type=radio name=rule><span></span>";
    choice.firstChild.value = name;
    choice.firstChild.checked = name === model.rule;
    choice.lastChild.textContent = name;
    at("rules").append(choice);
  }
  for (const example of model.examples) {
    const chip = document.createElement("button");
    chip.type = "button";
    chip.textContent = chip.title = example;
    chip.addEventListener("click", () => { query.value = example; grow(); search(true); });
    at("examples").append(chip);
  }
  document.documentElement.dataset.ready = "yes";
  fromAddress();
}

const draws = () => model.drawing && model.output === "smiles";
const waiting = () => (draws() ? "The best molecules will be drawn here." : "The best candidates will be listed here.");

function fromAddress() {
  const asked = new URLSearchParams(location.search);
  query.value = asked.get("q") ?? "";
  at("k").value = asked.get("k") ?? Math.min(10, model.limits.k);
  const wanted = model.rules.includes(asked.get("rule")) ? asked.get("rule") : model.rule;
  for (const choice of form.querySelectorAll("[name=rule]")) choice.checked = choice.value === wanted;
  grow();
  search(false);
}

function address() {
  const asked = new URLSearchParams({ q: query.value.trim(), k: count(), rule: rule() });
  return `${location.pathname}?${asked}`;
}

function question() {
  const common = { k: count(), rule: rule() };
  const text = query.value.trim();
  if (model.input === "vector") return { inputs: [numbersIn(text)], ...common };
  return model.input ? { inputs: [text], ...common } : { coefficients: [numbersIn(text)], ...common };
}

async function search(remember) {
  running?.abort();
  say("");
  if (!model) return;
  if (!query.value.trim()) return clear();
  at("k").value = count();
  if (remember && address() !== location.pathname + location.search) history.pushState(null, "", address());
  const mine = (running = new AbortController());
  loading(true);
  try {
    const answer = await fetch("predict", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(question()),
      signal: mine.signal,
    });
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.error);
    if (mine === running) show(body);
  } catch (error) {
    if (error.name === "AbortError") return;
    clear();
    say(error instanceof TypeError || error instanceof SyntaxError ? "The server does not answer. Is it still running?" : error.message.replace(/^Input 0: /, ""));
  } finally {
    if (mine === running) loading(false);
  }
}

function loading(on) {
  at("results").classList.toggle("busy", on);
  at("results").setAttribute("aria-busy", on);
  if (on && !hits.children.length) {
    at("empty").hidden = true;
    hits.replaceChildren(...Array.from({ length: Math.min(count(), 8) }, () => {
      const ghost = document.createElement("li");
      ghost.className = "ghost";
      ghost.setAttribute("aria-hidden", "true");
      return ghost;
    }));
  }
}

function clear() {
  shown = null;
  hits.replaceChildren();
  at("bar").hidden = true;
  at("empty").hidden = false;
  at("empty-text").textContent = query.value.trim() ? "Nothing to show." : waiting();
  document.title = "dsokr";
}

function show(answer) {
  const found = answer.results[0].hits;
  shown = { input: query.value.trim(), rule: answer.rule, hits: found };
  hits.replaceChildren(...found.map(card));
  at("empty").hidden = true;
  at("bar").hidden = false;
  const what = draws() ? "molecules" : "candidates";
  at("status").textContent = `The best ${found.length} of ${answer.candidates.toLocaleString("en")} ${what}, in ${Math.max(1, Math.round(answer.milliseconds))} ms`;
  document.title = `${shown.input.slice(0, 60)} · dsokr`;
}

function card(hit) {
  const item = at("hit").content.cloneNode(true).firstElementChild;
  const part = (name) => item.querySelector(name);
  const called = hit.name || hit.output;
  const picture = part("img");
  if (draws()) {
    picture.alt = `Structure of ${called}`;
    picture.addEventListener("error", () => picture.parentNode.classList.add("undrawn"));
    picture.src = `drawing?smiles=${encodeURIComponent(hit.output)}`;
  } else {
    part("figure").remove();
  }
  part(".rank").textContent = hit.rank;
  part(".name").textContent = hit.name;
  part(".name").title = hit.name;
  part("code").textContent = part("code").title = hit.output;
  const share = Math.min(Math.max(hit.cosine, 0), 1);
  requestAnimationFrame(() => { part(".meter i").style.width = `${100 * share}%`; });
  const meter = part(".meter");
  meter.setAttribute("role", "meter");
  meter.setAttribute("aria-label", `Cosine of ${called}`);
  meter.setAttribute("aria-valuemin", 0);
  meter.setAttribute("aria-valuemax", 1);
  meter.setAttribute("aria-valuenow", share.toFixed(3));
  for (const [name, label, value] of [["cosine", "cosine", hit.cosine], ["score", "score", hit.score]]) {
    const strong = document.createElement("b");
    strong.textContent = number(value);
    part(`.${name}`).append(`${label} `, strong);
  }
  const copy = part(".copy");
  copy.title = draws() ? "Copy the SMILES" : "Copy";
  copy.setAttribute("aria-label", `${copy.title} of number ${hit.rank}`);
  copy.addEventListener("click", () => put(hit.output, copy));
  return item;
}

async function put(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // not on a secure page, or not allowed
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  const before = button.textContent;
  button.classList.add("done");
  if (before) button.textContent = "Copied";
  setTimeout(() => {
    button.classList.remove("done");
    if (before) button.textContent = before;
  }, 1200);
}

function csv() {
  const quoted = (value) => (/[",\r\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value);
  const head = ["rank", "output", "name", "score", "cosine", "rule", "input"];
  const rows = shown.hits.map((h) => [h.rank, h.output, h.name, h.score, h.cosine, shown.rule, shown.input]);
  return [head, ...rows].map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
}

form.addEventListener("submit", (event) => { event.preventDefault(); search(true); });
query.addEventListener("input", grow);
query.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    form.requestSubmit();
  }
});
form.addEventListener("change", (event) => {
  if (event.target !== query && shown) search(true);
});
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName) && document.activeElement.type !== "radio";
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    query.focus();
    query.select();
  }
  if (event.key === "Escape") document.activeElement?.blur();
});
at("link").addEventListener("click", (event) => put(new URL(address(), location.href).href, event.currentTarget));
at("csv").addEventListener("click", () => {
  const url = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
  const anchor = Object.assign(document.createElement("a"), { href: url, download: "ranked.csv" });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
});
addEventListener("popstate", fromAddress);
start();
