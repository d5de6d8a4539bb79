"use strict";
// What waits for a person, and their answers. Text of others becomes text nodes, and nothing else.
//
// No button works in the first second: neither after its request has come, nor after another one
// moved it, nor after the tab came to the front. A click that was meant for what was there before
// does not hit what is there now.

const READING_MS = 1000;
const OVER = "emceepee has ended, so nothing is answered here any more. In a new session the model can ask again.";
const LOST = "The connection to emceepee is lost. It is tried again.";
const YES = {
  server: { once: "Yes, this time", always: "Yes, and do not ask again" },
  call: { once: "Yes, this one call", always: "Yes, and do not ask again for this tool" },
  tools: { always: "Yes, these are the tools from now on" },
};
const SAID = { no: "Refused", once: "Allowed this time", always: "Allowed", reply: "Answered" };
const NOTES = {
  server: "A program runs as you: it can do whatever you can do.",
  call: "It runs when the model makes the same call again, if it does not wait any more.",
  tools: "Until you agree, what changed is compared with what was there before.",
};

const byId = (name) => document.getElementById(name);
const cards = new Map(); // by request and time: the same may be asked again later
const answered = new Set();
const keyOf = (item) => `${item.id} ${item.at || ""}`;
let isOver = false;

function make(tag, fields = {}, ...children) {
  const made = Object.assign(document.createElement(tag), fields);
  made.append(...children); // strings become text nodes
  return made;
}

/** Buttons work a second after everything has come to rest, while the person can see them. */
const rest = {
  timer: 0,
  begin() {
    clearTimeout(this.timer);
    this.set(true);
    if (!document.hidden && !isOver) this.timer = setTimeout(() => this.set(false), READING_MS + 50);
  },
  set(isDisabled) {
    for (const button of document.querySelectorAll("main button")) button.disabled = isDisabled;
  },
};
document.addEventListener("visibilitychange", () => rest.begin());
addEventListener("focus", () => rest.begin());
addEventListener("resize", () => rest.begin());

async function send(id, answer, content) {
  const body = content === undefined ? { id, answer } : { id, answer, content };
  try {
    const headers = { "content-type": "application/json" };
    const got = await fetch("answer", { method: "POST", headers, body: JSON.stringify(body) });
    const said = await got.json().catch(() => ({ problem: "The answer was not taken." }));
    return got.ok ? "" : said.problem;
  } catch {
    return "The answer was not taken: emceepee cannot be reached.";
  }
}

function button(text, kind, onClick) {
  const made = make("button", { type: "button", className: kind, disabled: true }, text);
  made.addEventListener("click", (event) => {
    if (event.isTrusted && !made.disabled) onClick();
  });
  return made;
}

// Cards

function headline(item) {
  const client = item.client ? `A model in ${item.client}` : "A model";
  if (item.kind === "server") return `${client} wants to add a server`;
  if (item.kind === "call") return `${client} wants to call a tool that you want to be asked about`;
  if (item.kind === "tools") return "The tools of a server are not what they were";
  return "A server asks you";
}

function card(item) {
  const problem = make("p", { className: "problem", hidden: true, role: "alert" });
  const answers = make("div", { className: "answers" });
  const made = make("article", { className: "card" });
  made.append(make("p", { className: "who" }, headline(item)), make("h2", {}, item.title || item.name));
  const answer = async (which, content) => {
    rest.set(true);
    const why = await send(item.id, which, content);
    problem.textContent = why;
    problem.hidden = !why;
    if (!why) finish(item, made, which);
    rest.begin();
  };
  if (item.kind === "question") fillQuestion(made, item, answers, answer);
  else fillRequest(made, item, answers, answer);
  made.append(answers, problem);
  if (item.command) made.append(make("p", { className: "note" }, "In a terminal: ", make("code", {}, item.command)));
  return made;
}

function fillRequest(made, item, answers, answer) {
  const list = make("dl");
  for (const [label, what] of item.rows) {
    if (label === "Beware") made.append(make("p", { className: "beware" }, what));
    else if (["Command", "Address", "Arguments"].includes(label)) made.append(make("pre", { className: "what" }, what));
    else if (label !== "Server") list.append(make("dt", {}, label), make("dd", {}, what));
  }
  if (item.text) made.append(make("pre", { className: "what" }, item.text));
  if (list.firstChild) made.append(list);
  made.append(make("p", { className: "note" }, item.rows.some(([label]) => label === "Address")
    ? "It gets what the model sends to it, and the model reads its answers." : NOTES[item.kind]));
  answers.append(button("No", "no", () => answer("no")));
  for (const which of item.answers) answers.append(button(YES[item.kind][which], "yes", () => answer(which)));
}

function finish(item, made, which) {
  answered.add(keyOf(item));
  made.className = `card done ${which === "no" ? "no" : "yes"}`;
  made.replaceChildren(`${SAID[which]}: ${item.name}`);
}

// Questions

