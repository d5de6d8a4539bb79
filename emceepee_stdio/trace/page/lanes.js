"use strict";
// The track of a lane: its requests as one band, and the marks of its server from the journal.

const MARKS = {
  start: { word: "start", sign: "▲" },
  crash: { word: "crash", sign: "✕" },
  question: { word: "question", sign: "●" },
  promotion: { word: "became a task", sign: "○" },
  warning: { word: "warning", sign: "!" },
  log: { word: "log line", sign: "·" },
};
const HIT_PX = 6;
const MAX_CRASH_LINES = 12; // through the rows of a lane; more would hide the bars

function markWord(mark) {
  return (Object.hasOwn(MARKS, mark.kind) ? MARKS[mark.kind] : MARKS.log).word;
}

/** The marks of a lane in a time, by binary search: there may be thousands. */
function marksBetween(marks, from, to) {
  const first = lowerBound(marks, from);
  let last = first;
  while (last < marks.length && marks[last].at_ms <= to) last += 1;
  return marks.slice(first, last);
}

function lowerBound(marks, at) {
  let [low, high] = [0, marks.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (marks[middle].at_ms < at) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** "3 crashes, 1 start": what a screen reader says of the marks. */
function markCounts(marks) {
  const counts = new Map();
  for (const mark of marks) counts.set(markWord(mark), (counts.get(markWord(mark)) ?? 0) + 1);
  const many = (word, count) => (word === "crash" && count > 1 ? `${count} crashes` : plural(count, word));
  return [...counts].map(([word, count]) => many(word, count)).join(", ");
}

function drawLane(canvas, requests, marks, viewport) {
  const { width, height, context } = sharpCanvas(canvas);
  const colours = themeColours();
  context.clearRect(0, 0, width, height);
  drawBand(context, requests, viewport, width, height, colours);
  for (const mark of marks) drawMark(context, mark, viewport.share(mark.at_ms) * width, height, colours);
}

function drawBand(context, requests, viewport, width, height, colours) {
  const [top, tall] = [height - 7, 3];
  for (const bad of [false, true]) {
    context.fillStyle = bad ? colours.bad : colours.server;
    context.globalAlpha = bad ? 0.9 : 0.45;
    for (const request of requests) {
      if (request.bad !== bad) continue;
      const left = Math.max(viewport.share(request.start), 0) * width;
      const right = Math.min(viewport.share(request.end), 1) * width;
      context.fillRect(left, top, Math.max(right - left, 1.5), tall);
    }
  }
  context.globalAlpha = 1;
}

function drawMark(context, mark, x, height, colours) {
  const y = (height - 8) / 2 + 1;
  context.fillStyle = context.strokeStyle = markColour(mark, colours);
  context.lineWidth = 2;
  context.beginPath();
  if (mark.kind === "start") {
    context.moveTo(x, y - 5);
    context.lineTo(x + 5, y + 4);
    context.lineTo(x - 5, y + 4);
    context.fill();
  } else if (mark.kind === "crash") {
    for (const side of [-1, 1]) {
      context.moveTo(x - 4 * side, y - 4);
      context.lineTo(x + 4 * side, y + 4);
    }
    context.stroke();
  } else if (mark.kind === "question" || mark.kind === "promotion") {
    context.arc(x, y, 4.5, 0, 2 * Math.PI);
    mark.kind === "question" ? context.fill() : context.stroke();
  } else {
    context.fillRect(x - 1, y - 1, 2, mark.kind === "warning" ? 6 : 3);
  }
}

function markColour(mark, colours) {
  const byKind = { start: colours.good, crash: colours.bad, question: colours.person, promotion: colours.text };
  const byLevel = { error: colours.bad, warning: colours.warn };
  return byKind[mark.kind] ?? byLevel[mark.level] ?? colours.muted;
}

/** The marks under the pointer, for its tip. */
function marksAt(marks, viewport, x, width) {
  const near = (HIT_PX / width) * viewport.span;
  const at = viewport.instant(x / width);
  return marksBetween(marks, at - near, at + near);
}

function markLine(mark) {
  return `${timeOfDay(mark.at_ms)}  ${markWord(mark)}: ${visible(mark.text)}`;
}
