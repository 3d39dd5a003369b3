// Elements of the page. Texts from a config become text nodes only, never markup.

function el(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function button(className, text, onClick) {
  const element = el("button", className, text);
  element.type = "button";
  element.addEventListener("click", (event) => {
    event.stopPropagation();
    onClick();
  });
  return element;
}

/** A path that leads to its row. */
function link(row, text) {
  const label = text ?? (row.graph.path(row) || "the root");
  const element = el("a", "link", ...breakable(label));
  element.href = `#${encodeURIComponent(row.graph.path(row))}`;
  element.title = label;
  element.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey) return; // opens another page, with the row chosen
    event.preventDefault();
    event.stopPropagation();
    choose(row);
  });
  return element;
}

/** A path that may go on in another line before each of its steps. */
function breakable(path) {
  return path.split(/(?=[.[])/).flatMap((step, i) => (i === 0 ? [step] : [el("wbr"), step]));
}

/** A tag, in a color of its own; in outline if it is inherited. */
function chip(tag, isInherited) {
  const number = data.tags.indexOf(tag);
  const element = el("span", isInherited ? "chip inherited" : "chip", tag.name);
  element.style.setProperty("--hue", String(Math.round(250 + number * 137.5) % 360));
  element.title = tag.doc;
  return element;
}

/** A button that stays pressed, or not. */
function toggle(element, onChange) {
  element.addEventListener("click", () => {
    const isOn = element.getAttribute("aria-pressed") !== "true";
    element.setAttribute("aria-pressed", String(isOn));
    onChange(isOn);
  });
}

/** As many elements as fit in a list one likes to read, and a button for the rest. */
function upTo(count, items, make) {
  const list = el("ul", "", ...items.slice(0, count).map((item) => el("li", "", make(item))));
  if (items.length > count) {
    const more = button("link", `and ${items.length - count} more`, () => {
      more.parentElement.replaceWith(...items.slice(count).map((item) => el("li", "", make(item))));
    });
    list.append(el("li", "", more));
  }
  return list;
}
