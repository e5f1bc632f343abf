<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>What the build took long for</title>
<style>
:root { color-scheme: light dark; --line: #8884; --header: #2f7fb5; --template: #b5652f; --function: #3d8a4f; --phase: #777; --unit: #777; }
body { font: 14px/1.4 system-ui, sans-serif; margin: 20px; max-width: 1500px; }
#flame { position: relative; margin: 10px 0; overflow: hidden; }
#flame button { position: absolute; height: 19px; padding: 0 3px; border: 1px solid Canvas; border-radius: 2px; overflow: hidden; white-space: nowrap; text-align: left; font: 11px ui-monospace, monospace; color: #fff; cursor: pointer; }
#flame button.faint { opacity: .25; }
.header { background: var(--header); } .template { background: var(--template); } .function { background: var(--function); } .phase, .unit { background: var(--phase); }
#told { min-height: 3em; font: 12px ui-monospace, monospace; overflow-wrap: anywhere; }
.key span { color: #fff; padding: 1px 6px; border-radius: 3px; }
table { border-collapse: collapse; margin-top: 18px; width: 100%; }
th, td { text-align: right; padding: 2px 8px; border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; vertical-align: top; }
th:last-child, td:last-child { text-align: left; width: 100%; overflow-wrap: anywhere; font-family: ui-monospace, monospace; font-size: 12px; }
</style>
</head>
<body>
<h1>What the build took long for</h1>
<p>${"%.2f" % seconds} s of ${counted_units}, by the compilers' time traces. A box is as wide as its seconds; what stands below lies within it.
A click widens a box, a click on the topmost shows all.</p>
<p class="key"><span class="header">header</span> <span class="template">template</span> <span class="function">function</span> <span class="phase">phase</span>
<label>Search <input type="search" id="search"></label></p>
<div id="flame"></div>
<p id="told" role="status"></p>
% for kind, ranking in ranked.items():
<table>
<thead><tr><th>total&nbsp;s</th><th>self&nbsp;s</th><th>count</th><th>${kind}</th></tr></thead>
<tbody>
% for row in ranking["rows"]:
<tr><td>${"%.3f" % row["total"]}</td><td>${"%.3f" % row["self"]}</td><td>${row["count"]}</td><td>${row["name"]}</td></tr>
% endfor
% if ranking["left_out"]:
<tr><td></td><td>${"%.3f" % ranking["left_out_self"]}</td><td></td><td>and ${ranking["left_out"]} more</td></tr>
% endif
</tbody>
</table>
% endfor
<script type="application/json" id="data">${tree | n}</script>
<script>
"use strict";
const root = JSON.parse(document.getElementById("data").textContent);
const flame = document.getElementById("flame"), told = document.getElementById("told"), search = document.getElementById("search");
const ROW = 20;
let path = [root];
function box(node, left, width, depth, open) {
  const [kind, name, seconds, count, children] = node;
  const button = document.createElement("button");
  button.className = kind;
  button.style = `left:<%text>${100 * left}%;width:${100 * width}%;top:${ROW * depth}px</%text>`;
  button.textContent = kind === "header" ? name.split("/").pop() : kind === "phase" ? name : name.replace(/[<(].*/s, "").split("::").pop() || name;
  button.title = `<%text>${name}\n${kind}, ${seconds.toFixed(3)} s of ${root[2].toFixed(3)} s, ${count} times</%text>`;
  button.onclick = () => { path = open; draw(); };
  button.onmouseenter = button.onfocus = () => { told.innerText = button.title; };
  if (search.value && !name.toLowerCase().includes(search.value.toLowerCase())) button.classList.add("faint");
  flame.append(button);
  return children;
}
function draw() {
  flame.replaceChildren();
  let depth = 0, deepest = 0;
  const below = (node, left, width, depth, open) => {
    deepest = Math.max(deepest, depth);
    const total = Math.max(node[2], node[4].reduce((sum, child) => sum + child[2], 0));
    let at = left;
    for (const child of box(node, left, width, depth, open)) {
      const share = width * child[2] / (total || 1);
      if (share > 0.0005) below(child, at, share, depth + 1, [...open, child]);
      at += share;
    }
  };
  for (; depth < path.length - 1; depth++) box(path[depth], 0, 1, depth, path.slice(0, depth + 1));
  below(path[depth], 0, 1, depth, path);
  flame.style.height = `<%text>${ROW * (deepest + 1)}px</%text>`;
}
search.oninput = draw;
draw();
</script>
</body>
</html>
