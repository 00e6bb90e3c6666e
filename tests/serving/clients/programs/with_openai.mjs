// OpenAI's client for Node: whole, streamed, tools, a schema. Takes the URL and the model's name.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of Mexico?" }];
const asked = { model, messages, temperature: 0, max_tokens: 60 };

const whole = await client.chat.completions.create(asked);
const text = whole.choices[0].message.content;
assert.match(text, /Mexico City/);

let streamed = "";
let usage = null;
for await (const part of await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } })) {
  streamed += part.choices[0]?.delta?.content ?? "";
  usage = part.usage ?? usage;
}
assert.equal(streamed, text);
assert.deepEqual(usage.completion_tokens, whole.usage.completion_tokens);

const schema = { type: "object", properties: { name: { enum: ["Mexico City", "Rome"] } }, required: ["name"], additionalProperties: false };
const typed = await client.chat.completions.parse({
  ...asked,
  response_format: { type: "json_schema", json_schema: { name: "town", schema, strict: true } },
});
assert.ok(["Mexico City", "Rome"].includes(typed.choices[0].message.parsed.name));

const parameters = { type: "object", properties: { country: { enum: ["Mexico", "Italy"] } }, required: ["country"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "look_up", parameters, strict: true } }];
const called = await client.chat.completions.create({ ...asked, tools, tool_choice: "required" });
const call = called.choices[0].message.tool_calls[0];
assert.equal(call.function.name, "look_up");
assert.ok(["Mexico", "Italy"].includes(JSON.parse(call.function.arguments).country));

const runner = client.chat.completions.stream({ ...asked, tools, tool_choice: "required" });
const last = await runner.finalMessage();
assert.deepEqual(JSON.parse(last.tool_calls[0].function.arguments), JSON.parse(call.function.arguments));

const answered = await client.chat.completions.create({
  ...asked,
  messages: [...messages, called.choices[0].message, { role: "tool", tool_call_id: call.id, content: "Mexico City" }],
});
assert.ok(answered.choices[0].message.content);

const vectors = await client.embeddings.create({ model, input: ["a", "b"] });
assert.equal(vectors.data.length, 2);
await assert.rejects(client.chat.completions.create({ ...asked, top_p: 2 }), (error) => error.status === 400 && error.param === "top_p");
await assert.rejects(client.chat.completions.create({ ...asked, model: "gpt" }), OpenAI.NotFoundError);
