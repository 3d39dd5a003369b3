// Search: words are sought in paths, types, tags, docs and values; `tag:` and the like in one alone.

const FIELDS = {
  path: (row) => row.graph.path(row),
  type: (row) => [
    nodeOf(row) && callOf(nodeOf(row)) ? titleOf(nodeOf(row)) : "",
    parameterOf(row).type,
  ],
  tag: (row) => tagsOf(row).map((tag) => tag.name),
  doc: (row) => [
    parameterOf(row).doc,
    callOf(nodeOf(row) ?? {})?.doc,
    ...tagsOf(row).map((tag) => tag.doc),
  ],
  value: (row) => row.text,
};
const MOST_FOUND = 200;

/** What a query asks: each word, and the field in which it is sought. */
function parsed(query) {
  return query
    .toLowerCase()
    .split(/\s+/)
    .filter((word) => word)
    .map((word) => {
      const [, field, text] = /^(path|type|tag|doc|value):(.*)$/.exec(word) ?? [null, null, word];
      return { field, text };
    });
}

/** The texts of a row by field, in small letters, worked out once. */
function textsOf(row) {
  row.texts ??= Object.fromEntries(
    Object.entries(FIELDS).map(([name, read]) => {
      const found = [read(row)].flat().filter((text) => text);
      return [name, found.join("\n").toLowerCase()];
    }),
  );
  return row.texts;
}

function matches(row, words) {
  const texts = textsOf(row);
  const has = ({ field, text }) =>
    field
      ? texts[field].includes(text) && texts[field] !== ""
      : Object.values(texts).some((one) => one.includes(text));
  return words.every(has);
}

/** The rows that a query finds; those whose path ends in it come first. */
function found(query) {
  const words = parsed(query);
  const sides = [graphs.new, graphs.old].filter((graph) => graph !== null);
  const rows = sides.flatMap((graph) => graph.rows.filter((row) => matches(row, words)));
  const isOnlyOld = (row) => row.graph === graphs.new || isGone(row);
  const last = words.at(-1)?.text ?? "";
  const rank = (row) =>
    textsOf(row).path.endsWith(last) ? 0 : textsOf(row).path.includes(last) ? 1 : 2;
  return rows.filter(isOnlyOld).sort((one, two) => rank(one) - rank(two));
}

/** Whether a row of the old graph has nothing beside it in the new one. */
function isGone(row) {
  const change = changeAt(row);
  return change !== undefined && !change.new;
}

function showResults(element, query) {
  const rows = found(query);
  const count = rows.length === 1 ? "1 place" : `${rows.length} places`;
  const lines = rows.slice(0, MOST_FOUND).map(resultOf);
  const more =
    rows.length > MOST_FOUND ? el("p", "note", `The first ${MOST_FOUND} are shown.`) : null;
  const none =
    "Nothing. A word is sought everywhere; path:, type:, tag:, doc: and value: narrow it.";
  const note = el("p", "note", rows.length > 0 ? count : none);
  element.replaceChildren(...[note, ...lines, more].filter((one) => one));
}

function resultOf(row) {
  const tags = tagsOf(row).map((tag) => chip(tag, row.from !== undefined));
  const path = el("span", "path", row.graph.path(row));
  const element = button("result", "", () => choose(row));
  element.append(
    path,
    el("span", row.state ? "plain dim" : "plain", textOf(row)),
    el("span", "tags", ...tags),
  );
  element.row = row;
  return element;
}
