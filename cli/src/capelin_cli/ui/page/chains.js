// Why a cluster waits: chains from the Cluster to the one object that causes it.

import { h, since } from "./dom.js";

export function chains(cluster, most = 10) {
  const { explanation, message } = cluster;
  if (!explanation?.chains.length) return message ? h("p", { class: "message" }, message) : null;
  const shown = explanation.chains.slice(0, most);
  return [
    ...shown.map(chain),
    explanation.chains.length > most && h("p", { class: "dim" }, `${explanation.chains.length - most} more on its page.`),
  ];
}

function chain({ links, cause, responsible, command }) {
  return h("article", { class: "chain" },
    h("ol", {}, links.map((link, index) => step(link, links[index - 1], index === links.length - 1))),
    h("p", { class: "cause" }, h("strong", {}, words(cause)), h("span", {}, "responsible: ", h("b", {}, responsible))),
    command && h("p", { class: "command" }, h("code", { tabindex: "0" }, command), copy(command)));
}

function step(link, before, isLast) {
  return h("li", { class: isLast ? "last" : null },
    h("span", { class: "object" }, h("small", {}, link.object.kind), " ", h("b", {}, link.object.name)),
    link.since && h("span", { class: "since" }, "for ", since(link.since)),
    link.text !== before?.text && h("span", { class: "text" }, link.text),
    link.evidence && link.evidence !== before?.evidence && h("code", { class: "evidence" }, link.evidence));
}

// "DisruptionBudget" as "Disruption budget".
const words = (cause) => cause.replace(/(?!^)[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);

function copy(text) {
  const button = h("button", { type: "button", class: "small", "data-key": `copy ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}
