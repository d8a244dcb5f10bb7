// Ranks pages as the site does: the theme's own search worker, with the site's own index, in Node.
// Usage: node search.js WORKER INDEX QUERY...; prints for each query the pages, best first.
const [worker, index, ...queries] = process.argv.slice(2);
const { readFileSync } = require("node:fs");
const { runInThisContext } = require("node:vm");
const [SETUP, , QUERY] = [0, 1, 2];

const answers = [];
let handle;
Object.assign(globalThis, {
  self: globalThis,
  addEventListener: (_, listener) => { handle = listener; },
  postMessage: (answer) => answers.push(answer),
});
runInThisContext(readFileSync(worker, "utf8"));

(async () => {
  const site = JSON.parse(readFileSync(index, "utf8"));
  await handle({ data: { type: SETUP, data: { ...site, options: { suggest: false } } } });
  for (const query of queries) {
    await handle({ data: { type: QUERY, data: query } });
    const { items } = answers.at(-1).data;
    const pages = items.map(([first]) => first.location.split("#")[0]);
    console.log(JSON.stringify(pages));
  }
})();
