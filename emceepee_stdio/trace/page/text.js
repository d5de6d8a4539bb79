"use strict";
// Text of somebody else made visible, and numbers as people read them.
// Everything that a server or a model wrote reaches the page through `visible` and as text only.

const MAX_SHOWN_CHARS = 400; // a name that is longer says no more
const INVISIBLE =
  /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufe00-\ufe0f]/gu;

function escaped(char) {
  const code = char.codePointAt(0).toString(16);
  return code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`;
}

/** On one line, bounded, with all that cannot be seen as escapes. */
function visible(text) {
  const given = String(text);
  const cut = given.length > MAX_SHOWN_CHARS ? `${given.slice(0, MAX_SHOWN_CHARS)}…` : given;
  return cut.replace(INVISIBLE, escaped);
}

/** The same for a block of text: lines and tabs stay, and so does its length. */
function visibleBlock(text) {
  return String(text).replace(INVISIBLE, (char) => (char === "\n" || char === "\t" ? char : escaped(char)));
}

/** An element with its attributes and children; strings become text, never markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function duration(ms) {
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(2)} s`;
  const seconds = Math.round(ms / 1000);
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor((seconds % 3600) / 60)];
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${seconds % 60} s`;
}

function bytes(count) {
  if (count < 1000) return `${count} B`;
  if (count < 1_000_000) return `${(count / 1000).toFixed(1)} kB`;
  return `${(count / 1_000_000).toFixed(1)} MB`;
}

function plural(count, word) {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}

const two = (number) => String(number).padStart(2, "0");

/** Local time of day; with milliseconds, or as exact as `step` needs. */
function timeOfDay(ms, step = 1) {
  const at = new Date(ms);
  const minutes = `${two(at.getHours())}:${two(at.getMinutes())}`;
  if (step >= 60_000) return minutes;
  const seconds = `${minutes}:${two(at.getSeconds())}`;
  return step >= 1000 ? seconds : `${seconds}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

function date(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

const PLAIN_WORD = /^[A-Za-z0-9_@%+:,./][A-Za-z0-9_@%+:,./-]*$/;

function shellWord(text) {
  return PLAIN_WORD.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** JSON in ASCII alone, so that a shell line shows all that it holds. */
function asciiJson(value) {
  return JSON.stringify(value).replace(
    /[\u007f-\uffff]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

const RUNS_A_TOOL = ["execute_tool", "execute_readonly_tool"];

/** JSON as it was recorded; undefined where there is none, or where it was cut. */
function recordedJson(text) {
  try {
    return typeof text === "string" ? JSON.parse(text) : undefined;
  } catch {
    return undefined;
  }
}

/** The arguments that the server's own tool got. */
function toolArguments(record) {
  const given = recordedJson(record.arguments);
  if (!RUNS_A_TOOL.includes(record.tool)) return given;
  const args = given?.args ?? (given && {});
  return typeof args === "string" ? recordedJson(args) : args;
}

/** The request as a line for a shell; null where there is none that does the same. */
function asCommand(record) {
  const words = [record.server, record.server_tool];
  if (words.some((word) => !word || word.search(INVISIBLE) >= 0)) return null;
  const args = toolArguments(record);
  if (typeof args !== "object" || args === null || Array.isArray(args)) return null;
  const end = words.some((word) => word.startsWith("-")) ? ["--"] : [];
  return ["emceepee", "call", ...end, ...words.map(shellWord), shellWord(asciiJson(args))].join(" ");
}
