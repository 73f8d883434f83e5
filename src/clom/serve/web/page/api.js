// Everything that is asked of the server. Errors are texts that can be shown as they are.

export class Refused extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

const TOKEN = "clom-token";

/** Kept for this tab only. */
export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (value) => sessionStorage.setItem(TOKEN, value),
};

// A header holds bytes: letters beyond Latin-1 are sent as UTF-8.
const asBytes = (text) => String.fromCharCode(...new TextEncoder().encode(text));
const authorization = () => (token.get() ? { Authorization: `Bearer ${asBytes(token.get())}` } : {});

async function read(response) {
  let content = {};
  try { content = await response.json(); } catch { /* an answer without a body */ }
  if (!response.ok) throw new Refused(response.status, content.error ?? `The server answered with status ${response.status}.`);
  return content;
}

async function ask(path, options = {}) {
  let response;
  try { response = await fetch(path, options); } catch { throw new Error("The server does not answer. Is it still running?"); }
  return read(response);
}

/** Links and progress events cannot carry the token; for them the browser gets a cookie. */
export const openSession = () => ask("/session", { method: "POST", headers: authorization() });
export const model = () => ask("/model");
export const inspection = () => ask("/model/inspection");
export const jobs = async () => (await ask("/jobs")).jobs;
export const cancel = (id) => ask(`/jobs/${encodeURIComponent(id)}`, { method: "DELETE", headers: authorization() });
export const resume = (id) => ask(`/jobs/${encodeURIComponent(id)}/resume`, { method: "POST", headers: authorization() });

export function predict(files, { task = "", top = 5 } = {}) {
  const form = new FormData();
  for (const file of files) form.append("pictures", file, file.name);
  const query = new URLSearchParams({ top, ...(task ? { task } : {}) });
  return ask(`/predict?${query}`, { method: "POST", body: form });
}

function change(method, path, content) {
  const body = content === undefined ? undefined : JSON.stringify(content);
  return ask(path, { method, body, headers: { ...authorization(), ...(body ? { "Content-Type": "application/json" } : {}) } });
}

export const forget = (task) => change("DELETE", `/tasks/${encodeURIComponent(task)}`);
export const renameTask = (task, name) => change("PATCH", `/tasks/${encodeURIComponent(task)}`, { new_name: name });
export const renameClass = (known, name) => change("PATCH", `/classes/${encodeURIComponent(known)}`, { new_name: name });
export const merge = (name, into) => change("POST", "/merge", { name, into });
export const undo = () => change("POST", "/undo");

/** Send a lesson, or with `adds` more pictures of known classes; `onSent` is told which share of it has left. */
export function teach(name, classes, onSent, { adds = false, stopAtHints = true } = {}) {
  const form = new FormData();
  if (name) form.append("name", name);
  for (const { label, files } of classes) {
    for (const file of files) {
      form.append("labels", label);
      form.append("pictures", file, file.name);
    }
  }
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", `${adds ? "/pictures" : "/tasks"}?stop_at_hints=${stopAtHints}`);
    for (const [header, value] of Object.entries(authorization())) request.setRequestHeader(header, value);
    request.upload.addEventListener("progress", (event) => event.lengthComputable && onSent(event.loaded / event.total));
    request.addEventListener("error", () => reject(new Error("The pictures could not be sent. Is the server still running?")));
    request.addEventListener("load", () => {
      let content = {};
      try { content = JSON.parse(request.responseText); } catch { /* shown by its status */ }
      if (request.status < 400) resolve(content);
      else reject(new Refused(request.status, content.error ?? `The server answered with status ${request.status}.`));
    });
    request.send(form);
  });
}

/** Tell `onJob` how a lesson is, until it is over. Connections that break are made again. */
export function follow(id, onJob, onLost) {
  const source = new EventSource(`/jobs/${encodeURIComponent(id)}/events`);
  source.addEventListener("job", (event) => {
    const job = JSON.parse(event.data);
    if (isOver(job)) source.close();
    onJob(job);
  });
  source.addEventListener("error", () => onLost());
  return () => source.close();
}

export const isOver = (job) => !["preparing", "learning", "checking"].includes(job.state);
