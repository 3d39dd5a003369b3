// Brings the parts of the page together: what is chosen is chosen everywhere.

const byId = (id) => document.getElementById(id);
const tree = new Tree(byId("tree"));
let drawing = null; // made when it is first looked at
let view = "tree";

/** Chooses a row: every view marks it, and the panel describes it. */
function choose(row, { pair } = {}) {
  if (row !== null && byId("query").value) search("");
  if (row !== null) showInTree(row);
  tree.mark(row);
  if (view === "tree" && !pair && row !== null) tree.find(row)?.focus();
  const beside = pair ?? (row && tree.find(row)?.item);
  showPanel(byId("panel"), row, beside);
  if (drawing === null) return;
  drawing.mark(row);
  if (view === "graph" && row !== null && !pair) drawing.reveal(row);
}

/** Unfolds the tree down to a row, and hides nothing if the row would be hidden. */
function showInTree(row) {
  tree.reveal(row);
  if (tree.find(row)) return;
  tree.showsDefaults = true;
  tree.onlyChanges = joinsTwins = false;
  document.body.classList.remove("only-changes");
  byId("defaults").setAttribute("aria-pressed", "true");
  byId("only-changes").setAttribute("aria-pressed", "false");
  tree.draw();
  tree.reveal(row);
}

function show(next) {
  view = next;
  const isGraph = view === "graph";
  byId("show-tree").setAttribute("aria-pressed", String(!isGraph));
  byId("show-graph").setAttribute("aria-pressed", String(isGraph));
  byId("tree-view").hidden = isGraph;
  byId("graph-view").hidden = !isGraph;
  byId("results").hidden = true;
  if (!isGraph) return tree.chosen && tree.reveal(tree.chosen);
  if (drawing === null) {
    drawing = new Drawing(byId("graph-view"));
    drawing.open();
  }
  drawing.mark(tree.chosen);
  return tree.chosen && drawing.reveal(tree.chosen, "center");
}

function search(query) {
  byId("query").value = query;
  const isOn = query.trim() !== "";
  byId("results").hidden = !isOn;
  byId("tree-view").hidden = isOn || view !== "tree";
  byId("graph-view").hidden = isOn || view !== "graph";
  if (isOn) showResults(byId("results"), query);
}

/** From the search to what it found, and from line to line. */
function walkResults(event) {
  const results = [...byId("results").querySelectorAll(".result")];
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || byId("results").hidden || results.length === 0) return;
  event.preventDefault();
  const at = results.indexOf(document.activeElement) + step;
  (results[at] ?? byId("query")).focus();
}

function keys(event) {
  const isTyping = event.target === byId("query");
  if (event.key === "/" && !isTyping) {
    event.preventDefault();
    byId("query").focus();
  } else if (event.key === "Escape") {
    if (byId("query").value) search("");
    else choose(null);
    tree.element.querySelector("[tabindex='0']").focus();
  } else if (event.key === "g" && !isTyping) show(view === "tree" ? "graph" : "tree");
  else walkResults(event);
}

function foldAll(isUnfolded) {
  if (view === "graph") drawing.foldAll(isUnfolded);
  else tree.foldAll(isUnfolded);
}

/** The path that the address names; none if it is malformed. */
function askedPath() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return "";
  }
}

function start() {
  byId("query").addEventListener("input", (event) => search(event.target.value));
  byId("query").addEventListener("keydown", (event) => {
    const [first] = found(event.target.value);
    if (event.key === "Enter" && event.target.value && first) choose(first);
  });
  byId("show-tree").addEventListener("click", () => show("tree"));
  byId("show-graph").addEventListener("click", () => show("graph"));
  byId("unfold").addEventListener("click", () => foldAll(true));
  byId("fold").addEventListener("click", () => foldAll(false));
  toggle(byId("defaults"), (isOn) => {
    tree.showsDefaults = isOn;
    tree.draw();
  });
  toggle(byId("only-changes"), (isOn) => {
    tree.onlyChanges = isOn;
    document.body.classList.toggle("only-changes", isOn);
    tree.draw();
  });
  byId("theme").addEventListener("click", () => {
    const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
    const { style } = document.documentElement;
    const now = style.colorScheme || (isDark ? "dark" : "light");
    style.colorScheme = now === "dark" ? "light" : "dark";
  });
  document.addEventListener("keydown", keys);
  document.body.classList.toggle("compares", graphs.old !== null);
  byId("only-changes").hidden = graphs.old === null;
  const titles =
    graphs.old === null
      ? ["name", "value", "tags"]
      : ["name", data.titles.old, data.titles.new, "tags"];
  byId("columns").append(...titles.map((title) => el("span", "", title)));
  byId("keys").append(
    "/ search · arrows move and fold · enter chooses · g tree or graph · esc back",
  );
  const asked = askedPath();
  choose(graphs.new.rows.find((row) => asked && graphs.new.path(row) === asked) ?? null);
  if (focus && !asked && matchMedia("(min-width: 900px)").matches) show("graph");
}

start();
