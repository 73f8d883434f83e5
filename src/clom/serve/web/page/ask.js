// Ask: pictures in, answers out. The slider judges answers that are already there; nothing is asked twice for it.

import * as api from "./api.js";
import * as camera from "./camera.js";
import { acceptDrops, bar, byId, count, make, percent, show } from "./dom.js";
import * as mistakes from "./mistakes.js";

const AT_ONCE = 8;
const entries = []; // { file, label, url, frame, card, answer, problem, correction }, the latest first
let about = null;
let onJob = () => {};

/** `onJob` is given the lesson that corrections become. */
export function setUp(given) {
  onJob = given.onJob;
  const input = byId("ask-files");
  input.addEventListener("change", () => { add([...input.files]); input.value = ""; });
  acceptDrops(byId("ask-drop"), add);
  document.addEventListener("paste", (event) => {
    if (!byId("ask").hidden && event.clipboardData.files.length) add([...event.clipboardData.files]);
  });
  const folder = byId("ask-folder");
  folder.addEventListener("change", () => { add([...folder.files].filter((file) => file.type.startsWith("image/") && !file.name.startsWith("."))); folder.value = ""; });
  byId("ask-camera").addEventListener("click", () => camera.open((file) => add([file])));
  byId("ask-fixes-go").addEventListener("click", learnCorrections);
  byId("ask-fixes-drop").addEventListener("click", () => { for (const entry of corrected()) { entry.correction = ""; draw(entry); } showCorrections(); byId("ask-files").focus(); });
  byId("ask-rate").addEventListener("input", () => { showCost(); entries.forEach(judge); showCount(); });
  byId("ask-task").addEventListener("change", () => { showTaskHint(); ask(entries.slice()); });
  byId("ask-clear").addEventListener("click", clear);
}

/** The model may be another one: its tasks and costs are shown anew. */
export function update(model) {
  const learned = about && about.version !== model.version;
  about = model;
  const chosen = byId("ask-task").value;
  const options = [make("option", { value: "" }, "all classes")];
  for (const task of about.tasks) options.push(make("option", { value: task.name }, `only ${task.name}: ${task.classes.join(", ")}`));
  byId("ask-task").replaceChildren(...options);
  byId("ask-task").value = about.tasks.some((task) => task.name === chosen) ? chosen : "";
  const classes = about.tasks.flatMap((task) => task.classes);
  show(byId("ask-empty"), classes.length === 0);
  show(byId("ask-drop"), classes.length > 0);
  show(byId("ask-controls"), classes.length > 0);
  byId("ask-lead").textContent = classes.length ? `It knows ${listed(classes)}.` : "";
  showTaskHint();
  showCost();
  if (learned && entries.length && classes.length) ask(entries.slice()); // the answers of the new model
}

