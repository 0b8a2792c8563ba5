"use strict";

const byId = (id) => document.getElementById(id);
const form = byId("ask"), query = byId("query"), hits = byId("hits"), alertBox = byId("alert");
const KINDS = {
  text: ["Describe what you are looking for", "a description in words"],
  smiles: ["SMILES of the input molecule", "e.g. CC(=O)Oc1ccccc1C(=O)O"],
  spectrum: ["Peaks of a spectrum", "m/z:intensity, e.g. 91.05:100 65.04:23"],
  string: ["Input string", "a word, a code or a sequence"],
};
const CELLS = 4; // further columns of a candidate that a card shows
const NAMED = 8; // the most columns that are all listed
const RULES = {
  cosine: "the angle between prediction and candidate",
  kernel: "the distance in the whole feature space, the paper's rule",
  projected: "the distance within the span of the basis",
};
let model = null, shown = null, running = null;

const formatNumber = (x) => (Math.abs(x) >= 1e-3 && Math.abs(x) < 1e4 ? x.toFixed(3) : x.toExponential(2)).replace("-", "−");
const make = (tag, facts, content = []) => {
  const made = Object.assign(document.createElement(tag), facts);
  made.append(...content);
  return made;
};
const formatCount = (x) => x.toLocaleString("en");
const splitNumbers = (text) => text.replace(/[[\]()]/g, " ").split(/[\s,;|]+/).filter(Boolean);
const takesNumbers = () => model.input === "vector" || !model.input;
const width = () => (model.input ? model.width : model.coefficients);
const columns = () => (model.input === "vector" && model.columns.length === model.width ? model.columns : []);
const rule = () => form.elements.rule?.value ?? "";
const count = () => Math.min(Math.max(parseInt(byId("k").value, 10) || 10, 1), model.limits.k);

function showAlert(message) {
  alertBox.hidden = !message;
  alertBox.textContent = message || "";
}

function fitHeight() {
  query.style.height = "auto";
  query.style.height = `${query.scrollHeight + 2}px`;
}

async function start() {
  try {
    const answer = await fetch("health");
    if (!answer.ok) throw new Error();
    model = await answer.json();
  } catch {
    showAlert("The server does not answer. Is it still running? Reload the page to try again.");
    return;
  }
  [byId("query-label").textContent, query.placeholder] = takesNumbers() ? describeNumbers() : KINDS[model.input] ?? KINDS.string;
  query.classList.toggle("letters", model.input !== "text");
  byId("about").textContent = `${formatCount(model.candidates)} ${model.output === "smiles" ? "molecules" : "candidates"}`;
  byId("empty-text").textContent = emptyText();
  byId("k").max = model.limits.k;
  for (const list of [hits, byId("predicted")]) list.classList.toggle("plain", !draws());
  byId("only").hidden = !Object.keys(model.candidate_columns).length;
  for (const name of Object.keys(model.candidate_columns)) byId("column").append(make("option", { value: name }, [name]));
  byId("column").value = Object.keys(model.candidate_columns).find((name) => name.includes("mass")) ?? byId("column").value;
  for (const name of model.rules) {
    const choice = document.createElement("label");
    choice.title = RULES[name] ?? "";
    choice.innerHTML = "<input type=radio name=rule><span></span>";
    choice.firstChild.value = name;
    choice.firstChild.checked = name === model.rule;
    choice.lastChild.textContent = name;
    byId("rules").append(choice);
  }
  for (const example of model.examples) {
    const chip = document.createElement("button");
    chip.type = "button";
    chip.textContent = chip.title = example;
    chip.addEventListener("click", () => { query.value = example; fitHeight(); search(true); });
    byId("examples").append(chip);
  }
  document.documentElement.dataset.ready = "yes";
  readAddress();
}

function describeNumbers() {
  const names = columns();
  const listed = (names.length > NAMED ? [...names.slice(0, NAMED - 2), "…", names.at(-1)] : names).join(", ");
  const counted = width() === 1 ? "A number" : `${formatCount(width())} numbers`;
  if (listed) return [`${counted}: ${listed}`, listed];
  const what = model.input ? model.columns.join(", ") : "coefficients";
  return [what ? `${counted} (${what})` : counted, "separated by spaces or commas"];
}

const draws = () => model.drawing && model.output === "smiles";
const emptyText = () => {
  if (model.searches) return "The prediction and the nearest known outputs will be shown here.";
  return draws() ? "The best molecules will be drawn here." : "The best candidates will be listed here.";
};

