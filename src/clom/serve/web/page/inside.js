// Look inside: what was learned when, what of the network it takes, and how well tasks are told apart.

import * as api from "./api.js";
import * as changes from "./changes.js";
import { byId, bytes, count, day, make, percent, show } from "./dom.js";

let about = null;
let inspected = ""; // the version of the model that was measured
let found = null;

export function setUp() {
  changes.setUp();
  byId("inside-undo").addEventListener("click", changes.undo);
}

export function update(model) {
  about = model;
  draw();
  if (!byId("inside").hidden) opened();
}

/** What takes a while is measured when somebody looks. */
export async function opened() {
  if (!about || !about.tasks.length || inspected === about.version) return;
  const version = about.version;
  inspected = version;
  found = null;
  draw();
  try {
    const measured = await api.inspection();
    if (measured.version === about.version) found = measured;
    inspected = measured.version;
  } catch (problem) {
    found = { problem: problem.message };
  }
  draw();
}

function draw() {
  const classes = about.tasks.reduce((sum, task) => sum + task.classes.length, 0);
  const [, height, width] = about.image_shape;
  byId("inside-lead").textContent = `${about.file}, state ${about.version}. ${about.exact_memory ? "New tasks never change earlier ones." : "This method may change earlier predictions when it learns a new task."}`;
  byId("inside-tiles").replaceChildren(
    tile("method", about.method), tile("network", about.backbone), tile("tasks", about.tasks.length), tile("classes", classes),
    tile("input size", `${width} × ${height}`), tile("file", bytes(about.bytes)),
    tile("parameters", `${(about.parameters / 1e6).toFixed(2)} M`), tile("stored pictures", bytes(about.memory_bytes)));
  show(byId("inside-undo"), about.server.teaching && about.server.can_undo);
  drawTasks();
  drawUnits();
  drawApart();
  byId("inside-links").replaceChildren(
    ...(about.server.report ? [make("a", { href: "/report" }, "Report of the run"), " · "] : []),
    make("a", { href: "/docs" }, "API for other programs"), " · ", make("a", { href: "/metrics" }, "Metrics"));
}

function tile(name, value) {
  return make("div", {}, make("dt", {}, name), make("dd", {}, String(value)));
}

function drawTasks() {
  const checks = new Map((found?.checks ?? []).map((check) => [check.task, check]));
  const box = byId("inside-tasks");
  const open = box.querySelector("details.menu[open]");
  const focused = open?.contains(document.activeElement);
  box.replaceChildren(about.tasks.length
    ? make("ol", { class: "timeline" }, about.tasks.map((task, number) => drawTask(task, number, checks.get(task.name))))
    : make("p", { class: "note" }, "Nothing yet. ", make("a", { href: "#teach" }, "Teach it something"), "."));
  const again = open && [...box.querySelectorAll("details.menu")].find((menu) => menu.dataset.name === open.dataset.name);
  if (!again) return;
  again.open = true; // the page may be drawn again at any time, when a measurement or somebody else's lesson is ready
  if (focused) again.querySelector("summary").focus();
}

function drawTask(task, number, check) {
  const names = task.classes.map((name, place) => drawClass(task, name, place));
  const buttons = about.server.teaching ? make("div", { class: "buttons task-buttons" },
    make("button", { class: "button small", type: "button", onclick: () => changes.renameTask(task.name) }, "Rename", make("span", { class: "away" }, ` ${task.name}`)),
    make("button", { class: "button small", type: "button", onclick: () => changes.forgetTask(task) }, "Forget", make("span", { class: "away" }, ` ${task.name}`))) : null;
  return make("li", {},
    make("span", { class: `dot task-${number % 6}`, "aria-hidden": "true" }),
    make("div", { class: "panel" },
      make("div", { class: "task-head" }, make("h3", {}, task.name), task.learned ? make("time", { datetime: task.learned }, day(task.learned)) : null),
      make("ul", { class: "chips", "aria-label": "Classes, with the number of pictures" }, names),
      task.accuracy === undefined ? null : make("p", {}, `${percent(task.accuracy)} right of ${count(task.validation_images.reduce((a, b) => a + b, 0), "held-out picture")}`),
      task.fingerprint ? make("p", { class: "hint print" }, "fingerprint ", make("code", { title: task.fingerprint }, task.fingerprint.slice(0, 16)), " ", mark(check)) : null,
      buttons));
}

