"use strict";
// The rows: lanes and requests, of which only those on the screen are elements.
// An item is `{ key, lane, requests, marks, folded }` or `{ key, request, marks }`.

const ROW_PX = 28;
const OVERSCAN = 6; // rows above and below the screen, so that a fast scroll shows no gap
const FIRST_ROW = 1; // ARIA counts from one

class Rows {
  constructor(viewport, handlers) {
    this.viewport = viewport;
    this.handlers = handlers; // onSelect, onTouch, onOpen, onFold, onZoom
    this.items = [];
    this.indexes = new Map();
    this.selected = null;
    this.shown = new Map(); // key → element
    this.spare = { lane: [], request: [] };
    this.numbered = 0;
    this.scroller = document.getElementById("rows");
    this.space = document.getElementById("space");
    this.stuck = document.getElementById("stuck");
    this.tip = document.getElementById("tip");
    this.scroller.addEventListener("scroll", () => requestAnimationFrame(() => this.render()), { passive: true });
    const touched = () => this.handlers.onTouch();
    for (const touch of ["pointerdown", "wheel"]) this.scroller.addEventListener(touch, touched, { passive: true });
    this.scroller.addEventListener("click", (event) => this.#click(event));
    this.scroller.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    this.scroller.addEventListener("mousemove", (event) => this.#hover(event));
    this.scroller.addEventListener("mouseleave", () => (this.tip.hidden = true));
  }

  /** Show these; the selected row, or else the topmost, stays where it is on the screen. */
  set(items) {
    const anchor = this.#anchor();
    this.items = items;
    this.indexes = new Map(items.map((item, index) => [item.key, index]));
    this.space.style.height = `${items.length * ROW_PX}px`;
    this.scroller.setAttribute("aria-rowcount", items.length);
    if (anchor !== null && this.indexes.has(anchor.key)) {
      const top = this.indexes.get(anchor.key) * ROW_PX - anchor.offset;
      if (Math.abs(this.scroller.scrollTop - top) >= 1) this.scroller.scrollTop = top;
    }
    this.render();
  }

  select(key, { scroll = true } = {}) {
    this.selected = key;
    const index = this.indexes.get(key);
    if (scroll && index !== undefined) this.reveal(index);
    this.render();
    this.handlers.onSelect(this.items[index] ?? null);
  }

  /** Another order: what was looked at is elsewhere, and the first row is what is asked for. */
  toTop() {
    this.selected = null;
    this.scroller.scrollTop = 0;
  }

  /** Select another row; beyond the ends, the first or last. */
  move(by) {
    if (!this.items.length) return;
    const index = this.indexes.get(this.selected) ?? this.#topIndex() - Math.sign(by);
    const wanted = index + by;
    this.handlers.onTouch();
    this.select(this.items[Math.min(Math.max(wanted, 0), this.items.length - 1)].key);
  }

  pageRows() {
    return Math.max(1, Math.floor(this.scroller.clientHeight / ROW_PX) - 1);
  }

  reveal(index) {
    const [top, height] = [index * ROW_PX, this.scroller.clientHeight];
    const { scrollTop } = this.scroller;
    if (top < scrollTop + ROW_PX) this.scroller.scrollTop = Math.max(0, top - ROW_PX);
    else if (top + ROW_PX > scrollTop + height) this.scroller.scrollTop = top + ROW_PX - height;
  }

  item(key) {
    return this.items[this.indexes.get(key)] ?? null;
  }

  render() {
    const first = Math.max(0, this.#topIndex() - OVERSCAN);
    const count = Math.ceil(this.scroller.clientHeight / ROW_PX) + 2 * OVERSCAN;
    const wanted = new Set();
    for (let index = first; index < Math.min(first + count, this.items.length); index += 1) wanted.add(index);
    if (this.indexes.has(this.selected)) wanted.add(this.indexes.get(this.selected));
    this.#recycle(new Set([...wanted].map((index) => this.items[index].key)));
    for (const index of [...wanted].sort((a, b) => a - b)) this.#place(index);
    const active = this.shown.get(this.selected);
    if (active) this.scroller.setAttribute("aria-activedescendant", active.id);
    else this.scroller.removeAttribute("aria-activedescendant");
    this.#renderStuck();
  }

  #topIndex() {
    return Math.floor(this.scroller.scrollTop / ROW_PX);
  }

  #anchor() {
    const top = this.scroller.scrollTop;
    const onScreen = (index) => index * ROW_PX >= top && index * ROW_PX < top + this.scroller.clientHeight;
    const chosen = this.indexes.get(this.selected);
    const index = chosen !== undefined && onScreen(chosen) ? chosen : this.#topIndex();
    const item = this.items[index];
    return item && top > 0 ? { key: item.key, offset: index * ROW_PX - top } : null;
  }

  #recycle(keys) {
    for (const [key, row] of this.shown) {
      if (keys.has(key)) continue;
      this.shown.delete(key);
      row.remove();
      row.item = null;
      this.spare[row.dataset.kind].push(row);
    }
  }

