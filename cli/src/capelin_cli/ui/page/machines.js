// Large pools as heat maps: a cell for each Machine, by state or by version.

import { STATES, WORDS, h, plural, show } from "./dom.js";

let by = "state";
let active = "";

export function machines(element, view) {
  if (!view.machines.length) return show(element, h("p", { class: "notice" }, "This cluster has no Machines."));
  const versions = [...new Set(view.machines.flatMap((set) => set.versions))].sort();
  if (element.dataset.by !== by || element.dataset.versions !== versions.join() || element.querySelectorAll(".heat").length !== view.machines.length) {
    element.dataset.by = by;
    element.dataset.versions = versions.join();
    show(element,
      h("div", { class: "choice", role: "group", "aria-label": "Colour" }, ["state", "version"].map((name) =>
        h("button", { type: "button", "aria-pressed": String(by === name), "data-key": `by ${name}`, onclick: () => { by = name; machines(element, view); } }, `By ${name}`))),
      h("ul", { class: "legend" }),
      view.machines.map(() => h("section", { class: "heat" },
        h("h2", {}), h("div", { class: "cells", role: "listbox", tabindex: "0", onkeydown: keys, onclick: choose, onfocus: first, onpointerover: hover }), h("p", { class: "left dim" }))),
      h("p", { class: "machine", role: "status" }));
  }
  show(element.querySelector(".legend"), legend(view.machines, versions));
  element.querySelectorAll(".heat").forEach((section, index) => draw(section, view.machines[index], versions));
  tell(element.querySelector(".cell.active"));
}

function legend(sets, versions) {
  const count = (column, value) => sets.reduce((sum, set) => sum + set[column].filter((each) => each === value).length, 0);
  if (by === "version") return versions.map((version, index) => item(tint(index), version || "no version", count("versions", version)));
  return STATES.filter((state) => count("states", state)).map((state) => item(state, WORDS[state], count("states", state)));
}
const item = (kind, label, count) => h("li", {}, h("i", { class: `cell ${kind}`, "aria-hidden": "true" }), `${label} `, h("b", {}, count.toLocaleString("en")));
const tint = (index) => `tint${Math.min(index, 5)}`;

function draw(section, set, versions) {
  const title = set.title === "ControlPlane" ? "Control plane" : set.title.split("/").at(-1);
  section.querySelector("h2").replaceChildren(title, h("small", {}, plural(set.names.length, "machine")));
  section.querySelector(".left").textContent = set.leftOut ? `${plural(set.leftOut, "more machine")} not shown.` : "";
  const cells = section.querySelector(".cells");
  cells.setAttribute("aria-label", `Machines of ${title}`);
  while (cells.children.length > set.names.length) cells.lastElementChild.remove();
  const added = document.createDocumentFragment();
  for (let index = cells.children.length; index < set.names.length; index++) {
    added.append(h("i", { role: "option", id: `cell ${set.title} ${index}`.replaceAll(" ", "-") }));
  }
  cells.append(added);
  set.names.forEach((name, index) => {
    const cell = cells.children[index];
    const kind = by === "version" ? tint(versions.indexOf(set.versions[index])) : set.states[index];
    const text = [name, WORDS[set.states[index]], set.phases[index], set.versions[index], set.messages[name]].filter(Boolean).join(" · ");
    const wanted = `cell ${kind}${name === active ? " active" : ""}`;
    if (cell.className !== wanted) cell.className = wanted;
    if (cell.ariaLabel !== text) {
      cell.ariaLabel = text;
      cell.dataset.name = name;
    }
  });
}

function activate(cells, cell) {
  if (!cell) return;
  cells.closest(".view").querySelector(".cell.active")?.classList.remove("active");
  active = cell.dataset.name;
  cell.classList.add("active");
  cells.setAttribute("aria-activedescendant", cell.id);
  cell.scrollIntoView({ block: "nearest" });
  tell(cell);
}

function tell(cell) {
  const text = cell?.ariaLabel ?? "";
  const status = cell?.closest(".view").querySelector(".machine");
  if (status && status.textContent !== text) status.textContent = text;
}

const choose = (event) => activate(event.currentTarget, event.target.closest(".cell"));
const hover = (event) => event.target.matches(".cell") && (event.target.title = event.target.ariaLabel);
const first = (event) => { if (!event.currentTarget.querySelector(".active")) activate(event.currentTarget, event.currentTarget.firstElementChild); };

function keys(event) {
  const cells = event.currentTarget;
  const all = [...cells.children];
  const at = Math.max(0, all.findIndex((each) => each.classList.contains("active")));
  const columns = all.filter((each) => each.offsetTop === all[0].offsetTop).length;
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -at, End: all.length - 1 - at }[event.key];
  if (step === undefined) return;
  event.preventDefault();
  activate(cells, all[Math.min(all.length - 1, Math.max(0, at + step))]);
}
