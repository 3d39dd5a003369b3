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

const data = JSON.parse(document.getElementById("data").textContent);
const graphs = { new: new Graph(data.new, "n"), old: data.old ? new Graph(data.old, "o") : null };

/** The node that a row holds or names; undefined for a plain value. */
const nodeOf = (row) => (row.node === undefined ? undefined : row.graph.nodes[row.node]);

/** The node that is written out under a row: elsewhere it is only named. */
function nodeUnder(row) {
  const node = nodeOf(row);
  return node && !row.from && row.graph.holder(node) === row ? node : undefined;
}

const callOf = (node) => (node.call === undefined ? undefined : data.calls[node.call]);
const titleOf = (node) => callOf(node)?.name ?? node.kind;
const isShared = (node) => node.call !== undefined && node.parents.length > 1;
const parameterOf = (row) => (row.owner && callOf(row.owner)?.parameters[row.step]) ?? {};
const tagsOf = (row) => (row.tags ?? []).map((number) => data.tags[number]);

/** A step as one reads it: `name`, `[0]`, or the key of a dict. */
function nameOf(row) {
  if (row.owner === null) return "config";
  return row.step.replace(/^\./, "").replace(/^\['([^'\\]*)'\]$/, "$1");
}

/** What a row holds, in words. */
function textOf(row) {
  if (row.state === "unset") return "not set";
  const node = nodeOf(row);
  if (row.text !== undefined || node === undefined) return row.text ?? "";
  return node.call === undefined ? `${node.kind} of ${node.rows.length}` : titleOf(node);
}
