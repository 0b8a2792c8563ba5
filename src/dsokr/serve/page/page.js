"use strict";

const at = (id) => document.getElementById(id);
const form = at("ask"), query = at("query"), hits = at("hits"), alertBox = at("alert");
const KINDS = {
  text: ["Describe what you are looking for", "e.g. an aromatic alcohol with two rings"],
  smiles: ["SMILES of the input molecule", "e.g. CC(=O)Oc1ccccc1C(=O)O"],
  string: ["Input string", ""],
};
const NAMED = 8; // columns that are all named
const RULES = {
  cosine: "the angle between prediction and candidate",
  kernel: "the distance in the whole feature space, the paper's rule",
  projected: "the distance within the span of the basis",
};
let model = null, shown = null, running = null;

const number = (x) => (Math.abs(x) >= 1e-3 && Math.abs(x) < 1e4 ? x.toFixed(3) : x.toExponential(2)).replace("-", "−");
const whole = (x) => x.toLocaleString("en");
const partsOf = (text) => text.replace(/[[\]()]/g, " ").split(/[\s,;|]+/).filter(Boolean);
const numeric = () => model.input === "vector" || !model.input;
const width = () => (model.input ? model.width : model.coefficients);
const columns = () => (model.input === "vector" && model.columns.length === model.width ? model.columns : []);
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
  [at("query-label").textContent, query.placeholder] = numeric() ? numbersWanted() : KINDS[model.input] ?? KINDS.string;
  query.classList.toggle("letters", model.input !== "text");
  at("about").textContent = `${whole(model.candidates)} ${model.output === "smiles" ? "molecules" : "candidates"}`;
  at("empty-text").textContent = waiting();
  at("k").max = model.limits.k;
  for (const list of [hits, at("predicted")]) list.classList.toggle("plain", !draws());
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

function numbersWanted() {
  const names = columns();
  const listed = (names.length > NAMED ? [...names.slice(0, NAMED - 2), "…", names.at(-1)] : names).join(", ");
  const counted = width() === 1 ? "A number" : `${whole(width())} numbers`;
  if (listed) return [`${counted}: ${listed}`, listed];
  const what = model.input ? model.columns.join(", ") : "coefficients";
  return [what ? `${counted} (${what})` : counted, "with spaces or commas between"];
}

const draws = () => model.drawing && model.output === "smiles";
const waiting = () => {
  if (model.searches) return "The prediction and the nearest known outputs will be shown here.";
  return draws() ? "The best molecules will be drawn here." : "The best candidates will be listed here.";
};

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
  const text = query.value.trim();
  const asked = numeric() ? partsOf(text).map(Number) : text;
  return { [model.input ? "inputs" : "coefficients"]: [asked], k: count(), rule: rule() };
}

// What is wrong with the question, in a sentence; nothing if it can be asked.
function fault() {
  const text = query.value.trim();
  if (!numeric()) {
    return [...text].length > model.limits.text ? `The text is longer than ${whole(model.limits.text)} characters.` : "";
  }
  const parts = partsOf(text);
  const odd = parts.findIndex((part) => !Number.isFinite(Number(part)));
  if (odd >= 0) return `${numberNamed(odd)} is not a number: '${parts[odd].slice(0, 40)}'.`;
  if (parts.length === width()) return "";
  return `${width() === 1 ? "One number is" : `${whole(width())} numbers are`} needed. There ${parts.length === 1 ? "is 1" : `are ${whole(parts.length)}`}.`;
}

const numberNamed = (place) => `Number ${place + 1}${columns()[place] ? ` (${columns()[place]})` : ""}`;

// The server's sentence in the words of the page: it names parts of a request, such as inputs.0.2.
function worded({ error, where }) {
  const place = /^(?:inputs|coefficients)\.0(?:\.(\d+))?$/.exec(where);
  if (!place) return error;
  if (place[1] !== undefined) return error.replace(where, numberNamed(Number(place[1])));
  return error.startsWith(`${where}: `) ? error.slice(where.length + 2) : error.replace(where, "The input");
}

