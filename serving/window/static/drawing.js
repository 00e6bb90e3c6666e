// Elements, numbers and curves. Text is always set as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";
const SPAN_S = [60, 300]; // shortest and longest time that a curve covers
const GAP_S = 8;

/** An element with attributes and children; null and undefined attributes are left out. */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function drawn(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) if (value != null) made.setAttribute(name, value);
  made.append(...children.map((child) => (typeof child === "string" ? harmless(child) : child)));
  return made;
}

/** Without controls, and marks that turn the direction of the text around them: names and reasons may hold anything. */
function harmless(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, "\ufffd");
}

/** Set an element's text, if it is another. */
export function say(target, text) {
  const shown = harmless(text);
  if (target.textContent !== shown) target.textContent = shown;
}

/** One child for each item, by its key: those that stay keep their focus and their state. */
export function keyed(parent, items, keyOf, make, update) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = before.get(key);
    if (child) before.delete(key);
    else {
      child = make(item);
      child.dataset.key = key;
    }
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const gone of before.values()) gone.remove();
}

/** With separators and so many digits behind the point. */
export function number(value, digits = 0) {
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** Seconds as a person reads them: 45 ms, 1.24 s, 3:05, 1:02:03. */
export function duration(seconds) {
  if (seconds < 1) return `${number(seconds * 1000)} ms`;
  if (seconds < 60) return `${number(seconds, seconds < 10 ? 2 : 1)} s`;
  return clock(seconds);
}

/** m:ss or h:mm:ss. */
export function clock(seconds) {
  const whole = Math.round(seconds);
  const two = (value) => String(value).padStart(2, "0");
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

/** Bytes as MB or GB, of 1,000s. */
export function bytes(size) {
  return size < 1e9 ? `${number(size / 1e6)} MB` : `${number(size / 1e9, 1)} GB`;
}

/** Draw the points of the last minutes, five at most; `points` are [seconds, value or null]. */
export function curve(target, points, now, show) {
  const [width, height] = [target.clientWidth || 600, target.clientHeight || 140];
  const box = { left: 0, right: width - 1, top: 14, bottom: height - 18 };
  const span = Math.min(Math.max(now - (points[0]?.[0] ?? now), SPAN_S[0]), SPAN_S[1]);
  const shown = points.filter(([at, value]) => value != null && now - at <= span);
  const top = niceTop(Math.max(0, ...shown.map(([, value]) => value)));
  const x = (at) => box.right - ((now - at) / span) * (box.right - box.left);
  const y = (value) => box.bottom - (value / top) * (box.bottom - box.top);
  const paths = runs(shown).flatMap((run) => {
    const line = run.map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("L");
    const [first, last] = [x(run[0][0]).toFixed(1), x(run.at(-1)[0]).toFixed(1)];
    return [
      drawn("path", { class: "area", d: `M${first} ${box.bottom}L${line}L${last} ${box.bottom}Z` }),
      drawn("path", { class: "stroke", d: `M${line}` }),
    ];
  });
  target.setAttribute("viewBox", `0 0 ${width} ${height}`);
  target.replaceChildren(...grid(box, y, top, show, span), ...paths);
}

function grid(box, y, top, show, span) {
  const lines = [0, top / 2, top].map((value) => drawn("path", { class: "grid", d: `M${box.left} ${y(value)}H${box.right}` }));
  const label = (x, at, text, anchor) => drawn("text", { x, y: at, "text-anchor": anchor }, text);
  return [
    ...lines,
    label(box.left, y(top) - 4, show(top), "start"),
    label(box.left, y(top / 2) - 4, show(top / 2), "start"),
    label(box.left, box.bottom + 14, `${clock(span)} ago`, "start"),
    label(box.right, box.bottom + 14, "now", "end"),
  ];
}

/** Parts without a gap: nobody looked between them. */
function runs(points) {
  const found = [];
  for (const point of points) {
    const run = found.at(-1);
    if (run && point[0] - run.at(-1)[0] < GAP_S) run.push(point);
    else found.push([point]);
  }
  return found;
}

/** A round number above a value. */
function niceTop(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((top) => top >= value);
}
