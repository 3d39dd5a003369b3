// The graphs of the page, with what is derived from the data: paths, places, heirs.

class Graph {
  constructor(nodes, side) {
    this.nodes = nodes;
    this.side = side;
    this.rows = [];
    this.root = { graph: this, owner: null, step: "", node: 0, id: `${side}root` };
    nodes.forEach((node, number) => {
      node.number = number;
      node.rows.forEach((row, index) => {
        Object.assign(row, { graph: this, owner: node, index, id: `${side}${this.rows.length}` });
        this.rows.push(row);
      });
    });
  }

  /** The row that holds a node, the first one that a reader meets. */
  holder(node) {
    if (node.parents.length === 0) return this.root;
    const [number, index] = node.parents[0];
    return this.nodes[number].rows[index];
  }

  /** Every row that holds a node. */
  places(node) {
    if (node.parents.length === 0) return [this.root];
    return node.parents.map(([number, index]) => this.nodes[number].rows[index]);
  }

  /** The rows above a row, the root first. */
  above(row) {
    const rows = [];
    while (row.owner !== null) {
      row = this.holder(row.owner);
      rows.push(row);
    }
    return rows.reverse();
  }

  path(row) {
    row.path ??= [...this.above(row), row]
      .map((one) => one.step)
      .join("")
      .replace(/^\./, "");
    return row.path;
  }

  /** The row from which a row inherits. */
  source(row) {
    const [number, step] = row.from;
    return this.nodes[number].rows.find((one) => one.step === step);
  }

  /** The rows that inherit from a row. */
  heirs(row) {
    if (this.inheriting === undefined) {
      this.inheriting = new Map();
      for (const one of this.rows.filter((each) => each.from)) {
        const source = this.source(one);
        if (!this.inheriting.has(source)) this.inheriting.set(source, []);
        this.inheriting.get(source).push(one);
      }
    }
    return this.inheriting.get(row) ?? [];
  }
}

/** Finds items of lists that are equal to the one before; the first one stands for all of them. */
function findTwins(graph) {
  const kinds = new Map(); // of equal nodes, by all that they hold
  for (const node of [...graph.nodes].reverse()) {
    const held = node.rows.map((row) => {
      const child = nodeUnder(row);
      const isOwn = child && child.parents.length === 1;
      const same = isOwn || row.from ? null : row.node;
      return [row.step, row.state, isOwn ? child.alike : row.text, same];
    });
    const text = JSON.stringify([node.kind, node.call, held]);
    if (!kinds.has(text)) kinds.set(text, kinds.size);
    node.alike = kinds.get(text);
  }
  for (const node of graph.nodes.filter((one) => one.kind === "list" || one.kind === "tuple")) {
    let first = null;
    for (const item of node.rows.map(nodeUnder)) {
      const isOwn = item?.call !== undefined && item.parents.length === 1;
      if (isOwn && item.alike === first?.alike) pairUp(first, item);
      else first = isOwn ? item : null;
    }
  }
}

/** Lets a node stand for an equal one, and all that it holds. */
function pairUp(first, item) {
  item.twin = first;
  first.stands = (first.stands ?? 1) + 1;
  for (const left = [[first, item]]; left.length > 0;) {
    const [one, other] = left.pop();
    (one.twins ??= []).push(other);
    const pairs = one.rows.map((row, i) => [nodeUnder(row), nodeUnder(other.rows[i])]);
    left.push(...pairs.filter((pair) => pair[0] && pair[0].parents.length === 1));
  }
}

/** The row that stands for a row in an equal item of a list. */
function standIn(row) {
  let now = row.graph.root;
  for (const { step } of [...row.graph.above(row), row].slice(1)) {
    const index = nodeUnder(now).rows.findIndex((one) => one.step === step);
    now = nodeUnder(now).rows[index];
    const first = nodeUnder(now)?.twin;
    if (first) now = row.graph.holder(first);
  }
  return now;
}

/** What a node becomes, with equal ones that it stands for: objects, parameters, bytes. */
function sizeOf(node, isJoined = joinsTwins) {
  const nodes = [node, ...((isJoined && node.twins) || [])].filter((one) => one.size);
  if (nodes.length === 0) return null;
  return nodes.map((one) => one.size).reduce((sum, one) => sum.map((x, i) => x + one[i]));
}

/** How often a node is made for each object of the part that holds it. */
function timesOf(node, isJoined = joinsTwins) {
  if (!isJoined) return 1;
  const around = node.parents.length > 0 ? partAround(graphs.new.holder(node)) : null;
  const [whole, own] = [around && sizeOf(around, true), sizeOf(node, true)];
  return whole && own ? own[0] / whole[0] : (node.stands ?? 1);
}

/** A number with three digits, in the largest unit that it reaches. */
function short(number, units) {
  const [unit, ...larger] = units;
  const digits = Number(number.toPrecision(3));
  const isLast = digits < 1000 || larger.length === 0;
  return isLast ? `${digits} ${unit}`.trim() : short(number / 1000, larger);
}

const data = JSON.parse(document.getElementById("data").textContent);
const graphs = { new: new Graph(data.new, "n"), old: data.old ? new Graph(data.old, "o") : null };

/** The node that a row holds or names; undefined for a plain value. */
const nodeOf = (row) => (row.node === undefined ? undefined : row.graph.nodes[row.node]);

/** The node that is written out under a row: elsewhere it is only named. */
function nodeUnder(row) {
  const node = nodeOf(row);
  return node && !row.from && row.graph.holder(node) === row ? node : undefined;
}

/** The part on which the page opens; undefined without one, and where graphs are compared. */
const isFocus = (row) => graphs.old === null && row.step === `.${data.focus}`;
const focus = graphs.new.nodes[0].rows.filter(isFocus).map(nodeOf)[0];
if (graphs.old === null) findTwins(graphs.new);
let joinsTwins = graphs.old === null; // so that equal items of a list are one line

const callOf = (node) => (node.call === undefined ? undefined : data.calls[node.call]);
const titleOf = (node) => callOf(node)?.name ?? node.kind;
const isShared = (node) => node.call !== undefined && node.parents.length > 1;
const parameterOf = (row) => (row.owner && callOf(row.owner)?.parameters[row.step]) ?? {};
const tagsOf = (row) => (row.tags ?? []).map((number) => data.tags[number]);

/** A step as one reads it: `name`, `[0]`, or the key of a dict; `[0–3]` of equal items. */
function nameOf(row, isJoined = joinsTwins) {
  if (row.owner === null) return "config";
  const items = isJoined ? nodeUnder(row)?.stands : 1;
  if (items > 1) return `[${row.index}–${row.index + items - 1}]`;
  return row.step.replace(/^\./, "").replace(/^\['([^'\\]*)'\]$/, "$1");
}

/** What a row holds, in words. */
function textOf(row) {
  if (row.state === "unset") return "not set";
  const node = nodeOf(row);
  if (row.text !== undefined || node === undefined) return row.text ?? "";
  return node.call === undefined ? `${node.kind} of ${node.rows.length}` : titleOf(node);
}
