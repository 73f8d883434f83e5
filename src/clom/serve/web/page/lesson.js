// A lesson: progress, cancelling, going on after an interruption, and the proof that nothing else changed.

import * as api from "./api.js";
import { byId, count, duration, make, percent, show } from "./dom.js";
import * as mistakes from "./mistakes.js";

let form = { close() {}, open() {}, clear() {} };
let listeners = { onJob() {}, async onLearned() {} };

/** `form` is what a lesson takes the place of. */
export function setUp(theForm, given) {
  form = theForm;
  listeners = given;
}

export function watch(job) {
  form.close();
  drawJob(job);
  if (api.isOver(job)) return;
  const stop = api.follow(job.id, async (news) => {
    if (api.isOver(news)) {
      stop();
      if (news.state === "done") { form.clear(); await listeners.onLearned(); }
      byId("teach-said").textContent = { done: "Learned.", cancelled: "Cancelled.", failed: news.problem }[news.state] ?? "";
    }
    drawJob(news);
  }, () => { const line = byId("teach-job").querySelector(".left"); if (line) line.textContent = "The server does not answer at the moment …"; });
}

function drawJob(job) {
  listeners.onJob(job);
  const shown = { checked: drawHints, done: job.adds ? drawAdded : drawDone, failed: drawWaiting, interrupted: drawWaiting, cancelled: drawCancelled }[job.state] ?? drawRunning;
  shown(job);
}

const summaryOf = (job) => job.classes.map((each) => `${each.name} (${each.pictures})`).join(", ");

function drawRunning(job) {
  const box = byId("teach-job");
  if (box.dataset.running !== job.id || !box.querySelector("progress")) {
    box.dataset.running = job.id;
    const cancel = make("button", { class: "button", type: "button" }, "Cancel");
    cancel.addEventListener("click", () => act(cancel, () => api.cancel(job.id)));
    box.replaceChildren(make("div", { class: "panel job" },
      make("h2", { id: "job-title" }, `Learning ${job.task}`), make("p", { class: "hint" }, summaryOf(job)),
      make("progress", { max: "1", "aria-labelledby": "job-title" }), make("p", { class: "left", role: "status" }),
      make("p", { class: "hint" }, "You can close or reload this page; training continues, and predictions stay available."),
      unreadable(job), make("div", { class: "buttons" }, cancel)));
  }
  const progress = box.querySelector("progress");
  if (job.state === "preparing") progress.removeAttribute("value"); else progress.value = job.progress;
  const left = job.seconds_left === null ? "" : `, about ${duration(job.seconds_left)} left`;
  box.querySelector(".left").textContent =
    { preparing: "Getting ready …", checking: "Checking that nothing else changed …" }[job.state] ?? `${percent(job.progress)}${left}`;
}

/** Something was noticed about the pictures: learn all the same, or change them. */
function drawHints(job) {
  const on = make("button", { class: "button main", type: "button" }, "Learn anyway");
  const off = make("button", { class: "button", type: "button" }, "Change the pictures");
  on.addEventListener("click", () => act(on, async () => watch(await api.resume(job.id))));
  off.addEventListener("click", () => act(off, async () => { await api.cancel(job.id); byId("teach-job").replaceChildren(); form.open(); byId("teach-go").focus(); }));
  byId("teach-job").replaceChildren(make("div", { class: "panel job" },
    make("h2", { id: "job-hints", tabindex: "-1" }, "Look at these pictures first"),
    hintList(job),
    make("p", { class: "hint" }, "Nothing has been learned yet."),
    make("p", { class: "note bad said-here", role: "alert", hidden: true }),
    make("div", { class: "buttons" }, on, off)));
  byId("job-hints").focus();
}

function hintList(job) {
  return job.hints.length ? make("ul", { class: "hints", "aria-label": "Hints on the pictures" }, job.hints.map((hint) => make("li", {}, hint.text))) : null;
}

function drawWaiting(job) {
  const on = make("button", { class: "button main", type: "button" }, "Resume");
  const off = make("button", { class: "button", type: "button" }, "Discard");
  on.addEventListener("click", () => act(on, async () => watch(await api.resume(job.id))));
  off.addEventListener("click", () => act(off, async () => drawJob(await api.cancel(job.id))));
  const pictures = job.classes.reduce((sum, each) => sum + each.pictures, 0);
  byId("teach-job").replaceChildren(make("div", { class: "panel job" },
    make("h2", {}, job.state === "failed" ? `${job.task} was not learned` : `${job.task} was interrupted`),
    job.problem ? make("p", { class: "note bad" }, job.problem) : null,
    make("p", {}, `The model is unchanged, and ${count(pictures, "picture")} are stored (${summaryOf(job)}). “Resume” continues with them.`),
    make("p", { class: "note bad said-here", role: "alert", hidden: true }),
    make("div", { class: "buttons" }, on, off)));
}

