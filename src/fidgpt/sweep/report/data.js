// The data of the report, and how numbers are written.

const data = JSON.parse(document.getElementById("data").textContent);
const { points, axes, groups } = data;
const choices = axes.some((axis) => !axis.is_repeat) ? axes.filter((axis) => !axis.is_repeat) : axes;
const hasRepeats = axes.some((axis) => axis.is_repeat);
const groupOf = [];
groups.forEach((group, at) => group.members.forEach((member) => { groupOf[member] = at; }));

const FAILED = ["failed", "diverged"];
const isFailed = (point) => FAILED.includes(point.status);
const finished = points.map((point, at) => at).filter((at) => points[at].final !== null);
const rankOf = [];
data.order.forEach((at, place) => { rankOf[at] = place; });

const mean = (numbers) => numbers.reduce((sum, one) => sum + one, 0) / numbers.length;
const best = (numbers) => data.larger ? Math.max(...numbers) : Math.min(...numbers);
const number = (value) => value === null || value === undefined ? "–" : value.toPrecision(5);
const named = (axis, text) => axis.title === axis.label ? `${axis.label}=${text}` : text;
const whole = (value) => value.toLocaleString("en");

// Where a point lies on an axis: a number, or the place of its text among the values; null: nowhere.
const place = (axis, point) => {
  const at = axis.texts.indexOf(point.values[axis.label]);
  if (at < 0) return null;
  return axis.numbers ? axis.numbers[at] : at;
};
