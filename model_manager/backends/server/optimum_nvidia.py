"""A small server for Optimum-NVIDIA, which has none: OpenAI's completions over its pipeline, one request at a time.

The preset `optimum-nvidia` starts it with a Python that has optimum-nvidia and need not have millrace:
`python optimum_nvidia.py MODEL PORT`. It listens on the loopback once the model is loaded.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_TAKEN = {"model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "seed", "stop"}
_PASSED_ON = ("top_p", "top_k", "repetition_penalty", "seed")


def complete(pipe: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """The body of an answer; raises ValueError for a field that the pipeline has no use for."""
    if unknown := sorted(fields.keys() - _TAKEN):
        raise ValueError(f"{unknown[0]}: Optimum-NVIDIA's pipeline does not take it")
    prompt, most = fields["prompt"], fields["max_tokens"]
    chosen = {name: fields[name] for name in _PASSED_ON if name in fields}
    if temperature := fields.get("temperature", 0.0):
        chosen = {"top_k": 0, "top_p": 1.0} | chosen | {"temperature": temperature}
    else:
        chosen |= {"top_k": 1}  # the likeliest token alone: TensorRT-LLM takes no temperature of 0
    found = pipe(prompt, max_new_tokens=most, **chosen)[0]["generated_text"]
    whole: str = found if isinstance(found, str) else found[0]
    if not whole.startswith(prompt):
        raise ValueError("prompt: the tokenizer writes it otherwise, so the answer behind it cannot be told apart")
    text = whole.removeprefix(prompt)
    counts = [len(pipe.tokenizer(each, add_special_tokens=False)["input_ids"]) for each in (prompt, text)]
    ends = [place for stop in fields.get("stop", ()) if (place := text.find(stop)) >= 0]
    reason = "stop" if ends or counts[1] < most else "length"
    choice = {"index": 0, "text": text[: min(ends, default=len(text))], "finish_reason": reason}
    return {"choices": [choice], "usage": {"prompt_tokens": counts[0], "completion_tokens": counts[1]}}


def serve(pipe: Any, model: str, port: int) -> None:
    """Answer until the process is ended."""
    alone = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        """`/health`, `/v1/models` and `/v1/completions`."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(200, {"object": "list", "data": [{"id": model, "object": "model"}]})

        def do_POST(self) -> None:
            try:
                fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with alone:
                    answer = complete(pipe, fields)
            except ValueError as error:
                self._send(400, {"error": {"message": str(error)}})
            except Exception:  # of the GPU, say: no later request would do better in this process
                traceback.print_exc()
                os._exit(1)
            else:
                self._send(200, answer)

        def _send(self, status: int, fields: dict[str, Any]) -> None:
            body = json.dumps(fields).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
            """A line for each request would hide what matters."""

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    from optimum.nvidia.pipelines import pipeline  # type: ignore[import-not-found, unused-ignore]

    name = sys.argv[1]
    serve(pipeline("text-generation", name), name, int(sys.argv[2]))
