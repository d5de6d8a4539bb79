"use strict";
// The filter above the rows: what is wanted, and how it is shown.

const MAX_CLIENT_CHARS = 40; // of a client's name in the list of sessions

class Filters {
  constructor({ onChange, onView }) {
    this.handlers = { onChange, onView };
    this.form = document.getElementById("filters");
    this.form.addEventListener("input", () => this.#read());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("reset", () => setTimeout(() => this.#read())); // after it is reset
    this.wanted = { words: "", server: null, outcome: "", slow: 0, session: "" };
    this.view = "lanes";
  }

  get isActive() {
    const { words, server, outcome, slow, session } = this.wanted;
    return Boolean(words || server !== null || outcome || slow || session);
  }

  clear() {
    this.form.reset();
    this.#read();
  }

  /** Let the person choose among the servers and sessions that there are. */
  offer(store) {
    const { server, session } = this.form.elements;
    fillSelect(server, store.sortedLanes().map((lane) => [`=${lane.key}`, lane.title]));
    const newestFirst = [...store.sessions].sort(([, a], [, b]) => b.first - a.first);
    fillSelect(session, newestFirst.map(([id, facts]) => [id, sessionTitle(facts)]));
  }

  #read() {
    const { words, server, outcome, slow, session, view } = this.form.elements;
    this.wanted = {
      words: words.value,
      server: server.value === "" ? null : server.value.slice(1),
      outcome: outcome.value,
      slow: Number(slow.value),
      session: session.value,
    };
    const isOther = this.view !== view.value;
    this.view = view.value;
    document.getElementById("clear").hidden = !this.isActive;
    if (isOther) this.handlers.onView();
    this.handlers.onChange();
  }
}

function sessionTitle({ first, client }) {
  return `${date(first)} ${timeOfDay(first, 1000)} ${visible(client).slice(0, MAX_CLIENT_CHARS)}`.trim();
}

/** Give a select these choices, unless it has them; what is chosen stays, if it is there. */
function fillSelect(select, choices) {
  const all = [["", "all"], ...choices];
  const known = JSON.stringify(all);
  if (select.known === known) return;
  const { value } = select;
  select.known = known;
  select.replaceChildren(...all.map(([key, text]) => make("option", { value: key }, text)));
  select.value = all.some(([key]) => key === value) ? value : "";
}
