// The page from top to bottom.

const counts = {};
points.forEach(({ status }) => { counts[status] = (counts[status] ?? 0) + 1; });
$("states").textContent = `${points.length} points: ${Object.entries(counts).map(([status, count]) => `${count} ${status}`).join(", ")}`;

const [won, ...more] = data.verdict;
$("verdict").append(element("strong", { textContent: won }), ` ${more.join(" ")}`);
$("commands").append(...data.commands.flatMap(([sentence, command]) => [
  element("p", { className: "note", textContent: sentence }),
  // Lines break at spaces, and not at hyphens.
  element("div", { className: "command" }, element("pre", {}, ...command.split(" ").flatMap((word, at) => [at ? " " : "", element("span", { textContent: word })])), element("button", { textContent: "Copy" })),
]));
document.querySelectorAll(".command button").forEach((button) => {
  const text = button.previousElementSibling;
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch { // a browser in which the user refused access
      getSelection().selectAllChildren(text);
    }
  };
});
const line = (kind, cells) => element("tr", {}, ...cells.map((textContent) => element(kind, { textContent })));
$("leaders").append(...Object.values(data.leaders).map(([head, rows]) => element("div", { className: "scroll" }, element("table", {}, line("th", head), ...rows.map((row) => line("td", row))))));

const runnerUp = data.order.find((at) => points[at].final !== null && groupOf[at] !== groupOf[data.best]);
chooseBoth(data.best, runnerUp);
drawCurves();
drawHistory();
drawAxes();
drawEffects();
drawImportance();
drawMap();
drawParallel();
drawPoints();
drawDifference();

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((draw) => draw()));
document.documentElement.dataset.ready = "yes";
