// Small helpers: elements, numbers and times as people read them.

/** An element with properties and children; text children are text, never markup. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

export function show(element, visible = true) {
  element.hidden = !visible;
}

/** A bar that fills a share of its width; what it says must stand beside it. */
export function bar(share, kind = "") {
  const fill = make("span", { class: `fill ${kind}` });
  fill.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return make("span", { class: "bar", "aria-hidden": "true" }, fill);
}

export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

export function duration(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export function day(text) {
  const moment = new Date(text);
  return Number.isNaN(moment.valueOf())
    ? text
    : moment.toLocaleString("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });
}

export function bytes(number) {
  return number < 1e6 ? `${Math.round(number / 1e3)} kB` : `${(number / 1e6).toFixed(1)} MB`;
}

/** Let files be dropped on an element. */
export function acceptDrops(element, onFiles) {
  let depth = 0;
  const leave = () => { depth = 0; element.classList.remove("over"); };
  element.addEventListener("dragenter", (event) => { event.preventDefault(); depth += 1; element.classList.add("over"); });
  element.addEventListener("dragover", (event) => event.preventDefault());
  element.addEventListener("dragleave", () => { depth -= 1; if (depth <= 0) leave(); });
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    leave();
    onFiles([...event.dataTransfer.files]);
  });
}
