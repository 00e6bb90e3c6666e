// Server-sent events over fetch, which can send an API key: EventSource cannot.

const SILENT_MS = 20_000; // a frame comes each second, or, while a manager hangs, each six seconds
const PAUSES_MS = [500, 1000, 2000, 4000];

/** The data of each event of a response, as text. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const lines = part.split("\n").filter((line) => line.startsWith("data: "));
        if (lines.length) yield lines.map((line) => line.slice(6)).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Headers that carry a key, if there is one. */
export function authorized(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

/**
 * Give every frame of a feed to `onFrame`, for ever: a lost connection is made again. `onLost` is told of each loss,
 * with the status where the server refused.
 * `key` gives the API key, or waits until there is another: it is called with true once the last one was refused.
 */
export async function watch(url, key, onFrame, onLost) {
  let wasRefused = false;
  for (let losses = 0; ; losses += 1) {
    const given = await key(wasRefused);
    const frames = await one(url, given, onFrame);
    wasRefused = frames.isRefused;
    if (frames.count) losses = 0;
    if (wasRefused) continue;
    onLost(frames.status);
    await new Promise((resolve) => setTimeout(resolve, PAUSES_MS[Math.min(losses, PAUSES_MS.length - 1)]));
  }
}

/** One connection, until it ends: how many frames came, and whether the key was refused. */
async function one(url, key, onFrame) {
  const cut = new AbortController();
  let silent = setTimeout(() => cut.abort(), SILENT_MS);
  let count = 0;
  try {
    const response = await fetch(url, { headers: authorized(key), signal: cut.signal, cache: "no-store" });
    if (response.status === 401) return { count, isRefused: true };
    if (!response.ok) return { count, isRefused: false, status: response.status };
    for await (const data of events(response)) {
      clearTimeout(silent);
      silent = setTimeout(() => cut.abort(), SILENT_MS);
      if (data === "[DONE]") break;
      onFrame(JSON.parse(data));
      count += 1;
    }
  } catch (error) {
    // A lost connection is a TypeError or an AbortError, a frame that was cut a SyntaxError.
    if (![TypeError, SyntaxError].some((kind) => error instanceof kind) && error.name !== "AbortError") throw error;
  } finally {
    clearTimeout(silent);
  }
  return { count, isRefused: false };
}
