// Without scripts the page loses its copy buttons and the mark in the contents, nothing else.
for (const box of document.querySelectorAll(".command")) {
  const code = box.querySelector("code"), button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.setAttribute("aria-live", "polite");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);  // where the clipboard is not allowed
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  box.append(button);
}
const links = new Map([...document.querySelectorAll("nav a")].map(link => [link.hash.slice(1), link]));
const targets = [...links.keys()].map(id => document.getElementById(id));
const mark = () => {
  const passed = targets.filter(target => target.getBoundingClientRect().top < innerHeight / 3);
  for (const link of links.values()) link.removeAttribute("aria-current");
  const current = links.get((passed.at(-1) ?? targets[0]).id);
  current.setAttribute("aria-current", "true");
  if (matchMedia("(max-width: 69.99rem)").matches) current.closest("nav").scrollLeft = current.offsetLeft - 16;
};
addEventListener("scroll", mark, { passive: true });
mark();
