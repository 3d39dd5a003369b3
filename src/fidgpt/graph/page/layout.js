// Which parts the drawn graph shows, and where: only what is unfolded is laid out.

const FULL = 40; // boxes, at which the graph stops to unfold by itself
const MOST = 1500; // boxes, of which a layout takes a second or two
const NEAR = 4; // children apart whose order is kept; all would take long
const WIDE = 16; // children of one part that are shown before the reader asks for the rest

/** The parts below a part, each with the rows that lead to it; lists are seen through. */
function partsBelow(node) {
  if (node.partsBelow) return node.partsBelow;
  const found = new Map();
  const left = [...node.rows].reverse();
  while (left.length > 0) {
    const row = left.pop();
    const child = row.from ? undefined : nodeOf(row);
    if (!child) continue;
    if (child.twin) continue;
    if (child.call === undefined) {
      if (nodeUnder(row)) left.push(...[...child.rows].reverse());
    } else if (!found.has(child)) found.set(child, row);
  }
  node.partsBelow = [...found.keys()];
  return node.partsBelow;
}

/** The parts to unfold, those nearest to the root first, until the picture has so many boxes. */
function nearest(root, most) {
  const unfolded = new Set();
  const seen = new Set([root]);
  for (const node of seen) {
    const children = partsBelow(node).slice(0, WIDE);
    const fresh = children.filter((child) => !seen.has(child));
    if (seen.size + fresh.length > most) break;
    unfolded.add(node);
    fresh.forEach((child) => seen.add(child));
  }
  return unfolded;
}

/** The boxes and arrows that can be seen: parts, and a box for the rest of very many. */
function visible(root, unfolded, wide) {
  const boxes = new Set([root]);
  const arrows = [];
  for (const node of boxes) {
    if (node.rest || !unfolded.has(node)) continue;
    const children = partsBelow(node);
    const most = wide.has(node) ? children.length : WIDE;
    for (const child of children.slice(0, most)) {
      boxes.add(child);
      arrows.push([node, child]);
    }
    if (children.length > most) {
      const rest = { rest: children.length - most, of: node };
      boxes.add(rest);
      arrows.push([node, rest]);
    }
  }
  return { boxes: [...boxes], arrows };
}

/** Where the boxes and arrows are, from left to right, given how large each box is. */
function placed(boxes, arrows, sizes) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({
    rankdir: "LR",
    nodesep: 14,
    ranksep: 56,
    rankalign: "top",
    marginx: 24,
    marginy: 24,
  });
  graph.setDefaultEdgeLabel(() => ({}));
  const names = new Map(boxes.map((box, i) => [box, String(i)]));
  boxes.forEach((box, i) => graph.setNode(String(i), { ...sizes[i] }));
  arrows.forEach(([tail, head]) => graph.setEdge(names.get(tail), names.get(head)));
  dagre.layout(graph, { constraints: inOrder(arrows, names) });
  return {
    size: graph.graph(),
    boxes: boxes.map((_, i) => graph.node(String(i))),
    arrows: arrows.map(([tail, head]) => wayOf(graph, names.get(tail), names.get(head))),
  };
}

/** What a part holds stands below each other as it is written, if it stands in one column. */
function inOrder(arrows, names) {
  return arrows.flatMap(([tail, head], i) => {
    const above = arrows.slice(Math.max(0, i - NEAR), i).filter(([other]) => other === tail);
    return above.map(([, one]) => ({ left: names.get(one), right: names.get(head) }));
  });
}

/** The points of an arrow: out of a box on the right, between the boxes of each column, and in. */
function wayOf(graph, tail, head) {
  const [from, to] = [graph.node(tail), graph.node(head)];
  // Dagre also bends an arrow half-way between two columns, at every odd point.
  const bends = graph
    .edge(tail, head)
    .points.slice(1, -1)
    .filter((_, i) => i % 2 === 1);
  const start = { x: from.x + from.width / 2, y: from.y };
  const end = { x: to.x - to.width / 2, y: to.y };
  return [start, ...bends, end];
}