function listed(names) {
  if (names.length > 12) return `${names.slice(0, 11).join(", ")} and ${names.length - 11} more`;
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

function showTaskHint() {
  byId("ask-task-hint").textContent = byId("ask-task").value
    ? "Only the classes of this task compete."
    : "The task is predicted as well.";
}

const rate = () => Number(byId("ask-rate").value) / 100;

function showCost() {
  const value = Number(byId("ask-rate").value);
  const text = value === 0 ? "hardly ever" : percent(rate());
  byId("ask-rate-value").textContent = text;
  byId("ask-rate").setAttribute("aria-valuetext", text);
  const { held_out: held, costs } = about.rejection;
  const lost = Math.round(costs[value] * held);
  byId("ask-cost").textContent = held
    ? `Costs: of ${count(held, "picture")} of known classes that were held out, ${lost === 0 ? "none" : `${lost} (${percent(costs[value], 1)})`} would be rejected as unknown.`
    : "The cost is unknown: no pictures were held out.";
}

function add(files) {
  if (!files.length) return;
  const fresh = files.map(newEntry);
  entries.unshift(...fresh);
  fresh.forEach(draw);
  byId("ask-results").prepend(...fresh.map((entry) => entry.card));
  showCount();
  ask(fresh);
}

function newEntry(file) {
  const url = URL.createObjectURL(file);
  const image = make("img", { src: url, alt: `Your picture ${file.name}` });
  const frame = make("div", { class: "frame" }, image);
  image.addEventListener("error", () => image.replaceWith(make("div", { class: "no-picture" }, "no preview")));
  const label = file.webkitRelativePath.split("/").at(-2) ?? "";
  return { file, label, url, frame, card: make("li", { class: "card" }), answer: null, problem: "", correction: "" };
}

async function ask(questions) {
  const task = byId("ask-task").value;
  for (let start = 0; start < questions.length; start += AT_ONCE) {
    const part = questions.slice(start, start + AT_ONCE);
    for (const entry of part) entry.card.classList.add("waiting");
    try {
      const { answers, model } = await api.predict(part.map((entry) => entry.file), { task });
      if (model !== about.version) document.dispatchEvent(new Event("model-changed"));
      part.forEach((entry, place) => { entry.answer = answers[place].error ? null : answers[place]; entry.problem = answers[place].error ?? ""; });
    } catch (problem) {
      for (const entry of part) { entry.answer = null; entry.problem = problem.message; }
    }
    part.forEach(draw);
  }
  showCount();
  const last = questions.length === 1 ? questions[0] : null;
  byId("ask-said").textContent = last ? `${last.file.name}: ${verdict(last)}` : `${count(questions.length, "picture")} answered.`;
}

const isUnknown = (answer) => answer.familiarity !== null && answer.familiarity <= rate();

function verdict(entry) {
  if (entry.problem) return entry.problem;
  if (!entry.answer) return "…";
  return isUnknown(entry.answer) ? "unknown" : entry.answer.guesses[0].class_name;
}

function judge(entry) {
  if (!entry.answer) return;
  const unknown = isUnknown(entry.answer);
  entry.card.classList.toggle("unknown", unknown);
  const best = entry.answer.guesses[0];
  entry.card.querySelector(".verdict").textContent = unknown ? "Unknown" : best.class_name;
  entry.card.querySelector(".why").textContent = unknown
    ? `Resembles no learned class; closest: ${best.class_name}.`
    : `Task: ${best.task}`;
}

function draw(entry) {
  const { file, frame, card, answer, problem } = entry;
  card.classList.remove("waiting", "unknown", "failed");
  const text = make("div", { class: "card-text" });
  if (answer) {
    const bars = answer.guesses.map((guess) =>
      make("li", {}, make("span", { class: "name" }, guess.class_name), make("span", { class: "number" }, percent(guess.confidence)), bar(guess.confidence)));
    text.append(
      make("h3", { class: "verdict" }), make("p", { class: "why" }),
      make("ul", { class: "bars", "aria-label": "Most likely classes" }, bars),
      make("p", { class: "hint" }, familiarity(answer)),
      correcting(entry));
  } else if (problem) {
    card.classList.add("failed");
    text.append(make("h3", { class: "verdict" }, "No prediction"), make("p", { class: "why" }, problem));
  } else {
    card.classList.add("waiting");
    text.append(make("h3", { class: "verdict" }, "Looking …"));
  }
  card.replaceChildren(frame, make("p", { class: "file" }, file.name), text);
  judge(entry);
}

/** The classes that it may answer: not those merged into others. */
const answers = () => about.tasks.flatMap((task) => task.classes.filter((name) => !task.merged?.[name]));

/** “Wrong?” becomes a choice of the right class; what is chosen is learned later, together. */
function correcting(entry) {
  if (!about.server.teaching || !about.server.can_add) return null;
  if (!entry.correction) {
    const choose = make("button", { class: "button small quiet wrong", type: "button" }, "Wrong?", make("span", { class: "away" }, ` Correct ${entry.file.name}`));
    choose.addEventListener("click", () => { const list = select(entry); choose.replaceWith(list); list.querySelector("select").focus(); });
    return choose;
  }
  return make("p", { class: "corrected" }, "To be learned as ", make("strong", {}, entry.correction), " ",
    make("button", { class: "button small quiet", type: "button", onclick: () => correct(entry, "") }, "Drop"));
}

function select(entry) {
  const list = make("select", { id: `right-${entries.indexOf(entry)}` }, make("option", { value: "" }, "It shows …"), answers().map((name) => make("option", { value: name }, name)));
  list.addEventListener("change", () => correct(entry, list.value));
  return make("div", { class: "field" }, make("label", { class: "away", for: list.id }, `The right class of ${entry.file.name}`), list);
}

function correct(entry, name) {
  entry.correction = name;
  draw(entry);
  showCorrections();
  entry.card.querySelector(".corrected button, .wrong")?.focus();
}

const corrected = () => entries.filter((entry) => entry.correction);

function showCorrections() {
  show(byId("ask-fixes"), corrected().length > 0);
  show(byId("ask-fixes-problem"), false);
  byId("ask-fixes-text").textContent = corrected().length
    ? `${count(corrected().length, "correction")}: the pictures are added to the right classes. Other tasks stay exactly the same.` : "";
}

async function learnCorrections() {
  const byClass = new Map();
  for (const entry of corrected()) byClass.set(entry.correction, [...(byClass.get(entry.correction) ?? []), entry.file]);
  byId("ask-fixes-go").disabled = true;
  try {
    const job = await api.teach("", [...byClass].map(([label, files]) => ({ label, files })), () => {}, { adds: true, stopAtHints: false });
    for (const entry of corrected()) { entry.correction = ""; draw(entry); }
    showCorrections();
    onJob(job);
    location.hash = "#teach";
  } catch (problem) {
    byId("ask-fixes-problem").textContent = problem.status === 401 ? "Enter the right token in “Teach” first." : problem.message;
    show(byId("ask-fixes-problem"));
  } finally {
    byId("ask-fixes-go").disabled = false;
  }
}

function showMistakes() {
  const merged = new Map(about.tasks.flatMap((task) => Object.entries(task.merged ?? {})));
  const known = new Set(about.tasks.flatMap((task) => task.classes));
  const labelled = entries.filter((entry) => entry.answer && known.has(entry.label)).map((entry) => ({
    truth: merged.get(entry.label) ?? entry.label, answer: isUnknown(entry.answer) ? null : entry.answer.guesses[0].class_name, picture: entry.url,
  }));
  const open = byId("ask-mistakes").querySelector("details")?.open ?? false;
  byId("ask-mistakes").replaceChildren(...(labelled.length ? [mistakes.draw(mistakes.find(labelled), "labelled picture", open)] : []));
}

function familiarity(answer) {
  if (answer.familiarity === null) return "";
  return `About ${percent(answer.familiarity)} of the pictures of ${answer.guesses[0].task} look no more typical.`;
}

function showCount() {
  showMistakes();
  show(byId("ask-head"), entries.length > 0);
  const unknown = entries.filter((entry) => entry.answer && isUnknown(entry.answer)).length;
  byId("ask-count").textContent = `${count(entries.length, "picture")}${unknown ? `, ${unknown} unknown` : ""}`;
}

function clear() {
  for (const entry of entries.splice(0)) { URL.revokeObjectURL(entry.url); entry.card.remove(); }
  showCorrections();
  showCount();
  byId("ask-said").textContent = "Cleared.";
  byId("ask-files").focus();
}
