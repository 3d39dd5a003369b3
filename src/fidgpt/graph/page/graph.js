// The drawn graph: each part one box, however many places hold it, each argument an arrow.

const LEAST_ZOOM = 0.2;
const MOST_ZOOM = 2;
const READABLE = 0.65;

class Drawing {
  constructor(element) {
    this.root = graphs.new.nodes[0];
    this.unfolded = new Set([this.root]);
    this.wide = new Set();
    this.zoom = 1;
    this.chosen = null;
    this.canvas = el("div", "canvas");
    this.paper = el("div", "paper", this.canvas);
    this.sheet = el("div", "sheet", this.paper);
    element.append(this.sheet, this.buttons());
    this.sheet.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.sheet.addEventListener("keydown", (event) => this.key(event));
    this.sheet.addEventListener("pointerdown", (event) => this.drag(event));
  }

  /** Unfolds as much of the part on which the page opens as can be read at once. */
  open() {
    const part = focus ?? this.root;
    for (let most = FULL; most > 0; most = Math.floor(most / 1.5)) {
      this.unfolded = nearest(part, most).add(this.root).add(part);
      this.draw();
      this.fit(part);
      if (this.zoom >= READABLE) return;
    }
    this.scale(READABLE);
    this.elements.get(part).scrollIntoView({ block: "center", inline: "center" });
  }

  /** Draws what is unfolded; a part that stood somewhere stays there on the screen. */
  draw(still) {
    const before = still && this.elements?.get(still)?.getBoundingClientRect();
    const { boxes, arrows } = visible(this.root, this.unfolded, this.wide);
    this.elements = new Map(boxes.map((box) => [box, this.box(box)]));
    const elements = [...this.elements.values()];
    this.canvas.replaceChildren(...elements);
    const sizes = elements.map((one) => ({ width: one.offsetWidth, height: one.offsetHeight }));
    const layout = placed(boxes, arrows, sizes);
    elements.forEach((one, i) => {
      one.style.left = `${layout.boxes[i].x - sizes[i].width / 2}px`;
      one.style.top = `${layout.boxes[i].y - sizes[i].height / 2}px`;
    });
    this.canvas.prepend(arrowsOf(layout, arrows));
    this.size = layout.size;
    this.scale(this.zoom);
    this.mark(this.chosen);
    if (before) this.keep(still, before);
  }

  keep(still, before) {
    const after = this.elements.get(still).getBoundingClientRect();
    this.sheet.scrollBy(after.x - before.x, after.y - before.y);
    this.elements.get(still).focus({ preventScroll: true });
  }

  box(node) {
    if (node.rest) return this.restBox(node);
    const below = partsBelow(node).length;
    return boxElement(node, below > 0 ? this.twist(node, below) : null);
  }

  twist(node, below) {
    const isUnfolded = this.unfolded.has(node);
    const element = button("fold", isUnfolded ? "−" : `+${below}`, () => this.fold(node));
    element.tabIndex = -1;
    element.title = isUnfolded ? "Fold" : "Unfold";
    element.setAttribute("aria-expanded", String(isUnfolded));
    return element;
  }

  restBox(rest) {
    const unfold = () => {
      this.wide.add(rest.of);
      this.draw(rest.of);
    };
    const element = button("box rest", `and ${rest.rest} more`, unfold);
    element.node = rest;
    return element;
  }

  fold(node) {
    if (!this.unfolded.delete(node)) this.unfolded.add(node);
    this.draw(node);
  }

  foldAll(isUnfolded) {
    this.unfolded = isUnfolded ? nearest(this.root, MOST) : new Set([this.root]);
    this.draw();
  }

  mark(row) {
    this.chosen = row;
    const node = row && this.partAt(row);
    for (const [one, element] of this.elements ?? []) {
      element.toggleAttribute("aria-current", one === node);
      element.tabIndex = one === (node ?? this.root) ? 0 : -1;
    }
    for (const arrow of this.canvas.querySelectorAll("path")) {
      arrow.toggleAttribute("data-lit", Boolean(node) && arrow.ends.includes(node));
    }
  }

  /** The part that a row holds, or in which it stands. */
  partAt(row) {
    if (row.graph !== graphs.new) return undefined;
    row = standIn(row);
    const held = row.from ? undefined : nodeOf(row);
    if (held?.call !== undefined) return held;
    return partAround(row) ?? this.root;
  }

