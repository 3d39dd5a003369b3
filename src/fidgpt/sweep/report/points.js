// The table of points: sorted by any column, filtered by words and by what the coordinates keep.

const SIGNS = { finished: "✓", running: "▶", waiting: "…", stopped: "‖", "stopped early": "‖", failed: "✕", diverged: "✕" };
const hasWords = points.some(({ last_words }) => last_words);

const COLUMNS = [
  ["", (at) => rankOf[at], (at) => chosen.pair.includes(at) ? mark(chosen.pair.indexOf(at)) : points[at].final === null ? "" : String(groupOf[at] + 1), "number"],
  ["point", (at) => points[at].name],
  ["status", (at) => points[at].status, (at) => `${SIGNS[points[at].status] ?? ""} ${points[at].status}${points[at].final === null && points[at].step ? ` at ${whole(points[at].step)}/${whole(points[at].num_steps)}` : ""}`],
  [`final ${data.objective}`, (at) => points[at].final, (at) => number(points[at].final), "number"],
  ["best", (at) => points[at].best?.[0], (at) => points[at].best ? `${number(points[at].best[0])} at ${whole(points[at].best[1])}` : "–", "number"],
  ...(hasRepeats ? [["mean ± spread", (at) => groups[groupOf[at]].mean, (at) => {
    const { mean: middle, spread: wide, count } = groups[groupOf[at]];
    return `${number(middle)}${wide === null ? "" : ` ± ${Number(wide.toPrecision(2))}`} (${count})`;
  }, "number"]] : []),
  ["parameters", (at) => points[at].parameters, (at) => whole(points[at].parameters), "number"],
  ["seconds", (at) => points[at].seconds, (at) => points[at].seconds.toFixed(0), "number"],
  ["fingerprint", (at) => points[at].fingerprint.slice(0, 12)],
  ...(hasWords ? [["last words", (at) => points[at].last_words, undefined, "words"]] : []),
];
const order = { column: 0, down: false };

const compared = (one, other) => {
  const value = COLUMNS[order.column][1], a = value(one), b = value(other);
  if (a === b) return rankOf[one] - rankOf[other];
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return (a < b ? -1 : 1) * (order.down ? -1 : 1);
};

const fillPoints = () => {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (at) => {
    const text = `${points[at].name} ${points[at].status} ${points[at].fingerprint.slice(0, 12)}`.toLowerCase();
    return words.every((word) => text.includes(word)) && (!kept.at || kept.at.has(at));
  };
  const shown = points.map((_, at) => at).filter(fits).sort(compared);
  $("count").textContent = shown.length === points.length ? `${points.length} points; a click chooses one to compare` : `${shown.length} of ${points.length} points`;
  $("points").tHead.replaceChildren(element("tr", {}, ...COLUMNS.map(([name, , , kind], at) => {
    const head = element("th", { textContent: name || "#", className: kind ?? "", tabIndex: 0, onclick: () => sortBy(at), onkeydown: (event) => { if (event.key === "Enter") sortBy(at); } });
    if (at === order.column) head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
    return head;
  })));
  $("points").tBodies[0].replaceChildren(...shown.map((at) => element("tr", {
    className: chosen.pair.includes(at) ? "chosen" : "", tabIndex: 0, onclick: () => choose(at), onkeydown: (event) => { if (event.key === "Enter") choose(at); },
  }, ...COLUMNS.map(([, value, text, kind]) => element("td", { className: kind ?? "" }, text ? text(at) : String(value(at) ?? ""))))));
};

const sortBy = (column) => {
  order.down = order.column === column && !order.down;
  order.column = column;
  fillPoints();
};

const drawPoints = () => {
  fillPoints();
  $("filter").addEventListener("input", fillPoints);
  onChoice(fillPoints);
  kept.listeners.push(fillPoints);
};
