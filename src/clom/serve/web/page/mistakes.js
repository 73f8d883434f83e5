// Which classes are confused: a matrix, and the pictures of the most frequent confusions.

import { count, make } from "./dom.js";

/** Compare the class of each picture with its answer, null for unknown; `picture` is the address of its image. */
export function find(answered) {
  const classes = [...new Set([...answered.map((each) => each.truth), ...answered.map((each) => each.answer).filter((name) => name !== null).sort()])];
  const counts = classes.map((truth) => [...classes, null].map((answer) => answered.filter((each) => each.truth === truth && each.answer === answer).length));
  const pairs = new Map();
  for (const each of answered.filter((one) => one.truth !== one.answer)) {
    const key = JSON.stringify([each.truth, each.answer]);
    const pair = pairs.get(key) ?? { truth: each.truth, answer: each.answer, count: 0, pictures: [] };
    pair.count += 1;
    pair.pictures.push(each.picture);
    pairs.set(key, pair);
  }
  return { classes, counts, photos: answered.length, pairs: [...pairs.values()].sort((one, two) => two.count - one.count) };
}

export function draw(mistakes, what, open = false) {
  const { classes, counts, photos, pairs } = mistakes;
  const right = counts.reduce((sum, row, place) => sum + row[place], 0);
  const wrong = photos - right;
  const summary = make("summary", {}, wrong ? `${count(wrong, "mistake")} on ${count(photos, what)}` : `No mistakes on ${count(photos, what)}`);
  const unknown = counts.some((row) => row.at(-1));
  const rows = classes.map((name, own) => [name, unknown ? counts[own] : counts[own].slice(0, -1), own]).filter(([, row]) => row.some(Boolean));
  const most = Math.max(1, ...counts.flat());
  const matrix = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Confusion matrix" }, make("table", { class: "grid confusion" },
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "class"), [...classes, ...(unknown ? ["unknown"] : [])].map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, rows.map(([name, row, own]) => make("tr", {}, make("th", { scope: "row" }, name),
      row.map((value, place) => make("td", { class: place === own ? `own-${shade(value, most)}` : `heat-${shade(value, most)}` }, String(value))))))));
  const shown = pairs.map((pair) => make("li", {},
    make("p", {}, make("strong", {}, pair.truth), pair.answer === null ? " was rejected as unknown" : ` was taken for ${pair.answer}`, `: ${pair.count}`),
    make("ul", { class: "thumbnails still" }, pair.pictures.slice(0, 12).map((address) => make("li", { class: "thumbnail" }, make("img", { src: asBlob(address), alt: "" }))))));
  return make("details", { class: "panel mistakes", open }, summary, make("p", { class: "hint" }, "Rows: the class of the picture. Columns: the answer."), matrix, shown.length ? make("ul", { class: "pairs", "aria-label": "Most confused" }, shown) : null);
}

const shade = (value, most) => (value ? Math.max(1, Math.ceil((4 * value) / most)) : 0);

/** The page may not show data addresses, only pictures that it made itself. */
function asBlob(address) {
  if (!address.startsWith("data:image/jpeg;base64,")) return address;
  const bytes = Uint8Array.from(atob(address.split(",")[1]), (letter) => letter.charCodeAt(0));
  return URL.createObjectURL(new Blob([bytes], { type: "image/jpeg" }));
}