function readAddress() {
  const asked = new URLSearchParams(location.search);
  query.value = asked.get("q") ?? "";
  byId("k").value = asked.get("k") ?? Math.min(10, model.limits.k);
  if (asked.get("only") in model.candidate_columns) byId("column").value = asked.get("only");
  byId("value").value = asked.get("value") ?? "";
  byId("near").value = asked.get("near") ?? "10 ppm";
  showTolerance();
  const wanted = model.rules.includes(asked.get("rule")) ? asked.get("rule") : model.rule;
  for (const choice of form.querySelectorAll("[name=rule]")) choice.checked = choice.value === wanted;
  fitHeight();
  search(false);
}

function writeAddress() {
  const asked = new URLSearchParams({ q: query.value.trim(), k: count(), rule: rule() });
  if (restricts()) for (const [name, id] of [["only", "column"], ["value", "value"], ["near", "near"]]) asked.set(name, byId(id).value.trim());
  return `${location.pathname}?${asked}`;
}

function readQuestion() {
  const text = query.value.trim();
  const asked = takesNumbers() ? splitNumbers(text).map(Number) : text;
  return { [model.input ? "inputs" : "coefficients"]: [asked], k: count(), rule: rule(), ...readCondition() };
}

// Which candidates are possible: near a number, or with the same text, in one of their columns.
const restricts = () => !byId("only").hidden && byId("value").value.trim() !== "";
const byNumber = () => model.candidate_columns[byId("column").value] === "number";
const showTolerance = () => { byId("tolerance").hidden = !byNumber(); };
const readTolerance = () => /^([\d.]+(?:e-?\d+)?)\s*(ppm|%|)$/i.exec(byId("near").value.trim());

function readCondition() {
  const name = byId("column").value, value = byId("value").value.trim();
  if (!restricts()) return {};
  if (!byNumber()) return { match: { [name]: value } };
  const [, size, unit] = readTolerance(), number = Number(value);
  const share = { ppm: 1e-6, "%": 1e-2 }[unit.toLowerCase()];
  const slack = Number(size) * (share ? share * Math.abs(number) : 1);
  return { within: { [name]: [number - slack, number + slack] } };
}

function findWrongCondition() {
  if (!restricts() || !byNumber()) return "";
  if (!Number.isFinite(Number(byId("value").value))) return `${byId("column").value} is not a number: '${byId("value").value.slice(0, 40)}'.`;
  return readTolerance() ? "" : `The tolerance is a number, with ppm or % if it is relative. Got '${byId("near").value.slice(0, 40)}'.`;
}

// What is wrong with the input, in a sentence; an empty string if it can be sent.
function findMistake() {
  const text = query.value.trim();
  if (!takesNumbers()) {
    return [...text].length > model.limits.text ? `The text is longer than ${formatCount(model.limits.text)} characters.` : "";
  }
  const parts = splitNumbers(text);
  const odd = parts.findIndex((part) => !Number.isFinite(Number(part)));
  if (odd >= 0) return `${nameNumber(odd)} is not a number: '${parts[odd].slice(0, 40)}'.`;
  if (parts.length === width()) return "";
  return `${width() === 1 ? "1 number is" : `${formatCount(width())} numbers are`} needed. Got ${formatCount(parts.length)}.`;
}

const nameNumber = (place) => `Number ${place + 1}${columns()[place] ? ` (${columns()[place]})` : ""}`;

// The server names parts of a request, such as inputs.0.2; the page has its own words for them.
function rephrase({ error, where }) {
  const place = /^(?:input|output|(?:inputs|coefficients)\.0)(?:\.(\d+))?$/.exec(where);
  if (!place) return error;
  if (place[1] !== undefined) return error.replace(`${where}: Input`, nameNumber(Number(place[1])));
  return error.replace(`${where}: `, "");
}

async function search(remember) {
  running?.abort();
  showAlert("");
  if (!model) return;
  if (!query.value.trim()) return clear();
  byId("k").value = count();
  const wrong = findMistake() || findWrongCondition();
  if (remember && writeAddress() !== location.pathname + location.search) history.pushState(null, "", writeAddress());
  if (wrong) {
    clear();
    return showAlert(wrong);
  }
  const mine = (running = new AbortController());
  setBusy(true);
  try {
    let answer = await send("predict", { ...readQuestion(), predict: model.searches }, mine.signal);
    const late = answer.status === 504 && model.searches;
    if (late) answer = await send("predict", { ...readQuestion(), predict: false }, mine.signal); // without the slow part
    const body = await answer.json();
    if (!answer.ok) throw new Error(rephrase(body));
    if (mine !== running) return;
    show(body);
    if (late) showAlert("The model's own prediction took too long. These are the nearest known outputs.");
  } catch (error) {
    if (error.name === "AbortError") return;
    clear();
    showAlert(error instanceof TypeError || error instanceof SyntaxError ? "The server does not answer. Is it still running?" : error.message);
  } finally {
    if (mine === running) setBusy(false);
  }
}

