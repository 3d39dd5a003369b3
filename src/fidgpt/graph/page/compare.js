// Two graphs side by side: which rows stand beside each other, and what became of them.

const changesAt = new Map(); // by row
const holdsChanges = new Set(); // rows with a difference below

for (const change of data.changes ?? []) {
  for (const side of ["old", "new"]) {
    if (!change[side]) continue;
    const [number, index] = change[side];
    const graph = graphs[side];
    const row = index < 0 ? graph.root : graph.nodes[number].rows[index];
    change[side] = row;
    changesAt.set(row, [...(changesAt.get(row) ?? []), change]);
    for (const above of graph.above(row).reverse()) {
      if (holdsChanges.has(above)) break;
      holdsChanges.add(above);
    }
  }
}

/** The change at a row; its value and not its tags where both are others. */
const changeAt = (row) => changesAt.get(row)?.at(-1);
const changeOf = (pair) => changeAt(pair.now) ?? changeAt(pair.was);
const holdsChange = (pair) => holdsChanges.has(pair.now) || holdsChanges.has(pair.was);

/** What became of a pair of rows: came, gone, changed, followed, or "" for nothing. */
function becameOf(pair) {
  if (graphs.old === null) return "";
  const change = changeOf(pair);
  if (change) {
    const kinds = { PartAdded: "came", PartRemoved: "gone" };
    const isValue = change.kind === "ValueChanged" && !pair.lone;
    if (isValue && isNothing(pair.was)) return "came";
    if (isValue && isNothing(pair.now)) return "gone";
    return kinds[change.kind] ?? "changed";
  }
  if (!pair.now || !pair.was) return pair.lone ?? "";
  const isInherited = pair.now.from !== undefined || pair.was.from !== undefined;
  const isOther = (read) => read(pair.now) !== read(pair.was);
  if (isOther((row) => nodeOf(row)?.result)) return "followed";
  return isInherited && isOther(textOf) ? "followed" : "";
}

/** The rows of two nodes, those beside each other that stand for each other. */
function pairsBelow(now, was) {
  if (!now || !was) {
    const lone = graphs.old === null ? "" : now ? "came" : "gone";
    const rows = (now ?? was).rows;
    return rows.map((row) => (now ? { now: row, lone } : { was: row, lone }));
  }
  return now.kind === "list" || now.kind === "tuple"
    ? pairsOfItems(now, was)
    : pairsByName(now, was);
}

function pairsByName(now, was) {
  const left = new Map(was.rows.map((row) => [row.step, row]));
  const pairs = now.rows.map((row) => ({ now: row, was: left.get(row.step) }));
  now.rows.forEach((row) => left.delete(row.step));
  return [...pairs, ...[...left.values()].map((row) => ({ was: row }))];
}

/** Items that a change names are where it says; the others follow each other in both lists. */
function pairsOfItems(now, was) {
  const partnered = new Set(now.rows.map((row) => changeAt(row)?.old));
  const isLeft = (row) => changeAt(row) === undefined || changeAt(row).new;
  const rest = was.rows.filter((row) => !partnered.has(row) && isLeft(row));
  let next = 0;
  const pairs = now.rows.map((row) => {
    const change = changeAt(row);
    if (!change) return { now: row, was: rest[next++] };
    return change.old?.owner === was ? { now: row, was: change.old } : { now: row, lone: "came" };
  });
  const met = new Set(pairs.map((pair) => pair.was));
  const gone = was.rows.filter((row) => !met.has(row));
  return [...pairs, ...gone.map((row) => ({ was: row, lone: "gone" }))];
}

/** Whether a row of the new graph is inside of a part that came. */
function isNew(row) {
  return [...row.graph.above(row), row].some((one) => changeAt(one)?.kind === "PartAdded");
}

const isNothing = (row) => !row || row.state === "unset";