async function search(remember) {
  running?.abort();
  say("");
  if (!model) return;
  if (!query.value.trim()) return clear();
  at("k").value = count();
  const wrong = fault();
  if (remember && address() !== location.pathname + location.search) history.pushState(null, "", address());
  if (wrong) {
    clear();
    return say(wrong);
  }
  const mine = (running = new AbortController());
  loading(true);
  try {
    let answer = await asked(question(), model.searches, mine.signal);
    const late = answer.status === 504 && model.searches;
    if (late) answer = await asked(question(), false, mine.signal); // without what may take long
    const body = await answer.json();
    if (!answer.ok) throw new Error(worded(body));
    if (mine !== running) return;
    show(body);
    if (late) say("The model's own prediction took too long. These are the nearest known outputs.");
  } catch (error) {
    if (error.name === "AbortError") return;
    clear();
    say(error instanceof TypeError || error instanceof SyntaxError ? "The server does not answer. Is it still running?" : error.message);
  } finally {
    if (mine === running) loading(false);
  }
}

function asked(question, predict, signal) {
  const body = JSON.stringify({ ...question, predict });
  return fetch("predict", { method: "POST", headers: { "Content-Type": "application/json" }, body, signal });
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
  for (const part of ["own", "bar", "notes"]) at(part).hidden = true;
  at("empty").hidden = false;
  at("empty-text").textContent = query.value.trim() ? "Nothing to show." : waiting();
  document.title = "dsokr";
}

function show(answer) {
  const { hits: found, prediction } = answer.results[0];
  shown = { input: query.value.trim(), rule: answer.rule, hits: found, prediction };
  const others = found.filter((hit) => hit.rank !== prediction?.rank);
  hits.replaceChildren(...others.map(card));
  at("own").hidden = !prediction;
  at("nearest").hidden = !others.length;
  if (prediction) {
    at("predicted").replaceChildren(predictedCard(prediction, found[prediction.rank - 1]));
    at("whether").textContent = prediction.rank ? `also number ${prediction.rank} of the known outputs` : "searched among all outputs";
  }
  at("empty").hidden = true;
  at("bar").hidden = false;
  at("notes").hidden = !answer.notes.length;
  at("notes").textContent = answer.notes.join(" ");
  const what = draws() ? "molecules" : "candidates";
  at("status").textContent = `The best ${found.length} of ${whole(answer.candidates)} ${what}, in ${Math.max(1, Math.round(answer.milliseconds))} ms`;
  document.title = `${shown.input.slice(0, 60)} · dsokr`;
}

// A prediction that is also a hit is shown with all that is known of the hit, and not again below.
function predictedCard(prediction, hit) {
  const item = card(hit ?? { ...prediction, name: "" });
  item.querySelector(".rank").textContent = "★";
  const copy = item.querySelector(".copy");
  copy.setAttribute("aria-label", `${copy.title} of the prediction`);
  if (!hit && shown.rule !== model.rule) item.querySelector(".score").prepend(`${model.rule} `);
  return item;
}

function written(output) {
  const names = model.output_columns, values = partsOf(output);
  if (!names.length || names.length !== values.length) return [output];
  return names.flatMap((name, place) => {
    const pair = Object.assign(document.createElement("span"), { className: "pair" });
    const label = document.createElement("i");
    label.textContent = name;
    pair.append(label, ` ${values[place]}`);
    return [pair, " "];
  });
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
  part("code").append(...written(hit.output));
  part("code").title = hit.output;
  if (hit.cosine === undefined) part(".meter").remove();
  else fill(part(".meter"), Math.min(Math.max(hit.cosine, 0), 1), `Cosine of ${called}`);
  for (const name of ["cosine", "score"]) {
    if (hit[name] === undefined) continue;
    const strong = document.createElement("b");
    strong.textContent = number(hit[name]);
    part(`.${name}`).append(`${name} `, strong);
  }
  const copy = part(".copy");
  copy.title = draws() ? "Copy the SMILES" : "Copy";
  copy.setAttribute("aria-label", `${copy.title} of number ${hit.rank}`);
  copy.addEventListener("click", () => put(hit.output, copy));
  return item;
}

function fill(meter, share, label) {
  requestAnimationFrame(() => { meter.firstElementChild.style.width = `${100 * share}%`; });
  const facts = { role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 1, "aria-valuenow": share.toFixed(3) };
  for (const [name, value] of Object.entries(facts)) meter.setAttribute(name, value);
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
  const several = model.output_columns.length > 1;
  const outputs = several ? model.output_columns.map((name) => `output_${name}`) : ["output"];
  const head = ["rank", ...outputs, "name", "score", "cosine", "rule", "input"];
  const row = (h, rank, rule) => [rank, ...(several ? partsOf(h.output) : [h.output]), h.name ?? "", h.score, h.cosine ?? "", rule, shown.input];
  const rows = shown.hits.map((hit) => row(hit, hit.rank, shown.rule));
  if (shown.prediction) rows.unshift(row(shown.prediction, "predicted", model.rule));
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
