// Changes that need no lesson: other names, merged classes, forgotten tasks, and undo. Each asks once.

import * as api from "./api.js";
import { byId, make, show } from "./dom.js";

let act = async () => {};

export function setUp() {
  const dialog = byId("change");
  byId("change-cancel").addEventListener("click", () => dialog.close());
  byId("change-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    byId("change-go").disabled = true;
    try {
      const { said } = await act();
      dialog.close();
      byId("inside-said").textContent = said;
      document.dispatchEvent(new Event("model-changed"));
    } catch (problem) {
      byId("change-problem").textContent = problem.status === 401 ? "Enter the right token in “Teach” first." : problem.message;
      show(byId("change-problem"));
    } finally {
      byId("change-go").disabled = false;
    }
  });
}

function ask(title, text, field, button, action, dangerous = false) {
  byId("change-title").textContent = title;
  byId("change-text").textContent = text;
  byId("change-fields").replaceChildren(...(field ? [field] : []));
  byId("change-go").textContent = button;
  byId("change-go").classList.toggle("danger", dangerous);
  show(byId("change-problem"), false);
  act = action;
  byId("change").showModal();
  (field?.querySelector("input, select") ?? byId("change-cancel")).focus();
}

function nameField(label, value) {
  const input = make("input", { type: "text", id: "change-name", maxlength: "80", autocomplete: "off", required: true });
  input.value = value;
  return make("div", { class: "field" }, make("label", { for: "change-name" }, label), input);
}

export function renameTask(name) {
  ask(`Rename ${name}`, "Only the name changes.", nameField("New name of the task", name), "Rename", () => api.renameTask(name, byId("change-name").value));
}

export function renameClass(name) {
  ask(`Rename ${name}`, "Only the name changes.", nameField("New name of the class", name), "Rename", () => api.renameClass(name, byId("change-name").value));
}

export function mergeClass(name, others) {
  const select = make("select", { id: "change-name" }, others.map((other) => make("option", { value: other }, other)));
  ask(`Merge ${name}`, `Pictures of ${name} will be answered as the other class. No score of the model changes.`,
    make("div", { class: "field" }, make("label", { for: "change-name" }, "Answer it as"), select), "Merge", () => api.merge(name, byId("change-name").value));
}

export function forgetTask(task) {
  ask(`Forget ${task.name}?`, `It will no longer know ${task.classes.join(", ")}. The other tasks stay exactly the same. This cannot be undone.`,
    null, "Forget it", () => api.forget(task.name), true);
}

export function undo() {
  ask("Undo the last change?", "The model becomes exactly what it was before the last lesson, added pictures, new name or merge. This can be done once.",
    null, "Undo it", () => api.undo());
}
