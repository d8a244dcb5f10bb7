// One cluster: its head, and the view that its tab names.

import { chains } from "./chains.js";
import { href } from "./clusters.js";
import { STATES, WORDS, h, icon, plural, show } from "./dom.js";
import { machines } from "./machines.js";
import { plan } from "./plan.js";
import { timeline } from "./timeline.js";

// A further view is a further entry: the name in the address, its title and its function.
const TABS = { "": ["Overview", tree], timeline: ["Timeline", timeline], machines: ["Machines", machines], plan: ["Plan", plan] };
let drawn = "";

export function cluster(main, view, key, tab, state, { act, planned }) {
  if (!view) {
    drawn = "";
    show(main, back(), h("p", { class: "notice" }, state.focus === undefined ? "Loading" : "This cluster no longer exists."));
    return;
  }
  const json = JSON.stringify([view, tab, state.actions]);
  if (json === drawn && main.querySelector(".detail")) return;
  drawn = json;
  const [, draw] = TABS[tab] ?? TABS[""];
  if (main.querySelector(".detail")?.dataset.shown !== `${key} ${tab}`) {
    show(main, h("div", { class: "detail", "data-shown": `${key} ${tab}` }, back(), h("header", { class: "head" }), h("nav", { class: "tabs", "aria-label": "Views" }), h("div", { class: "view" })));
  }
  show(main.querySelector(".head"), ...head(view.summary, key, state.actions, act));
  show(main.querySelector(".tabs"), Object.entries(TABS).map(([name, [title]]) =>
    h("a", { href: href("clusters", key, name), "aria-current": name === tab ? "page" : null, "data-key": `tab ${name}` }, title)),
    view.summary.clusterClass && h("a", { href: href("classes", view.summary.clusterClass) }, "Compare"));
  draw(main.querySelector(".view"), view, { versions: state.versions, request: (version) => planned(key, version) });
}

const back = () => h("a", { class: "back", href: "#/" }, "All clusters");

function head(summary, key, actions, act) {
  const count = STATES.reduce((sum, state) => sum + summary.machines[state], 0);
  return [
    h("h1", {}, icon(summary.state), summary.name),
    h("p", { class: "facts" },
      h("span", { class: `state ${summary.state}` }, summary.paused ? "paused" : WORDS[summary.state]),
      h("span", {}, "namespace ", h("b", {}, summary.namespace)),
      summary.version && h("span", {}, "version ", h("b", {}, summary.version)),
      h("span", {}, h("b", {}, plural(count, "machine"))),
      summary.clusterClass && h("span", {}, "class ", h("b", {}, summary.clusterClass.split("/")[1]))),
    actions.length && h("p", { class: "actions" }, actions.map((action) =>
      h("button", { type: "button", "data-key": `act ${action}`, onclick: () => confirm(key, action, act) }, action[0].toUpperCase() + action.slice(1)))),
  ];
}

const EFFECTS = {
  upgrade: "It goes to the next minor version of Kubernetes.",
  sleep: "Its control plane stops. Its data stays.",
  wake: "Its control plane starts again.",
};

function confirm(key, action, act) {
  const problem = h("p", { class: "message", role: "alert" });
  const dialog = h("dialog", { "aria-labelledby": "question", onclose: () => dialog.remove() },
    h("h2", { id: "question" }, `${action[0].toUpperCase()}${action.slice(1)} ${key.split("/")[1]}?`),
    h("p", {}, EFFECTS[action]), problem,
    h("p", { class: "actions" },
      h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
      h("button", { type: "button", class: "main", onclick: async () => {
        problem.textContent = await act(key, action);
        if (!problem.textContent) dialog.close();
      } }, "Confirm")));
  document.body.append(dialog);
  dialog.showModal();
}

function tree(element, view) {
  const waits = view.summary.explanation?.chains.length || !["good", "asleep"].includes(view.summary.state);
  show(element,
    waits && h("section", { class: "why" }, h("h2", {}, "Why it waits"), chains(view.summary)),
    h("section", {}, h("h2", {}, "Objects"), h("ul", { class: "tree" }, branch(view.tree, view.tree.title))));
}

function branch(row, path) {
  if (!row.children.length) return h("li", {}, line("div", row));
  return h("li", {},
    h("details", { open: true, "data-key": path }, line("summary", row, path),
      h("ul", {}, row.children.map((child) => branch(child, `${path} ${child.title}`)))));
}

function line(tag, row, path) {
  const [kind, name] = row.title.includes("/") ? row.title.split(/\/(.*)/) : ["", row.title];
  return h(tag, { class: "row", "data-key": path && `line ${path}` },
    icon(row.state),
    h("span", { class: "object" }, kind && h("small", {}, kind), " ", h("b", {}, name)),
    row.counts && h("span", { class: "counts" }, row.counts),
    row.version && h("span", { class: "version" }, row.version),
    row.message && h("span", { class: "text" }, row.message));
}
