// A change as lanes over time: hooks with their answers, the control plane, workers and Machines.

import { duration, h, icon, now, show } from "./dom.js";

const WINDOWS = { "15 min": 900, "1 h": 3600, "6 h": 21600, All: Infinity };
const TITLES = { Cluster: "Cluster", Hook: "Hooks", ControlPlane: "Control plane", Workers: "Workers", Machine: "Machines" };
const STEPS = [5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400, 604800];
let chosen = "15 min";
let picked = "";
let current = null;

// Spans that last grow, without a message of the server.
setInterval(() => {
  if (current?.element.isConnected && current.element.querySelector(".lanes")) place(current.element, current.view);
}, 1000);

export function timeline(element, view) {
  current = { element, view };
  const lanes = view.timeline;
  if (!element.querySelector(".lanes")) {
    show(element,
      h("div", { class: "choice", role: "group", "aria-label": "Time" }, Object.keys(WINDOWS).map((name) =>
        h("button", { type: "button", "aria-pressed": String(name === chosen), onclick: (event) => {
          chosen = name;
          for (const each of event.currentTarget.parentElement.children) each.setAttribute("aria-pressed", String(each === event.currentTarget));
          timeline(element, current.view);
        } }, name))),
      h("div", { class: "lanes" }),
      h("p", { class: "picked", role: "status" }));
  }
  const { start } = range(lanes);
  let kind = "";
  const rows = [];
  for (const lane of lanes) {
    const shown = lane.spans.filter((span) => !span.end || Date.parse(span.end) >= start);
    if (!shown.length) continue;
    if (lane.kind !== kind) rows.push(h("h2", {}, TITLES[(kind = lane.kind)]));
    rows.push(row(lane, shown));
  }
  show(element.querySelector(".lanes"), h("div", { class: "axis", "aria-hidden": "true" }), rows,
    !rows.length && h("p", { class: "notice" }, "Nothing happened in this time."));
  place(element, view);
}

function row(lane, spans) {
  const [title, policy] = lane.title.split(" · ");
  const [kind, name] = title.includes("/") ? title.split(/\/(.*)/) : ["", title];
  return h("div", { class: "lane" },
    h("span", { class: "title", title: lane.title }, kind && h("small", {}, `${kind} `), name, policy && h("small", {}, ` ${policy}`)),
    h("div", { class: "track" }, spans.map((span) => mark(lane, span))));
}

function mark(lane, span) {
  const key = `${lane.kind} ${lane.title} ${span.start}`;
  const element = h("button", { type: "button", class: `span ${span.state}`, "data-key": key, "data-start": span.start, "data-end": span.end ?? "", "data-text": span.text, "aria-pressed": String(key === picked) },
    icon(span.state, ""), h("span", {}, span.text));
  element.addEventListener("click", () => {
    picked = picked === key ? "" : key;
    for (const each of element.closest(".lanes").querySelectorAll(".span")) each.setAttribute("aria-pressed", String(each.dataset.key === picked));
    place(current.element, current.view);
  });
  return element;
}

function range(lanes) {
  const end = now();
  const starts = lanes.flatMap((lane) => lane.spans).map((span) => Date.parse(span.start));
  const earliest = Math.min(end - 30000, ...starts);
  return { start: Math.max(earliest, end - WINDOWS[chosen] * 1000), end };
}

// Positions are set here, because they change with time.
function place(element, view) {
  const { start, end } = range(view.timeline);
  const part = (time) => Math.min(100, Math.max(0, ((time - start) / (end - start)) * 100));
  for (const mark of element.querySelectorAll(".span")) {
    const from = Date.parse(mark.dataset.start);
    const to = mark.dataset.end ? Date.parse(mark.dataset.end) : end;
    mark.style.left = `${part(from)}%`;
    mark.style.width = `${part(to) - part(from)}%`;
    mark.classList.toggle("open", !mark.dataset.end);
    mark.ariaLabel = `${mark.dataset.text}, ${duration((to - from) / 1000)}${mark.dataset.end ? "" : " so far"}`;
    mark.title = mark.ariaLabel;
  }
  const seconds = (end - start) / 1000;
  const most = element.clientWidth < 600 ? 4 : 8;
  const step = STEPS.find((each) => seconds / each <= most) ?? STEPS.at(-1);
  const ticks = [];
  for (let ago = 0; ago <= seconds; ago += step) {
    const at = part(end - ago * 1000);
    if ((at > 4 && at < (element.clientWidth < 600 ? 80 : 92)) || ago === 0) ticks.push(h("span", { class: ago ? null : "now", place: { left: `${at}%` } }, ago ? `−${duration(ago)}` : "now"));
  }
  element.querySelector(".axis")?.replaceChildren(...ticks);
  const text = [...element.querySelectorAll(".span")].find((each) => each.dataset.key === picked)?.ariaLabel ?? "";
  const status = element.querySelector(".picked");
  if (status && status.textContent !== text) status.textContent = text;
}
