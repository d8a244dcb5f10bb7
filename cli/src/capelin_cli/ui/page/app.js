// Opens the session, follows the stream of changes, and shows the view that the address names.

import { listClusters, matches, overview } from "./clusters.js";
import { cluster } from "./cluster.js";
import { classView } from "./classes.js";
import { h, setServerTime, show } from "./dom.js";

const API = "api/v1alpha1";
const STORED = "capelin-key";
const $ = (id) => document.getElementById(id);
const state = { clusters: new Map(), focus: undefined, loading: true, trouble: "", key: "", actions: [], versions: [], filter: "", attention: false };
let streaming = null;

// The address of the link stays in no history: the token works once, and this entry is replaced.
async function openSession() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    history.replaceState(null, "", `${location.pathname}#/`);
    const response = await fetch(`${API}/session`, { method: "POST", headers: bearer(token) });
    if (!response.ok) return false;
    sessionStorage.setItem(STORED, await response.text());
  }
  const session = JSON.parse(sessionStorage.getItem(STORED) ?? "null");
  if (!session) return false;
  Object.assign(state, { key: session.key, actions: session.actions, versions: session.versions });
  $("where").textContent = session.title;
  document.title = `Capelin, ${session.title}`;
  return true;
}
const bearer = (key) => ({ Authorization: `Bearer ${key}` });

function route() {
  const [kind, namespace, name, tab] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  return { kind: namespace && name ? kind : "", key: `${namespace}/${name}`, tab: tab ?? "" };
}

async function follow() {
  streaming?.abort();
  const mine = (streaming = new AbortController());
  const { kind, key } = route();
  const focus = { clusters: `cluster/${key}`, classes: `class/${key}` }[kind] ?? "";
  for (let failures = 0; !mine.signal.aborted; failures++) {
    try {
      const response = await fetch(`${API}/changes?focus=${encodeURIComponent(focus)}`, { headers: bearer(state.key), signal: mine.signal });
      if (response.status === 401) return ended();
      if (!response.ok) throw new Error(await response.text());
      let isFirst = true;
      for await (const [event, data] of events(response.body)) {
        failures = 0;
        receive(event, data, isFirst);
        isFirst = false;
      }
    } catch (error) {
      if (mine.signal.aborted) return;
    }
    live("old", "Reconnecting. The data may be old.");
    await new Promise((resolve) => setTimeout(resolve, Math.min(1000 * 2 ** failures, 10000)));
  }
}

// Server-sent events. EventSource cannot send the header that authenticates.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const [event, data] = text.slice(0, end).split("\n");
      yield [event.slice("event: ".length), JSON.parse(data.slice("data: ".length))];
    }
  }
}

function receive(event, data, isFirst) {
  if (event === "focus") {
    state.focus = data;
  } else {
    setServerTime(data.now);
    if (isFirst) state.clusters.clear();
    for (const each of data.clusters) state.clusters.set(`${each.namespace}/${each.name}`, each);
    for (const key of data.removed) state.clusters.delete(key);
    Object.assign(state, { loading: data.loading, trouble: data.trouble });
    if (data.trouble) live("old", data.trouble);
    else live("on", data.loading ? "loading" : "live");
    list();
  }
  draw();
}

function live(kind, text) {
  if ($("live").dataset.kind === kind && $("live").textContent === text) return;
  $("live").dataset.kind = kind;
  $("live").textContent = text;
}

function ended() {
  live("old", "ended");
  show($("main"), h("section", { class: "notice" },
    h("h1", {}, "This page has no session"),
    h("p", {}, "Open the link that ", h("code", {}, "capelin ui"), " printed. A link works once, and the command prints the next one when you use it.")));
}

function list() {
  const all = [...state.clusters.values()];
  const waiting = all.filter((each) => matches(each, "", true));
  $("all").querySelector("b").textContent = all.length;
  $("attention").querySelector("b").textContent = waiting.length;
  const shown = all.filter((each) => matches(each, state.filter, state.attention));
  shown.sort((one, other) => one.namespace.localeCompare(other.namespace) || one.name.localeCompare(other.name));
  listClusters($("clusters"), shown, route().key);
}

function draw() {
  const { kind, key, tab } = route();
  $("frame").dataset.view = kind ? "detail" : "list";
  const main = $("main");
  if (kind === "clusters") {
    const view = state.focus?.kind === "ClusterView" && `${state.focus.summary.namespace}/${state.focus.summary.name}` === key ? state.focus : null;
    cluster(main, view, key, tab, state, { act, planned });
  } else if (kind === "classes") {
    classView(main, state.focus?.kind === "ClassView" && state.focus.name === key ? state.focus : null, key, state);
  } else overview(main, state);
}

function post(key, request) {
  const path = key.split("/").map(encodeURIComponent).join("/");
  return fetch(`${API}/clusters/${path}/${request}`, { method: "POST", headers: bearer(state.key) });
}

async function act(key, action) {
  const response = await post(key, `actions/${action}`);
  return response.ok ? "" : response.text();
}

async function planned(key, version) {
  try {
    const response = await post(key, `plan?version=${encodeURIComponent(version)}`);
    if (response.ok) return { plan: await response.json(), problem: "" };
    return { plan: null, problem: await response.text() };
  } catch {
    return { plan: null, problem: "The connection to capelin ui was lost." };
  }
}

function navigate() {
  state.focus = undefined;
  list();
  draw();
  scrollTo(0, 0);
  follow();
}

function keys(event) {
  if (event.target.matches("input, textarea, select, dialog *") || event.ctrlKey || event.metaKey || event.altKey) {
    if (event.key === "Escape" && event.target === $("filter")) $("clusters").querySelector("a")?.focus();
    return;
  }
  if (event.key === "/") {
    event.preventDefault();
    $("filter").focus();
  } else if (["ArrowDown", "ArrowUp"].includes(event.key) && $("clusters").contains(document.activeElement)) {
    event.preventDefault();
    const links = [...$("clusters").querySelectorAll("a")];
    links[links.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1)]?.focus();
  }
}

for (const name of ["all", "attention"]) {
  $(name).addEventListener("click", () => {
    state.attention = name === "attention";
    $("all").setAttribute("aria-pressed", !state.attention);
    $("attention").setAttribute("aria-pressed", state.attention);
    list();
  });
}
$("filter").addEventListener("input", () => { state.filter = $("filter").value.toLowerCase(); list(); });
$("skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
document.addEventListener("keydown", keys);
addEventListener("hashchange", async () => {
  const isLink = location.hash.startsWith("#token=");
  if (isLink && !(await openSession())) ended();
  else navigate();
});

if (await openSession()) navigate();
else ended();
