"use strict";
// The strip of all time at the top: how long the slowest request of each moment took, and the brush
// that chooses what the rows show.

const BIN_PX = 3;
const EDGE_PX = 8; // how near to an edge of the brush counts as on it

class Strip {
  constructor(viewport, onChange) {
    this.viewport = viewport;
    this.onChange = onChange;
    this.element = document.getElementById("strip");
    this.canvas = document.getElementById("strip-canvas");
    this.brush = document.getElementById("brush");
    this.drag = null;
    this.element.addEventListener("pointerdown", (event) => this.#press(event));
    this.element.addEventListener("pointermove", (event) => this.#move(event));
    this.element.addEventListener("pointerup", () => (this.drag = null));
    this.element.addEventListener("pointercancel", () => (this.drag = null));
    this.element.addEventListener("dblclick", () => this.#change(() => viewport.showAll()));
    this.element.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
  }

  /** Draw the requests; those that the filter leaves out are pale. */
  draw(all, matching) {
    const { width, height, context } = sharpCanvas(this.canvas);
    const colours = themeColours();
    context.clearRect(0, 0, width, height);
    const bins = this.#bins(matching, width);
    const longest = Math.max(1, ...bins.map((bin) => bin.took));
    context.globalAlpha = 0.25;
    const pale = { ...colours, bad: colours.muted };
    if (all.length > matching.length) this.#bars(context, this.#bins(all, width), pale, height);
    context.globalAlpha = 1;
    this.#bars(context, bins, colours, height, longest);
  }

  drawBrush() {
    const { first, last, from, to } = this.viewport;
    const share = (at) => (100 * (at - first)) / (last - first);
    this.brush.style.left = `${share(from)}%`;
    this.brush.style.width = `${Math.max(share(to) - share(from), 0.1)}%`;
  }

  #bins(requests, width) {
    const { first, last } = this.viewport;
    const count = Math.max(1, Math.floor(width / BIN_PX));
    const bins = Array.from({ length: count }, () => ({ took: 0, bad: false, leg: "server" }));
    for (const request of requests) {
      const index = Math.floor((count * (request.start - first)) / (last - first));
      const bin = bins[Math.min(Math.max(index, 0), count - 1)];
      bin.bad ||= request.bad;
      if (request.took >= bin.took) {
        bin.took = Math.max(request.took, 0.1);
        bin.leg = longestLeg(request.record.legs);
      }
    }
    return bins;
  }

  /** The height is the logarithm of the time: 1 ms is a dot, a minute is tall. */
  #bars(context, bins, colours, height, longest = 60_000) {
    const full = Math.log10(Math.max(longest, 10) + 1);
    bins.forEach((bin, index) => {
      if (!bin.took) return;
      const tall = Math.max(2, ((height - 8) * Math.log10(bin.took + 1)) / full);
      context.fillStyle = colours[bin.leg] ?? colours.server;
      context.fillRect(index * BIN_PX, height - tall, BIN_PX - 1, tall);
      if (bin.bad) {
        context.fillStyle = colours.bad;
        context.fillRect(index * BIN_PX, height - tall - 3, BIN_PX - 1, 3);
      }
    });
  }

  #instant(event) {
    const box = this.element.getBoundingClientRect();
    const share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
    return this.viewport.first + share * (this.viewport.last - this.viewport.first);
  }

  /** An edge of the brush is moved, the brush itself is moved, or a new one is drawn. */
  #press(event) {
    if (event.button !== 0) return;
    const at = this.#instant(event);
    const { from, to, first, last } = this.viewport;
    const near = (EDGE_PX * (last - first)) / this.element.clientWidth;
    if (Math.abs(at - from) < near) this.drag = { fixed: to };
    else if (Math.abs(at - to) < near) this.drag = { fixed: from };
    else if (at > from && at < to && to - from < (last - first) * 0.98) this.drag = { grip: at - from };
    else this.drag = { fixed: at };
    this.element.setPointerCapture(event.pointerId);
  }

  #move(event) {
    if (this.drag === null) return;
    const at = this.#instant(event);
    const { fixed, grip } = this.drag;
    this.#change(() => {
      if (grip === undefined) this.viewport.show(Math.min(at, fixed), Math.max(at, fixed));
      else this.viewport.show(at - grip, at - grip + this.viewport.span);
    });
  }

  #wheel(event) {
    event.preventDefault();
    const at = this.#instant(event);
    this.#change(() => this.viewport.zoom(wheelFactor(event), at));
  }

  #change(move) {
    move();
    this.onChange();
  }
}

/** How much one turn of the wheel zooms, whatever unit the browser counts it in. */
function wheelFactor(event) {
  const lines = event.deltaMode === 0 ? event.deltaY / 100 : event.deltaY / 3;
  return Math.exp(Math.min(Math.max(lines, -3), 3) * 0.35);
}

function longestLeg(legs) {
  let longest = ["server", 0];
  for (const leg of legs) if (leg[1] > longest[1]) longest = leg;
  return longest[0];
}

/** A canvas as sharp as the screen, with its size in CSS pixels. */
function sharpCanvas(canvas) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const ratio = window.devicePixelRatio || 1;
  const [wide, tall] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== tall) [canvas.width, canvas.height] = [wide, tall];
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { width, height, context };
}
