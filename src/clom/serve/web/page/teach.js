// Teach: new classes with their pictures. What becomes of them is in lesson.js.

import * as api from "./api.js";
import * as camera from "./camera.js";
import { acceptDrops, bar, byId, count, make, percent, show } from "./dom.js";
import * as lesson from "./lesson.js";
import { isZip, picturesInZip } from "./zip.js";

const THUMBNAILS = 24;
const classes = []; // { row, input, files, urls, ... }
let about = null;
let open = true;

const form = {
  open() { open = true; show(byId("teach-form"), about.server.teaching); },
  close() { open = false; show(byId("teach-form"), false); },
  clear() {
    for (const entry of classes.splice(0)) { entry.urls.forEach((url) => URL.revokeObjectURL(url)); entry.row.remove(); }
    numbered = 0;
    byId("teach-name").value = "";
    addClass();
    addClass();
  },
};

export function setUp(listeners) {
  lesson.setUp(form, listeners);
  byId("teach-add").addEventListener("click", () => addClass().input.focus());
  byId("teach-folder").addEventListener("change", (event) => { addFolders([...event.target.files]); event.target.value = ""; });
  byId("teach-zip").addEventListener("change", (event) => { addZip(event.target.files[0]); event.target.value = ""; });
  for (const choice of document.querySelectorAll("[name=teach-mode]")) choice.addEventListener("change", showMode);
  byId("teach-form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  byId("teach-token").value = api.token.get();
  byId("teach-token").addEventListener("input", () => api.token.set(byId("teach-token").value));
  byId("teach-token-field").addEventListener("submit", (event) => event.preventDefault());
  addClass();
  addClass();
}

export function update(model) {
  about = model;
  const { server } = model;
  show(byId("teach-closed"), !server.teaching);
  byId("teach-closed").textContent = server.read_only
    ? "This server was started read-only: it predicts, but does not learn."
    : "Teaching is disabled: on a non-local address it requires a token, and the server was started without one.";
  show(byId("teach-token-field"), server.token_needed);
  show(byId("teach-form"), server.teaching && open);
  show(byId("teach-modes"), about.tasks.length > 0);
  byId("teach-more").disabled = !server.can_add;
  if (!server.can_add || !about.tasks.length) document.querySelector("[name=teach-mode][value=new]").checked = true;
  showMode();
}

export const watch = lesson.watch;

// --------------------------------------------------------------------------------------------- new classes, or more

const adds = () => byId("teach-more").checked;
const known = () => about.tasks.flatMap((task) => task.classes);
const nameOf = (entry) => (adds() ? entry.choice.value : entry.input.value.trim());

function showMode() {
  show(byId("teach-name-field"), !adds());
  byId("teach-mode-hint").textContent = !about.server.can_add
    ? `The method ${about.method} cannot add pictures to a class it knows: forget the task and teach it again.`
    : adds() ? "These classes get better; every other task stays exactly the same." : "";
  for (const entry of classes) showChoice(entry);
  classes.forEach(showAmount);
  showSummary();
}

/** A class that is known is chosen, a new one is named. */
function showChoice(entry) {
  const chosen = entry.choice.value || entry.input.value.trim();
  entry.choice.replaceChildren(make("option", { value: "" }, "Choose a class"), ...known().map((name) => make("option", { value: name }, name)));
  entry.choice.value = known().includes(chosen) ? chosen : "";
  show(entry.input, !adds());
  show(entry.choice, adds());
  entry.label.htmlFor = adds() ? entry.choice.id : entry.input.id;
}

/** After the page was loaded: is there a lesson that goes on, or one that waits for a decision? */
export async function findJob() {
  const [job] = await api.jobs();
  if (!job || !(["checked", "failed", "interrupted"].includes(job.state) || !api.isOver(job))) return;
  lesson.watch(job);
  if (!location.hash) location.hash = "#teach";
}

// ------------------------------------------------------------------------------------------------------------ classes

let numbered = 0;

function addClass(name = "", files = []) {
  numbered += 1;
  const id = `class-${numbered}`;
  const input = make("input", { type: "text", id: `${id}-name`, maxlength: "80", autocomplete: "off", placeholder: "for example: cat" });
  const chooser = make("input", { class: "away", type: "file", id: `${id}-files`, accept: "image/*", multiple: true });
  const entry = {
    id, input, files: [], urls: [],
    choice: make("select", { id: `${id}-choice`, onchange: () => showSummary() }),
    label: make("label", { for: `${id}-name` }, `Class ${numbered}`),
    thumbnails: make("ul", { class: "thumbnails", "aria-label": "Pictures of this class" }),
    amount: make("p", { class: "amount" }),
    meter: make("div", { class: "meter" }),
  };
  input.value = name;
  input.addEventListener("input", showSummary);
  chooser.addEventListener("change", () => { addFiles(entry, [...chooser.files]); chooser.value = ""; });
  entry.row = make("li", { class: "panel class" },
    make("div", { class: "field" }, entry.label, input, entry.choice),
    make("div", { class: "class-drop" },
      entry.thumbnails, make("div", { class: "buttons" }, chooser, make("label", { class: "button", for: `${id}-files` }, "Add pictures"),
        make("button", { class: "button", type: "button", onclick: () => camera.open((file) => addFiles(entry, [file]), { many: true }) }, "Camera", make("span", { class: "away" }, ` for class ${numbered}`))), make("p", { class: "hint wide-only" }, "or drop them here")),
    make("div", { class: "class-foot" }, make("div", { class: "how-many" }, entry.meter, entry.amount),
      make("button", { class: "button small quiet", type: "button", onclick: () => removeClass(entry) }, "Remove", make("span", { class: "away" }, ` class ${numbered}`))));
  acceptDrops(entry.row, (dropped) => addFiles(entry, dropped));
  classes.push(entry);
  byId("teach-classes").append(entry.row);
  if (about) showChoice(entry); else show(entry.choice, false);
  addFiles(entry, files);
  return entry;
}

function removeClass(entry) {
  entry.urls.forEach((url) => URL.revokeObjectURL(url));
  classes.splice(classes.indexOf(entry), 1);
  entry.row.remove();
  if (classes.length === 0) addClass();
  showSummary();
  byId("teach-add").focus();
}

function addFiles(entry, files) {
  files.filter(isZip).forEach(addZip);
  const fresh = files.filter((file) => !file.type || file.type.startsWith("image/")).filter((file) => !isZip(file));
  for (const file of fresh) {
    entry.files.push(file);
    if (entry.files.length > THUMBNAILS) continue;
    const url = URL.createObjectURL(file);
    entry.urls.push(url);
    const image = make("img", { src: url, alt: "" });
    const remove = make("button", { class: "thumbnail", type: "button", title: `Remove ${file.name}`, "aria-label": `Remove ${file.name}` }, image);
    const item = make("li", {}, remove);
    remove.addEventListener("click", () => {
      entry.files.splice(entry.files.indexOf(file), 1);
      item.remove();
      showAmount(entry);
      showSummary();
    });
    entry.thumbnails.append(item);
  }
  showAmount(entry);
  showSummary();
}

function addFolders(files) {
  const byFolder = new Map();
  for (const file of files) {
    const parts = file.webkitRelativePath.split("/");
    if (file.name.startsWith(".") || parts.length < 2) continue;
    const folder = parts.at(-2);
    byFolder.set(folder, [...(byFolder.get(folder) ?? []), file]);
  }
  addClasses(byFolder);
}

async function addZip(file) {
  if (!file) return;
  byId("teach-summary").textContent = `Unpacking ${file.name} …`;
  try {
    addClasses(await picturesInZip(file));
    showSummary();
  } catch (problem) {
    showSummary();
    complain(problem.message, byId("teach-zip"));
  }
}

/** Classes by the names of their folders; those that are still empty make room. */
function addClasses(byFolder) {
  for (const entry of classes.filter((each) => !each.input.value && !each.files.length)) {
    if (byFolder.size) { classes.splice(classes.indexOf(entry), 1); entry.row.remove(); }
  }
  for (const [folder, inside] of byFolder) {
    const same = classes.find((entry) => nameOf(entry) === folder);
    if (same) addFiles(same, inside); else addClass(folder, inside);
  }
}

function showAmount(entry) {
  if (!about) return;
  const good = about.server.good_pictures;
  const least = leastPictures();
  const n = entry.files.length;
  entry.meter.replaceChildren(bar(n / good, n < least ? "low" : n < good ? "fair" : "good"));
  const more = n > THUMBNAILS ? ` (${n - THUMBNAILS} not shown)` : "";
  entry.amount.textContent =
    n < least ? `${count(n, "picture")}: at least ${least} ${least === 1 ? "is" : "are"} required` :
    adds() ? `${count(n, "picture")}${more}` :
    n < good ? `${count(n, "picture")}${more}: enough to start, ${good} are better` :
    `${count(n, "picture")}${more}: plenty`;
}

// ------------------------------------------------------------------------------------------------------------- sending

const leastPictures = () => (adds() ? 1 : about.server.least_pictures);

function used() {
  return classes.filter((entry) => nameOf(entry) || entry.files.length);
}

/** What is missing, or nothing. */
function problem() {
  const least = leastPictures();
  const wanted = used();
  const field = (entry) => (adds() ? entry.choice : entry.input);
  if (adds() && !wanted.length) return ["Choose a class, and add pictures of it.", classes[0].choice];
  if (!adds() && wanted.length < 2) return ["Name two classes or more, and add pictures of each.", classes.find((entry) => !nameOf(entry))?.input];
  const taken = adds() ? new Map() : new Map(about.tasks.flatMap((task) => task.classes.map((name) => [name, task.name])));
  const seen = new Set();
  for (const entry of wanted) {
    const name = nameOf(entry);
    if (!name) return ["One class has pictures but no name.", field(entry)];
    if (taken.has(name)) return [`It knows “${name}” already, from “${taken.get(name)}”. Choose another name, or “More pictures of classes it knows”.`, entry.input];
    if (seen.has(name)) return [`Two classes are called “${name}”.`, field(entry)];
    if (entry.files.length < least) return [`“${name}” needs ${count(least, "picture")} or more; it has ${entry.files.length}.`, byId(`${entry.id}-files`)];
    seen.add(name);
  }
  if (about.server.token_needed && !byId("teach-token").value) return ["Enter the token.", byId("teach-token")];
  return ["", null];
}

function showSummary() {
  const wanted = used();
  const total = wanted.reduce((sum, entry) => sum + entry.files.length, 0);
  byId("teach-summary").textContent = total
    ? `${count(wanted.length, "class", "classes")}, ${count(total, "picture")}.${adds() ? "" : " One in five is held out for validation."}`
    : "";
  show(byId("teach-problem"), false);
  for (const field of document.querySelectorAll("[aria-invalid]")) { field.removeAttribute("aria-invalid"); field.removeAttribute("aria-describedby"); }
}

function complain(text, field) {
  byId("teach-problem").textContent = text;
  show(byId("teach-problem"));
  field?.setAttribute("aria-invalid", "true");
  field?.setAttribute("aria-describedby", "teach-problem");
  field?.focus();
}

async function send() {
  const [text, field] = problem();
  if (text) return complain(text, field);
  const button = byId("teach-go");
  button.disabled = true;
  try {
    const wanted = used().map((entry) => ({ label: nameOf(entry), files: entry.files }));
    const job = await api.teach(adds() ? "" : byId("teach-name").value.trim(), wanted, (share) => {
      byId("teach-summary").textContent = share < 1 ? `Sending pictures: ${percent(share)}` : "Reading the pictures …";
    }, { adds: adds() });
    lesson.watch(job);
  } catch (refusal) {
    complain(refusal.message, refusal.status === 401 ? byId("teach-token") : null);
  } finally {
    button.disabled = false;
  }
}