function send(address, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return fetch(address, { method: "POST", headers, body: JSON.stringify(body), signal });
}

function setBusy(on) {
  byId("results").classList.toggle("busy", on);
  byId("results").setAttribute("aria-busy", on);
  if (on && !hits.children.length) {
    byId("empty").hidden = true;
    hits.replaceChildren(...Array.from({ length: Math.min(count(), 8) }, () => make("li", { className: "ghost", ariaHidden: "true" })));
  }
}

function clear() {
  shown = null;
  hits.replaceChildren();
  for (const part of ["own", "bar", "notes", "trust"]) byId(part).hidden = true;
  byId("empty").hidden = false;
  byId("empty-text").textContent = query.value.trim() ? "Nothing to show." : emptyText();
  document.title = "dsokr";
}

function show(answer) {
  const { hits: found, prediction } = answer.results[0];
  shown = { input: query.value.trim(), rule: answer.rule, hits: found, prediction };
  const others = found.filter((hit) => hit.rank !== prediction?.rank);
  hits.replaceChildren(...others.map(makeCard));
  byId("own").hidden = !prediction;
  byId("nearest").hidden = !others.length;
  if (prediction) {
    byId("predicted").replaceChildren(makePredictedCard(prediction, found[prediction.rank - 1]));
    byId("whether").textContent = prediction.rank ? `also rank ${prediction.rank} among the known outputs` : "found among all possible outputs";
  }
  byId("empty").hidden = true;
  byId("bar").hidden = false;
  byId("notes").hidden = !answer.notes.length;
  byId("notes").textContent = answer.notes.join(" ");
  const what = draws() ? "molecules" : "candidates";
  const best = found.length ? `The best ${found.length}` : "None";
  const possible = restricts() ? " that are possible" : "";
  byId("status").textContent = `${best}${possible} of ${formatCount(answer.candidates)} ${what}, in ${Math.max(1, Math.round(answer.milliseconds))} ms`;
  byId("trust").hidden = answer.results[0].confidence == null;
  byId("trust").textContent = describeTrust(answer.results[0]);
  document.title = `${shown.input.slice(0, 60)} · dsokr`;
}

function formatShare(share) {
  return share < 0.001 ? "< 0.1 %" : `${(100 * share).toPrecision(share > 0.995 ? 3 : 2)} %`;
}

function describeTrust({ confidence, hits: found }) {
  if (confidence == null) return "";
  const first = `The first is right with probability ${formatShare(confidence)}.`;
  const members = found.filter((hit) => hit.in_set).length;
  if (!members) return first;
  const size = members < found.length ? `the first ${members}` : "more than these";
  return `${first} A set that holds the right one in ${formatShare(model.coverage)} of all cases: ${size}.`;
}

// A prediction that is also a hit is shown with the hit's name and cosine, and not again below.
function makePredictedCard(prediction, hit) {
  const item = makeCard(hit ?? { ...prediction, name: "" });
  item.querySelector(".rank").textContent = "★";
  const copy = item.querySelector(".copy");
  copy.setAttribute("aria-label", `${copy.title} of the prediction`);
  item.querySelector(".ask-why")?.setAttribute("aria-label", "Why does the prediction have this score?");
  if (!hit && shown.rule !== model.rule) item.querySelector(".score").prepend(`${model.rule} `);
  return item;
}

function formatOutput(output) {
  const names = model.output_columns, values = splitNumbers(output);
  if (!names.length || names.length !== values.length) return [output];
  return names.flatMap((name, place) => {
    return [make("span", { className: "pair" }, [make("i", {}, [name]), ` ${values[place]}`]), " "];
  });
}

function makeCard(hit) {
  const item = byId("hit").content.cloneNode(true).firstElementChild;
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
  part("code").append(...formatOutput(hit.output));
  part("code").title = hit.output;
  const cells = Object.entries(hit.cells ?? {}).slice(0, CELLS);
  part(".cells").append(...cells.flatMap(([name, cell]) => [make("i", {}, [name]), ` ${cell} `]));
  part(".cells").hidden = !cells.length;
  const isSure = hit.probability != null; // calibrated: a probability says more than a cosine
  if (hit.cosine === undefined) part(".meter").remove();
  else if (isSure) fillMeter(part(".meter"), hit.probability, `Probability of ${called}`);
  else fillMeter(part(".meter"), Math.min(Math.max(hit.cosine, 0), 1), `Cosine of ${called}`);
  item.classList.toggle("outside", hit.in_set === false);
  for (const name of [isSure ? "probability" : "cosine", "score"]) {
    if (hit[name] === undefined) continue;
    const number = name === "probability" ? formatShare(hit[name]) : formatNumber(hit[name]);
    part(name === "score" ? ".score" : ".cosine").append(`${name} `, make("b", {}, [number]));
  }
  const copy = part(".copy");
  copy.title = draws() ? "Copy the SMILES" : "Copy";
  copy.setAttribute("aria-label", `${copy.title} of number ${hit.rank}`);
  copy.addEventListener("click", () => copyText(hit.output, copy));
  const why = part(".ask-why");
  why.setAttribute("aria-label", `Why does number ${hit.rank} have this score?`);
  if (model.explains) why.addEventListener("click", () => toggleReasons(item, hit));
  else for (const name of [".ask-why", ".why"]) part(name).remove();
  return item;
}

