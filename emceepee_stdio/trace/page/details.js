"use strict";
// What is known of one request or one lane, beside the rows.

const HIDDEN_SECRET = "[redacted]"; // as records have it
const MAX_PAYLOAD_CHARS = 20_000; // shown at first; the rest by a button
const MAX_LISTED_MARKS = 200;
const AROUND_MS = 1_000; // log lines so much before and after a request may explain it

class Details {
  constructor(store, { onClose, onGoTo, onZoomTo }) {
    this.store = store;
    this.handlers = { onClose, onGoTo, onZoomTo };
    this.element = document.getElementById("details");
    this.key = null;
  }

  get isOpen() {
    return !this.element.hidden;
  }

  /** Whether somebody reads them by keys; then they are not made anew. */
  get hasFocus() {
    return this.element.contains(document.activeElement);
  }

  show(item, { focus = false } = {}) {
    const again = this.isOpen && this.key === item.key;
    this.key = item.key;
    this.element.hidden = false;
    if (!again) this.element.scrollTop = 0;
    this.element.replaceChildren(...(item.request ? this.#request(item.request) : this.#lane(item)));
    if (focus) this.element.focus();
  }

  close() {
    this.element.hidden = true;
    this.key = null;
  }

  #head(title, kind, badge) {
    const close = button("Close", () => this.handlers.onClose(), { class: "close", "aria-keyshortcuts": "Escape" });
    return make("header", {}, make("p", { class: "kind" }, kind), close, make("h2", {}, title), badge);
  }

  #request(request) {
    const { record } = request;
    const badge = make("p", { class: "badge", "data-outcome": record.outcome }, outcomeTitle(record.outcome));
    const when = make("small", {}, ` from ${timeOfDay(request.start)} on ${date(request.start)}`);
    return [
      this.#head(request.name, record.kind === "task" ? "task" : laneTitle(request.lane), badge),
      make("p", { class: "big" }, duration(request.took), when),
      legTable(record.legs, request.took),
      this.#actions(request),
      this.#facts(request),
      payload("Arguments", record.arguments),
      payload("Result", record.result),
      this.#around(request),
    ].filter(Boolean);
  }

  #actions(request) {
    const zoom = button("Zoom to it", () => this.handlers.onZoomTo(request), { "aria-keyshortcuts": "z" });
    const command = asCommand(request.record);
    if (command === null) return make("div", { class: "actions" }, zoom);
    const copy = button("Copy as emceepee call …", async () => {
      copy.textContent = (await copied(command)) ? "Copied" : "Copy the line below";
    });
    const line = make("pre", { class: "command", tabindex: "0" }, command);
    const warning = make("p", {}, "Secrets are hidden in it: put them in before you run it.");
    const hidden = command.includes(HIDDEN_SECRET) ? warning : null;
    return make("div", { class: "actions" }, zoom, copy, line, hidden);
  }

  #facts(request) {
    const { record } = request;
    const rows = [
      ["Tool", record.tool],
      ["Server", record.server],
      ["Its tool", record.server_tool],
      ["Method", record.method],
      ["Error code", record.error_code],
      ["In, out", `${bytes(record.bytes_in ?? 0)}, ${bytes(record.bytes_out ?? 0)}`],
      ["Progress", record.progress ? plural(record.progress, "message") : null],
      ["Questions", record.questions ? String(record.questions) : null],
      ["Request id", record.request_id],
      ["Task", this.#linked(request, record.task_id)],
      ["Parent", this.#linked(request, record.parent)],
      ["Session", record.session],
      ["Record", record.id],
      ["traceparent", record.traceparent],
    ];
    const known = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
    return make("dl", { class: "facts" }, ...known.flatMap(([name, value]) => [make("dt", {}, name), fact(value)]));
  }

  /** An id, as a way to the other request that has it. */
  #linked(request, id) {
    if (!id) return null;
    const other = this.store.requests.find(
      (one) => one !== request && (one.id === id || one.record.task_id === id || one.record.parent === id),
    );
    return other ? button(visible(id), () => this.handlers.onGoTo(other), { class: "link" }) : id;
  }

  #around(request) {
    const { marks } = this.store.lane(request.lane);
    const near = marksBetween(marks, request.start - AROUND_MS, request.end + AROUND_MS);
    return markList(`${laneTitle(request.lane)} at that time`, near, request.start);
  }

  #lane({ lane, requests, marks }) {
    const times = percentiles(requests);
    const slowest = [...requests].sort((a, b) => b.took - a.took).slice(0, 5);
    const goTo = (request) => {
      const text = `${duration(request.took)}  ${request.name}`;
      return make("li", {}, button(text, () => this.handlers.onGoTo(request), { class: "link" }));
    };
    const summary = times
      ? `${plural(requests.length, "request")}, median ${duration(times.median)}, p95 ${duration(times.p95)}`
      : "No requests";
    return [
      this.#head(lane.title, "server", null),
      make("p", {}, `${summary}, in the time that is shown.`),
      slowest.length ? make("h3", {}, "Slowest") : null,
      slowest.length ? make("ol", { class: "slowest" }, ...slowest.map(goTo)) : null,
      markList("What happened", marks, null) ?? make("p", {}, "The journal has nothing of it in this time."),
    ].filter(Boolean);
  }
}

function button(text, onClick, attributes = {}) {
  const made = make("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", onClick);
  return made;
}

function fact(value) {
  return make("dd", {}, value instanceof Node ? value : visible(value));
}

/** Where the time went; a leg that was entered several times is one line. */
function legTable(legs, took) {
  const sums = new Map();
  for (const [leg, ms] of legs) sums.set(leg, (sums.get(leg) ?? 0) + ms);
  const row = ([leg, ms]) => {
    const swatch = make("i", { class: "swatch", "data-leg": leg });
    const share = took > 0 ? Math.round((100 * ms) / took) : 0;
    const name = make("th", { scope: "row" }, swatch, legTitle(leg));
    return make("tr", {}, name, make("td", {}, duration(ms)), make("td", {}, `${share} %`));
  };
  const caption = make("caption", {}, "Where the time went");
  return make("table", { class: "legs" }, caption, make("tbody", {}, ...[...sums].map(row)));
}

function payload(title, value) {
  if (value === undefined || value === null) return null;
  const parsed = recordedJson(value);
  const text = visibleBlock(parsed === undefined ? value : JSON.stringify(parsed, null, 2));
  const block = make("pre", { tabindex: "0" }, text.slice(0, MAX_PAYLOAD_CHARS));
  const section = make("section", {}, make("h3", {}, title), block);
  if (text.length > MAX_PAYLOAD_CHARS) {
    const all = button(`Show all ${bytes(text.length)}`, () => {
      block.textContent = text;
      all.remove();
    });
    section.append(all);
  }
  return section;
}

function sinceStart(ms) {
  return `${ms < 0 ? "−" : "+"}${duration(Math.abs(ms))}`;
}

function markList(title, marks, start) {
  if (!marks.length) return null;
  const line = (mark) => {
    const kind = { "data-kind": mark.kind, "data-level": mark.level };
    const when = make("time", {}, start === null ? timeOfDay(mark.at_ms) : sinceStart(mark.at_ms - start));
    return make("li", kind, when, make("span", { class: "word" }, markWord(mark)), visible(mark.text));
  };
  const shown = marks.slice(-MAX_LISTED_MARKS);
  const left = marks.length - shown.length;
  return make(
    "section", {},
    make("h3", {}, title),
    left ? make("p", {}, `The last ${shown.length} of ${marks.length}; zoom in for the others.`) : null,
    make("ul", { class: "marks" }, ...shown.map(line)),
  );
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
