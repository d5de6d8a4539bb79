"use strict";
// The time that is shown: a window into the time that there is. All numbers are milliseconds.

const MIN_SPAN_MS = 2; // legs are recorded in fractions of a millisecond
const MARGIN = 0.02; // of the span, so that the first and last bar do not touch the edge
const DAY_MS = 86_400_000;
const STEPS_MS = [
  ...[0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500],
  ...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400].map(
    (seconds) => seconds * 1000,
  ),
];

class Viewport {
  constructor() {
    this.first = 0; // what there is
    this.last = 1;
    this.from = 0; // what is shown
    this.to = 1;
  }

  get span() {
    return this.to - this.from;
  }

  bound(first, last) {
    const margin = Math.max((last - first) * MARGIN, MIN_SPAN_MS);
    this.first = first - margin;
    this.last = last + margin;
  }

  show(from, to) {
    const span = Math.min(Math.max(to - from, MIN_SPAN_MS), this.last - this.first);
    const middle = (from + to) / 2;
    this.from = Math.min(Math.max(middle - span / 2, this.first), this.last - span);
    this.to = this.from + span;
  }

  showAll() {
    this.show(this.first, this.last);
  }

  /** Zoom so that the instant `at` stays where it is. */
  zoom(factor, at = (this.from + this.to) / 2) {
    const span = Math.max(this.span * factor, MIN_SPAN_MS);
    const share = (at - this.from) / this.span;
    this.show(at - span * share, at + span * (1 - share));
  }

  pan(share) {
    this.show(this.from + this.span * share, this.to + this.span * share);
  }

  /** Where an instant is, as a share of the width; outside of 0 to 1 it is not seen. */
  share(at) {
    return (at - this.from) / this.span;
  }

  instant(share) {
    return this.from + this.span * share;
  }

  /** The instants for lines and labels, at most so many, and the step between them. */
  ticks(most) {
    const days = () => Math.ceil(this.span / most / DAY_MS) * DAY_MS;
    const step = STEPS_MS.find((size) => this.span / size <= most) ?? days();
    const zone = new Date(this.from).getTimezoneOffset() * 60_000;
    const found = [];
    for (let at = Math.ceil((this.from - zone) / step) * step + zone; at <= this.to; at += step) found.push(at);
    return { step, at: found };
  }
}