// The first click on a card asks the server, and again if that failed; others hide and show what it answered.
async function toggleReasons(item, hit) {
  const button = item.querySelector(".ask-why"), box = item.querySelector(".why"), picture = item.querySelector("img");
  if (!item.explained) {
    button.disabled = true;
    const [content, drawing] = await askReasons(hit);
    button.disabled = false;
    button.focus();
    item.explained = drawing !== undefined;
    box.hidden = true;
    box.replaceChildren(...content);
    if (drawing) item.pictures = [picture.src, URL.createObjectURL(new Blob([drawing], { type: "image/svg+xml" }))];
  }
  box.hidden = !box.hidden;
  button.setAttribute("aria-expanded", !box.hidden);
  item.classList.toggle("colored", !box.hidden);
  if (item.pictures) picture.src = item.pictures[Number(!box.hidden)];
}

async function askReasons(hit) {
  const input = takesNumbers() ? splitNumbers(shown.input).map(Number) : shown.input;
  const chosen = hit.cosine === undefined ? model.rule : shown.rule; // a prediction has the model's own rule
  try {
    const answer = await send("explain", { input, output: hit.output, rule: chosen });
    const body = await answer.json();
    return answer.ok ? [describeReasons(body), body.output.drawing] : [[make("p", {}, [rephrase(body)])]];
  } catch {
    return [[make("p", {}, ["The server does not answer. Is it still running?"])]];
  }
}

function describeReasons({ score, exact, constant, output, input }) {
  const lost = "Blue speaks for it, orange against: what the score loses without the part.";
  const added = `Blue speaks for it, orange against. The contributions add up to ${formatNumber(score - constant)}; the rest of the score is ${formatNumber(constant)}.`;
  const painted = [input, output.drawing ? null : output].filter(Boolean).map((one) => make("p", {}, paint(one)));
  return [...painted, make("p", { className: "quiet" }, [exact ? added : lost])];
}

function paint({ parts, between }) {
  return parts.flatMap(({ text, contribution, color }) => {
    const span = make("span", { title: formatNumber(contribution) }, [text]);
    span.style.background = color;
    return [span, between];
  }).slice(0, -1);
}

function fillMeter(meter, share, label) {
  requestAnimationFrame(() => { meter.firstElementChild.style.width = `${100 * share}%`; });
  const facts = { role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 1, "aria-valuenow": share.toFixed(3) };
  for (const [name, value] of Object.entries(facts)) meter.setAttribute(name, value);
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // not a secure page, or not permitted
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

function writeCsv() {
  const quoted = (value) => (/[",\r\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value);
  const several = model.output_columns.length > 1;
  const outputs = several ? model.output_columns.map((name) => `output_${name}`) : ["output"];
  const head = ["rank", ...outputs, "name", "score", "cosine", "probability", "in_set", "rule", "input"];
  const row = (h, rank, rule) => [rank, ...(several ? splitNumbers(h.output) : [h.output]), h.name ?? "", h.score, h.cosine ?? "", h.probability ?? "", h.in_set ?? "", rule, shown.input];
  const rows = shown.hits.map((hit) => row(hit, hit.rank, shown.rule));
  if (shown.prediction) rows.unshift(row(shown.prediction, "predicted", model.rule));
  return [head, ...rows].map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
}

form.addEventListener("submit", (event) => { event.preventDefault(); search(true); });
query.addEventListener("input", fitHeight);
query.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    form.requestSubmit();
  }
});
form.addEventListener("change", (event) => {
  showTolerance();
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
byId("link").addEventListener("click", (event) => copyText(new URL(writeAddress(), location.href).href, event.currentTarget));
byId("csv").addEventListener("click", () => {
  const url = URL.createObjectURL(new Blob([writeCsv()], { type: "text/csv" }));
  const anchor = Object.assign(document.createElement("a"), { href: url, download: "ranked.csv" });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
});
addEventListener("popstate", readAddress);
start();
