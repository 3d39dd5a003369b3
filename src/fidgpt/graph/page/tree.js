// The tree: lines one below the other, of which those are made that are unfolded.

const MANY = 150; // nodes, past which the tree starts folded
const FEW = 60; // lines, of which about a screen is full

/** The nodes to unfold, level by level, so that there are about so many lines. */
function nearestToRoot(most) {
  const unfolded = new Set([graphs.new.nodes[0]]);
  let level = [focus ?? graphs.new.nodes[0]];
  for (let lines = 0; level.length > 0;) {
    lines += level.reduce((sum, node) => sum + node.rows.length, 0);
    if (lines > most && unfolded.size > 1) break;
    level.forEach((node) => unfolded.add(node));
    const below = level.flatMap((node) => node.rows.map(nodeUnder));
    level = below.filter((node) => node && !node.twin && node.rows.length <= most / 2);
  }
  return unfolded;
}

class Tree {
  constructor(element) {
    this.element = element;
    this.showsDefaults = true;
    this.onlyChanges = false;
    this.folded = new Map(); // by the key of a pair: what a reader chose
    this.startsUnfolded = graphs.new.nodes.length <= MANY;
    this.groups = new Set(focus ? graphs.new.nodes[0].rows.map(nodeUnder) : []);
    this.groups.delete(focus); // the others start folded
    this.unfoldedAtFirst = nearestToRoot(FEW);
    this.chosen = null;
    this.lines = new Map(); // by row; folded away where not connected
    element.addEventListener("click", (event) => this.click(event));
    element.addEventListener("keydown", (event) => this.key(event));
    this.draw();
  }

  draw() {
    const root = { now: graphs.new.root, was: graphs.old?.root };
    this.element.replaceChildren(this.elementsOf([this.itemOf(root, 0)]));
    this.mark(this.chosen);
  }

  /** The elements of items and of all that is unfolded below them. */
  elementsOf(items) {
    const fragment = document.createDocumentFragment();
    const left = items.reverse();
    while (left.length > 0) {
      const item = left.pop();
      const line = rowElement(item);
      for (const row of [item.now, item.was]) if (row) this.lines.set(row, line);
      fragment.append(line);
      if (item.isUnfolded) left.push(...this.below(item).reverse());
    }
    return fragment;
  }

  itemOf(pair, depth) {
    const nodes = [pair.now, pair.was].map((row) => row && nodeUnder(row));
    const item = { ...pair, depth, nodes, key: (pair.now ?? pair.was).id };
    item.canUnfold = nodes.some((node) => node && node.rows.length > 0);
    item.isUnfolded = item.canUnfold && (this.folded.get(item.key) ?? this.unfoldsAtFirst(item));
    return item;
  }

  unfoldsAtFirst(item) {
    if (graphs.old !== null && holdsChange(item)) return true;
    if (this.groups.has(item.nodes[0])) return false;
    return this.startsUnfolded || this.unfoldedAtFirst.has(item.nodes[0]);
  }

  below(item) {
    const isLone = !(item.nodes[0] && item.nodes[1]) && !holdsChange(item);
    return pairsBelow(...item.nodes)
      .filter((pair) => this.shows(pair, isLone))
      .map((pair) => this.itemOf(pair, item.depth + 1));
  }

  shows(pair, isLone) {
    const rows = [pair.now, pair.was].filter((row) => row);
    if (joinsTwins && rows.some((row) => nodeUnder(row)?.twin)) return false;
    if (!this.showsDefaults && rows.every((row) => row.state !== undefined)) return false;
    return !this.onlyChanges || isLone || changeOf(pair) !== undefined || holdsChange(pair);
  }

  fold(element, isUnfolded) {
    const { item } = element;
    if (!item.canUnfold || item.isUnfolded === isUnfolded) return;
    item.isUnfolded = isUnfolded;
    this.folded.set(item.key, isUnfolded);
    element.setAttribute("aria-expanded", String(isUnfolded));
    if (isUnfolded) {
      element.after(this.elementsOf(this.below(item)));
      return;
    }
    while (element.nextElementSibling?.item.depth > item.depth) element.nextElementSibling.remove();
  }

  /** Unfolds or folds everything, the root apart. */
  foldAll(isUnfolded) {
    this.folded.clear();
    this.startsUnfolded = isUnfolded;
    this.unfoldedAtFirst = new Set();
    this.groups.clear();
    joinsTwins = graphs.old === null && !isUnfolded;
    if (!isUnfolded) for (const row of holdsChanges) this.folded.set(row.id, false);
    this.folded.set(graphs.new.root.id, true);
    this.draw();
  }

  /** Unfolds what is above a row, and brings its line into view. */
  reveal(row) {
    const above = row.graph.above(row);
    for (const one of above) {
      const line = this.find(one);
      if (line) this.fold(line, true);
    }
    this.find(row)?.scrollIntoView({ block: "nearest" });
  }

  find(row) {
    const line = this.lines.get(row);
    return line?.isConnected ? line : undefined;
  }

  mark(row) {
    this.element.querySelector("[aria-selected]")?.removeAttribute("aria-selected");
    this.element.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
    this.chosen = row;
    const line = row && this.find(row);
    line?.setAttribute("aria-selected", "true");
    (line ?? this.element.firstElementChild).tabIndex = 0;
  }

  click(event) {
    const line = event.target.closest(".row");
    if (!line) return;
    if (event.target.closest(".twist")) this.fold(line, !line.item.isUnfolded);
    else this.choose(line);
  }

  choose(line) {
    choose(line.item.now ?? line.item.was, { pair: line.item });
    line.focus({ preventScroll: true });
    line.scrollIntoView({ block: "nearest" });
  }

  key(event) {
    const line = event.target.closest(".row");
    if (!line || event.target !== line || event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = {
      ArrowDown: () => line.nextElementSibling,
      ArrowUp: () => line.previousElementSibling,
      Home: () => this.element.firstElementChild,
      End: () => this.element.lastElementChild,
      ArrowRight: () => this.inward(line),
      ArrowLeft: () => this.outward(line),
      Enter: () => line,
      " ": () => this.fold(line, !line.item.isUnfolded),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    const target = moves[event.key]();
    if (target) this.choose(target);
  }

  inward(line) {
    if (line.item.canUnfold && !line.item.isUnfolded) return this.fold(line, true);
    return line.item.isUnfolded ? line.nextElementSibling : undefined;
  }

  outward(line) {
    if (line.item.isUnfolded) return this.fold(line, false);
    let above = line.previousElementSibling;
    while (above && above.item.depth >= line.item.depth) above = above.previousElementSibling;
    return above ?? undefined;
  }
}
