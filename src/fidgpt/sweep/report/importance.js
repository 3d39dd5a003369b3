// How much each axis matters.

const drawImportance = () => {
  if (axes.length < 2) return;
  $("importance-section").hidden = false;
  $("method").textContent = data.method;
  $("importance").style.height = `${82 + 34 * axes.length}px`;
  plot($("importance"), () => ({
    traces: [{
      type: "bar", orientation: "h", x: axes.map(({ share }) => share ?? 0), y: axes.map(({ label, is_repeat }) => label + (is_repeat ? " (repeats)" : "")),
      text: axes.map((axis) => axis.share_text), textposition: "outside", cliponaxis: false, hoverinfo: "none",
      marker: { color: axes.map(({ is_repeat }) => color(is_repeat ? "faint" : "accent")) },
    }],
    look: { margin: { l: 56, r: 110, t: 28, b: 32 }, xaxis: { range: [0, 1], tickformat: ".0%" }, yaxis: { autorange: "reversed", type: "category", ticksuffix: " " } },
  }), { follows: false });
};
