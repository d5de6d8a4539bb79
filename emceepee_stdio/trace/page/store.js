"use strict";
// The requests and marks that the page knows, and which of them a filter leaves.
// Each request is kept once, by its id, in the order of its start.

const MAX_REQUESTS = 50_000; // about 60 MB of a tab; the oldest go first
const MAX_MARKS_PER_LANE = 5_000;
const MAX_SEARCHED_CHARS = 4_000; // of each request
const LEGS = {
  connecting: "waiting for a connection",
  queued: "queued",
  waiting: "waiting for activity",
  server: "at the server",
  person: "waiting for a person",
  model: "waiting for the model",
  rendering: "rendering",
};
const OUTCOMES = {
  ok: "ok",
  tool_error: "tool error",
  error: "error",
  cancelled: "cancelled",
  promoted: "became a task",
  input_required: "asked back",
};
const OWN_LANE = ""; // requests that emceepee answers itself

/** A word of ours for a name of ours; any other name as it is. */
const titled = (titles, name) => (Object.hasOwn(titles, name) ? titles[name] : visible(name));
const legTitle = (leg) => titled(LEGS, leg);
const outcomeTitle = (outcome) => titled(OUTCOMES, outcome);
const laneTitle = (lane) => (lane === OWN_LANE ? "emceepee" : visible(lane));
const isBad = (outcome) => outcome === "error" || outcome === "tool_error";

/** A request as the page uses it; `record` is what the file says. */
function requestOf(record) {
  const start = record.start_ms;
  return {
    record,
    id: record.id,
    lane: record.server ?? OWN_LANE,
    name: visible(record.server_tool ?? record.tool ?? record.method ?? "?"),
    start,
    took: record.duration_ms,
    end: start + record.duration_ms,
    bad: isBad(record.outcome),
    fresh: false,
    searched: null,
  };
}

function searchText(request) {
  if (request.searched === null) {
    const { legs, start_ms, duration_ms, result, ...record } = request.record;
    const text = Object.values(record)
      .map((value) => (typeof value === "object" ? JSON.stringify(value) : String(value)))
      .join(" ");
    request.searched = text.slice(0, MAX_SEARCHED_CHARS).toLowerCase();
  }
  return request.searched;
}

class Lane {
  constructor(key) {
    this.key = key;
    this.title = laneTitle(key);
    this.requests = [];
    this.marks = [];
  }
}

class Store {
  constructor() {
    this.clear();
  }

  clear() {
    this.requests = [];
    this.byId = new Map();
    this.lanes = new Map();
    this.sessions = new Map(); // id → { first, last, client }
    this.dropped = 0;
  }

  /** Take a batch of the feed; whether anything in it is new. */
  add({ records = [], marks = [] }, fresh) {
    const before = this.requests.length;
    for (const record of records) this.#addRecord(record, fresh);
    for (const mark of marks) this.#addMark(mark);
    if (this.requests.length > before) this.requests.sort((a, b) => a.start - b.start);
    if (this.requests.length > MAX_REQUESTS) this.#forgetOldest();
    if (records.length) this.#fillLanes();
    return records.length + marks.length > 0;
  }

  lane(key) {
    if (!this.lanes.has(key)) this.lanes.set(key, new Lane(key));
    return this.lanes.get(key);
  }

  /** From the first start to the last end; null while there is nothing. */
  extent() {
    if (!this.requests.length) return null;
    let last = -Infinity;
    for (const request of this.requests) last = Math.max(last, request.end);
    return [this.requests[0].start, last];
  }

  /** The requests that a filter leaves, whenever they were. */
  matching(filter) {
    const words = filter.words.toLowerCase().split(/\s+/).filter(Boolean);
    return this.requests.filter(
      (request) =>
        (filter.server === null || request.lane === filter.server) &&
        (!filter.session || request.record.session === filter.session) &&
        request.took >= filter.slow &&
        fitsOutcome(request, filter.outcome) &&
        words.every((word) => searchText(request).includes(word)),
    );
  }

  #addRecord(record, fresh) {
    if (record.kind === "dropped") {
      this.dropped += record.count;
      return;
    }
    if (this.byId.has(record.id)) return;
    const request = requestOf(record);
    request.fresh = fresh;
    this.byId.set(record.id, request);
    this.requests.push(request);
    this.#see(record.session, request.start);
  }

  #addMark(mark) {
    if (mark.kind === "session") {
      this.#see(mark.session, mark.at_ms).client = mark.text;
      return;
    }
    const { marks } = this.lane(mark.server ?? OWN_LANE);
    let index = marks.length; // nearly always the end: the journal is in order
    while (index > 0 && marks[index - 1].at_ms > mark.at_ms) index -= 1;
    marks.splice(index, 0, mark);
    if (marks.length > MAX_MARKS_PER_LANE) marks.splice(0, marks.length - MAX_MARKS_PER_LANE);
  }

  #see(id, at) {
    if (!this.sessions.has(id)) this.sessions.set(id, { first: at, last: at, client: "" });
    const session = this.sessions.get(id);
    session.first = Math.min(session.first, at);
    session.last = Math.max(session.last, at);
    return session;
  }

  #forgetOldest() {
    for (const request of this.requests.splice(0, this.requests.length - MAX_REQUESTS)) this.byId.delete(request.id);
  }

  #fillLanes() {
    for (const lane of this.lanes.values()) lane.requests = [];
    for (const request of this.requests) this.lane(request.lane).requests.push(request);
  }

  /** By name; emceepee's own tools come last. */
  sortedLanes() {
    const last = (lane) => lane.key === OWN_LANE;
    return [...this.lanes.values()].sort((a, b) => last(a) - last(b) || a.title.localeCompare(b.title));
  }
}

function fitsOutcome(request, wanted) {
  return !wanted || (wanted === "bad" ? request.bad : request.record.outcome === wanted);
}

/** The median and the 95th percentile of how long these took; null for none. */
function percentiles(requests) {
  if (!requests.length) return null;
  const sorted = Float64Array.from(requests, (request) => request.took).sort();
  const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
  return { median: at(0.5), p95: at(0.95) };
}
