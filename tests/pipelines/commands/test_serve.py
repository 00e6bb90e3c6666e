"""The jobs that a server starts: their flags say the same model as the server's own."""

from __future__ import annotations

import pytest

from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.pipelines.commands.serve import job_of, serve_parser
from millrace.pipelines.flags.backend import read_backend
from millrace.pipelines.flags.from_settings import given
from millrace.pipelines.flags.job_options import parse


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--model org/name --revision 9f2c --dtype float32 --max_model_len 64 --kv_cache_gib 0.5",
        "--no-prefix_caching --linger 60 --max_num_seqs 4 --speculation prompt_lookup",
        "--backend fake --max_loras 2",
        "--endpoint http://a/v1 http://b/v1 --backend_options dialect=openai key_env=KEY",
        "--backend vllm --backend_options enforce_eager=true",
        "--port 0 --api_key_file keys --max_batches 3",
    ],
)
def test_a_job_answers_with_the_servers_model(flags: str) -> None:
    parser, names = serve_parser()
    known = parser.parse_args(flags.split())
    command = job_of(known, names)("run", ["--input", "rows.jsonl", "--output", "out/a", "--resume"])
    at = command.index("run")
    assert command[at - 2 : at] == ["-m", "millrace"]
    options = parse(command[at + 1 :], "generate")
    assert options.model == ModelConfig.parse(given(known, names["model"]) | read_backend(known)).for_task("generate")
    asked = ManagerConfig.parse({"orphan_grace": 120.0, **given(known, names["manager"])})  # a job of files comes back
    assert options.manager == asked
    assert options.chat is False
    assert options.if_exists == "resume"
