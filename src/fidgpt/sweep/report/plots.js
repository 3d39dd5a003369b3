// How all plots look, light and dark, and what a click in them does.

const PALETTE = ["#3f90da", "#bd1f01", "#ffa90e", "#832db6", "#94a4a2", "#a96b59", "#e76300", "#717581"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "5px,2px", "2px,6px"];
const SCALE = "Cividis";
const FONT = { family: "system-ui, sans-serif", size: 12 };

// Plotly knows no CSS variables: ask an element what the color of one is now.
const color = (name) => {
  const probe = document.body.appendChild(element("span"));
  probe.style.color = `var(--${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
};

// Of the two ends of the scale, the best has the one that stands out from the ground.
const isReversed = () => data.larger !== matchMedia("(prefers-color-scheme: dark)").matches;

const scaleOf = (log) => ({ type: log ? "log" : "linear" });

const isNarrow = () => innerWidth < 600;

// A legend below the plot.
const legend = (title) => ({ orientation: "h", x: 0, yref: "container", y: 0, yanchor: "bottom", traceorder: "normal", title: { text: title, side: "top", font: { size: 12 } } });

// Ticks at the values of an axis, where they are few; of words, always.
const ticks = (axis) => {
  if (!axis.numbers) return { tickvals: axis.texts.map((_, at) => at), ticktext: axis.texts.map((text) => short(text)), automargin: true };
  const few = axis.texts.length <= 6;
  return { ...scaleOf(axis.is_log), ...(few ? { tickvals: axis.numbers, ticktext: axis.texts.map((text) => short(text)), tickangle: "auto" } : axis.is_log ? { dtick: "D2", exponentformat: "e" } : {}) };
};

// Plotly reads some tags in its texts: those of a sweep are none.
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
const short = (text, most = 28) => escaped(text.length > most ? `${text.slice(0, most / 2 - 1)}…${text.slice(-most / 2)}` : text);

const axisLook = () => ({ gridcolor: color("line"), linecolor: color("faint"), zeroline: false, ticks: "outside", tickcolor: color("line"), automargin: true });

const layout = (parts) => ({
  font: { ...FONT, color: color("text") },
  paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
  margin: { l: 56, r: 16, t: 30, b: 44 }, modebar: { bgcolor: "rgba(0,0,0,0)", color: color("faint"), activecolor: color("accent") }, hovermode: "closest", showlegend: false,
  hoverlabel: { bgcolor: color("raised"), bordercolor: color("faint"), font: { ...FONT, color: color("text") }, align: "left", namelength: -1 },
  legend: { font: { size: 12 }, bgcolor: "rgba(0,0,0,0)" },
  ...parts,
  xaxis: { ...axisLook(), ...parts.xaxis }, yaxis: { ...axisLook(), ...parts.yaxis },
});

const colorbar = (title) => ({ title: { text: title, side: "right" }, thickness: 12, outlinewidth: 0, len: 1, tickformat: ".4~g" });

// These alone: of Plotly's own, one sends the data away.
const BUTTONS = [["zoom2d", "pan2d", "resetScale2d", "toImage"]];

// Draws, and draws again when colors or the choice change; a click on a point chooses it.
const drawn = [];
const plot = (target, make, { follows = true, buttons = BUTTONS } = {}) => {
  let listens = false;
  const draw = () => {
    const { traces, look } = make();
    Plotly.react(target, traces, layout(look), { responsive: true, displaylogo: false, modeBarButtons: buttons });
    if (listens) return;
    listens = true;
    target.on("plotly_click", ({ points: [hit] }) => {
      const at = Array.isArray(hit.customdata) ? hit.customdata[0] : hit.customdata ?? hit.data.meta?.at;
      if (Number.isInteger(at)) choose(at);
    });
  };
  draw();
  drawn.push(draw);
  if (follows) onChoice(() => setTimeout(draw)); // many curves take their time, and others wait for none
  return draw;
};

// Rings and letters around the chosen ones of some places.
const rings = (at, x, y) => chosen.pair.flatMap((one, which) => {
  const found = at.indexOf(one);
  return found < 0 ? [] : [{
    x: [x[found]], y: [y[found]], mode: "markers+text", text: ["AB"[which]], textposition: "top center", hoverinfo: "skip", cliponaxis: false,
    textfont: { size: 13, weight: 700, color: color(which ? "second" : "first") },
    marker: { size: 15, symbol: "circle-open", line: { width: 3 }, color: color(which ? "second" : "first") },
  }];
});

const hoverText = (at) => {
  const point = points[at];
  const value = point.final === null ? `${number(point.last)} so far, ${point.status}` : number(point.final);
  return `<b>${escaped(point.name)}</b><br>${data.objective} ${value}`;
};
