"use strict";
// The theme: that of the system until a person chooses one, which the browser remembers.

const THEMES = ["auto", "light", "dark"];

class Theme {
  constructor(onChange) {
    this.onChange = onChange;
    this.button = document.getElementById("theme");
    this.button.addEventListener("click", () => this.next());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#apply());
    this.chosen = remembered("theme");
    this.#apply();
  }

  next() {
    this.chosen = THEMES[(THEMES.indexOf(this.chosen) + 1) % THEMES.length];
    remember("theme", this.chosen);
    this.#apply();
  }

  #apply() {
    if (!THEMES.includes(this.chosen)) this.chosen = "auto";
    const { dataset } = document.documentElement;
    if (this.chosen === "auto") delete dataset.theme;
    else dataset.theme = this.chosen;
    this.button.textContent = `Theme: ${this.chosen}`;
    forgetColours();
    this.onChange();
  }
}

/** A page that was opened from a file may have no storage. */
function remember(name, value) {
  try {
    localStorage.setItem(`emceepee-trace-${name}`, value);
  } catch {
    // it is remembered until the page is closed
  }
}

function remembered(name) {
  try {
    return localStorage.getItem(`emceepee-trace-${name}`);
  } catch {
    return null;
  }
}

let colourCache = null;

/** The colours of the theme, for what is drawn on a canvas. */
function themeColours() {
  if (colourCache === null) {
    const probe = document.body.appendChild(make("i", { hidden: true }));
    const names = [...Object.keys(LEGS), "bad", "warn", "muted", "text", "good"];
    const resolved = (name) => {
      probe.style.color = `var(--${name})`;
      return [name, getComputedStyle(probe).color];
    };
    colourCache = Object.fromEntries(names.map(resolved));
    probe.remove();
  }
  return colourCache;
}

function forgetColours() {
  colourCache = null;
}
