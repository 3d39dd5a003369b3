// Two axes at once: a cell for each pair of values, or of bins where an axis has too many.

const MANY = 12; // values of an axis
const mapLook = { x: choices[0]?.label, y: choices[1]?.label, of: "mean" };

// The cells of an axis: a name for each, and in which one a point is.
const cellsOf = (axis) => {
  const texts = axis.texts.map((text) => short(text));
  if (!axis.numbers || axis.numbers.length <= MANY) return { texts, at: (point) => axis.texts.indexOf(point.values[axis.label]) };
  const [raise, lower] = axis.is_log ? [Math.log, Math.exp] : [Number, Number];
  const count = Math.max(3, Math.min(8, Math.round(Math.sqrt(finished.length / 3))));
  const low = raise(axis.numbers[0]), wide = (raise(axis.numbers[axis.numbers.length - 1]) - low) / count;
  const end = (nth) => String(Number(lower(low + nth * wide).toPrecision(2)));
  const binOf = (value) => value === null ? -1 : Math.min(count - 1, Math.floor((raise(value) - low) / wide));
  return { texts: Array.from({ length: count }, (_, nth) => `${end(nth)} to<br>${end(nth + 1)}`), at: (point) => binOf(place(axis, point)) };
};

const pointTraces = (across, up) => {
  const at = finished.filter((one) => place(across, points[one]) !== null && place(up, points[one]) !== null);
  const x = at.map((one) => place(across, points[one])), y = at.map((one) => place(up, points[one]));
  return [{
    x, y, customdata: at, mode: "markers", hovertext: at.map(hoverText), hoverinfo: "text",
    marker: { size: 12, color: at.map((one) => points[one].final), showscale: true, line: { width: 1, color: color("soft") }, ...shades() },
  }, ...rings(at, x, y)];
};

const shades = () => ({ colorscale: SCALE, reversescale: isReversed(), colorbar: colorbar(data.objective) });

const cellTraces = (across, up) => {
  const [columns, rows] = [across, up].map(cellsOf);
  const cells = rows.texts.map((_, i) => columns.texts.map((_, j) => finished.filter((one) => rows.at(points[one]) === i && columns.at(points[one]) === j)));
  const value = (cell) => cell.length ? (mapLook.of === "mean" ? mean : best)(cell.map((one) => points[one].final)) : null;
  const values = cells.map((row) => row.map(value));
  const top = best(values.flat().filter((one) => one !== null));
  const nearest = (cell) => cell.reduce((one, other) => rankOf[other] < rankOf[one] ? other : one, cell[0]);
  const said = (axis, cells, nth) => `${axis.title}: ${cells.texts[nth].replace("<br>", " ")}`;
  return [{
    type: "heatmap", z: values, xgap: 2, ygap: 2, hoverongaps: false, ...shades(),
    x: columns.texts.map((_, i) => i), y: rows.texts.map((_, i) => i), customdata: cells.map((row) => row.map((cell) => [nearest(cell) ?? null])),
    text: values.map((row) => row.map((one) => one === null ? "" : `${one === top ? "★ " : ""}${one.toPrecision(isNarrow() ? 3 : 4)}`)),
    texttemplate: columns.texts.length <= 14 ? "%{text}" : "",
    hovertext: cells.map((row, i) => row.map((cell, j) => `${said(up, rows, i)}<br>${said(across, columns, j)}<br>${mapLook.of} of ${cell.length}: ${number(values[i][j])}`)), hoverinfo: "text",
  }];
};

const drawMap = () => {
  if (choices.length < 2) return;
  $("map-section").hidden = false;
  const axisOf = (label) => axes.find((one) => one.label === label);
  const look = (axis) => {
    if (mapLook.of === "points") return { title: { text: axis.title }, ...ticks(axis) };
    const { texts } = cellsOf(axis);
    return { title: { text: axis.title }, showgrid: false, type: "linear", tickvals: texts.map((_, at) => at), ticktext: texts, ticks: "" };
  };
  const redraw = plot($("map"), () => {
    const across = axisOf(mapLook.x), up = axisOf(mapLook.y);
    const traces = (mapLook.of === "points" ? pointTraces : cellTraces)(across, up);
    return { traces, look: { xaxis: look(across), yaxis: look(up) } };
  });
  const change = (name, other) => (value) => {
    if (other && value === mapLook[other]) mapLook[other] = mapLook[name];
    mapLook[name] = value;
    fill();
    redraw();
  };
  const options = choices.map(({ label, title }) => [label, title]);
  const fill = () => $("map-controls").replaceChildren(
    select("Across", options, mapLook.x, change("x", "y")), select("Up", options, mapLook.y, change("y", "x")),
    select("Show the", [["mean", "mean over all else"], ["best", "best of all else"], ["points", "points"]], mapLook.of, change("of")),
  );
  fill();
};
