// One line of the tree: a name, its value (in each graph), and its tags.

const BYTES = ["B", "kB", "MB", "GB", "TB"];
const KINDS = { Partial: "factory", ArgFactory: "new on each call" };

function rowElement(item) {
  const row = item.now ?? item.was;
  const values =
    graphs.old === null ? [valueCell(row)] : [valueCell(item.was), valueCell(item.now)];
  if (graphs.old !== null) values[0].classList.add("was");
  const tags = tagsOf(row).map((tag) => chip(tag, row.from !== undefined));
  const element = el(
    "div",
    classesOf(item, row),
    nameCell(item, row),
    ...values,
    el("span", "tags", ...tags),
  );
  element.item = item;
  element.tabIndex = -1;
  element.setAttribute("role", "treeitem");
  element.setAttribute("aria-level", String(item.depth + 1));
  if (item.canUnfold) element.setAttribute("aria-expanded", String(item.isUnfolded));
  return element;
}

function classesOf(item, row) {
  const became = becameOf(item);
  const isDefault = row.state !== undefined && (!item.was || item.was.state !== undefined);
  const holds = !became && holdsChange(item) ? "holds" : "";
  return ["row", row.state && isDefault ? "dim" : "", became, holds].filter(Boolean).join(" ");
}

function nameCell(item, row) {
  const twist = el("span", "twist");
  const element = el("span", "name", twist, el("span", "", nameOf(row)));
  element.style.setProperty("--depth", String(Math.min(item.depth, 24)));
  element.title = row.graph.path(row) || "the root";
  return element;
}

/** The value of a row: a part, a link to where a part is written out, or a plain value. */
function valueCell(row) {
  if (!row) return el("span", "value");
  const node = nodeOf(row);
  const element = el("span", "value");
  if (node?.call !== undefined && !row.from) {
    element.append(el("span", isShared(node) ? "part shared" : "part", titleOf(node)));
    if (timesOf(node) > 1) element.append(el("span", "times", `× ${timesOf(node)}`));
    if (KINDS[node.kind]) element.append(el("span", "kind", KINDS[node.kind]));
    if (sizeOf(node)) element.append(sizeElement("span", node));
    if (node.result !== undefined) element.append(el("span", "plain outcome", `= ${node.result}`));
    if (isShared(node)) element.append(sharing(row, node));
  } else {
    element.append(el("span", node && !row.from ? "kind" : "plain", textOf(row)));
    if (node?.result !== undefined) element.append(el("span", "plain outcome", `= ${node.result}`));
    element.title = textOf(row).slice(0, 2000);
  }
  if (row.from) {
    const source = row.graph.source(row);
    element.append(el("span", "from", "← ", link(source)));
  }
  return element;
}

/** Parameters, and the memory of these. */
function sizeElement(kind, node, isJoined = joinsTwins) {
  const [, parameters, bytes] = sizeOf(node, isJoined);
  const count = short(parameters, ["", "k", "M", "B", "T"]);
  return el(kind, "size", count, el("span", "unit", " parameters"), ` · ${short(bytes, BYTES)}`);
}

function sharing(row, node) {
  const first = row.graph.holder(node);
  if (row === first) return el("span", "from", `in ${node.parents.length} places`);
  return el("span", "from", "is ", link(first));
}
