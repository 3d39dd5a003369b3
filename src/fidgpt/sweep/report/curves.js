// Curves of all points: few distinguished by color and dash, many colored by a value of theirs.

const FEW = 8;
// The objective, unless it was measured once or twice only and makes no curves.
const metrics = Object.keys(data.curves);
const firstMetric = metrics.find((one) => data.curves[one].some(([steps]) => steps.length > 2)) ?? metrics[0];
const curveLook = { metric: firstMetric, by: "final", logX: false, logY: false };

const legendName = (at) => `${number(points[at].final ?? points[at].last)}  ${escaped(points[at].name)}${points[at].final === null ? ` (${points[at].status})` : ""}`;

// Breaks a name in the legend at spaces.
const wrapped = (text) => {
  const lines = [""], most = isNarrow() ? 34 : 110;
  text.split(" ").forEach((word) => {
    const longer = lines.at(-1) && `${lines.at(-1)} ${word}`;
    if (longer && longer.length > most) lines.push(word);
    else lines[lines.length - 1] = longer || word;
  });
  return lines.join("<br>");
};

const curve = (at, line, parts = {}) => {
  const [x, y] = data.curves[curveLook.metric][at];
  return {
    x, y, line, mode: x.length < 3 ? "lines+markers" : "lines", meta: { at }, name: legendName(at), showlegend: false,
    hovertemplate: `<b>${escaped(points[at].name)}</b><br>step %{x:,}: %{y:.5g}<extra></extra>`, ...parts,
  };
};

const fewCurves = () => data.order.map((at) => {
  const group = groupOf[at];
  const isFirst = data.order.find((one) => groupOf[one] === group) === at;
  const letter = "AB"[chosen.pair.indexOf(at)];
  return curve(at, { color: PALETTE[group], dash: DASHES[group], width: letter ? 4 : group ? 2 : 3 }, {
    showlegend: isFirst, legendgroup: String(group),
    name: groups[group].count > 1 ? `${number(groups[group].mean)}  ${escaped(groups[group].name)} (${groups[group].members.length} runs)` : legendName(at),
  });
});

const manyCurves = () => {
  const axis = axes.find((one) => one.label === curveLook.by);
  const value = (at) => axis ? place(axis, points[at]) : points[at].final;
  const raised = (one) => axis?.is_log && one !== null ? Math.log10(one) : one;
  const known = points.map((_, at) => raised(value(at))).filter((one) => one !== null);
  const low = Math.min(...known), high = Math.max(...known);
  const shade = (at) => {
    const one = raised(value(at));
    return one === null ? color("faint") : sampled(high > low ? (one - low) / (high - low) : 0);
  };
  const special = [...new Set([data.best, ...chosen.pair])];
  const plain = [...data.order].reverse().filter((at) => !special.includes(at));
  const tick = axis && (axis.is_log || !axis.numbers) && axis.texts.length <= 15;
  const bar = {
    x: [null], y: [null], mode: "markers", hoverinfo: "skip", showlegend: false,
    marker: { color: [low, high], cmin: low, cmax: high, colorscale: SCALE, reversescale: isReversed(), showscale: true, colorbar: {
      ...colorbar(axis ? axis.title : `final ${data.objective}`),
      ...(tick ? { tickvals: (axis.numbers ?? axis.texts.map((_, i) => i)).map(raised), ticktext: axis.texts.map((text) => short(text)) } : {}),
    } },
  };
  return [bar, ...plain.map((at) => curve(at, { color: shade(at), width: 1 }, { opacity: 0.55 })), ...special.map((at) => {
    const which = chosen.pair.indexOf(at);
    const name = which < 0 ? "text" : which ? "second" : "first";
    const letter = which < 0 ? "best" : `${"AB"[which]}${at === data.best ? ", best" : ""}`;
    return curve(at, { color: color(name), width: 3, dash: which < 0 ? "solid" : ["dash", "dot"][which] }, { showlegend: true, name: `${letter}: ${legendName(at)}` });
  })];
};

// The color at a share of the scale that Plotly draws too.
const CIVIDIS = [[0, 32, 76], [0, 42, 102], [0, 52, 110], [39, 63, 108], [60, 74, 107], [76, 85, 107], [91, 95, 109], [104, 106, 112], [117, 117, 117], [131, 129, 120], [146, 140, 120], [161, 152, 118], [176, 165, 114], [192, 177, 109], [209, 191, 102], [225, 204, 92], [243, 219, 79], [255, 233, 69]];
const sampled = (share) => {
  const at = (isReversed() ? 1 - share : share) * (CIVIDIS.length - 1), below = Math.floor(at), above = Math.min(below + 1, CIVIDIS.length - 1);
  return `rgb(${CIVIDIS[below].map((one, i) => Math.round(one + (CIVIDIS[above][i] - one) * (at - below))).join(",")})`;
};

const drawCurves = () => {
  const few = groups.length <= FEW && points.length <= 4 * FEW;
  const make = () => {
    const traces = (few ? fewCurves() : manyCurves()).map((trace) => trace.name ? { ...trace, name: wrapped(trace.name) } : trace);
    const lines = traces.filter((one) => one.showlegend).flatMap((one) => one.name.split("<br>"));
    $("curves").style.height = `${380 + 19 * lines.length}px`;
    return traces;
  };
  const redraw = plot($("curves"), () => ({
    traces: make(),
    look: {
      showlegend: true, legend: legend(`The numbers are final ${data.objective}${hasRepeats ? ", means of runs" : ""}`), margin: { l: 56, r: 16, t: 30, b: 90 },
      xaxis: { title: { text: "step" }, ...scaleOf(curveLook.logX) }, yaxis: { title: { text: curveLook.metric }, ...scaleOf(curveLook.logY) },
    },
  }));
  const change = (name) => (value) => { curveLook[name] = value; redraw(); };
  $("curves-controls").append(
    select("Metric", metrics.map((one) => [one, one]), curveLook.metric, change("metric")),
    ...(few ? [] : [select("Color", [["final", `final ${data.objective}`], ...axes.map(({ label, title }) => [label, title])], "final", change("by"))]),
    toggle("Log steps", change("logX")), toggle("Log values", change("logY")),
  );
};
