// The list of all clusters, and the page of those that need attention.

import { chains } from "./chains.js";
import { STATES, WORDS, h, icon, plural, show } from "./dom.js";

export const href = (kind, key, tab = "") => `#/${kind}/${key.split("/").map(encodeURIComponent).join("/")}${tab && `/${tab}`}`;

export function matches(cluster, filter, attention) {
  if (attention && ["good", "asleep"].includes(cluster.state) && !cluster.paused) return false;
  const words = `${cluster.namespace}/${cluster.name} ${cluster.clusterClass} ${cluster.version} ${cluster.state} ${WORDS[cluster.state]}`;
  return words.toLowerCase().includes(filter);
}

// Only entries that changed get new elements.
const entries = new Map();
export function listClusters(list, clusters, selected) {
  const wanted = [];
  for (const cluster of clusters) {
    const key = `${cluster.namespace}/${cluster.name}`;
    const json = JSON.stringify([{ ...cluster, explanation: null }, key === selected]);
    if (entries.get(key)?.json !== json) {
      const focused = entries.get(key)?.element.contains(document.activeElement);
      const element = entry(cluster, key, key === selected);
      if (focused) entries.get(key).element.replaceWith(element);
      entries.set(key, { json, element });
      if (focused) element.querySelector("a").focus();
    }
    wanted.push(entries.get(key).element);
  }
  const present = [...list.children];
  if (!wanted.length) list.replaceChildren(h("li", { class: "none" }, "No cluster matches."));
  else if (present.length !== wanted.length || wanted.some((each, index) => each !== present[index])) list.replaceChildren(...wanted);
}

function entry(cluster, key, isSelected) {
  return h("li", {},
    h("a", { href: href("clusters", key), "aria-current": isSelected ? "page" : null, "data-key": key },
      icon(cluster.state),
      h("span", { class: "name" }, cluster.name, cluster.namespace !== "default" && h("small", {}, cluster.namespace)),
      cluster.paused && h("span", { class: "tag" }, "paused"),
      h("span", { class: "version" }, cluster.version),
      bar(cluster.machines)));
}

// The Machines by state, as parts of a line.
function bar(counts) {
  const total = STATES.reduce((sum, state) => sum + counts[state], 0);
  const label = STATES.filter((state) => counts[state]).map((state) => `${counts[state]} ${WORDS[state]}`).join(", ");
  return h("span", { class: "bar-of-machines", role: "img", "aria-label": total ? `Machines: ${label}` : "No Machines", title: label },
    STATES.filter((state) => counts[state]).map((state) => h("i", { class: state, place: { flexGrow: counts[state] } })));
}

const URGENCY = ["bad", "waiting", "unknown", "good", "asleep"];
const urgency = (cluster) => URGENCY.indexOf(cluster.state);

export function overview(main, state) {
  const all = [...state.clusters.values()];
  const waiting = all.filter((each) => matches(each, "", true));
  waiting.sort((one, other) => urgency(one) - urgency(other) || one.name.localeCompare(other.name));
  const machines = all.reduce((sum, each) => sum + STATES.reduce((part, name) => part + each.machines[name], 0), 0);
  const title = state.loading && !all.length ? "Loading" : !all.length ? "No clusters exist" : waiting.length ? `${waiting.length} of ${plural(all.length, "cluster")} ${waiting.length === 1 ? "needs" : "need"} attention` : all.length === 1 ? "The cluster is ready" : `All ${plural(all.length, "cluster")} are ready`;
  show(main,
    h("header", { class: "head" }, h("h1", {}, title),
      h("p", { class: "facts" }, all.length ? `${plural(all.length, "cluster")} with ${plural(machines, "machine")}` : !state.loading && "capelin create cluster demo creates one.")),
    h("div", { class: "cards" }, waiting.slice(0, 50).map(card)),
    waiting.length > 50 && h("p", { class: "dim" }, `${waiting.length - 50} more: choose one in the list.`));
}

function card(cluster) {
  const key = `${cluster.namespace}/${cluster.name}`;
  return h("section", { class: "card" },
    h("h2", {}, icon(cluster.state), h("a", { href: href("clusters", key), "data-key": `card ${key}` }, cluster.name),
      cluster.namespace !== "default" && h("small", {}, cluster.namespace), h("span", { class: "version" }, cluster.version)),
    chains(cluster, 2) ?? (cluster.paused && h("p", { class: "dim" }, "It is paused: controllers ignore it.")));
}
