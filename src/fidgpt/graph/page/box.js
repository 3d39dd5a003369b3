// A box of the drawn graph, and the arrows between boxes.

const SVG = "http://www.w3.org/2000/svg";
const LINES = 5; // values in a box

function boxElement(node, twist) {
  const row = graphs.new.holder(node);
  const places = isShared(node) ? ` · ${node.parents.length} places` : "";
  const step = el("div", "step", stepsTo(row) + places);
  const count = timesOf(node, true);
  const times = count > 1 ? el("span", "times", `× ${count}`) : null;
  const head = el("div", "head", el("b", "", titleOf(node)), times, twist);
  const size = sizeOf(node, true) ? sizeElement("div", node, true) : null;
  const element = el("div", boxClasses(node, row), step, head, size, ...valuesOf(node).map(lineOf));
  if (node.result !== undefined) {
    element.append(el("div", "line", el("span", "", "="), el("span", "plain", node.result)));
  }
  element.node = node;
  element.tabIndex = -1;
  element.title = graphs.new.path(row) || "the root";
  element.addEventListener("click", () => choose(row));
  return element;
}

/** The part in which a row stands, lists seen through; undefined for the root. */
function partAround(row) {
  while (row.owner && row.owner.call === undefined) row = row.graph.holder(row.owner);
  return row.owner ?? undefined;
}

function boxClasses(node, row) {
  const became = isNew(row) ? "came" : changeAt(row) ? "changed" : "";
  const own = node.rows.some((one) => changeAt(one) && nodeOf(one)?.call === undefined);
  const isFactory = KINDS[node.kind] !== undefined;
  const classes = ["box", isFactory ? "factory" : "", isShared(node) ? "shared" : ""];
  const below = own ? "changed" : holdsChange({ now: row }) ? "holds" : "";
  return [...classes, became || below].filter(Boolean).join(" ");
}

/** The values in a box: those that are set or inherited. */
function valuesOf(node) {
  const shown = node.rows.filter((row) => !row.state && (row.from || nodeOf(row) === undefined));
  return shown.length > LINES ? [...shown.slice(0, LINES - 1), null] : shown;
}

function lineOf(row) {
  if (row === null) return el("div", "line", el("span", "", "…"));
  const element = el("div", row.from ? "line inherited" : "line", el("span", "", nameOf(row)));
  const change = changeAt(row);
  const was =
    change?.old && textOf(change.old) !== textOf(row) ? el("s", "", textOf(change.old)) : null;
  element.append(
    el("span", change ? "plain changed" : "plain", was, was ? " " : null, textOf(row)),
  );
  return element;
}

/** The steps from the nearest part above: `blocks[0]`. */
function stepsTo(row) {
  const steps = [nodeUnder(row)?.stands > 1 ? nameOf(row, true) : row.step];
  while (row.owner && row.owner.call === undefined) {
    row = row.graph.holder(row.owner);
    steps.push(row.step);
  }
  return steps.reverse().join("").replace(/^\./, "");
}

function arrowsOf(layout, arrows) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("width", layout.size.width);
  svg.setAttribute("height", layout.size.height);
  arrows.forEach((ends, i) => {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", curve(layout.arrows[i]));
    path.setAttribute("class", isShared(ends[1]) ? "shared" : "");
    path.ends = ends;
    svg.append(path);
  });
  return svg;
}

/** A smooth line: from point to point, each bent as the two that it is between ask. */
function curve(points) {
  const [start, ...others] = points;
  let at = start;
  const bends = others.map((point) => {
    const middle = (at.x + point.x) / 2;
    const bend = `C${middle},${at.y} ${middle},${point.y} ${point.x},${point.y}`;
    at = point;
    return bend;
  });
  return `M${start.x},${start.y}${bends.join("")}`;
}