  /** Unfolds what is above the part of a row, and brings its box into view. */
  reveal(row, block = "nearest") {
    const node = this.partAt(row);
    if (!node) return;
    const isFar = !this.elements.has(node);
    for (const one of graphs.new.above(graphs.new.holder(node))) this.unfolded.add(nodeOf(one));
    if (isFar) this.draw();
    if (!this.elements.has(node)) {
      this.wide = new Set(graphs.new.nodes);
      this.draw();
    }
    const where = isFar ? "center" : block;
    this.elements.get(node).scrollIntoView({ block: where, inline: where });
  }

  scale(zoom) {
    this.zoom = Math.min(MOST_ZOOM, Math.max(LEAST_ZOOM, zoom));
    this.canvas.style.transform = `scale(${this.zoom})`;
    this.paper.style.width = `${this.size.width * this.zoom}px`;
    this.paper.style.height = `${this.size.height * this.zoom}px`;
  }

  /** Shows all that is drawn of a part and below it, as large as there is room. */
  fit(part = this.root) {
    const inside = new Set([part]);
    for (const node of inside) {
      for (const child of this.unfolded.has(node) ? partsBelow(node) : []) inside.add(child);
    }
    const nodes = [...this.elements.keys()].filter((node) => inside.has(node.of ?? node));
    const boxes = nodes.map((node) => this.elements.get(node));
    const left = Math.min(...boxes.map((one) => one.offsetLeft)) - 24;
    const top = Math.min(...boxes.map((one) => one.offsetTop)) - 24;
    const width = Math.max(...boxes.map((one) => one.offsetLeft + one.offsetWidth)) + 24 - left;
    const height = Math.max(...boxes.map((one) => one.offsetTop + one.offsetHeight)) + 24 - top;
    const { clientWidth, clientHeight } = this.sheet;
    this.scale(Math.min(1.25, clientWidth / width, clientHeight / height));
    const { offsetLeft, offsetTop } = this.paper;
    this.sheet.scrollTo(
      offsetLeft + (left + width / 2) * this.zoom - clientWidth / 2,
      offsetTop + (top + height / 2) * this.zoom - clientHeight / 2,
    );
  }

  buttons() {
    const zooms = [
      ["+", "Nearer", () => this.scale(this.zoom * 1.25)],
      ["−", "Farther", () => this.scale(this.zoom / 1.25)],
      ["fit", "All of it", () => this.fit()],
      ...(focus ? [[data.focus, `The ${data.focus}`, () => this.fit(focus)]] : []),
    ];
    const made = zooms.map(([text, title, act]) => Object.assign(button("", text, act), { title }));
    return el("div", "zoom", ...made);
  }

  wheel(event) {
    if (!event.ctrlKey) return;
    event.preventDefault();
    this.scale(this.zoom * Math.exp(-event.deltaY / 400));
  }

  drag(event) {
    if (event.target.closest(".box") || event.button !== 0) return;
    const move = (to) => this.sheet.scrollBy(-to.movementX, -to.movementY);
    const stop = () => this.sheet.removeEventListener("pointermove", move);
    this.sheet.addEventListener("pointermove", move);
    window.addEventListener("pointerup", stop, { once: true });
  }

  key(event) {
    const node = event.target.closest(".box")?.node;
    const zooms = { "+": 1.25, "=": 1.25, "-": 0.8 };
    if (zooms[event.key] && !event.ctrlKey) return this.scale(this.zoom * zooms[event.key]);
    if (!node || node.rest) return undefined;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      return event.key === " " ? this.fold(node) : choose(graphs.new.holder(node));
    }
    const to = event.key.startsWith("Arrow") ? this.neighbor(node, event.key.slice(5)) : undefined;
    if (!to) return undefined;
    event.preventDefault();
    choose(graphs.new.holder(to));
    this.elements.get(to).focus();
    return undefined;
  }

  /** The box that an arrow key leads to: along an arrow, or the next one above or below. */
  neighbor(node, direction) {
    if (direction === "Left") return partAround(graphs.new.holder(node));
    if (direction === "Right") return partsBelow(node).find((child) => this.elements.has(child));
    const top = (one) => this.elements.get(one).offsetTop;
    const left = (one) => this.elements.get(one).offsetLeft;
    const sign = direction === "Down" ? 1 : -1;
    const far = (one) => (top(one) - top(node)) * sign + 3 * Math.abs(left(one) - left(node));
    const others = [...this.elements.keys()].filter((one) => !one.rest);
    const beyond = others.filter((one) => (top(one) - top(node)) * sign > 0);
    return beyond.sort((one, two) => far(one) - far(two))[0];
  }
}
