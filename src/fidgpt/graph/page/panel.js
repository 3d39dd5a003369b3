// What is known of the chosen row: its value, its parameter, and why the value is what it is.

const KIND_NOTES = {
  Config: "built once",
  Partial: "a factory, called later",
  ArgFactory: "created for each call of what holds it",
};
const SHOWN = 12; // places in a list

function showPanel(element, row, pair) {
  if (row === null) return element.replaceChildren(...overview());
  const was = pair ? (row === pair.now ? pair.was : undefined) : changeAt(row)?.old;
  const node = nodeOf(row);
  const sections = [
    heading(row),
    difference(row),
    parameter(row),
    why(row, "Why"),
    was && was !== row && textOf(was) !== textOf(row)
      ? why(was, `Why in ${data.titles.old}`)
      : null,
    node ? partOf(row, node) : null,
    listOf("Inherited by", row.graph.heirs(row)),
    ...tagsOf(row).map((tag) => el("section", "", el("p", "doc", chip(tag), ` ${tag.doc}`))),
  ];
  element.replaceChildren(...sections.filter((section) => section));
  element.scrollTop = 0;
  return undefined;
}

function overview() {
  const parts = graphs.new.nodes.filter((node) => node.call !== undefined);
  const shared = parts.filter(isShared);
  const counts = `${parts.length} parts, ${shared.length} of them shared, ${data.tags.length} tags.`;
  const intro = el("section", "", el("h2", "", "This config"), el("p", "", counts));
  const whole = focus && sizeOf(focus);
  const count = whole ? [["parameters", whole[1].toLocaleString("en")]] : [];
  const note = el("p", "note", "Choose a line to see what set its value.");
  intro.append(factList([...count, ...data.facts]), note);
  return [
    intro,
    ...(data.changes ? [differences()] : []),
    listOf(
      "Shared parts",
      shared.map((node) => graphs.new.holder(node)),
    ),
  ].filter((section) => section);
}

function differences() {
  const count = data.changes.length;
  const title =
    count === 0 ? "No differences" : count === 1 ? "1 difference" : `${count} differences`;
  const items = upTo(50, data.changes, (change) => {
    const row = change.new ?? change.old;
    const path = row ? link(row, change.path) : el("span", "path", change.path);
    return el(
      "span",
      "",
      el("b", "sign", change.sign),
      " ",
      path,
      el("span", "detail", change.detail),
    );
  });
  return el("section", "", el("h3", "", title), items);
}

function heading(row) {
  const node = nodeOf(row);
  const side =
    graphs.old !== null && row.graph === graphs.old
      ? el("p", "note", `in ${data.titles.old}`)
      : null;
  const path = el("h2", "path", ...breakable(row.graph.path(row) || "the root"));
  const isPart = node?.call !== undefined && !row.from;
  const text = node?.result ?? (isPart ? "" : textOf(row));
  return el("section", "", path, side, text ? el("p", row.state ? "big dim" : "big", text) : null);
}

function difference(row) {
  const changes = changesAt.get(row);
  if (!changes) return null;
  const texts = changes.map((change) =>
    el("div", "", el("b", "sign", change.sign), ` ${change.detail}`),
  );
  return el("section", "detail", ...texts);
}

function parameter(row) {
  const { type, default: standard, doc } = parameterOf(row);
  const facts = [
    ["type", type],
    ["default", standard],
  ].filter(([, text]) => text);
  if (facts.length === 0 && !doc) return null;
  return el("section", "", doc ? el("p", "doc", doc) : null, factList(facts));
}

function factList(facts) {
  const items = facts.flatMap(([name, text]) => [el("dt", "", name), el("dd", "plain", text)]);
  return el("dl", "", ...items);
}

/** The chain that ends in a value: what it is inherited from, and its assignments, newest first. */
function why(row, title) {
  const setter = row.from ? row.graph.source(row) : row;
  const section = el("section", "why", el("h3", "", title));
  if (row.from) {
    const tags = tagsOf(row).map((tag) => chip(tag, true));
    section.append(el("p", "", "inherited from ", link(setter), " through ", ...tags));
    if (row.unset_by) section.append(el("p", "note", "left unset by ", placeOf(row.unset_by)));
  }
  if (setter.state === "default") section.append(el("p", "", "default"));
  if (setter.state === "unset") section.append(el("p", "", "unset, without a default"));
  const { holder, assignments } = assignmentsOf(setter);
  if (assignments.length > 0) {
    if (holder !== setter) section.append(el("p", "", "as part of ", link(holder)));
    section.append(el("ol", "assignments", ...assignments.map(assignmentItem)));
  }
  return section.childElementCount > 1 ? section : null;
}

/** The assignments to a row; for an item without any, those to its list. */
function assignmentsOf(row) {
  let holder = row;
  while (!holder.assignments && holder.owner && holder.owner.call === undefined) {
    holder = holder.graph.holder(holder.owner);
  }
  return { holder, assignments: holder.assignments ?? [] };
}

function assignmentItem(assignment, index) {
  const value = el("span", "plain", assignment.text);
  return el("li", index === 0 ? "now" : "lost", value, placeOf(assignment));
}

/** The directive that set a value, and the line of code. */
function placeOf({ by, where }) {
  const words = [by, where].filter((number) => number !== undefined);
  return el("span", "place", ...words.map((number) => el("span", "", data.places[number])));
}

function partOf(row, node) {
  const call = callOf(node);
  const first = row.graph.holder(node);
  const section = el("section", "");
  if (call) {
    section.append(
      el("h3", "", "Part"),
      el("p", "", el("b", isShared(node) ? "part shared" : "part", call.name)),
    );
    section.append(el("p", "note", `${call.module} · ${KIND_NOTES[node.kind] ?? ""}`));
    if (call.doc) section.append(el("p", "doc", call.doc));
  }
  if (sizeOf(node)) {
    const [count, parameters, bytes] = sizeOf(node);
    const whole = focus && sizeOf(focus);
    const share = whole ? `, ${((100 * parameters) / whole[1]).toPrecision(3)}% of all` : "";
    section.append(
      factList([
        ["objects", count.toLocaleString("en")],
        ["parameters", parameters.toLocaleString("en") + share],
        ["weights", short(bytes, BYTES)],
      ]),
    );
  }
  const places = row.graph.places(node);
  if (places.length > 1) {
    const title = `One object in ${places.length} places`;
    section.append(
      el("h3", "", title),
      upTo(SHOWN, places, (place) => link(place)),
    );
  } else if (row !== first) section.append(el("p", "", "written out at ", link(first)));
  return section.childElementCount > 0 ? section : null;
}

function listOf(title, rows) {
  if (rows.length === 0) return null;
  return el(
    "section",
    "",
    el("h3", "", `${title} ${rows.length}`),
    upTo(SHOWN, rows, (row) => link(row)),
  );
}
