// The effect of an upgrade as a picture: a square for each machine, and the steps around them.

import { h, plural, show } from "./dom.js";

const EFFECTS = { kept: "kept", updated: "updated in place", replaced: "replaced", created: "created", deleted: "deleted" };
const MARKS = { Created: "+", Changed: "~", Rotated: "±", Deleted: "−" };
const ORDERS = { CreateFirst: "new machines first", DeleteFirst: "old machines first", OnDelete: "when you delete them" };
const MOST = 400;
const plans = new Map();

// `request` returns the plan of a version, or the text of a problem.
export function plan(element, view, { versions, request }) {
  const { namespace, name, version } = view.summary;
  const key = `${namespace}/${name}`;
  const known = plans.get(key) ?? {};
  const draw = (next) => {
    plans.set(key, { ...known, ...next });
    if (element.isConnected && element.dataset.plan === key) plan(element, view, { versions, request });
  };
  element.dataset.plan = key;
  const newer = versions.slice(versions.indexOf(version) + 1);
  const choice = h("select", { "aria-label": "Version", "data-key": "version", disabled: known.waits }, newer.map((each) => h("option", { selected: each === known.version }, each)));
  const start = async () => {
    draw({ waits: true, version: choice.value });
    draw({ waits: false, version: choice.value, ...(await request(choice.value)) });
  };
  const open = async (event) => {
    const [file] = event.target.files;
    if (file) draw({ waits: false, ...read(await file.text()) });
  };
  show(element,
    h("div", { class: "ask" },
      newer.length > 0 && choice,
      newer.length > 0 && h("button", { type: "button", class: "main", "data-key": "plan", disabled: known.waits, onclick: start }, "Plan the upgrade"),
      h("label", { class: "file" }, h("input", { type: "file", accept: "application/json", "data-key": "file", onchange: open }), "Open the output of ", h("code", {}, "capelin plan -o json"))),
    known.waits && h("p", { class: "notice", role: "status" }, "Cluster API computes the effect on a copy of the objects. The cluster does not change."),
    !known.waits && known.problem && h("p", { class: "message", role: "alert" }, known.problem),
    !known.waits && known.plan && picture(known.plan, namespace, name));
}

function read(text) {
  try {
    const plan = JSON.parse(text);
    if (plan.kind === "Plan") return { plan, problem: "" };
  } catch { /* the same answer */ }
  return { plan: null, problem: "This file is not a plan." };
}

function picture(plan, namespace, name) {
  const found = plan.clusters.find(({ cluster }) => cluster.name === name && cluster.namespace === namespace);
  if (!found) return h("p", { class: "notice" }, "The plan does not concern this cluster.");
  const { versions, machines, hooks, budgets, objects, unknown } = found;
  return h("div", { class: "plan" },
    versions.length > 1 && h("ol", { class: "path", "aria-label": "Versions" }, versions.map((each) => h("li", {}, each))),
    part("Machines", machines, set),
    part("Hooks", hooks, ({ hook, handler, policies }) => [h("b", {}, hook), ` ${handler}`, policies.length > 0 && h("small", {}, `policies ${policies.join(", ")}`)]),
    part("Drains that wait", budgets, (each) => [h("b", {}, `PodDisruptionBudget ${each.namespace}/${each.name}`), ` permits no eviction of ${plural(each.pods, "pod")}`]),
    part("Objects", objects, object),
    part("Unknown", unknown, (each) => [each]),
    plan.notes.map((note) => h("p", { class: "dim" }, note)));
}

const part = (title, entries, draw) => entries.length > 0 && h("section", {}, h("h2", {}, title), h("ul", {}, entries.map((each) => h("li", {}, draw(each)))));

function set(each) {
  const counts = Object.keys(EFFECTS).filter((effect) => each[effect]);
  const text = each.unknown || counts.map((effect) => `${each[effect]} ${EFFECTS[effect]}`).join(", ") || "no machines";
  const squares = counts.flatMap((effect) => Array(each[effect]).fill(effect));
  const order = each.replaced > 0 && each.order && `${ORDERS[each.order]}${each.order === "OnDelete" ? "" : `, at most ${each.maxSurge} more and ${each.maxUnavailable} fewer`}`;
  return [
    h("b", {}, each.owner), ` ${text}`, order && h("small", {}, order),
    squares.length > 0 && h("div", { class: "squares", "aria-hidden": "true" },
      squares.slice(0, MOST).map((effect) => h("i", { class: effect })),
      squares.length > MOST && h("small", {}, `${squares.length - MOST} more`)),
  ];
}

function object({ action, kind, role, fields }) {
  const changed = fields.map(({ path, before, after }) => h("code", {}, `${path}: ${value(before)} → ${value(after)}`));
  return [h("span", { class: "effect", "aria-label": action.toLowerCase() }, MARKS[action]), h("b", {}, role), role !== kind && h("small", {}, kind), ...changed];
}

const value = (each) => (each === undefined || each === null ? "none" : typeof each === "string" ? each : JSON.stringify(each));
