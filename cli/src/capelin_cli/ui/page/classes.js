// The fields in which the clusters of one ClusterClass differ.

import { href } from "./clusters.js";
import { h, plural, show } from "./dom.js";

const MOST = 12;

export function classView(main, view, key, state) {
  const name = key.split("/")[1];
  if (!view) return show(main, back(), h("p", { class: "notice" }, state.focus === undefined ? "Loading" : "No cluster has this class."));
  show(main, back(),
    h("header", { class: "head" }, h("h1", {}, `Differences in class ${name}`),
      h("p", { class: "facts" }, h("span", {}, plural(view.clusters.length, "cluster")),
        h("span", {}, `${plural(view.differences.length, "field")} ${view.differences.length === 1 ? "differs" : "differ"}`),
        h("span", {}, `${plural(view.same, "field")} in common`))),
    view.differences.length
      ? h("dl", { class: "differences" }, view.differences.map((each) => difference(each, view.clusters.length)))
      : h("p", { class: "notice" }, "All clusters of this class have the same topology."));
}

const back = () => h("a", { class: "back", href: "#/" }, "All clusters");

function difference({ field, values }, total) {
  return h("div", {}, h("dt", {}, field), h("dd", {}, h("ul", {}, values.map((value, index) =>
    h("li", { class: value.clusters.length < values[0].clusters.length ? "rare" : "common" },
      h("code", {}, value.text),
      h("span", { class: "share" }, h("span", { class: "dim" }, `${value.clusters.length} of ${total}`), meter(value.clusters.length / total)),
      h("span", { class: "who" }, names(value.clusters, index)))))));
}

function meter(part) {
  return h("span", { class: "meter", "aria-hidden": "true" }, h("i", { place: { width: `${part * 100}%` } }));
}

function names(clusters, index) {
  const most = index ? MOST : 3;
  const links = clusters.slice(0, most).map((key) => h("a", { href: href("clusters", key), "data-key": `${index} ${key}` }, key.startsWith("default/") ? key.slice(8) : key));
  return [...links, clusters.length > most && h("span", { class: "dim" }, `and ${clusters.length - most} more`)];
}
