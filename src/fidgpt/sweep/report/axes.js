// The final value against each axis, and what an ablation left out.

const byValue = (axis, fits = () => true) => axis.texts.map((text, at) => {
  const finals = finished.filter((one) => points[one].values[axis.label] === text && fits(one)).map((one) => points[one].final);
  return { x: axis.numbers ? axis.numbers[at] : at, finals };
}).filter(({ finals }) => finals.length);

const spread = (numbers) => {
  const middle = mean(numbers);
  return numbers.length > 1 ? Math.sqrt(numbers.reduce((sum, one) => sum + (one - middle) ** 2, 0) / (numbers.length - 1)) : 0;
};

const alone = choices.length === 1;

// Of two axes, the one whose values make a line each in the plot of the other.
const otherOf = (axis) => {
  const other = choices.length === 2 && axis.numbers ? choices.find((one) => one !== axis) : null;
  return other && other.texts.length <= FEW ? other : null;
};

const linesOf = (axis, other) => other.texts.map((text, nth) => {
  const levels = byValue(axis, (at) => points[at].values[other.label] === text);
  return {
    x: levels.map((one) => one.x), y: levels.map((one) => mean(one.finals)), name: short(named(other, text)), showlegend: true,
    mode: "lines", hoverinfo: "skip", line: { color: PALETTE[nth], width: 2.5, dash: DASHES[nth] },
    error_y: { type: "data", array: levels.map((one) => spread(one.finals)), visible: levels.some((one) => one.finals.length > 1), color: PALETTE[nth] },
  };
});

const axisTraces = (axis) => {
  const at = finished.filter((one) => place(axis, points[one]) !== null);
  const x = at.map((one) => place(axis, points[one])), y = at.map((one) => points[one].final);
  const levels = byValue(axis);
  const hasLines = levels.length < 0.75 * at.length || alone;
  const failed = points.map((_, one) => one).filter((one) => isFailed(points[one]) && place(axis, points[one]) !== null);
  const height = Math.max(...y) - Math.min(...y) || Math.abs(y[0]) || 1;
  const top = Math.max(...y) + 0.1 * height;
  const mode = axis.numbers ? "lines" : "markers"; // nothing lies between two words
  const bar = { symbol: "line-ew-open", size: 30, line: { width: 3 } };
  const lines = [{
    x: levels.map((one) => one.x), y: levels.map((one) => mean(one.finals)), name: alone ? "mean" : "mean at this value",
    mode, hoverinfo: "skip", marker: { ...bar, color: color("soft") }, line: { color: color("soft"), width: 2, dash: alone ? "solid" : "dash" },
    error_y: { type: "data", array: levels.map((one) => spread(one.finals)), visible: alone && levels.some((one) => one.finals.length > 1), color: color("soft") },
  }, {
    x: levels.map((one) => one.x), y: levels.map((one) => best(one.finals)), name: "best at this value",
    mode, hoverinfo: "skip", marker: { ...bar, color: color("accent") }, line: { color: color("accent"), width: 2.5 }, visible: !alone,
  }];
  const other = otherOf(axis);
  const shades = other ? at.map((one) => PALETTE[place(other, points[one]) === null ? FEW - 1 : other.texts.indexOf(points[one].values[other.label])]) : color("accent");
  return [
    ...(other ? linesOf(axis, other) : hasLines ? lines : []),
    { x, y, customdata: at, mode: "markers", hovertext: at.map(hoverText), hoverinfo: "text", name: "a point", marker: { size: at.length > 60 ? 6 : 9, color: shades, opacity: at.length > 60 ? 0.45 : 0.9, line: { width: 1, color: color("raised") } } },
    { x: failed.map((one) => place(axis, points[one])), y: failed.map(() => top), customdata: failed, mode: "markers", hovertext: failed.map((one) => `<b>${escaped(points[one].name)}</b><br>${points[one].status}`), hoverinfo: "text", name: "failed or diverged", marker: { symbol: "x", size: 8, color: color("text") }, visible: failed.length > 0 },
    { x: [place(axis, points[data.best])], y: [points[data.best].final], mode: "markers", hoverinfo: "skip", name: "the best", marker: { symbol: "star", size: 15, color: color("text"), line: { width: 1, color: color("raised") } } },
    ...rings(at, x, y),
  ].map((one) => ({ showlegend: false, ...one }));
};

const drawAxes = () => {
  if (!choices.length) return;
  $("axes-section").hidden = false;
  $("axes-note").textContent = `★ the best point${points.some(isFailed) ? ", ✕ failed or diverged" : ""}; `
    + (alone ? (hasRepeats ? "the line is the mean, with the spread of repeated runs." : "the line joins the points.")
      : choices.some(otherOf) ? "a line for each value of the other axis." : "strong line: the best at a value; dashed or grey: the mean over all else.");
  $("axes").append(...choices.map(() => element("div"))); // all, or the first takes the place of all
  for (const [at, axis] of choices.entries()) {
    plot($("axes").children[at], () => ({
      traces: axisTraces(axis),
      look: {
        showlegend: otherOf(axis) !== null, legend: legend(""), // for the lines
        xaxis: { title: { text: axis.title + (axis.is_log ? " (log)" : "") }, ...ticks(axis) }, yaxis: { title: { text: data.objective } },
      },
    }));
  }
};

const drawEffects = () => {
  if (!data.effects.length) return;
  $("effects-section").hidden = false;
  $("effects").style.height = `${90 + 44 * data.effects.length}px`;
  const every = [0, ...data.effects.flatMap(({ all }) => all)], ends = [Math.min(...every), Math.max(...every)];
  const room = (ends[1] - ends[0]) * (isNarrow() ? 0.5 : 0.2); // for the texts
  const broken = isNarrow() ? "<br>" : " ";
  const labels = data.effects.map(({ label }) => label.replaceAll(" ", broken));
  plot($("effects"), () => ({
    traces: [{
      x: data.effects.flatMap(({ all }) => all), y: data.effects.flatMap(({ all }, at) => all.map(() => labels[at])), mode: "markers", hoverinfo: "x",
      marker: { size: 7, color: color("faint") },
    }, {
      x: data.effects.map(({ difference }) => difference), y: labels, mode: "markers+text", text: data.effects.map(({ text }) => isNarrow() ? text.split(" over ")[0] : text), textposition: "top center", hoverinfo: "text", cliponaxis: false,
      marker: { size: 11, symbol: "diamond", color: color("accent") },
      error_x: { type: "data", array: data.effects.map((one) => one.spread ?? 0), color: color("accent"), thickness: 2 },
    }],
    look: {
      margin: { l: 56, r: 60, t: 30, b: 44 }, xaxis: { title: { text: `difference in ${data.objective}${broken}to the run that has all` }, range: [ends[0] - room, ends[1] + room], zeroline: true, zerolinecolor: color("soft") },
      yaxis: { autorange: "reversed", type: "category" },
    },
  }), { follows: false });
};