  #place(index) {
    const item = this.items[index];
    const kind = item.request ? "request" : "lane";
    let row = this.shown.get(item.key);
    if (!row) {
      row = this.spare[kind].pop() ?? this.#make(kind);
      row.classList.toggle("fresh", Boolean(item.request?.fresh));
      if (item.request) item.request.fresh = false;
      this.shown.set(item.key, row);
      this.space.append(row);
    }
    row.setAttribute("aria-selected", item.key === this.selected);
    if (row.item === item) return; // scrolled or selected; another filter or time makes new items
    row.item = item;
    row.style.transform = `translateY(${index * ROW_PX}px)`;
    row.setAttribute("aria-rowindex", index + FIRST_ROW);
    if (item.request) this.#fillRequest(row, item);
    else this.#fillLane(row, item);
  }

  #make(kind) {
    this.numbered += 1;
    const cell = (name) => make("div", { class: name, role: "gridcell" });
    const cells = kind === "lane" ? ["lane-name", "lane-facts", "track"] : ["when", "what", "outcome", "took", "track"];
    const row = make("div", { class: `row ${kind}`, role: "row", id: `row-${this.numbered}` }, ...cells.map(cell));
    row.dataset.kind = kind;
    row.cells = Object.fromEntries(cells.map((name, index) => [name, row.children[index]]));
    if (kind === "lane") {
      row.setAttribute("aria-level", 1);
      row.cells.track.append(make("canvas", { "aria-hidden": "true" }));
    } else {
      row.cells.track.append(make("div", { class: "bar" }));
    }
    return row;
  }

  #fillLane(row, { lane, requests, marks, folded }) {
    const bad = requests.filter((request) => request.bad).length;
    const times = percentiles(requests);
    const facts = [plural(requests.length, "request")];
    if (bad) facts.push(`${bad} failed`);
    if (times) facts.push(`median ${duration(times.median)}`, `p95 ${duration(times.p95)}`);
    row.setAttribute("aria-expanded", !folded);
    row.classList.toggle("own", lane.key === OWN_LANE);
    row.cells["lane-name"].textContent = lane.title;
    row.cells["lane-facts"].textContent = facts.join(" · ");
    row.cells["lane-facts"].classList.toggle("has-bad", bad > 0);
    row.cells.track.setAttribute("aria-label", markCounts(marks) || "nothing happened at the server");
    drawLane(row.cells.track.firstChild, requests, marks, this.viewport);
  }

  #fillRequest(row, { request, marks, level, shownServer }) {
    const { record } = request;
    if (level) row.setAttribute("aria-level", level);
    row.dataset.outcome = record.outcome;
    row.cells.when.textContent = timeOfDay(request.start);
    row.cells.what.textContent = request.name;
    if (shownServer) row.cells.what.prepend(make("span", { class: "server" }, laneTitle(request.lane)), " ");
    if (record.kind === "task") row.cells.what.append(make("span", { class: "tag" }, "task"));
    row.cells.outcome.textContent = outcomeTitle(record.outcome);
    row.cells.took.textContent = duration(request.took);
    row.cells.track.setAttribute("aria-label", legText(record.legs));
    fillBar(row.cells.track, request, this.viewport);
    fillCrashLines(row.cells.track, marks, this.viewport);
  }

  #renderStuck() {
    const item = this.items[this.#topIndex()];
    const inside = item?.request && item.level === 2;
    this.stuck.hidden = !inside;
    if (inside) this.stuck.textContent = laneTitle(item.request.lane);
  }

  #keyOf(event) {
    return event.target.closest(".row")?.item.key;
  }

  #click(event) {
    const key = this.#keyOf(event);
    if (key === undefined) return;
    this.select(key, { scroll: false });
    const item = this.item(key);
    if (item.lane && event.target.closest(".lane-name")) this.handlers.onFold(item.lane.key);
    else this.handlers.onOpen({ focus: false });
  }

  /** With Ctrl to zoom, with Shift or sideways to move in time; else the rows scroll. */
  #wheel(event) {
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!event.ctrlKey && !event.metaKey && !sideways) return;
    event.preventDefault();
    const box = document.getElementById("ruler").getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) {
      const at = this.viewport.instant(Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1));
      this.viewport.zoom(wheelFactor(event), at);
    } else {
      this.viewport.pan((event.deltaX || event.deltaY) / box.width);
    }
    this.handlers.onZoom();
  }

  #hover(event) {
    const track = event.target.closest(".track");
    const item = track && this.item(this.#keyOf(event));
    const lines = item ? tipLines(item, track, event.clientX, this.viewport) : [];
    this.tip.hidden = !lines.length;
    if (!lines.length) return;
    this.tip.textContent = lines.join("\n");
    const left = Math.min(event.clientX + 14, window.innerWidth - this.tip.offsetWidth - 8);
    const below = event.clientY + 18 + this.tip.offsetHeight < window.innerHeight;
    this.tip.style.left = `${Math.max(8, left)}px`;
    this.tip.style.top = `${below ? event.clientY + 18 : event.clientY - this.tip.offsetHeight - 10}px`;
  }
}

