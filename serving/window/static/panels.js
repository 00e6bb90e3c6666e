// Figures to what is shown of them: one function a panel.

import { bytes, clock, curve, duration, element, keyed, number, say } from "./drawing.js";

const by = (id) => document.getElementById(id);

/** Everything but the curves. */
export function showFigures(figures) {
  showManager(figures);
  showJobs(figures);
  showModels(figures.status?.models ?? []);
  showRows(figures.rows);
  showLetters(figures.dead_letters, figures.jobs);
}

/** What the page says of its connection; `kind` is good, warn, bad or nothing. */
export function showState(text, kind = "") {
  const state = by("state");
  say(state, text);
  state.className = `pill ${kind}`;
}

/** Curves, and the figures above them; `points` come from history.py. */
export function showCurves(points, figures) {
  const rate = figures.tokens_per_s;
  say(by("tokens"), number(rate));
  say(by("ttft"), figures.ttft == null ? "–" : duration(figures.ttft));
  const highest = Math.max(0, ...points.map((point) => point.tokens_per_s));
  by("tokens-curve").setAttribute("aria-label", `Tokens a second in the last minutes: now ${number(rate)}, highest ${number(highest)}`);
  by("ttft-curve").setAttribute("aria-label", `Time to first token in the last minutes: now ${by("ttft").textContent}`);
  curve(by("tokens-curve"), points.map((point) => [point.at, point.tokens_per_s]), figures.at, (value) => number(value, value < 2 ? 1 : 0));
  curve(by("ttft-curve"), points.map((point) => [point.at, point.ttft]), figures.at, duration);
}

function showManager(figures) {
  const { status, memory } = figures;
  const held = Object.values(memory).reduce((sum, each) => sum + each, 0);
  say(by("load"), status ? `${number(figures.running)} running, ${number(figures.waiting)} waiting` : "");
  say(by("manager"), status ? `manager ${status.pid}, up ${clock(status.uptime)}, ${bytes(held)} in all` : "");
  if (status) showState("live", "good");
  else if (figures.error) showState("the manager does not answer", "bad");
  else showState("no manager runs", "warn");
}

function showJobs({ at, jobs, other_jobs: others }) {
  by("no-jobs").hidden = jobs.length > 0;
  keyed(by("jobs"), jobs, (job) => job.job, makeJob, (card, job) => updateJob(card, job, at));
  const details = by("other-jobs");
  details.hidden = others.length === 0;
  say(details.querySelector("summary"), `${others.length} ${others.length === 1 ? "other job" : "other jobs"} of this manager`);
  keyed(details.querySelector("tbody"), others, (job) => job.job, () => element("tr"), (row, job) => {
    row.replaceChildren(
      element("td", {}, job.job.replace(/, [0-9a-f]{16}$/, "") || "(unnamed)"),
      // The manager knows failed requests, and no other dead letters: none of them may be no news.
      ...[number(job.finished), job.failed ? number(job.failed) : "–", number(job.generated_tokens)].map((count) => element("td", {}, count)),
    );
  });
}

function makeJob(job) {
  return element(
    "article",
    { class: "card" },
    element("div", { class: "head" }, element("span", { class: "tag" }, job.command), element("h3", {}, short(job.output)), element("span", { class: "left" })),
    track("progressbar", `${job.command} to ${job.output}`),
    element("p", { class: "facts" }),
    element("p", { class: "hint" }, `${short(job.input)}, ${job.model}, pid ${job.pid}`),
  );
}

function updateJob(card, job, now) {
  const ended = job.done + job.failed;
  const bar = card.querySelector(".track");
  if (job.total) {
    const percent = Math.min((100 * ended) / job.total, 100);
    bar.setAttribute("aria-valuenow", percent.toFixed(0));
    bar.firstElementChild.style.width = `${percent}%`;
    const failed = Math.min((100 * job.failed) / job.total, percent);
    bar.lastElementChild.style.left = `${percent - failed}%`;
    bar.lastElementChild.style.width = `${failed}%`;
  }
  bar.hidden = !job.total;
  say(card.querySelector(".left"), left(job, ended));
  const of = job.total ? ` of ${job.exact ? "" : "≈ "}${number(job.total)}` : "";
  facts(card.querySelector(".facts"), [
    [`${number(ended)}${of}`, "rows"],
    [number(job.rows_per_s, 1), "rows/s"],
    job.generated_tokens ? [number(job.tokens_per_s), "tokens/s"] : null,
    job.failed ? [number(job.failed), job.counted_here ? "failed" : "requests failed", "bad"] : null,
    job.at && now - job.at > STALE_SECONDS ? [`${number(now - job.at)} s`, "without news", "bad"] : null,
  ]);
}

/** Age of what a job says from which on it is told: a job writes once a second. */
const STALE_SECONDS = 5;

function left(job, ended) {
  if (!ended) return "starting";
  return job.seconds_left == null ? "" : `${clock(job.seconds_left)} left`;
}

function showModels(models) {
  by("no-models").hidden = models.length > 0;
  keyed(by("models"), models, (model) => model.key, makeModel, updateModel);
}

function makeModel(model) {
  return element(
    "article",
    { class: "card" },
    element("div", { class: "head" }, element("h3", {}, model.model), element("span", { class: "pill" })),
    element("p", { class: "head formats" }),
    element("div", { class: "meters" }, meter("Batch"), meter("KV cache")),
    element("p", { class: "facts" }),
  );
}

const STATES = { ready: "good", waiting: "warn", loading: "warn", restarting: "warn", failed: "bad" };

