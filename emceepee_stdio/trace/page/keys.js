"use strict";
// The keyboard: every action of the page without a mouse.

const KEYS = [
  ["↑ ↓", "previous, next row"],
  ["Enter", "details of the row"],
  ["Space", "fold or unfold a lane"],
  ["Esc", "close the details, then clear the filter"],
  ["+ −", "zoom in, zoom out"],
  ["← →", "earlier, later"],
  ["0", "show all of the time"],
  ["z", "zoom to the selected request"],
  ["/", "filter"],
  ["f", "follow what happens now"],
  ["t", "theme: auto, light, dark"],
];

class Keyboard {
  constructor(page) {
    this.page = page;
    this.rows = page.rows;
    this.help = document.getElementById("help");
    const line = ([key, does]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, does)];
    document.getElementById("help-keys").append(...KEYS.flatMap(line));
    document.addEventListener("keydown", (event) => this.#press(event));
  }

  #press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.help.open) return;
    if (event.key === "Escape") return this.page.escape();
    if (event.target.matches("input, select")) return;
    const onRows = event.target === document.body || event.target === this.rows.scroller;
    const act = this.#anywhere(event.key) ?? (onRows ? this.#onRows(event.key) : undefined);
    if (!act) return;
    event.preventDefault();
    act();
  }

  #anywhere(key) {
    const { page } = this;
    return {
      "+": () => page.zoom(0.5),
      "=": () => page.zoom(0.5),
      "-": () => page.zoom(2),
      0: () => page.showAll(),
      z: () => page.zoomToSelected(),
      f: () => page.toggleFollow(),
      t: () => page.theme.next(),
      "/": () => document.getElementById("words").focus(),
      "?": () => this.help.showModal(),
    }[key];
  }

  #onRows(key) {
    const { page, rows } = this;
    return {
      ArrowUp: () => rows.move(-1),
      ArrowDown: () => rows.move(1),
      PageUp: () => rows.move(-rows.pageRows()),
      PageDown: () => rows.move(rows.pageRows()),
      Home: () => rows.move(-Infinity),
      End: () => rows.move(Infinity),
      ArrowLeft: () => page.pan(-0.2),
      ArrowRight: () => page.pan(0.2),
      Enter: () => page.openDetails({ focus: true }),
      " ": () => page.foldSelected(),
    }[key];
  }
}
