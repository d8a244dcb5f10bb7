// Elements, icons and times. Text from clusters becomes text nodes only.

const SVG = "http://www.w3.org/2000/svg";

// An element with properties and children. Strings become text.
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "place") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child || child === 0));
  return element;
}

// Each state has a shape, so that it needs no colour.
const SHAPES = {
  good: [["circle", { cx: 8, cy: 8, r: 7, class: "fill" }], ["path", { d: "M4.6 8.2l2.4 2.4 4.5-5", class: "mark" }]],
  bad: [["path", { d: "M8 .6 15.4 8 8 15.4.6 8z", class: "fill" }], ["path", { d: "M5.7 5.7l4.6 4.6m0-4.6-4.6 4.6", class: "mark" }]],
  waiting: [["circle", { cx: 8, cy: 8, r: 6.1, class: "ring" }], ["path", { d: "M8 1.9a6.1 6.1 0 0 1 0 12.2z", class: "fill" }]],
  unknown: [["circle", { cx: 8, cy: 8, r: 6.1, class: "ring dashed" }]],
  asleep: [["path", { d: "M13.6 10.2A6.4 6.4 0 0 1 5.8 2.4a6.4 6.4 0 1 0 7.8 7.8z", class: "fill" }]],
};
export const WORDS = { good: "ready", bad: "failed", waiting: "waiting", unknown: "unknown", asleep: "asleep" };
export const STATES = Object.keys(WORDS);

export function icon(state, label = WORDS[state]) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("class", `icon ${state}`);
  if (label) {
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", label);
  } else svg.setAttribute("aria-hidden", "true");
  for (const [tag, attributes] of SHAPES[state] ?? SHAPES.unknown) {
    const shape = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) shape.setAttribute(name, value);
    svg.append(shape);
  }
  return svg;
}

export function duration(seconds) {
  const total = Math.max(0, Math.round(seconds));
  if (total < 60) return `${total} s`;
  if (total < 3600) return `${Math.floor(total / 60)} min ${total % 60 ? `${total % 60} s` : ""}`.trim();
  if (total < 86400) return `${Math.floor(total / 3600)} h ${Math.floor((total % 3600) / 60)} min`;
  return `${Math.floor(total / 86400)} d ${Math.floor((total % 86400) / 3600)} h`;
}

// The machine of the page and that of the server may have different clocks.
let skew = 0;
export const setServerTime = (text) => { skew = Date.parse(text) - Date.now(); };
export const now = () => Date.now() + skew;

export function since(text) {
  const element = h("time", { datetime: text, title: new Date(text).toLocaleString() });
  element.textContent = age(text);
  return element;
}
const age = (text) => duration((now() - Date.parse(text)) / 1000).split(" ").slice(0, 2).join(" ");
setInterval(() => {
  for (const element of document.querySelectorAll("time")) element.textContent = age(element.dateTime);
}, 10000);

// Replaces the content of an element, and keeps focus, scrolling and closed branches.
export function show(element, ...children) {
  const key = element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const top = element.scrollTop;
  const open = new Map([...element.querySelectorAll("details[data-key]")].map((each) => [each.dataset.key, each.open]));
  element.replaceChildren(...children.flat().filter(Boolean));
  for (const each of element.querySelectorAll("details[data-key]")) {
    if (open.has(each.dataset.key)) each.open = open.get(each.dataset.key);
  }
  element.scrollTop = top;
  if (key) element.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

export const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
