// Two axes at once: a cell for each pair of values, or a point each where hardly two share a value.

const mapLook = { x: choices[0]?.label, y: choices[1]?.label, of: "mean" };

const mapTraces = (across, up) => {
  const at = finished.filter((one) => place(across, points[one]) !== null && place(up, points[one]) !== null);
  const finals = at.map((one) => points[one].final);
  const shades = { colorscale: SCALE, reversescale: isReversed(), colorbar: colorbar(data.objective) };
  if (across.texts.length * up.texts.length > 3 * at.length) {
    const x = at.map((one) => place(across, points[one])), y = at.map((one) => place(up, points[one]));
    return [{
      x, y, customdata: at, mode: "markers", hovertext: at.map(hoverText), hoverinfo: "text",
      marker: { size: 12, color: finals, showscale: true, line: { width: 1, color: color("soft") }, ...shades },
    }, ...rings(at, x, y)];
  }
  const cells = up.texts.map((row) => across.texts.map((column) =>
    at.filter((one) => points[one].values[up.label] === row && points[one].values[across.label] === column)));
  const value = (cell) => cell.length ? (mapLook.of === "mean" ? mean : best)(cell.map((one) => points[one].final)) : null;
  const values = cells.map((row) => row.map(value));
  const top = best(values.flat().filter((one) => one !== null));
  const nearest = (cell) => cell.reduce((one, other) => rankOf[other] < rankOf[one] ? other : one, cell[0]);
  return [{
    type: "heatmap", z: values, xgap: 2, ygap: 2, hoverongaps: false, ...shades,
    x: across.texts.map((_, i) => i), y: up.texts.map((_, i) => i), customdata: cells.map((row) => row.map((cell) => [nearest(cell) ?? null])),
    text: values.map((row) => row.map((one) => one === null ? "" : `${one === top ? "★ " : ""}${one.toPrecision(4)}`)),
    texttemplate: across.texts.length <= 14 ? "%{text}" : "",
    hovertext: cells.map((row, i) => row.map((cell, j) => `${up.label}=${escaped(up.texts[i])}<br>${across.label}=${escaped(across.texts[j])}<br>${mapLook.of} of ${cell.length}: ${number(values[i][j])}`)), hoverinfo: "text",
  }];
};

const drawMap = () => {
  if (choices.length < 2) return;
  $("map-section").hidden = false;
  const axisOf = (label) => axes.find((one) => one.label === label);
  const look = (axis, cells) => ({
    title: { text: axis.label }, showgrid: !cells,
    ...(cells ? { type: "linear", tickvals: axis.texts.map((_, at) => at), ticktext: axis.texts.map((text) => short(text)), ticks: "" } : ticks(axis)),
  });
  const redraw = plot($("map"), () => {
    const across = axisOf(mapLook.x), up = axisOf(mapLook.y);
    const traces = mapTraces(across, up), cells = traces[0].type === "heatmap";
    return { traces, look: { xaxis: look(across, cells), yaxis: look(up, cells) } };
  });
  const change = (name, other) => (value) => {
    if (other && value === mapLook[other]) mapLook[other] = mapLook[name];
    mapLook[name] = value;
    fill();
    redraw();
  };
  const options = choices.map(({ label }) => [label, label]);
  const fill = () => $("map-controls").replaceChildren(
    select("Across", options, mapLook.x, change("x", "y")), select("Up", options, mapLook.y, change("y", "x")),
    select("Show the", [["mean", "mean over all else"], ["best", "best of all else"]], mapLook.of, change("of")),
  );
  fill();
};
