// The page: frames of the feed to panels, for as long as it is open.

import { preparePrompt, showServer } from "./prompt.js";
import { showCurves, showFigures, showState } from "./panels.js";
import { watch } from "./streams.js";

const MOST_POINTS = 300;
const form = document.getElementById("key-form");
const field = document.getElementById("key");
let key = "";
let points = [];

function take(frame) {
  const { figures, history } = frame;
  form.hidden = true;
  points = [...(history ?? points), { at: figures.at, tokens_per_s: figures.tokens_per_s, ttft: figures.ttft }].slice(-MOST_POINTS);
  showFigures(figures);
  showCurves(points, figures);
  showServer(figures.server);
}

/** The key; after a refusal, the one that is entered next. */
function nextKey(wasRefused) {
  if (!wasRefused) return key;
  showState(key ? "the key is wrong" : "a key is needed", "warn");
  form.hidden = false;
  field.focus();
  return new Promise((resolve) => {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      key = field.value;
      resolve(key);
    }, { once: true });
  });
}

preparePrompt(() => key);
watch("events", nextKey, take, (status) => {
  const said = status ? `the server answers with status ${status}` : "the server is gone";
  showState(`${said}; trying again`, "bad");
});
