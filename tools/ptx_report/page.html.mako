<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>ptx-report: ${summary}</title>
<style>
:root {
  color-scheme: light dark;
  --ground: #fbfbfc; --card: #ffffff; --ink: #1c2127; --soft: #5b6570; --line: #dfe3e8; --hover: #f0f4f9;
  --accent: #1f5fbf; --bad: #b3261e; --good: #1b6e37; --warn: #8a5a00; --chip: #eef1f5;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14171b; --card: #1b1f25; --ink: #e6e9ed; --soft: #9aa5b1; --line: #2d343d; --hover: #232a33;
    --accent: #7db2ff; --bad: #ff8a80; --good: #7fd69a; --warn: #ffca6b; --chip: #262d36;
  }
}
* { box-sizing: border-box; }
[hidden] { display: none !important; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 14px/1.45 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1500px; margin: 0 auto; padding: 20px 24px 60px; }
h1 { font-size: 20px; margin: 0; }
h2 { font-size: 15px; margin: 0; }
header p { margin: 2px 0 18px; color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 16px; margin-bottom: 18px; }
.controls { display: flex; flex-wrap: wrap; gap: 10px 18px; align-items: end; margin-bottom: 14px; }
.controls h2 { flex-basis: 100%; }
label { display: grid; gap: 3px; font-size: 12px; color: var(--soft); }
label.check { display: flex; gap: 6px; align-items: center; padding-bottom: 6px; font-size: 13px; }
select, input[type=search] { font: inherit; font-size: 14px; color: var(--ink); background: var(--ground); border: 1px solid var(--line); border-radius: 6px; padding: 5px 8px; }
input[type=search] { width: 24em; max-width: 80vw; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
.scroll { overflow: auto; }
#rows { max-height: 75vh; }
table { border-collapse: collapse; }
#table { width: 100%; font-variant-numeric: tabular-nums; }
#table th { position: sticky; top: 0; background: var(--card); text-align: left; padding: 0; border-bottom: 2px solid var(--line); white-space: nowrap; z-index: 1; }
#table th button { font: inherit; font-size: 12px; font-weight: 600; color: var(--soft); background: none; border: 0; padding: 6px 9px; width: 100%; text-align: inherit; cursor: pointer; }
#table th button:hover { color: var(--ink); }
#table th[aria-sort] button { color: var(--accent); }
#table th[aria-sort=ascending] button::after { content: " \25B2"; }
#table th[aria-sort=descending] button::after { content: " \25BC"; }
#table td { padding: 4px 9px; border-bottom: 1px solid var(--line); vertical-align: top; white-space: nowrap; }
#table td.text { white-space: normal; overflow-wrap: anywhere; min-width: 9em; }
#table td.kernel { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 12.5px; white-space: normal; overflow-wrap: anywhere; min-width: 19em; }
#table .long { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 4; overflow: hidden; }
#table td.number.text { min-width: 0; overflow-wrap: normal; }
#table small { display: block; font: 12px/1.3 system-ui, "DejaVu Sans", sans-serif; color: var(--soft); }
.delta { display: block; font-size: 11.5px; } .delta.good { color: var(--good); }
#table tbody tr:hover, #table tbody tr:focus { background: var(--hover); }
#table .number, #table th.number { text-align: right; }
#table .bad { color: var(--bad); font-weight: 600; }
#table .zero { color: var(--soft); }
.chip { display: inline-block; background: var(--chip); border-radius: 4px; padding: 0 6px; margin-right: 4px; font-size: 12px; }
.chip.bad, .chip.worse { color: var(--bad); } .chip.warn, .chip.mixed, .chip.removed { color: var(--warn); } .chip.better { color: var(--good); }
.limit { display: block; color: var(--soft); font-size: 11.5px; }
#detail { white-space: pre-wrap; overflow-wrap: anywhere; font: 12.5px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; margin: 12px 0 0; padding: 10px 12px; background: var(--chip); border-radius: 6px; }
#detail:empty { display: none; }
#map { display: flex; flex-wrap: wrap; gap: 20px 56px; }
#map figure { margin: 0; overflow: auto; }
#map figcaption { font-weight: 600; font-size: 13px; margin-bottom: 6px; }
#map table { font-variant-numeric: tabular-nums; }
#map th { font-size: 12px; color: var(--soft); font-weight: 600; padding: 4px 10px; text-align: right; white-space: nowrap; }
#map thead th { text-align: center; }
#map th { white-space: normal; overflow-wrap: anywhere; min-width: 5em; max-width: 26em; }
#map td { padding: 1px; }
#map td button { font: inherit; border: 0; border-radius: 4px; min-width: 5.2em; height: 38px; width: 100%; padding: 2px 8px; cursor: pointer; line-height: 1.15; }
#map td button small { display: block; font-size: 10.5px; opacity: .75; }
#map td button[aria-pressed=true] { box-shadow: inset 0 0 0 3px var(--accent); }
#map td.none { background: repeating-linear-gradient(45deg, transparent 0 5px, var(--line) 5px 6px); border-radius: 4px; }
.legend { display: flex; align-items: center; gap: 8px; margin-top: 10px; color: var(--soft); font-size: 12px; }
.legend span.ramp { width: 160px; height: 10px; border-radius: 5px; }
kbd { font: 11px ui-monospace, monospace; border: 1px solid var(--line); border-bottom-width: 2px; border-radius: 4px; padding: 0 5px; }
.help { color: var(--soft); font-size: 12px; margin: 0; }
#wrong { color: var(--bad); font-size: 13px; flex-basis: 100%; }
#wrong:empty { display: none; }
#count { color: var(--soft); padding-bottom: 6px; font-size: 13px; }
@media (max-width: 700px) {  /* a row is a block: the name, then the figures, each with its heading */
  main { padding: 12px 8px 40px; } section { padding: 12px 10px; }
  input[type=search] { width: 100%; max-width: none; } .controls label:has(input[type=search]) { flex-basis: 100%; }
  #rows { max-height: none; }
  #table, #table thead, #table tbody, #table tr { display: block; }
  #table tr { display: flex; flex-wrap: wrap; border-bottom: 1px solid var(--line); padding: 4px 0; }
  #table th, #table th.number { position: static; border: 0; }
  #table td { border: 0; padding: 2px 8px; } #table td:empty { display: none; }
  #table td.kernel, #table td.text { flex-basis: 100%; min-width: 0; }
  #table td:not(.kernel)::before { content: attr(data-label) " "; color: var(--soft); font-size: 12px; }
  .delta, .limit { display: inline; margin-left: 4px; }
}
</style>
</head>
<body>
<main>
<header>
<h1>What ptxas made of it</h1>
<p>${summary}
% if toolchains:
 · ${", ".join(toolchains)}
% endif
 · from ${", ".join(inputs[:3])}
% if base:
 against ${base}
% endif
% if len(inputs) > 3:
 and ${len(inputs) - 3} more
% endif
</p>
% if changes:
<p id="changes">${changes}</p>
% endif
</header>

<section aria-labelledby="map-title">
<div class="controls">
<h2 id="map-title">Heat map</h2>
<label>Figure <select id="figure"></select></label>
<label>Beside it <select id="beside"></select></label>
<label>Down <select id="down"></select></label>
<label>Across <select id="across"></select></label>
<label>Of several kernels in a cell <select id="fold"><option value="max">the most</option><option value="min">the least</option><option value="mean">the mean</option></select></label>
</div>
<div id="map"></div>
</section>

<section aria-labelledby="table-title">
<div class="controls">
<h2 id="table-title">Kernels</h2>
<label>Shown <select id="view"></select></label>
<label>Change <select id="change"></select></label>
<label>Search <input type="search" id="search" placeholder="part of a key, a note, a source"></label>
<label>Where, as in ptx-report --where <input type="search" id="where" placeholder="d_head == 128 and used_registers > 200" aria-describedby="wrong"></label>
<label>Architecture <select id="arch"><option value="">all</option></select></label>
<label class="check"><input type="checkbox" id="spilled"> only spills</label>
<label class="check"><input type="checkbox" id="wide"> parameters</label>
<span id="count" role="status"></span><span id="wrong" role="alert"></span>
</div>
<div class="scroll" id="rows"><table id="table"><thead></thead><tbody></tbody></table></div>
<pre id="detail" aria-live="polite"></pre>
</section>
<p class="help"><kbd>/</kbd> search · <kbd>Tab</kbd> from control to control · <kbd>Enter</kbd> on a heading sorts, on a cell of the map shows its kernels, on a row shows its symbol and warnings · arrows move in the map and between rows · <kbd>Esc</kbd> clears both fields · the address holds what is selected</p>
</main>
<script type="application/json" id="data">${data | n}</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
/* Columns hold each value once, and for each line which of them it has. */
function lines(columns, count) {
  const made = Array.from({length: count}, (_, index) => ({index}));
  for (const [name, {values, at}] of Object.entries(columns)) {
    at.forEach((which, index) => { if (which) made[index][name] = values[which]; });
  }
  return made;
}
const percent = x => x === undefined ? undefined : Math.round(100 * x);
const rows = lines(data.columns, data.count);
for (const row of rows) {
  const config = data.configs[row.key] || {parameters: {}, derived: {}};
  row.p = config.parameters;
  row.d = config.derived;
  row.was = Object.fromEntries((row.was || []).map(([name, old, now]) => [name, [old, now]]));
  if (row.family) row.kernels = `<%text>${row.family}.${row.target}</%text>`;
  row.part = row.kernels ?? row.template;
  row.percent = percent(row.occupancy ?? row.highest_occupancy);
}
const VIEWS = {architecture: [], template: []};
for (const name of Object.keys(VIEWS)) {
  const {columns, rows: places} = data.views[name];
  VIEWS[name] = lines(columns, places.length).map((line, index) => ({...line, rows: places[index].map(place => rows[place])}));
}

const has = ([name]) => rows.some(row => row[name] !== undefined);
const COLUMNS = [
  ["kernel_config", "kernel"], ["function", "function"], ["arch", "arch"], ["used_registers", "regs"], ["spill_bytes", "spills"],
  ["stack_frame", "stack"], ["smem", "static smem"], ["barriers", "bar"], ["code_bytes", "code"], ["ptx_bytes", "PTX"],
  ["percent", "occupancy %"], ["compile_time_ms", "ptxas ms"], ["notes", "notes"],
].filter(column => has(column) || column[0] === "spill_bytes" || (column[0] === "notes" && has(["warnings"])));
const FIGURES = [
  ["used_registers", "registers per thread"], ["spill_bytes", "spilled bytes"], ["stack_frame", "stack bytes"],
  ["smem", "static shared memory"], ["percent", "occupancy %"], ["compile_time_ms", "compile time, ms"], ["code_bytes", "bytes of code"],
].filter(has);
const SIZES = [["code_bytes", "code"], ["ptx_bytes", "PTX"], ["stored_bytes", "in the file"]].filter(has);
const NUMBERS = new Set([...COLUMNS.slice(1), ...FIGURES, ...SIZES, ["rows"], ["share"]].map(([name]) => name).filter(name => !["function", "arch", "notes"].includes(name)));
const DELTAS = {percent: "occupancy"};  // names of changes that are not the column's

const state = {sort: null, down: true, cell: null};
const value = (row, name) => row.p?.[name] !== undefined ? row.p[name] : row[name];
const ABSENT = "–"; // an axis's place for rows that have no such value
const axis = (row, name) => show("", value(row, name)) || ABSENT;
const show = (name, x) => x === undefined ? "" : typeof x === "number" ? (name === "compile_time_ms" ? x.toFixed(0) : x.toLocaleString("en")) : String(x);
const byValue = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", {numeric: true});

function element(tag, properties, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

/* Filter: the specs' expressions, as --where reads them */
class Missing extends Error {}
const truth = x => typeof x === "boolean" ? x : Boolean(x);
const number = x => { if (typeof x === "string" || Array.isArray(x)) throw Error(`<%text>${x} is not a number</%text>`); return Number(x); };
const same = (a, b) => typeof a === "string" || typeof b === "string" ? a === b : Number(a) === Number(b);
const quotient = (a, b) => { if (!b) throw Error("division by zero"); return a / b; };
const floor = (a, b) => Math.floor(quotient(a, b));
const COMPARE = {
  "==": same, "!=": (a, b) => !same(a, b), "<": (a, b) => number(a) < number(b), ">": (a, b) => number(a) > number(b),
  "<=": (a, b) => number(a) <= number(b), ">=": (a, b) => number(a) >= number(b),
  "in": (a, b) => b.some(x => same(a, x)), "not in": (a, b) => !b.some(x => same(a, x)),
};
const FUNCTIONS = {
  min: Math.min, max: Math.max, ceil_div: (a, b) => -floor(-a, b), is_pow2: x => x > 0 && Number.isInteger(Math.log2(x)), log2: x => Math.floor(Math.log2(x)), next_pow2: x => x <= 1 ? 1 : 2 ** Math.ceil(Math.log2(x)),
};
const texts = new Set([
  ...data.names.flatMap(name => data.columns[name]?.values || []),
  ...Object.values(data.configs).flatMap(config => [...Object.values(config.parameters), ...Object.values(config.derived)]),
].filter(x => typeof x === "string"));
const named = (row, name) => row.p[name] ?? row.d[name] ?? row[data.headings[name] || name];
const DTYPES = new Set(["bf16", "fp16", "f32"]);
function expression(text) {
  const tokens = text.match(/\d+\.?\d*(?:e[+-]?\d+)?|[A-Za-z_]\w*|"[^"]*"|'[^']*'|\*\*|\/\/|[=!<>]=|[-+*\/%<>()[\],]|\S/g) || [];
  let at = 0;
  const take = (...wanted) => wanted.includes(tokens[at]) ? tokens[at++] : undefined;
  const due = wanted => { if (!take(wanted)) throw Error(`<%text>expected ${wanted}, got ${tokens[at] ?? "the end"}</%text>`); };
  const listed = end => {
    const found = [];
    while (tokens[at] !== end) { found.push(choice()); if (!take(",")) break; }
    due(end);
    return found;
  };
  // Operators from the left on, between operands that `inner` reads; each makes a function of a row of two.
  const chain = (inner, operators) => () => {
    let left = inner(), operator;
    while ((operator = take(...Object.keys(operators)))) left = operators[operator](left, inner());
    return left;
  };
  const ofNumbers = of => (a, b) => row => of(number(a(row)), number(b(row)));
  function atom() {
    const token = tokens[at++];
    if (token === undefined) throw Error("an expression ends too early");
    if (token === "(") { const inner = choice(); due(")"); return inner; }
    if (token === "[") { const items = listed("]"); return row => items.map(item => item(row)); }
    if (/^\d/.test(token)) return () => Number(token);
    if (/^["']/.test(token)) return () => token.slice(1, -1);
    if (/^[Tt]rue$/.test(token)) return () => true;
    if (/^[Ff]alse$/.test(token)) return () => false;
    if (token in FUNCTIONS) { due("("); const given = listed(")"); return row => FUNCTIONS[token](...given.map(x => number(x(row)))); }
    if (data.names.includes(token)) return row => { const x = named(row, token); if (x === undefined) throw new Missing(); return x; };
    if (texts.has(token) || DTYPES.has(token)) return () => token;
    throw Error(`<%text>unknown name '${token}'</%text>`);
  }
  function unary() {
    if (take("-")) { const inner = unary(); return row => -number(inner(row)); }
    if (take("+")) return unary();
    const base = atom();
    return take("**") ? ofNumbers((a, b) => a ** b)(base, unary()) : base;
  }
  const product = chain(unary, {
    "*": ofNumbers((a, b) => a * b), "/": ofNumbers(quotient), "//": ofNumbers(floor), "%": ofNumbers((a, b) => a - b * floor(a, b)),
  });
  const sum = chain(product, {"+": ofNumbers((a, b) => a + b), "-": ofNumbers((a, b) => a - b)});
  function comparison() {
    const operands = [sum()], operators = [];
    for (;;) {
      let operator = take("==", "!=", "<=", ">=", "<", ">", "in");
      if (!operator && tokens[at] === "not" && tokens[at + 1] === "in") { at += 2; operator = "not in"; }
      if (!operator) break;
      operators.push(COMPARE[operator]);
      operands.push(sum());
    }
    if (!operators.length) return operands[0];
    return row => operators.every((compare, i) => compare(operands[i](row), operands[i + 1](row)));
  }
  function not() {
    if (!take("not")) return comparison();
    const inner = not();
    return row => !truth(inner(row));
  }
  const conjunction = chain(not, {and: (a, b) => row => truth(a(row)) && truth(b(row))});
  const disjunction = chain(conjunction, {or: (a, b) => row => truth(a(row)) || truth(b(row))});
  function choice() {
    const value = disjunction();
    if (!take("if")) return value;
    const condition = disjunction();
    due("else");
    const other = choice();
    return row => truth(condition(row)) ? value(row) : other(row);
  }
  const whole = choice();
  if (at < tokens.length) throw Error(`<%text>'${tokens[at]}' is not expected here</%text>`);
  return whole;
}

function chosen(withCell) {
  const search = $("search").value.trim().toLowerCase(), arch = $("arch").value, where = $("where").value.trim(), change = $("change").value;
  const within = row => [row.kernel_config, row.function, row.arch, row.kind, row.source, row.why, ...(row.notes || [])].join(" ").toLowerCase().includes(search);
  $("wrong").textContent = "";
  let holds = () => true;
  try {
    const test = where ? expression(where) : () => true;
    holds = row => {
      try { return truth(test(row)); } catch (error) { if (error instanceof Missing) return false; throw error; }
    };
    return rows.filter(row => (!search || within(row)) && (!arch || row.arch === arch) && (!$("spilled").checked || row.spill_bytes > 0) && holds(row)
      && (!change || row.verdict === change || (change === "changed" && row.verdict !== "same"))
      && (!withCell || !state.cell || (axis(row, state.cell.down) === state.cell.y && axis(row, state.cell.across) === state.cell.x)));
  } catch (error) {
    $("wrong").textContent = error.message;
    return [];
  }
}

/* Table */
const LIMIT = 2000;
const byArch = (a, b) => byValue(parseInt(a.replace(/\D+/, "")), parseInt(b.replace(/\D+/, ""))) || byValue(a, b);
/* What is shown of the chosen rows: its columns, and its lines with their values by column. */
const SHOWN = {
  kernels(found) {
    const parameters = $("wide").checked ? data.parameters.map(name => [name, name]) : [];
    return [[COLUMNS[0], ...parameters, ...COLUMNS.slice(1)], found];
  },
  architecture(found) {
    const chosen = new Set(found), list = VIEWS.architecture.filter(line => line.rows.some(row => chosen.has(row)));
    const archs = [...new Set(list.flatMap(line => line.rows.map(row => row.arch)))].sort(byArch);
    for (const line of list) for (const row of line.rows) line[row.arch] = row.used_registers;
    return [[["kernel", "kernel"], ...archs.map(arch => [arch, arch]), ["out_of_line", "out of line"]], list];
  },
  template(found) {
    const chosen = new Set(found), list = VIEWS.template.filter(line => chosen.has(line.rows[0]));
    const texts = [["template", "template"], ["arch", "arch"], ["with", "arguments that differ"]];
    return [[...texts, ...COLUMNS.filter(([name]) => NUMBERS.has(name))], list.map(line => ({...line.rows[0], ...line}))];
  },
  total(found) {
    const whole = found.reduce((sum, row) => sum + (row.stored_bytes || 0), 0);
    const list = [];
    for (const [of, name] of [["file", "source"], ["arch", "arch"], ["template", "part"]]) {
      const groups = new Map();
      for (const row of found) {
        const line = groups.get(row[name]) || {of, name: row[name] ?? "", rows: 0};
        groups.set(row[name], line);
        line.rows += 1;
        for (const [size] of SIZES) line[size] = (line[size] || 0) + (row[size] || 0);
      }
      for (const line of groups.values()) if (whole) line.share = Math.round(1000 * line.stored_bytes / whole) / 10;
      list.push(...[...groups.values()].sort((a, b) => (b.stored_bytes || 0) - (a.stored_bytes || 0) || byValue(a.name, b.name)));
    }
    list.forEach((line, index) => { line.index = index; });
    return [[["name", "of"], ["of", ""], ["rows", "rows"], ...SIZES, ...(whole ? [["share", "%"]] : [])], list];
  },
};
const NAMES = new Set(["kernel_config", "kernel", "template", "name"]), WRAPPED = new Set(["with", "out_of_line", "notes", "function"]);
const RIGHT = name => NUMBERS.has(name) || /^(sm|compute)_/.test(name);
const chip = (text, kind) => element("span", {className: "chip " + kind, textContent: text});
function fill(cell, line, name) {
  const x = value(line, name);
  if (NAMES.has(name)) {
    cell.append(element("span", {className: "long", textContent: x}));
    if (line.verdict) cell.append(chip(line.verdict, line.verdict));
    if (line.kind && line.kind !== "kernel" && name === "kernel_config") cell.append(chip(line.kind, ""));
    if (line.why) cell.append(element("small", {textContent: line.why}));
  } else if (name === "notes") {
    for (const note of line.notes || []) cell.append(chip(note, "bad"));
    const others = (line.warnings || []).filter(text => !text.includes("(C75")).length;
    if (others) cell.append(chip(others + (others > 1 ? " warnings" : " warning"), "warn"));
  } else if ($("view").value === "architecture") {
    const row = line.rows.find(row => row.arch === name), spills = row && (row.spill_bytes ?? row.stack_frame);
    cell.append(row ? [show("", row.used_registers), show("", spills) + (row.spill_bytes === undefined ? "?" : ""), show("", row.code_bytes)].join(" ") : show("", x));
    if ((line.out_of_line || "").split("; ").some(text => text.split(":")[0].split(" ").includes(name))) cell.classList.add("bad");
  } else {
    const isMost = name === "percent" && line.occupancy === undefined && x !== undefined;
    cell.append((isMost ? "≤ " : "") + (name === "spill_bytes" && x === undefined && line.kind === "object" ? "?" : show(name, x)));
    if (name === "spill_bytes") cell.classList.add(x ? "bad" : "zero");
    const was = line.was?.[DELTAS[name] || name];
    if (was) {
      const by = was[1] - was[0], isBad = (by > 0) !== (name === "percent");
      cell.title = "was " + show(name, was[0]);
      cell.append(element("span", {className: "delta " + (isBad ? "bad" : "good"), textContent: (by > 0 ? "+" : "") + show(name, by)}));
    }
    if (name === "percent" && line.limiters) cell.append(element("span", {className: "limit", textContent: line.limiters}));
  }
}
function drawTable() {
  const chosenRows = chosen(true);
  const [list, lines] = SHOWN[$("view").value](chosenRows);
  const found = [...lines];
  if (state.sort) {
    const sign = state.down ? -1 : 1;
    const known = row => { const x = value(row, state.sort); return Array.isArray(x) ? x.join(" ") : x; };
    found.sort((a, b) => {
      const x = known(a), y = known(b);
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
      return sign * byValue(x, y) || a.index - b.index;
    });
  }
  const heads = list.map(([name, label]) => {
    const head = element("th", {scope: "col", className: RIGHT(name) ? "number" : ""});
    if (state.sort === name) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    const button = element("button", {type: "button", textContent: label});
    button.dataset.sort = name;
    button.onclick = () => {
      state.down = state.sort === name ? !state.down : RIGHT(name);
      state.sort = name;
      drawTable();
      document.querySelector(`[data-sort="<%text>${CSS.escape(name)}</%text>"]`).focus();
    };
    head.append(button);
    return head;
  });
  $("table").tHead.replaceChildren(element("tr", {}, ...heads));
  const body = document.createDocumentFragment();
  found.slice(0, LIMIT).forEach((row, index) => {
    const line = element("tr", {tabIndex: index ? -1 : 0});
    line.dataset.index = (row.rows?.[0] ?? row).index;
    for (const [name, label] of list) {
      const cell = element("td", {className: NAMES.has(name) ? "kernel" : RIGHT(name) ? (NUMBERS.has(name) ? "number" : "number text") : WRAPPED.has(name) ? "text" : ""});
      cell.dataset.label = label;
      fill(cell, row, name);
      line.append(cell);
    }
    body.append(line);
  });
  $("table").tBodies[0].replaceChildren(body);
  const cut = found.length > LIMIT ? `, the first <%text>${LIMIT}</%text> shown` : "";
  const count = $("view").value === "kernels" ? "" : `<%text>${found.length}</%text> lines of `;
  $("count").textContent = `<%text>${count}${chosenRows.length} of ${rows.length}${cut}</%text>`;
  $("detail").textContent = "";
  keep();
}
function detail(row) {
  const lines = [row.symbol];
  if (row.source) lines.push("in " + row.source + (row.line === undefined ? "" : ":" + row.line));
  if (row.verdict) lines.push(row.verdict + ": " + Object.entries(row.was).map(([name, [old, now]]) => `<%text>${name} ${old} -> ${now}</%text>`).join(", "));
  if (row.why) lines.push(row.why);
  if (row.spill_bytes) lines.push(`spilled: <%text>${row.spill_stores} bytes stored, ${row.spill_loads}</%text> loaded`);
  if (row.limiters) lines.push(`occupancy <%text>${row.occupancy === undefined ? "at most " : ""}${row.percent}</%text>%, limited by ` + row.limiters);
  if (Object.keys(row.p).length) lines.push(Object.entries(row.p).map(pair => pair.join(" = ")).join(", "));
  lines.push(...(row.warnings || []));
  $("detail").textContent = lines.join("\n");
}
$("table").tBodies[0].addEventListener("click", event => {
  const line = event.target.closest("tr");
  if (line) { line.focus(); detail(rows[line.dataset.index]); }  // the first row of a view's line
});
$("table").tBodies[0].addEventListener("keydown", event => {
  const line = event.target.closest("tr");
  if (!line) return;
  if (event.key === "Enter") detail(rows[line.dataset.index]);
  const next = {ArrowDown: line.nextElementSibling, ArrowUp: line.previousElementSibling}[event.key];
  if (next) { line.tabIndex = -1; next.tabIndex = 0; next.focus(); event.preventDefault(); }
});

/* Heat map */
const MOST_ACROSS = 30, MOST_DOWN = 60;
const dark = matchMedia("(prefers-color-scheme: dark)");
function colour(name, t) {
  const hue = name === "spill_bytes" || name === "stack_frame" ? 12 : 215;
  const share = name === "percent" ? 1 - t : t;
  const light = dark.matches ? 22 + 40 * share : 96 - 50 * share;
  const ink = dark.matches ? (light > 46 ? "#101418" : "#e6e9ed") : (light < 58 ? "#ffffff" : "#1c2127");
  return {background: `hsl(<%text>${hue} ${25 + 50 * share}% ${light}%</%text>)`, ink};
}
function folded(values) {
  const how = $("fold").value;
  if (how === "mean") return values.reduce((a, b) => a + b, 0) / values.length;
  return values.reduce((a, b) => how === "max" ? Math.max(a, b) : Math.min(a, b));
}
function drawMap() {
  const figures = [...new Set([$("figure").value, $("beside").value])].filter(Boolean);
  $("map").replaceChildren(...figures.map((figure, index) => oneMap(figure, index)));
}
function oneMap(figure, number) {
  const down = $("down").value, across = $("across").value;
  const label = FIGURES.find(known => known[0] === figure)[1];
  const node = element("figure", {}, element("figcaption", {textContent: label}));
  const cells = new Map(), ys = new Map(), xs = new Map();
  for (const row of chosen(false)) {
    const y = axis(row, down), x = axis(row, across), z = row[figure];
    if (z === undefined) continue;
    ys.set(y, value(row, down) ?? ABSENT); xs.set(x, value(row, across) ?? ABSENT);
    const name = y + "\0" + x;
    if (!cells.has(name)) cells.set(name, []);
    cells.get(name).push(z);
  }
  if (!cells.size) {
    node.append(element("p", {className: "help", textContent: "No kernel has the figure."}));
    return node;
  }
  const order = (known, most) => [...known].sort((a, b) => byValue(a[1], b[1])).map(pair => pair[0]).slice(0, most);
  const all = [...cells.values()].map(folded);
  const most = figure === "percent" ? 100 : Math.max(...all);  // colours begin at zero
  const short = z => show(figure, Math.round(z * 10) / 10);
  const table = element("table", {});
  const columnsAcross = order(xs, MOST_ACROSS), rowsDown = order(ys, MOST_DOWN);
  const left = ys.size - rowsDown.length + xs.size - columnsAcross.length;
  table.append(element("thead", {},
    element("tr", {}, element("th", {textContent: (LABELS[down] || down) + " \\ " + (LABELS[across] || across)}), ...columnsAcross.map(x => element("th", {scope: "col", textContent: x})))));
  const body = element("tbody", {});
  let first = true;
  for (const y of rowsDown) {
    const line = element("tr", {}, element("th", {scope: "row", textContent: y}));
    for (const x of columnsAcross) {
      const values = cells.get(y + "\0" + x);
      if (!values) { line.append(element("td", {className: "none", title: "no such kernel"})); continue; }
      const z = folded(values);
      const {background, ink} = colour(figure, most ? z / most : 0);
      const button = element("button", {type: "button", tabIndex: first ? 0 : -1}, short(z));
      first = false;
      if (values.length > 1) button.append(element("small", {textContent: values.length + " kernels"}));
      button.style.background = background;
      button.style.color = ink;
      const pressed = state.cell && state.cell.y === y && state.cell.x === x;
      button.setAttribute("aria-pressed", String(Boolean(pressed)));
      button.setAttribute("aria-label", `<%text>${down} ${y}, ${across} ${x}: ${show(figure, z)} ${label}, ${values.length} kernels</%text>`);
      button.onclick = () => {
        state.cell = pressed ? null : {down, across, y, x};
        const position = [line.rowIndex, button.parentNode.cellIndex];
        drawMap(); drawTable();
        focusCell($("map").querySelectorAll("table")[number], ...position);
      };
      line.append(element("td", {}, button));
    }
    body.append(line);
  }
  table.append(body);
  const ramp = element("span", {className: "ramp"});
  ramp.style.background = `<%text>linear-gradient(90deg, ${colour(figure, 0).background}, ${colour(figure, 1).background})</%text>`;
  node.append(table, element("div", {className: "legend"}, "0", ramp, short(most) + (left ? `, <%text>${left}</%text> more rows and columns are not shown` : "")));
  return node;
}
function focusCell(table, y, x) {
  const button = table?.rows[y]?.cells[x]?.querySelector("button");
  if (!button) return false;
  for (const other of table.querySelectorAll("button")) other.tabIndex = -1;
  button.tabIndex = 0;
  button.focus();
  return true;
}
$("map").addEventListener("keydown", event => {
  const step = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
  const cell = event.target.closest("td");
  if (!step || !cell) return;
  event.preventDefault();
  let y = cell.parentNode.rowIndex, x = cell.cellIndex;
  const table = cell.closest("table");
  for (;;) {
    y += step[0]; x += step[1];
    if (y < 1 || x < 1 || y >= table.rows.length || x >= table.rows[0].cells.length) return;
    if (focusCell(table, y, x)) return;
  }
});

/* Controls */
function options(select, pairs, initial) {
  select.replaceChildren(...pairs.map(([name, label]) => element("option", {value: name, textContent: label})));
  if (initial !== undefined) select.value = initial;
}
const LABELS = {kernels: "family.target", kernel_config: "kernel"};
const spread = name => new Set(rows.map(row => show("", value(row, name)))).size;
const axes = ["kernels", ...data.parameters, "function", "arch", "kind", "template", "source", "kernel_config"].filter(name => rows.some(row => value(row, name) !== undefined));
// First shown: what tells most rows apart, so that none is hidden in a column of those without it.
const coverage = name => rows.filter(row => value(row, name) !== undefined).length / rows.length;
const telling = name => coverage(name) * (rows.some(row => typeof row.p[name] === "number") ? 100 + Math.min(spread(name), 12) : spread(name));
const varied = axes.filter(name => !["kernel_config", "source"].includes(name) && spread(name) > 1).sort((a, b) => telling(b) - telling(a));
if (new Set(rows.map(row => row.kernels).filter(Boolean)).size > 1) varied.splice(1, 0, ...varied.splice(varied.indexOf("kernels"), 1));  // families beside each other
if (varied.length > 1 && spread(varied[0]) > MOST_ACROSS) varied.splice(0, 2, varied[1], varied[0]);
options($("figure"), FIGURES, FIGURES.length ? FIGURES[0][0] : undefined);
options($("beside"), [["", "nothing"], ...FIGURES], rows.some(row => row.spill_bytes > 0) ? "spill_bytes" : "");
options($("down"), axes.map(name => [name, LABELS[name] || name]), varied[1] || "kernel_config");
options($("across"), axes.map(name => [name, LABELS[name] || name]), varied[0] || "arch");
options($("arch"), [["", "all"], ...[...new Set(rows.map(row => row.arch).filter(Boolean))].sort((a, b) => byValue(a, b)).map(arch => [arch, arch])]);
options($("view"), [["kernels", "kernels"], ...(VIEWS.architecture.length ? [["architecture", "architectures side by side"]] : []), ["template", "by template"], ["total", "totals"]]);
options($("change"), [["", "all"], ["changed", "what changed"], ...data.verdicts.map(verdict => [verdict, verdict])], data.verdicts.length ? "changed" : "");
$("change").parentNode.hidden = !data.verdicts.length;
if (!data.parameters.length) $("wide").parentNode.hidden = true;
const draw = () => { drawMap(); drawTable(); };
const again = () => { state.cell = null; draw(); };
for (const id of ["figure", "beside", "down", "across", "fold", "arch", "change", "spilled"]) $(id).onchange = again;
$("wide").onchange = drawTable;
$("view").onchange = () => { state.sort = null; drawTable(); };
let waiting = 0;
for (const id of ["search", "where"]) $(id).oninput = () => { clearTimeout(waiting); waiting = setTimeout(again, 80); };
document.addEventListener("keydown", event => {
  const typing = event.target.matches("input[type=search], select");
  if (event.key === "/" && !typing) { $("search").focus(); $("search").select(); event.preventDefault(); }
  if (event.key === "Escape") { $("search").value = $("where").value = ""; again(); }
});
dark.addEventListener("change", drawMap);

/* The address: what differs from the page as it was written */
const KEPT = ["view", "change", "search", "where", "arch", "spilled", "wide", "figure", "beside", "down", "across", "fold"];
const content = id => $(id).type === "checkbox" ? ($(id).checked ? "1" : "") : $(id).value;
const first = Object.fromEntries(KEPT.map(id => [id, content(id)]));
function keep() {
  const address = new URLSearchParams(KEPT.filter(id => content(id) !== first[id]).map(id => [id, content(id)]));
  if (state.sort) address.set("sort", (state.down ? "-" : "") + state.sort);
  if (state.cell) address.set("cell", state.cell.y + "\0" + state.cell.x);
  const hash = "#" + address;
  if (hash !== (location.hash || "#")) history.replaceState(null, "", hash);
}
function restore() {
  const address = new URLSearchParams(location.hash.slice(1));
  for (const id of KEPT) {
    const wanted = address.get(id) ?? first[id];
    if ($(id).type === "checkbox") $(id).checked = Boolean(wanted);
    else $(id).value = wanted;
    if (!content(id) && $(id).tagName === "SELECT") $(id).value = address.get(id) === "" ? "" : first[id];
  }
  const sort = address.get("sort"), cell = address.get("cell")?.split("\0");
  state.sort = sort && sort.replace(/^-/, "");
  state.down = Boolean(sort?.startsWith("-"));
  state.cell = cell?.length === 2 ? {down: $("down").value, across: $("across").value, y: cell[0], x: cell[1]} : null;
  draw();
}
addEventListener("hashchange", restore);
restore();
</script>
</body>
</html>
