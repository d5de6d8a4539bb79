"use strict";
// Where the requests come from: the data in an exported page, or the stream of the page's server.
// A stream that ends is opened again until it is there; the server says where it goes on.

const RETRY_FIRST_MS = 500;
const RETRY_MOST_MS = 5_000;

class Feed {
  constructor({ onHello, onBatch, onCaughtUp, onState }) {
    this.handlers = { onHello, onBatch, onCaughtUp, onState };
    this.retry = RETRY_FIRST_MS;
    this.place = ""; // of the last batch; the server goes on behind it
  }

  start() {
    const exported = document.getElementById("exported");
    if (exported === null) this.#open();
    else this.#take(JSON.parse(exported.textContent));
  }

  #take({ exported_at: at, ...batch }) {
    this.handlers.onBatch(batch, false);
    this.handlers.onCaughtUp();
    this.handlers.onState("exported", `Exported ${date(Date.parse(at))} ${timeOfDay(Date.parse(at), 60_000)}`);
  }

  #open() {
    const source = new EventSource(`events?after=${encodeURIComponent(this.place)}`);
    let caughtUp = false;
    source.addEventListener("hello", (event) => this.handlers.onHello(JSON.parse(event.data)));
    source.addEventListener("batch", (event) => {
      this.place = event.lastEventId;
      this.handlers.onBatch(JSON.parse(event.data), caughtUp);
    });
    source.addEventListener("caught_up", () => {
      caughtUp = true;
      this.retry = RETRY_FIRST_MS;
      this.handlers.onCaughtUp();
      this.handlers.onState("live", "Live");
    });
    source.addEventListener("error", () => {
      source.close();
      this.handlers.onState("lost", "Not connected. Run “emceepee trace --web”; this page comes back by itself");
      setTimeout(() => this.#open(), this.retry);
      this.retry = Math.min(this.retry * 2, RETRY_MOST_MS);
    });
  }
}
