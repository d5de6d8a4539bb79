"use strict";
// The page: joins the parts, keeps the filter, and draws at most once a frame.

const LABEL_PX = 90; // room for 00:00:00.000
const MAX_TICKS_PER_PX = 1 / (LABEL_PX + 20);
const FIRST_REQUESTS = 300; // in the first window
const FOLLOWED_MS = 300_000; // a window that grows with what happens stops growing here

const byId = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.store = new Store();
    this.viewport = new Viewport();
    this.filters = new Filters({ onChange: () => this.changed(), onView: () => this.rows.toTop() });
    this.folded = new Set();
    this.following = true;
    this.placed = false; // whether the first window has been chosen
    this.matching = [];
    this.filled = new Set(); // lanes with a request that fits the filter
    this.pending = { frame: 0, data: false };
    this.strip = new Strip(this.viewport, () => this.moved());
    this.rows = new Rows(this.viewport, {
      onSelect: (item) => this.details.isOpen && item && this.details.show(item),
      onTouch: () => this.follow(false), // whoever reads a row is not carried away from it
      onOpen: (how) => this.openDetails(how),
      onFold: (lane) => this.fold(lane),
      onZoom: () => this.moved(),
    });
    this.details = new Details(this.store, {
      onClose: () => this.closeDetails(),
      onGoTo: (request) => this.goTo(request),
      onZoomTo: (request) => this.zoomTo(request),
    });
    this.feed = new Feed({
      onHello: (hello) => this.hello(hello),
      onBatch: (batch, fresh) => this.take(batch, fresh),
      onCaughtUp: () => this.caughtUp(),
      onState: (state, text) => this.showState(state, text),
    });
    this.theme = new Theme(() => this.changed());
    this.#fillStatic();
    this.#listen();
    this.feed.start();
  }

  // What comes from the feed

  /** Another run of the page's server: another version of the page, or all records once more. */
  hello({ version, feed }) {
    if (this.version !== undefined && this.version !== version) location.reload();
    if (this.feedId !== undefined && this.feedId !== feed) this.store.clear();
    [this.version, this.feedId] = [version, feed];
  }

  take(batch, fresh) {
    if (!this.store.add(batch, fresh)) return;
    const extent = this.store.extent();
    if (extent === null) return this.changed();
    const showedAll = this.viewport.from <= this.viewport.first;
    const { span } = this.viewport; // as the person chose it
    this.viewport.bound(...extent);
    if (fresh) this.#place();
    if (this.placed && this.following) {
      if (showedAll && span < FOLLOWED_MS) this.viewport.showAll();
      else this.viewport.show(this.viewport.last - span, this.viewport.last);
      if (fresh) this.newest = batch.records?.at(-1)?.id;
    }
    this.changed();
  }

  caughtUp() {
    this.#place();
    this.changed();
  }

  /** The first window shows the last session, or so much of it that bars have a length. */
  #place() {
    const newest = this.store.requests.at(-1);
    if (this.placed || !newest) return;
    const session = this.store.requests.filter((request) => request.record.session === newest.record.session);
    const { start } = session.at(-FIRST_REQUESTS) ?? session[0];
    const { first, last } = this.viewport;
    const isFirst = start === this.store.requests[0].start;
    this.viewport.show(isFirst ? first : start - (last - start) * MARGIN, last);
    this.placed = true;
  }

  showState(state, text) {
    const live = byId("live");
    live.dataset.state = state;
    if (live.textContent !== text) live.textContent = text;
    byId("follow").hidden = state === "exported";
  }

  // What the person does

  /** The person moved the window: whoever looks back does not follow. */
  moved() {
    if (this.viewport.to < this.viewport.last - 1) this.follow(false);
    this.draw();
  }

  zoom(factor) {
    this.viewport.zoom(factor, this.following ? this.viewport.to : undefined);
    this.moved();
  }

  pan(share) {
    this.viewport.pan(share);
    this.moved();
  }

  showAll() {
    this.viewport.showAll();
    this.moved();
  }

  follow(on) {
    this.following = on;
    byId("follow").setAttribute("aria-pressed", on);
  }

  toggleFollow() {
    this.follow(!this.following);
    if (this.following) this.viewport.show(this.viewport.last - this.viewport.span, this.viewport.last);
    this.draw();
  }

  fold(lane) {
    if (!this.folded.delete(lane)) this.folded.add(lane);
    this.draw();
  }

  openDetails(how) {
    const item = this.rows.item(this.rows.selected);
    if (!item) return;
    this.details.show(item, how);
    this.drawNow();
    this.rows.reveal(this.rows.indexes.get(item.key)); // the details take room from the rows
  }

  closeDetails() {
    this.details.close();
    this.rows.scroller.focus();
    this.draw();
  }

  goTo(request) {
    if (!this.matching.includes(request)) this.filters.clear();
    this.folded.delete(request.lane);
    if (request.end < this.viewport.from || request.start > this.viewport.to) {
      this.viewport.show(request.start - this.viewport.span / 2, request.start + this.viewport.span / 2);
    }
    this.drawNow();
    this.rows.select(request.id);
  }

  zoomTo(request) {
    const room = Math.max(request.took, MIN_SPAN_MS) * 0.25;
    this.viewport.show(request.start - room, request.end + room);
    this.moved();
  }

  zoomToSelected() {
    const item = this.rows.item(this.rows.selected);
    if (item?.request) this.zoomTo(item.request);
  }

  foldSelected() {
    const item = this.rows.item(this.rows.selected);
    if (item?.lane) this.fold(item.lane.key);
  }

  /** The nearest thing that can be left: the details, then the filter. */
  escape() {
    if (this.details.isOpen) this.closeDetails();
    else if (this.filters.isActive) this.filters.clear();
    this.rows.scroller.focus();
  }

  // Drawing

  changed() {
    this.pending.data = true;
    this.draw();
  }

  draw() {
    this.pending.frame ||= requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    cancelAnimationFrame(this.pending.frame);
    this.pending.frame = 0;
    if (this.pending.data) this.#drawData();
    this.pending.data = false;
    this.strip.drawBrush();
    this.#drawRuler();
    const items = this.#items();
    this.rows.set(items);
    const open = this.details.isOpen && this.rows.item(this.details.key);
    if (open?.lane && !this.details.hasFocus) this.details.show(open); // of the time that is shown
    this.#drawSummary();
    this.#drawEmpty(items);
    this.#revealNewest();
  }

  #drawData() {
    this.matching = this.store.matching(this.filters.wanted);
    this.filled = new Set(this.matching.map((request) => request.lane));
    this.strip.draw(this.store.requests, this.matching);
    this.filters.offer(this.store);
  }

  #drawSummary() {
    const [all, fitting] = [this.store.requests.length, this.matching.length];
    const some = fitting === all ? "" : `${fitting.toLocaleString("en")} of `;
    const shown = this.inTime === fitting ? "" : `, ${this.inTime.toLocaleString("en")} in the time shown`;
    const lost = this.store.dropped ? `, ${this.store.dropped.toLocaleString("en")} not recorded` : "";
    const text = `${some}${plural(all, "request")}${shown}${lost}`;
    if (byId("summary").textContent !== text) byId("summary").textContent = text;
  }

  #items() {
    const { from, to } = this.viewport;
    const inTime = this.matching.filter((request) => request.end >= from && request.start <= to);
    this.inTime = inTime.length;
    if (this.filters.view !== "lanes") {
      if (this.filters.view === "slowest") inTime.sort((a, b) => b.took - a.took);
      return inTime.map((request) => ({ key: request.id, request, marks: [], shownServer: true }));
    }
    const byLane = Map.groupBy(inTime, (request) => request.lane);
    const lanes = this.store.sortedLanes().filter((lane) => this.filled.has(lane.key) || !this.filters.isActive);
    return lanes.flatMap((lane) => this.#laneItems(lane, byLane.get(lane.key) ?? []));
  }

  #laneItems(lane, requests) {
    const { from, to } = this.viewport;
    const { session } = this.filters.wanted;
    const marks = marksBetween(lane.marks, from, to).filter((mark) => !session || mark.session === session);
    const crashes = marks.filter((mark) => mark.kind === "crash");
    const folded = this.folded.has(lane.key);
    const head = { key: `lane:${lane.key}`, lane, requests, marks, folded };
    if (folded) return [head];
    return [head, ...requests.map((request) => ({ key: request.id, request, marks: crashes, level: 2 }))];
  }

  #drawRuler() {
    const ruler = byId("ruler");
    const isEmpty = !this.store.requests.length;
    const { step, at } = isEmpty ? { step: 1, at: [] } : this.viewport.ticks(Math.max(2, ruler.clientWidth * MAX_TICKS_PER_PX));
    const place = (element, instant) => {
      element.style.left = `${100 * this.viewport.share(instant)}%`;
      return element;
    };
    const fits = (instant) => this.viewport.share(instant) * ruler.clientWidth < ruler.clientWidth - LABEL_PX;
    const label = (instant) => place(make("span", {}, timeOfDay(instant, step)), instant);
    ruler.replaceChildren(...at.filter(fits).map(label));
    const lines = byId("lines");
    const edge = lines.offsetParent.getBoundingClientRect();
    const box = ruler.getBoundingClientRect();
    [lines.style.left, lines.style.right] = [`${box.left - edge.left}px`, `${edge.right - box.right}px`];
    lines.replaceChildren(...at.map((instant) => place(make("i"), instant)));
  }

  #drawEmpty(items) {
    const empty = byId("empty");
    empty.hidden = items.some((item) => item.request || item.folded || item.marks.length);
    if (empty.hidden) return;
    if (!this.store.requests.length) empty.textContent = "No requests yet. Each appears here once it is answered.";
    else if (!this.matching.length) empty.textContent = "No request fits the filter. Press Esc to clear it.";
    else empty.textContent = "Nothing in this time. Press 0 to show all of it.";
  }

  #revealNewest() {
    const index = this.newest && this.rows.indexes.get(this.newest);
    if (index !== undefined && this.following) this.rows.reveal(index);
    this.newest = undefined;
  }

  #fillStatic() {
    const chip = (leg) => make("span", { title: LEGS[leg] }, make("i", { class: "swatch", "data-leg": leg }), leg);
    const sign = (kind) => {
      const { sign: glyph, word } = MARKS[kind];
      return make("span", { class: `sign ${kind}` }, make("b", { "aria-hidden": "true" }, glyph), word);
    };
    byId("legend").append(...Object.keys(LEGS).map(chip), ...["start", "crash", "question", "promotion"].map(sign));
  }

  // Listening

  #listen() {
    const click = (id, act) => byId(id).addEventListener("click", act);
    click("follow", () => this.toggleFollow());
    click("help-open", () => byId("help").showModal());
    click("zoom-in", () => this.zoom(0.5));
    click("zoom-out", () => this.zoom(2));
    click("zoom-all", () => this.showAll());
    new Keyboard(this);
    new ResizeObserver(() => this.changed()).observe(this.rows.scroller);
  }
}

const page = new Page();
