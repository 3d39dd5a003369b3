// Parallel coordinates: a line for each finished point; what is kept on the axes is kept in the table.

const APART = 0.04; // of an axis, over which lines are spread that would lie on each other
const kept = { at: null, listeners: [] };

const canDraw = () => {
  const canvas = document.createElement("canvas");
  return Boolean(canvas.getContext("webgl") ?? canvas.getContext("experimental-webgl"));
};

const dimension = (axis) => {
  const raised = (one) => axis.is_log ? Math.log10(one) : one;
  const all = axis.numbers ?? axis.texts.map((_, at) => at);
  const few = axis.texts.length <= 12;
  const apart = few ? APART * (raised(all[all.length - 1]) - raised(all[0])) : 0;
  const values = finished.map((at) => place(axis, points[at]))
    .map((one, nth) => raised(one ?? all[0]) + apart * (nth / finished.length - 0.5));
  const shown = few ? all.map((one, at) => [raised(one), short(axis.texts[at])]) : axis.is_log ? decades(all) : null;
  const title = isNarrow() ? short(axis.title.split(".").at(-1), 16) : short(axis.title);
  return { label: title, values, ...(shown ? { tickvals: shown.map(([one]) => one), ticktext: shown.map(([, text]) => text) } : {}) };
};

const decades = (numbers) => {
  const low = Math.ceil(Math.log10(numbers[0])), high = Math.floor(Math.log10(numbers[numbers.length - 1]));
  return Array.from({ length: Math.max(0, high - low + 1) }, (_, at) => [low + at, `1e${low + at}`]);
};

const isKept = (dimensions, at) => dimensions.every(({ constraintrange, values }) => {
  if (!constraintrange) return true;
  const ranges = Array.isArray(constraintrange[0]) ? constraintrange : [constraintrange];
  return ranges.some(([low, high]) => values[at] >= low && values[at] <= high);
});

const drawParallel = () => {
  if (choices.length < 2 || finished.length < 2) return;
  $("parallel-section").hidden = false;
  const target = $("parallel");
  if (!canDraw()) {
    target.className = "note";
    target.textContent = "This browser draws no WebGL, which these lines need.";
    return;
  }
  const finals = finished.map((at) => points[at].final);
  const dimensions = [...choices.map(dimension), { label: data.objective, values: finals, tickformat: ".4~g" }];
  plot(target, () => ({
    traces: [{
      type: "parcoords", dimensions, labelfont: { size: isNarrow() ? 11 : 13 }, labelangle: isNarrow() ? -20 : 0, tickfont: { size: 11 }, rangefont: { size: 1, color: "rgba(0,0,0,0)" },
      line: { color: finals, colorscale: SCALE, reversescale: isReversed() },
      unselected: { line: { color: color("faint"), opacity: 0.15 } },
    }],
    look: { margin: isNarrow() ? { l: 44, r: 44, t: 76, b: 16 } : { l: 80, r: 60, t: 60, b: 16 } },
  }), { follows: false, buttons: [["toImage"]] });
  target.on("plotly_restyle", () => {
    const { dimensions: now } = target.data[0];
    kept.at = now.some((one) => one.constraintrange) ? new Set(finished.filter((_, i) => isKept(now, i))) : null;
    kept.listeners.forEach((listener) => listener());
  });
};