const MAX_TIP_MARKS = 8;

function tipLines(item, track, x, viewport) {
  if (item.request) {
    const { name, took, record } = item.request;
    const line = ([leg, ms]) => `${duration(ms).padStart(10)}  ${legTitle(leg)}`;
    return [`${name}: ${duration(took)}`, ...record.legs.filter(([, ms]) => ms > 0).map(line)];
  }
  const box = track.getBoundingClientRect();
  const near = marksAt(item.marks, viewport, x - box.left, box.width);
  const more = near.length > MAX_TIP_MARKS ? [`and ${near.length - MAX_TIP_MARKS} more`] : [];
  return [...near.slice(0, MAX_TIP_MARKS).map(markLine), ...more];
}

/** "waiting for a connection 12 ms, at the server 300 ms". */
function legText(legs) {
  const named = legs.filter(([, ms]) => ms > 0).map(([leg, ms]) => `${legTitle(leg)} ${duration(ms)}`);
  return named.join(", ") || "no time";
}

/** The bar of a request, clipped to the window, and its legs in it. */
function fillBar(track, request, viewport) {
  const bar = track.firstChild;
  const from = Math.max(request.start, viewport.from);
  const to = Math.min(request.end, viewport.to);
  bar.style.left = `${100 * viewport.share(from)}%`;
  bar.style.width = `${Math.max(0, 100 * (viewport.share(to) - viewport.share(from)))}%`;
  bar.dataset.leg = longestLeg(request.record.legs);
  bar.replaceChildren(...legParts(request, from, to));
}

function legParts(request, from, to) {
  const parts = [];
  let at = request.start;
  for (const [leg, ms] of request.record.legs) {
    const seen = Math.min(at + ms, to) - Math.max(at, from);
    at += ms;
    if (seen <= 0) continue;
    const part = make("i", { "data-leg": leg });
    part.style.width = `${(100 * seen) / (to - from)}%`;
    parts.push(part);
  }
  return parts;
}

function fillCrashLines(track, marks, viewport) {
  while (track.children.length > 1) track.lastChild.remove();
  if (marks.length > MAX_CRASH_LINES) return;
  for (const mark of marks) {
    const line = make("b", { class: "crash" });
    line.style.left = `${100 * viewport.share(mark.at_ms)}%`;
    track.append(line);
  }
}
