// The form that asks this server's model, and its answer as it comes.

import { duration, element, number, say } from "./drawing.js";
import { authorized, events } from "./streams.js";

const by = (id) => document.getElementById(id);

/** Make the form work; `key` gives the API key. */
export function preparePrompt(key) {
  let running = null;
  by("prompt-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!running) ask();
  });
  by("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    by("prompt-form").requestSubmit();
  });
  by("stop").addEventListener("click", () => running?.abort());

  async function ask() {
    const request = asked();
    if (!request) return;
    running = new AbortController();
    setRunning(true);
    try {
      await answer(request, key(), running.signal);
    } catch (error) {
      if (error.name === "AbortError") say(by("asked"), "stopped");
      else fail(error.message);
    } finally {
      running = null;
      setRunning(false);
    }
  }
}

/** Show the form for a server's model; hide it where there is none. */
export function showServer(server) {
  by("prompt-section").hidden = !server;
  if (!server) return;
  const select = by("model");
  if (select.value !== server.model) select.replaceChildren(element("option", { value: server.model }, server.model));
}

/** Path and body; null, with an error shown, for a schema that is no JSON. */
function asked() {
  const body = { model: by("model").value, stream: true, stream_options: { include_usage: true } };
  for (const name of ["max_tokens", "temperature", "seed"]) {
    if (by(name).value !== "") body[name] = Number(by(name).value);
  }
  const schema = by("schema").value.trim();
  try {
    if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema) } };
  } catch (error) {
    fail(`JSON Schema: ${error.message}`);
    return null;
  }
  const prompt = by("prompt").value;
  if (by("route").value === "text") return { path: "v1/completions", body: { ...body, prompt } };
  return { path: "v1/chat/completions", body: { ...body, messages: [{ role: "user", content: prompt }] } };
}

async function answer({ path, body }, key, signal) {
  const began = performance.now();
  const shown = by("answer");
  shown.hidden = false;
  shown.className = "answer";
  say(shown, "");
  say(by("asked"), "waiting for the first token…");
  const headers = { "content-type": "application/json", ...authorized(key) };
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.ok) throw new Error(await reasonOf(response));
  const seen = { first: null, usage: null, reason: "" };
  for await (const data of events(response)) {
    if (data === "[DONE]") break;
    const part = JSON.parse(data);
    if (part.error) throw new Error(part.error.message);
    const choice = part.choices[0];
    const text = choice?.delta?.content ?? choice?.text ?? "";
    if (text) {
      if (seen.first == null) say(by("asked"), "answering…");
      seen.first ??= performance.now();
      shown.append(text);
      shown.scrollTop = shown.scrollHeight;
    }
    seen.usage = part.usage ?? seen.usage;
    seen.reason = choice?.finish_reason ?? seen.reason;
  }
  say(by("asked"), summary(seen, began, performance.now()));
}

async function reasonOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered with status ${response.status}`;
  }
}

function summary({ first, usage, reason }, began, ended) {
  const parts = [];
  if (first != null) parts.push(`first token after ${duration((first - began) / 1000)}`);
  if (usage) parts.push(`${number(usage.completion_tokens)} tokens in ${duration((ended - began) / 1000)}`);
  if (reason === "length") parts.push("cut at max_tokens");
  return parts.join(", ");
}

function fail(reason) {
  const shown = by("answer");
  shown.hidden = false;
  shown.className = "answer bad";
  say(shown, reason);
  say(by("asked"), "failed");
}

function setRunning(isRunning) {
  by("ask").setAttribute("aria-disabled", isRunning); // a disabled button would lose the focus
  by("stop").setAttribute("aria-disabled", !isRunning);
}
