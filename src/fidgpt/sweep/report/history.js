// The trials of a search one after the other, and the best so far.

const drawHistory = () => {
  if (!data.is_search || finished.length < 2) return;
  $("history-section").hidden = false;
  const finals = finished.map((at) => points[at].final), trials = finished.map((at) => at + 1);
  plot($("history"), () => ({
    traces: [
      { x: trials, y: finals, customdata: finished, mode: "markers", hovertext: finished.map(hoverText), hoverinfo: "text", name: "a point", marker: { size: 8, color: color("accent"), opacity: 0.6 } },
      { x: trials, y: finals.map((_, i) => best(finals.slice(0, i + 1))), mode: "lines", hoverinfo: "skip", name: "best so far", line: { shape: "hv", width: 2.5, color: color("first") } },
      ...rings(finished, trials, finals),
    ],
    look: { xaxis: { title: { text: "trial" } }, yaxis: { title: { text: data.objective } } },
  }));
};
