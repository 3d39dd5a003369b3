// The page from top to bottom.

const counts = {};
points.forEach(({ status }) => { counts[status] = (counts[status] ?? 0) + 1; });
$("states").textContent = `${points.length} points: ${Object.entries(counts).map(([status, count]) => `${count} ${status}`).join(", ")}`;

const [won, ...more] = data.verdict;
$("verdict").append(element("strong", { textContent: won }), ` ${more.join(" ")}`);
$("command").textContent = data.command;
$("copy").onclick = async () => {
  try {
    await navigator.clipboard.writeText(data.command);
    $("copy").textContent = "Copied";
  } catch { // a browser that asks first, and was told no
    getSelection().selectAllChildren($("command"));
  }
};

const runnerUp = data.order.find((at) => points[at].final !== null && groupOf[at] !== groupOf[data.best]);
chooseBoth(data.best, runnerUp);
drawCurves();
drawAxes();
drawEffects();
drawImportance();
drawMap();
drawParallel();
drawPoints();
drawDifference();

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((draw) => draw()));
document.documentElement.dataset.ready = "yes";