function updateModel(card, model) {
  const { info, stats } = model;
  const state = card.querySelector(".pill");
  say(state, model.state);
  state.className = `pill ${STATES[model.state] ?? ""}`;
  const formats = info ? [info.device, info.dtype, info.quantization, info.kv_cache_dtype && `KV ${info.kv_cache_dtype}`] : [];
  const tags = formats.filter((text) => text && text !== "none").map((text) => element("span", { class: "tag" }, text));
  card.querySelector(".formats").replaceChildren(...tags, element("span", { class: "hint mono" }, model.key));
  const [batch, cache] = card.querySelector(".meters").children;
  fill(batch, stats.batch, info?.max_num_seqs ?? 0, `${number(Math.ceil(stats.batch))} running`, model.model);
  fill(cache, stats.blocks_held, stats.blocks_total, `${number((100 * stats.blocks_held) / Math.max(stats.blocks_total, 1))} %`, model.model);
  facts(card.querySelector(".facts"), [
    [number(stats.tokens_per_s), "tokens/s"],
    [number(stats.waiting), "waiting"],
    [bytes(stats.rss_mb * 2 ** 20), ""],
    [number(model.restarts), model.restarts === 1 ? "restart" : "restarts", model.restarts ? "bad" : ""],
    [number(model.clients), model.clients === 1 ? "client" : "clients"],
    model.pids.length ? ["", `pid ${model.pids.join(", ")}`] : null,
  ]);
}

function meter(name) {
  return element("div", { "data-name": name }, element("span", {}, name), element("span", { class: "hint value" }), track("meter", name));
}

function fill(target, value, most, text, of) {
  target.hidden = !most;
  if (!most) return;
  const bar = target.querySelector(".track");
  const percent = Math.min((100 * value) / most, 100);
  bar.setAttribute("aria-label", `${target.dataset.name} of ${of}`);
  bar.setAttribute("aria-valuenow", percent.toFixed(0));
  bar.firstElementChild.style.width = `${percent}%`;
  say(target.querySelector(".value"), ` ${text} of ${number(most)}`);
}

function track(role, label) {
  const attributes = { class: "track", role, "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": 0 };
  return element("div", attributes, element("span"), element("span", { class: "failed" }));
}

function facts(target, found) {
  const shown = found.filter(Boolean).map(([value, unit, kind]) => element("span", { class: kind || null }, ...(value ? [element("b", {}, value), " "] : []), unit));
  target.replaceChildren(...shown);
}

function showRows(rows) {
  by("no-rows").hidden = rows.length > 0;
  const longest = Math.max(...rows.map((row) => row.queued + row.prefill + row.decode), 0.001);
  const ofOne = new Set(rows.map((row) => row.of)).size === 1;
  const shown = [...rows].reverse();
  by("rows").replaceChildren(...shown.map((row) => life(row, longest, ofOne)));
}

const MOST_OF_NAME = 20;

/** A row's id, after its job's name where rows belong to several jobs; a long name's end. */
function rowName(row, ofOne) {
  const name = [ofOne && row.id ? "" : ending(row.of), place(row.id)].filter(Boolean).join(" ");
  return name.length > MOST_OF_NAME ? `…${name.slice(1 - MOST_OF_NAME)}` : name;
}

/** Of an id that is a place in a file, the file's name and the place. */
function place(id) {
  return id.startsWith("/") || id.includes("://") ? id.split("/").at(-1) : id;
}

function life(row, longest, ofOne) {
  const parts = ["queued", "prefill", "decode"];
  const bar = element("span", { class: "bar", role: "img", "aria-label": parts.map((part) => `${part} ${duration(row[part])}`).join(", ") });
  for (const part of parts) {
    const span = element("span", { class: part });
    span.style.width = `${(100 * row[part]) / longest}%`;
    bar.append(span);
  }
  return element("li", { class: row.state }, element("span", { class: "of", title: [row.of, row.id].filter(Boolean).join(": "), dir: "auto" }, rowName(row, ofOne)), bar, element("span", { class: "took" }, took(row)));
}

function took(row) {
  const whole = duration(row.queued + row.prefill + row.decode);
  if (row.state === "failed") return `${row.error || "failed"}, ${whole}`;
  if (row.state === "running") return `running, ${whole}`;
  return `${number(row.prompt_tokens)} + ${number(row.generated_tokens)} tokens, ${whole}`;
}

function showLetters(letters, jobs) {
  by("no-letters").hidden = letters.length > 0;
  const unlisted = jobs.filter((job) => !job.counted_here).map((job) => short(job.output));
  say(by("no-letters"), unlisted.length ? `Not known here, the workers are other processes: ${unlisted.join(", ")}` : "None.");
  const shown = [...letters].reverse();
  keyed(by("letters"), shown, (letter) => `${letter.at} ${letter.source} ${letter.reason}`, makeLetter, () => {});
}

function makeLetter(letter) {
  const at = new Date(letter.at * 1000);
  const where = [letter.source && short(letter.source), `to ${short(letter.job)}`].filter(Boolean).join(", ");
  return element(
    "li",
    {},
    element("div", { class: "head" }, element("b", {}, letter.error), element("time", { class: "hint", datetime: at.toISOString() }, at.toLocaleTimeString())),
    element("p", { class: "reason" }, letter.reason),
    element("p", { class: "hint mono" }, where),
  );
}

/** The last two parts of a path; other addresses as they are. */
function short(address) {
  const parts = address.split("/");
  return address.startsWith("/") && parts.length > 3 ? `…/${parts.slice(-2).join("/")}` : address;
}

/** The last part of a path. */
function ending(address) {
  return address.startsWith("/v1/") ? address.slice(4) : address.split("/").at(-1) || address;
}
