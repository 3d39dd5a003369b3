// Where two configs differ: those that were clicked, or chosen from the lists.

const configOf = (at) => points[at].config ?? Object.fromEntries(points[at].directives.map((one) => [one, "present"]));

const differences = (first, second) => {
  const one = configOf(first), other = configOf(second);
  return [...new Set([...Object.keys(one), ...Object.keys(other)])].filter((path) => one[path] !== other[path])
    .map((path) => [path, one[path], other[path]]);
};

const picker = (which) => {
  const options = data.order.map((at) => [at, points[at].name]);
  const label = select("", [["", "click a point, or choose one"], ...options], chosen.pair[which] ?? "", (value) => {
    const pair = [...chosen.pair];
    if (value === "") pair.splice(which, 1); else pair[which] = Number(value);
    chooseBoth(...new Set(pair));
  });
  label.querySelector("select").setAttribute("aria-label", `Point ${"AB"[which]}`);
  return element("div", { className: "pick" }, mark(which), label);
};

const valueOf = (which, text) => element("dd", {}, mark(which), text === undefined
  ? element("span", { className: "nothing", textContent: "absent" }) : element("span", { textContent: text }));

const fillDifference = () => {
  const [first, second] = chosen.pair;
  const parts = [element("h2", { textContent: "Difference of two points" }), picker(0), picker(1)];
  if (second !== undefined) {
    const changed = differences(first, second);
    const [one, other] = [points[first].final, points[second].final];
    if (one !== null && other !== null) {
      parts.push(element("p", { className: "note", textContent: `${data.objective}: A ${number(one)}, B ${number(other)}; B less A ${number(other - one)}` }));
    }
    if (!points[first].config || !points[second].config) {
      parts.push(element("p", { className: "note", textContent: "One of them has written no config that can be read: these are their directives." }));
    }
    parts.push(changed.length
      ? element("dl", {}, ...changed.flatMap(([path, was, is]) => [element("dt", { textContent: path }), valueOf(0, was), valueOf(1, is)]))
      : element("p", { className: "nothing", textContent: "They have the same values." }));
  } else {
    parts.push(element("p", { className: "note", textContent: "Click points in any plot, or rows of the table, to see here where their configs differ." }));
  }
  $("difference").replaceChildren(...parts);
};

const drawDifference = () => {
  fillDifference();
  onChoice(fillDifference);
};