function drawCancelled() {
  form.open();
  byId("teach-job").replaceChildren(make("p", { class: "note" }, "Cancelled. The model is unchanged."));
}

function drawDone(job) {
  const { lesson } = job;
  const more = make("button", { class: "button", type: "button", onclick: () => { byId("teach-job").replaceChildren(); form.open(); byId("teach-name").focus(); } }, "Teach something else");
  byId("teach-job").replaceChildren(make("div", { class: "panel job done" },
    make("h2", { tabindex: "-1", id: "job-done" }, `Learned: ${job.classes.map((each) => each.name).join(", ")}`),
    lesson ? make("dl", { class: "tiles small" },
      tile("accuracy on held-out pictures", percent(lesson.accuracy)),
      lesson.n_tasks > 1 ? tile(`among all ${lesson.n_classes} classes`, percent(lesson.accuracy_among_all)) : null,
      tile("time", duration(lesson.seconds))) : null,
    lesson && lesson.accuracy < 0.7 ? make("p", { class: "note" }, "That is low. More pictures of each class help most.") : null,
    lesson?.nearly_full.length ? make("p", { class: "note" }, `Nearly full: ${lesson.nearly_full.join(", ")}. Further tasks may learn little.`) : null,
    lesson?.mistakes ? mistakes.draw(lesson.mistakes, "held-out picture") : null,
    job.hints.length ? make("details", {}, make("summary", {}, count(job.hints.length, "hint on the pictures", "hints on the pictures")), hintList(job)) : null,
    proof(job.checks), unreadable(job),
    make("div", { class: "buttons" }, make("a", { class: "button main", href: "#ask" }, "Ask it"), more)));
}

function drawAdded(job) {
  const { lesson } = job;
  const total = job.classes.reduce((sum, each) => sum + each.pictures, 0);
  const more = make("button", { class: "button", type: "button", onclick: () => { byId("teach-job").replaceChildren(); form.open(); } }, "Teach more");
  const right = lesson?.right_left_out ?? lesson?.right_after;
  byId("teach-job").replaceChildren(make("div", { class: "panel job done" },
    make("h2", { tabindex: "-1", id: "job-done" }, `Added: ${summaryOf(job)}`),
    lesson ? make("dl", { class: "tiles small" },
      tile("of these pictures right before", `${lesson.right_before} of ${total}`), tile(lesson.right_left_out === null ? "right now" : "right now, each left out of the fit", `${right} of ${total}`),
      tile("changed", lesson.changed.join(", "))) : null,
    lesson?.shared ? make("p", { class: "hint" }, lesson.shared) : null,
    proof(job.checks.filter((check) => !lesson?.changed.includes(check.task))), unreadable(job),
    make("div", { class: "buttons" }, make("a", { class: "button main", href: "#ask" }, "Ask it"), more)));
}

function tile(name, value) {
  return make("div", {}, make("dt", {}, name), make("dd", {}, value));
}

/** The old tasks' fingerprints, as `clom verify` compares them. */
function proof(checks) {
  const old = checks.filter((check) => check.verdict !== "new");
  if (!old.length) return null;
  const same = old.every((check) => check.verdict === "identical");
  return make("div", { class: `proof ${same ? "good" : "bad"}` },
    make("h3", {}, same ? "Nothing was forgotten" : "Something changed"),
    make("p", {}, same ? `${old.length === 1 ? "The earlier task is" : `All ${old.length} earlier tasks are`} bit-identical.` : "Not every earlier task is bit-identical."),
    make("ul", { class: "prints" }, old.map((check) => make("li", {},
      make("span", { class: "name" }, check.task), make("span", { class: "mark" }, check.verdict),
      make("code", { title: check.fingerprint }, check.fingerprint.slice(0, 16) || "no fingerprint")))));
}

function unreadable(job) {
  if (!job.unreadable.length) return null;
  return make("details", {}, make("summary", {}, `${count(job.unreadable.length, "file")} could not be read`),
    make("ul", {}, job.unreadable.map((file) => make("li", {}, `${file.file}: ${file.reason}`))));
}

async function act(button, action) {
  button.disabled = true;
  try { await action(); } catch (problem) {
    const place = byId("teach-job").querySelector(".said-here") ?? byId("teach-said");
    place.textContent = problem.message;
    show(place);
    button.disabled = false;
  }
}