function fillQuestion(made, item, answers, answer) {
  made.append(make("pre", { className: "what" }, item.text));
  const choice = choicesOfOurs(item);
  if (choice) {
    for (const value of choice) {
      const content = { action: "accept", content: { decision: value } };
      answers.append(button(value, value === "No" ? "no" : "yes", () => answer("reply", content)));
    }
    return;
  }
  const fields = [];
  const properties = (item.schema && item.schema.properties) || {};
  for (const [name, about] of Object.entries(properties)) {
    const field = fieldOf(name, about || {});
    fields.push([name, field.value]);
    made.append(field.element);
  }
  const content = () => Object.fromEntries(fields.map(([name, value]) => [name, value()]).filter(([, value]) => value !== undefined));
  answers.append(button("No", "no", () => answer("reply", { action: "decline" })));
  if (item.url) {
    made.append(make("pre", { className: "what" }, item.url));
    answers.append(button("Open this address", "yes", () => {
      open(item.url, "_blank", "noopener,noreferrer");
      answer("reply", { action: "accept" });
    }));
  } else {
    answers.append(button("Send", "yes", () => answer("reply", { action: "accept", content: content() })));
  }
}

/** A form with a decision alone is one button for each. */
function choicesOfOurs(item) {
  const properties = (item.schema && item.schema.properties) || {};
  const choices = Object.keys(properties).join() === "decision" && properties.decision.oneOf;
  return choices ? choices.map((one) => String(one.const)) : null;
}

function fieldOf(name, about) {
  const label = make("span", {}, String(about.title || name) + (about.description ? `: ${about.description}` : ""));
  const choices = about.oneOf || (about.items && (about.items.anyOf || about.items.oneOf));
  const values = choices ? choices.map((one) => one.const) : about.enum || (about.items && about.items.enum);
  const names = choices ? choices.map((one) => one.title || one.const) : about.enumNames || values;
  if (values) {
    const many = about.type === "array";
    const select = make("select", { multiple: many, autocomplete: "off" });
    if (!many) select.append(make("option", { value: "" }, "—"));
    values.forEach((value, at) => {
      const chosen = many ? [].concat(about.default || []).includes(value) : about.default === value;
      select.append(make("option", { value: String(at), selected: chosen }, String(names[at] ?? value)));
    });
    const picked = () => [...select.selectedOptions].filter((one) => one.value !== "").map((one) => values[Number(one.value)]);
    return { element: make("label", { className: "field" }, label, select), value: () => (many ? picked() : picked()[0]) };
  }
  if (about.type === "boolean") {
    const box = make("input", { type: "checkbox", checked: about.default === true });
    return { element: make("label", { className: "field" }, label, box), value: () => box.checked };
  }
  const isNumber = about.type === "number" || about.type === "integer";
  const input = make("input", { type: "text", autocomplete: "off", inputMode: isNumber ? "decimal" : "text" });
  if (about.default !== undefined) input.value = String(about.default);
  const value = () => (input.value === "" ? undefined : isNumber && input.value.trim() !== "" && !Number.isNaN(Number(input.value)) ? Number(input.value) : input.value);
  return { element: make("label", { className: "field" }, label, input), value };
}

// The whole state, with every change

function show(state) {
  const waiting = state.waiting.filter((item) => !answered.has(keyOf(item)));
  const present = new Set(waiting.map(keyOf));
  let moved = false;
  for (const [key, shown] of cards) {
    if (present.has(key) || answered.has(key)) continue;
    shown.className = "card done"; // it keeps its place: nothing moves under the pointer
    shown.replaceChildren("Answered elsewhere, or no longer asked.");
    answered.add(key);
    moved = true;
  }
  for (const item of waiting) {
    if (cards.has(keyOf(item))) continue;
    const made = card(item);
    cards.set(keyOf(item), made);
    byId(item.mine ? "waiting" : "others-list").append(made);
    moved = true;
  }
  const open = waiting.filter((item) => item.mine).length;
  byId("others").hidden = !byId("others-list").firstChild;
  byId("others-count").textContent = String(waiting.length - open);
  byId("empty").hidden = open > 0;
  document.title = open ? `(${open}) emceepee asks` : "emceepee asks";
  moved = showGranted(state.granted) || moved;
  if (moved) rest.begin();
}

let shownGranted = "";

function showGranted(granted) {
  const now = JSON.stringify(granted);
  if (now === shownGranted) return false;
  shownGranted = now;
  byId("granted").hidden = !granted.length;
  byId("granted-count").textContent = String(granted.length);
  byId("granted-list").replaceChildren(...granted.map((one) => {
    const about = make("div", {}, make("b", {}, one.name), make("code", {}, one.what), ` since ${one.at.slice(0, 10)}`);
    return make("li", {}, about, button("Take back", "revoke", async () => {
      await send(one.id, "revoke");
      rest.begin();
    }));
  }));
  return true;
}

function end(text, state) {
  byId("live").dataset.state = state;
  byId("live").textContent = isOver ? "Ended" : "Not connected";
  byId("over").textContent = text;
  byId("over").hidden = false;
  rest.set(true);
  clearTimeout(rest.timer);
}

const events = new EventSource("events");
events.addEventListener("open", () => {
  byId("live").dataset.state = "live";
  byId("live").textContent = "Live";
  byId("over").hidden = true;
  rest.begin();
});
events.addEventListener("message", (event) => show(JSON.parse(event.data)));
events.addEventListener("over", () => {
  isOver = true;
  events.close();
  end(OVER, "lost");
});
events.addEventListener("error", () => {
  if (!isOver) end(events.readyState === EventSource.CLOSED ? OVER : LOST, "lost");
});
