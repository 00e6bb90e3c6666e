"""docs/reference/errors.md: what commands print for bad input. Each command of the list is run, in a folder of files.

`python -m tests.docs.error_cases` writes the page; a test runs the commands again and compares.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from millrace.pipelines.cli import dispatch

PAGE = Path(__file__).parents[2] / "docs/reference/errors.md"
BEGINS, ENDS = "<!-- the commands' errors: `make errors` writes them -->", "<!-- end -->"

FILES = {
    "rows.jsonl": '{"id": "a", "prompt": "Hello"}\n',
    "rows.csv": "id,question\n1,Hello\n",
    "twice.csv": "id,prompt,prompt\n1,Hello,Hi\n",
    "bad.jsonl": "{not JSON\n",
    "doc.txt": "A document.\n",
    "list.json": "[1, 2]",
    "broken.json": "{",
    "doc.docx": "",
    "schema.json": '{"type": "object", "properties": {"number": {"type": "string"}}, "required": ["number"]}',
    "no_grammar.json": '{"type": "object", "properties": {"number": {"not": {"type": "string"}}}}',
    "types.py": "from typing import NamedTuple\n\n\nclass Invoice(NamedTuple):\n    number: str\n",
    "template.txt": "Extract these fields: {fields}",
    "examples.jsonl": '{"text": "A document."}\n',
    "prices.toml": "vcpu = -1\n",
    "figures.json": "[]",
    "pipeline.yaml": "pipeline:\n  transforms:\n    - type: Generat\n",
    "no_pipeline.yaml": "transforms: []\n",
    "page.html": "<p>Another program made this page.</p>\n",
    "out/there-00000-of-00001.jsonl": "{}\n",
    "empty/config.json": "{}",
    "model.gguf": "",
}

_BUCKETS = "--input gs://b/in --output gs://b/out"
_ON_DATAFLOW = "--runner DataflowRunner --project p --region r --temp_location gs://b/tmp --dry_run"
_SAID_BY_THE_ENVIRONMENT = (
    *("MILLRACE_MANAGER", "MILLRACE_MANAGER_KEY_FILE"),
    *("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
)
"""Variables that stand for flags which the commands leave out."""

CASES: dict[str, list[str]] = {
    "The command line": [
        "rnu",
        "--versoin",
        "run",
        "run --input rows.jsonl --max_token 5",
        "run --input rows.jsonl --Max-Tokens 5",
        "run --input rows.jsonl --schema schema.json",
        "run rows.jsonl",
        "run --input rows.jsonl --frobnicate",
        "run --input rows.jsonl --overwrite --resume",
        "run --input rows.jsonl --overwrite=yes",
        "run --input rows.jsonl --chat maybe",
        "run --input rows.jsonl --temperature warm",
        "run --input rows.jsonl --batch_size 8",
        "run --input rows.jsonl --labels praise",
        "run --input rows.jsonl --max_num_seqs 1.5",
        "run --input rows.jsonl --stop",
        "run --input rows.jsonl --log_level loud",
    ],
    "Input": [
        "run --input absent.jsonl",
        "run --input 'absent/*.jsonl'",
        "run --input empty",
        "run --input rows.jsonl --input_format xml",
        "run --input rows.csv --prompt_column questoin",
        "run --input kafka:localhost",
        "run --input pubsub:topic",
        "run --input watch:in/*.jsonl kafka:localhost:1/topic",
        "run --input s3://bucket/rows.jsonl",
        "run --input ftp://host/rows.jsonl",
        "run --input hdfs://host/rows.jsonl",
        "run --input ''",
        "run --input gs://bucket",
        "run --input watch:",
        "run --input kafka:localhost:99999/topic",
        "run --input doc.docx",
        "run --input rows.csv --prompt_column question --id_column nope",
        "run --input rows.csv --template 'Answer: {questoin}'",
        "run --input rows.jsonl --template Answer",
        "run --input rows.jsonl --template 'Say {'",
        "run --input rows.jsonl --limit 0",
        "run --input 'watch:in/*.jsonl' --output out/rows --limit 5",
    ],
    "Output": [
        "run --input rows.jsonl --output out/there",
        "run --input rows.jsonl --output 'out/*'",
        "run --input rows.jsonl --output rows.jsonl/rows",
        "run --input rows.jsonl --output .",
        "run --input rows.jsonl --output /dev/null",
        "run --input rows.jsonl --output /dev/rows",
        "run --input out/there-00000-of-00001.jsonl --output out/there --overwrite",
        "run --input rows.jsonl --output /proc/rows",
        "run --input rows.jsonl --output ftp://host/rows",
        "run --input rows.jsonl --output ''",
        "run --input rows.jsonl --dead_letters rows.jsonl/letters",
        "run --input rows.jsonl --output kafka:localhost:1/topic --report",
        "run --input 'watch:in/*.jsonl' --output out/rows --report",
        "run --input rows.jsonl --report ''",
        "run --input rows.jsonl --report rows.jsonl",
        "run --input rows.jsonl --report page.html",
        "run --input rows.jsonl --report empty",
        "run --input rows.jsonl --output out/rows --report out/rows-00000-of-00001.jsonl",
        "run --input rows.jsonl --prices prices.toml",
        "view absent.jsonl",
        "view out/there --output page.html",
        "view out/there --output out/there-00000-of-00001.jsonl",
        "view rows.csv --rows 0",
        "view doc.txt",
        "run --input rows.jsonl --output_format xml",
        "run --input rows.jsonl --num_shards 0",
        "run --input rows.jsonl --window 60",
        "run --input rows.jsonl --lateness 60",
        "run --input 'watch:in/*.jsonl' --output out/rows --overwrite",
        "run --input 'watch:in/*.jsonl' --output out/rows --window 0",
        "run --input 'watch:in/*.jsonl' --output out/rows --window abc",
        "run --input 'watch:in/*.jsonl' --output out/rows --lateness -1",
        "run --input 'watch:out/*.jsonl' --output out/rows",
        "run --input kafka:localhost:1/topic --output kafka:localhost:1/topic",
        "run --input kafka:localhost:1/in --output kafka:localhost:1/out --window 60",
        "run --input rows.jsonl --output watch:out",
        "run --input rows.jsonl --output pubsub:projects/project/subscriptions/answers",
    ],
    "The model": [
        "run --input rows.jsonl --model absent/",
        "run --input rows.jsonl --model ./empty",
        "run --input rows.jsonl --model a/b/c",
        "run --input rows.jsonl --model s3://bucket/model",
        "run --input rows.jsonl --model doc.txt",
        "run --input rows.jsonl --revision main",
        "run --input rows.jsonl --system 'Be brief.' --chat never",
        "run --input rows.jsonl --dtype int4",
        "run --input rows.jsonl --quantization int3",
        "run --input rows.jsonl --max_model_len 0",
        "run --input rows.jsonl --max_num_seqs 0",
        "run --input rows.jsonl --device tpu",
        "run --input rows.jsonl --kv_cache_gb -1",
        "run --input rows.jsonl --tensor_parallel 0",
        "run --input rows.jsonl --backend tgi",
        "run --input rows.jsonl --model_updates model.txt",
        "run --input rows.jsonl --model_updates watch:model.txt --model_updates_every 0",
        "run --input rows.jsonl --adapter mine",
        "run --input rows.jsonl --max_loras -1",
        "run --input rows.jsonl --speculation draft_model",
        "run --input rows.jsonl --draft_model millrace-tiny",
        "run --input rows.jsonl --models org/name,",
        "run --input rows.jsonl --models org/name",
        "run --input rows.jsonl --models org/name,org/other --model_updates watch:model.txt",
    ],
    "Engines": [
        "run --input rows.jsonl --backend vlm",
        "run --input rows.jsonl --backend openvino",
        "run --input rows.jsonl --backend openvino --backend_python absent/python",
        "run --input rows.jsonl --backend_python /usr/bin/python3",
        "run --input rows.jsonl --backend anything",
        "run --input rows.jsonl --backend_options enforce_eager=true",
        "run --input rows.jsonl --backend_options max_num_seqs=4",
        "run --input rows.jsonl --backend vllm --backend_options enforce_eager",
        "run --input rows.jsonl --backend ctranslate2 --backend_options inter_thread=2",
        "run --input rows.jsonl --backend ctranslate2 --backend_options enforce_eager=true",
        "run --input rows.jsonl --model model.gguf",
        "run --input rows.jsonl --model org/name/model.gguf --backend vllm",
        "run --input rows.jsonl --backend llama_cpp",
        "run --input rows.jsonl --model model.gguf --backend llama_cpp --quantization int8",
        "run --input rows.jsonl --model model.gguf --backend llama_cpp --kv_cache_dtype fp8",
        "run --input rows.jsonl --backend openvino --quantization fp8",
        "run --input rows.jsonl --backend vllm --speculation prompt_lookup",
        "run --input rows.jsonl --backend openvino --speculation draft_model --draft_model millrace-tiny",
        "run --input rows.jsonl --backend ctranslate2 --max_loras 2",
        "run --input rows.jsonl --backend openvino --adapter mine",
        "run --input rows.jsonl --backend vllm --typical_p 0.5",
        'run --input rows.jsonl --backend ctranslate2 --constraint \'{"regex": "a+"}\'',
        "score --input rows.jsonl --backend openvino",
        "embed --input rows.jsonl --backend openvino",
        "extract --input doc.txt --schema schema.json --backend openvino",
        "classify --input doc.txt --labels praise,complaint --endpoint http://host",
        "run --input rows.jsonl --backend endpoint",
        "run --input rows.jsonl --endpoint host:8000",
        "run --input rows.jsonl --endpoint http://me:secret@host",
        "run --input rows.jsonl --endpoint http://host --backend vllm",
        "run --input rows.jsonl --endpoint http://host --revision main",
        "run --input rows.jsonl --backend server --backend_options preset=vllm --revision main",
        "run --input rows.jsonl --endpoint http://host --dtype float32",
        "run --input rows.jsonl --endpoint http://host --backend_options dialect=opnai",
        "run --input rows.jsonl --endpoint http://host --backend_options timeout=long",
        "run --input rows.jsonl --endpoint http://host --backend_options timout=5",
        "run --input rows.jsonl --backend server",
        "run --input rows.jsonl --backend server --backend_options preset=vlm",
        "run --input rows.jsonl --server_command 'serve --port 8000'",
        "run --input rows.jsonl --server_command 'serve \"{port}'",
        "engines install",
        "engines instal vllm",
        "engines install vlm",
        "engines install fake",
        "engines install openvino --device cuda",
        "engines --device cuda",
    ],
    "Sampling": [
        "run --input rows.jsonl --max_tokens 0",
        "run --input rows.jsonl --max_tokens 10000000000000000000",
        "run --input rows.jsonl --temperature -1",
        "run --input rows.jsonl --top_p 2",
        "run --input rows.jsonl --top_k -2",
        "run --input rows.jsonl --n 0",
        "run --input rows.jsonl --stop ''",
        "run --input rows.jsonl --logit_bias 5",
        "run --input rows.jsonl --min_tokens 10 --max_tokens 5",
        "run --input rows.jsonl --constraint absent.json",
        "run --input rows.jsonl --constraint list.json",
        'run --input rows.jsonl --constraint \'{"regex": "("}\'',
        'run --input rows.jsonl --constraint \'{"regexp": "a"}\'',
        "run --input rows.jsonl --constraint no_grammar.json",
    ],
    "score, embed, extract, classify": [
        "embed --input rows.jsonl --pooling max",
        "score --input rows.csv --prompt_column question",
        "score --input rows.jsonl --temperature 1",
        "embed --input rows.jsonl --max_tokens 5",
        "extract --input doc.txt",
        "extract --input doc.txt --schema absent.json",
        "extract --input doc.txt --schema empty",
        "extract --input doc.txt --schema broken.json",
        "extract --input doc.txt --schema list.json",
        "extract --input doc.txt --schema no_grammar.json",
        "extract --input doc.txt --schema types.py:Invoice",
        "extract --input doc.txt --schema my_types:Invoice",
        "extract --input doc.txt --schema json:JSONDecodr",
        "extract --input doc.txt --schema schema.json --examples absent.jsonl",
        "extract --input doc.txt --schema schema.json --examples examples.jsonl",
        "extract --input doc.txt --schema schema.json --template absent.txt",
        "extract --input doc.txt --schema schema.json --template template.txt",
        "extract --input doc.txt --schema schema.json --prompt_column text",
        "classify --input doc.txt",
        "classify --input doc.txt --labels absent.json",
        "classify --input doc.txt --labels praise",
        "classify --input doc.txt --labels praise,praise",
        "classify --input doc.txt --labels praise,complaint --threshold 0.5",
        "classify --input doc.txt --labels praise,complaint --multiple --threshold 2",
        "classify --input doc.txt --labels list.json",
    ],
    "Runners": [
        "run --input rows.jsonl --runner FlikRunner",
        "run --input rows.jsonl --runner my.Runner",
        "run --input rows.jsonl --runner .Runner",
        "run --input rows.jsonl --runner json.JSONDecodr",
        "run --input rows.jsonl --runner json.JSONDecoder",
        "run --input rows.jsonl --dry_run",
        "run --input rows.jsonl --gpu l4",
        "run --input 'watch:in/*.jsonl' --output out/rows --runner DirectRunner",
        "run --input kafka:localhost:1/in --output out/rows --runner FlinkRunner",
        "run --input kafka:localhost:1/in --output out/rows --stateful",
        "run --input rows.jsonl --runner DataflowRunner",
        "run --input rows.jsonl --runner DataflowRunner --project p --region r --temp_location tmp",
        "run --input rows.jsonl --runner DataflowRunner --project p --region r --temp_location gs://b/tmp",
        f"run {_BUCKETS} --model ./empty {_ON_DATAFLOW}",
        f"run {_BUCKETS} --gpu k80 {_ON_DATAFLOW}",
        f"run {_BUCKETS} --device cuda {_ON_DATAFLOW}",
        f"run {_BUCKETS} --backend vllm {_ON_DATAFLOW}",
        f"run {_BUCKETS} --backend vllm --sdk_container_image host/p/image {_ON_DATAFLOW}",
        f"run {_BUCKETS} --endpoint http://host --gpu l4 {_ON_DATAFLOW}",
        f"run {_BUCKETS} --gpu l4 --flexrs_goal COST_OPTIMIZED {_ON_DATAFLOW}",
        f"run {_BUCKETS} --gpu l4 --machine_type g2-standard-24 {_ON_DATAFLOW}",
        f"run {_BUCKETS} --gpu l4 --tensor_parallel 2 {_ON_DATAFLOW}",
        f"run {_BUCKETS} --gpu l4 --device cpu {_ON_DATAFLOW}",
        f"run {_BUCKETS} --overwrite --template_location gs://b/t {_ON_DATAFLOW}",
        f"run --input 'watch:gs://b/in/*' --output gs://b/out --template_location gs://b/t {_ON_DATAFLOW}",
        f"run {_BUCKETS} --report report.html {_ON_DATAFLOW}",
    ],
    "Traces": [
        "run --input rows.jsonl --traces",
        "run --input rows.jsonl --trace_ratio 0.5",
        "run --input rows.jsonl --otlp_endpoint collector:4318",
        "run --input rows.jsonl --otlp_endpoint http://collector:4318 --trace_ratio 2",
    ],
    "plan": [
        "plan",
        "plan --input rows.jsonl",
        "plan --input ftp://host/rows.jsonl --tokens_per_second 100",
        "plan --input kafka:localhost:1/topic --tokens_per_second 100",
        "plan --input rows.csv --tokens_per_second 100",
        "plan --input rows.jsonl --tokens_per_second 0",
        "plan --input rows.jsonl --tokens_per_second 100 --workers 1 --deadline 1h",
        "plan --input rows.jsonl --tokens_per_second 100 --deadline soon",
        "plan --input rows.jsonl --tokens_per_second 100 --deadline 1m",
        "plan --input rows.jsonl --tokens_per_second 100 --prices absent.toml",
        "plan --input rows.jsonl --tokens_per_second 100 --prices prices.toml",
        "plan --input rows.jsonl --tokens_per_second 100 --prices broken.json",
        "plan --input rows.jsonl --tokens_per_second 100 --gpu k80",
        "plan --input rows.jsonl --results figures.json",
        "plan --input rows.jsonl --results empty",
        "plan --input rows.jsonl --results figures.json --where engine",
        "plan --input rows.jsonl --tokens_per_second 100 --trial rows.jsonl --output_tokens 5",
        "plan --input rows.jsonl --tokens_per_second 100 --trial rows.jsonl",
        "plan --input bad.jsonl --tokens_per_second 100",
        "plan --input twice.csv --tokens_per_second 100",
        "plan --input rows.jsonl --tokens_per_second 100 --model model.gguf --backend llama_cpp",
        "plan --input rows.jsonl --tokens_per_second 100 --model gpt-4o --endpoint http://host",
        "plan --input rows.jsonl --tokens_per_second 100 --backend openvino --gpu l4",
    ],
    "serve": [
        "serve --port 70000",
        "serve --port http",
        "serve --max_inflight 0",
        "serve --request_timeout 0",
        "serve --api_key_file absent",
        "serve --ssl_certfile cert.pem",
        "serve --model s3://bucket/model --port 0",
        "serve --backend vlm",
        "serve --adapters mine",
        "serve --adapters mine=org/one mine=org/two",
        "serve --adapters millrace-tiny=org/one",
        "serve --adapters one=org/one two=org/two --max_loras 1",
        "serve --adapters mine=org/one --backend openvino",
        "serve --adapters mine=./absent --port 0",
        "serve --input rows.jsonl",
    ],
    "manager, and commands that ask it": [
        "manager",
        "manager --manager_key_file rows.jsonl",
        "manager --listen host:8000 --manager_key_file rows.jsonl",
        "manager --listen unix:folder --manager_key_file rows.jsonl",
        "manager --listen tcp://host:8000 --manager_key_file absent.pem",
        "manager --listen tcp://host:8000 --manager_key_file rows.jsonl",
        "manager --make_key rows.jsonl",
        "manager --hang_timeout 0",
        "manager --weight 2",
        "run --input rows.jsonl --manager host:8000",
        "ps --manager tcp://host:8000",
    ],
    "top": [
        "top --interval 0",
        "top --port 70000",
        "top --once --json",
        "top --josn",
        "top everything",
    ],
    "yaml, expansion, show, ps, stop, metrics, worker-pool": [
        "yaml",
        "yaml absent.yaml",
        "yaml empty",
        "yaml no_pipeline.yaml",
        "yaml pipeline.yaml",
        "yaml pipeline.yaml --jinja_variables x",
        "expansion --port http",
        "expansion --host 0.0.0.0 --port 0",
        "show",
        "show rows.jsonl",
        "show rows.jsonl@7",
        "show rows.jsonl#1",
        "show rows.csv@0",
        "show rows.csv#9",
        "show twice.csv#1",
        "show absent.jsonl@0",
        "ps --jsn",
        "ps everything",
        "stop --force",
        "metrics --port 70000",
        "worker-pool --port 1",
    ],
}


def printed() -> dict[str, list[tuple[str, str]]]:
    """What each command prints on stderr, by the groups of `CASES`."""
    without_boto3 = mock.patch("apache_beam.io.aws.clients.s3.boto3_client.boto3", None)
    with _folder(), without_boto3:  # as after `pip install beam-millrace`, without other engines
        return {title: [(case, _run(case)) for case in cases] for title, cases in CASES.items()}


@contextlib.contextmanager
def _folder() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, text in FILES.items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text(text, encoding="utf-8")
            Path(name).chmod(0o644)  # a private file is read as the key of a manager, which then starts
        with mock.patch.dict(os.environ, MILLRACE_CACHE_DIR=str(Path("cache").absolute())):
            for name in _SAID_BY_THE_ENVIRONMENT:
                os.environ.pop(name, None)
            yield


def _run(case: str) -> str:
    """The sentence of a command that ends with status 2."""
    out = io.StringIO()
    with contextlib.redirect_stderr(out):
        status = dispatch(shlex.split(case))
    lines = [line for line in out.getvalue().splitlines() if line.startswith("millrace: ")]
    assert (status, len(lines)) == (2, 1), f"millrace {case}: status {status}: {out.getvalue()}"
    return lines[0].removeprefix("millrace: ").replace(str(Path.cwd()), "…")


def tables() -> str:
    """The part of the page between the two marks."""
    parts = []
    for title, rows in printed().items():
        blocks = (f"$ {_wrapped(f'millrace {case}')}\n  {_wrapped(sentence)}" for case, sentence in rows)
        parts += [f"### {title}", "", "```text", *blocks, "```", ""]
    return "\n".join(parts)


def _wrapped(text: str) -> str:
    return "\n    ".join(textwrap.wrap(text, 95, break_long_words=False, break_on_hyphens=False))


def main() -> None:
    """Write the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGINS)
    PAGE.write_text(f"{before}{BEGINS}\n\n{tables()}\n{ENDS}{rest.partition(ENDS)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
