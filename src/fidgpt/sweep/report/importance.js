// How much each axis matters, and pairs of axes beyond both.

const drawImportance = () => {
  if (axes.length < 2) return;
  $("importance-section").hidden = false;
  $("method").textContent = data.method;
  const shares = data.importances;
  $("importance").style.height = `${82 + 34 * shares.length}px`;
  plot($("importance"), () => ({
    traces: [{
      type: "bar", orientation: "h", x: shares.map(({ share }) => share ?? 0), y: shares.map(({ label }) => label),
      text: shares.map(({ text }) => text), textposition: "outside", cliponaxis: false, hoverinfo: "none",
      marker: { color: shares.map(({ is_repeat }) => color(is_repeat ? "faint" : "accent")) },
    }],
    look: { margin: { l: 56, r: isNarrow() ? 56 : 110, t: 28, b: 32 }, xaxis: { range: [0, 1], tickformat: ".0%" }, yaxis: { autorange: "reversed", type: "category", ticksuffix: " " } },
  }), { follows: false });
};