/** A class: its name, its number of pictures, and what it is answered as; its name opens what can be done with it. */
function drawClass(task, name, place) {
  const pictures = task.images ? make("span", { class: "hint" }, ` ${task.images[place] + (task.cross_fitted ? 0 : task.validation_images[place])}`) : null;
  const merged = task.merged?.[name];
  const said = merged ? make("span", { class: "hint" }, `, answered as ${merged}`) : null;
  if (!about.server.teaching) return make("li", {}, name, pictures, said);
  const others = about.tasks.flatMap((each) => each.classes.filter((other) => !each.merged?.[other])).filter((other) => other !== name);
  const item = (text, action) => make("button", { class: "button small quiet", type: "button", onclick: (event) => { event.target.closest("details").open = false; action(); } }, text);
  return make("li", { class: "with-menu" }, make("details", { class: "menu", "data-name": name, onkeydown: (event) => { if (event.key === "Escape") event.currentTarget.open = false; } },
    make("summary", {}, name, pictures, said),
    make("div", { class: "menu-items" }, item("Rename", () => changes.renameClass(name)),
      others.length && !merged ? item("Merge", () => changes.mergeClass(name, others)) : null)));
}

function mark(check) {
  if (!check) return found?.problem ? "not checked" : "checking …";
  return make("span", { class: `mark ${check.verdict === "identical" ? "good" : "bad"}` }, check.verdict === "identical" ? "bit-identical since it was learned" : `${check.verdict}: ${check.reason}`);
}

function drawUnits() {
  const box = byId("inside-units");
  if (!about.units.length || !about.tasks.length) { box.replaceChildren(); return; }
  const legend = make("ul", { class: "legend" }, about.tasks.map((task, number) =>
    make("li", {}, make("span", { class: `dot task-${number % 6}`, "aria-hidden": "true" }), task.name)),
    make("li", {}, make("span", { class: "dot free", "aria-hidden": "true" }), "free"));
  const layers = about.units.map((layer) => {
    const segments = layer.tasks.map((task, number) => {
      const segment = make("span", { class: `segment task-${number % 6}`, title: `${task.task} opened ${task.opened}, shares ${task.shared}` });
      segment.style.width = `${(100 * task.opened) / layer.units}%`;
      return segment;
    });
    return make("li", {}, make("span", { class: "name" }, layer.layer), make("span", { class: "stack", "aria-hidden": "true" }, segments),
      make("span", { class: "number" }, `${percent(layer.free / layer.units)} free`));
  });
  const rows = about.units.map((layer) => make("tr", {}, make("th", { scope: "row" }, layer.layer), make("td", {}, String(layer.units)),
    layer.tasks.map((task) => make("td", {}, `${task.opened} + ${task.shared}`)), make("td", {}, String(layer.free))));
  box.replaceChildren(
    make("h2", {}, "Network capacity"),
    make("p", { class: "hint" }, "Each task opens units in every layer and shares units opened by earlier tasks, which it can use but not change."),
    make("div", { class: "panel" }, legend, make("ul", { class: "layers" }, layers),
      make("details", {}, make("summary", {}, "As a table: opened + shared units"),
        make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Units by layer and task" }, make("table", {},
          make("thead", {}, make("tr", {}, ["layer", "units", ...about.tasks.map((task) => task.name), "free"].map((name) => make("th", { scope: "col" }, name)))),
          make("tbody", {}, rows))))));
}

function drawApart() {
  const box = byId("inside-apart");
  if (about.tasks.length < 2) { box.replaceChildren(); return; }
  const title = make("h2", {}, "Separation of the tasks");
  if (!found) { box.replaceChildren(title, make("p", { class: "hint", role: "status" }, "Measuring; this takes a moment …")); return; }
  const grid = found.separation;
  if (!grid) {
    box.replaceChildren(title, make("p", { class: "hint" }, found.problem ?? "Not available: this model stores no held-out pictures."));
    return;
  }
  const cell = (value, own) => {
    if (own) return make("td", { class: "own" }, "–");
    const shade = Math.max(0, Math.min(4, Math.floor((value - 0.5) * 10)));
    return make("td", { class: `heat heat-${shade}` }, percent(value));
  };
  box.replaceChildren(title,
    make("p", { class: "hint" }, "AUC: how often a task scores one of its own pictures higher than one of another task. 50 % is chance, 100 % is perfect."),
    make("div", { class: "panel scroll", tabindex: "0", role: "region", "aria-label": "AUC of each pair of tasks" }, make("table", { class: "grid" },
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "task"), grid.tasks.map((name) => make("th", { scope: "col" }, `against ${name}`)))),
      make("tbody", {}, grid.auc.map((row, i) => make("tr", {}, make("th", { scope: "row" }, grid.tasks[i]), row.map((value, j) => cell(value, i === j))))))));
}
