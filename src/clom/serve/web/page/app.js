// Start: which section is shown, and news of the model and of a lesson for all of them.

import * as api from "./api.js";
import * as ask from "./ask.js";
import * as camera from "./camera.js";
import { byId, count, duration, show } from "./dom.js";
import * as inside from "./inside.js";
import * as teach from "./teach.js";

const SECTIONS = ["ask", "teach", "inside"];

function showSection(moved) {
  const wanted = location.hash.slice(1);
  if (wanted === "main") return;
  const name = SECTIONS.includes(wanted) ? wanted : "ask";
  for (const section of SECTIONS) show(byId(section), section === name);
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (moved) { window.scrollTo(0, 0); byId("main").focus({ preventScroll: true }); }
  if (name === "inside") inside.opened();
}

async function refresh() {
  const about = await api.model();
  ask.update(about);
  teach.update(about);
  inside.update(about);
  const classes = about.tasks.reduce((sum, task) => sum + task.classes.length, 0);
  idle = `${about.file}: ${count(about.tasks.length, "task")}, ${count(classes, "class", "classes")}`;
  showStatus(null);
}

let idle = "";

function showStatus(job) {
  const learning = job && !api.isOver(job);
  byId("status").classList.toggle("busy", Boolean(learning));
  if (!learning) byId("status").textContent = idle;
  else {
    const left = job.seconds_left === null ? "" : `, ${duration(job.seconds_left)} left`;
    byId("status").textContent = `Learning ${job.task}: ${Math.round(100 * job.progress)} %${left}`;
  }
}

async function start() {
  camera.setUp();
  ask.setUp({ onJob: teach.watch });
  inside.setUp();
  teach.setUp({ onJob: showStatus, onLearned: refresh });
  document.addEventListener("model-changed", refresh); // somebody else taught it
  window.addEventListener("hashchange", () => showSection(true));
  // A picture that misses the target should not replace the page.
  for (const name of ["dragover", "drop"]) document.addEventListener(name, (event) => event.preventDefault());
  showSection(false);
  byId("closed").addEventListener("submit", (event) => {
    event.preventDefault();
    api.token.set(byId("closed-token").value);
    load(api.openSession);
  });
  await load();
}

/** Fill the page; a server that others can reach asks for its token first. */
async function load(first = async () => {}) {
  try {
    await first();
    await refresh();
    show(byId("broken"), false);
    show(byId("closed"), false);
    byId("teach-token").value = api.token.get();
  } catch (problem) {
    show(byId("closed"), problem.status === 401);
    byId("broken").textContent = problem.message;
    show(byId("broken"));
    return;
  }
  await teach.findJob().catch(() => {}); // lessons stay closed to those who may only ask
}

start();
