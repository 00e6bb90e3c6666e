"""The page in a real browser: it lives, survives deaths, works by keyboard, in the dark, and on a small screen."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from millrace.model_manager.client.status import stop_models
from millrace.model_manager.wire.job_progress import JobFile, born
from tests.forked_commands import run
from tests.job_commands import job_command, started
from tests.runtime_folders import status_of
from tests.servers.chromium import browser
from tests.serving.servers import MODEL, Server, fake_server, running
from tests.serving.window.looks import JOB, LETTER, ROW
from tests.serving.window.page_checks import contrasts, unnamed
from tests.waiting import eventually

pytestmark = pytest.mark.runners

WITHIN_MS = 300_000
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
QUESTION = "What is the capital of Mexico?"
expect.set_options(timeout=WITHIN_MS)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves the embedded model."""
    runtime = tmp_path_factory.mktemp("page") / "rt"
    try:
        with running(runtime, "--max_num_seqs", "8") as served:
            yield served.wait_until_ready()
    finally:
        stop_models(runtime)


@contextlib.contextmanager
def viewed(chromium: Browser, url: str, *, expects: str | None = None, **context: Any) -> Iterator[Page]:
    """The page; its console has no error in the end, but those that `expects` matches."""
    told: list[str] = []

    def keep(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            told.append(f"{message.text} {message.location.get('url')}")

    with contextlib.closing(chromium.new_context(**context)) as opened:
        opened.set_default_timeout(WITHIN_MS)
        page = opened.new_page()
        page.on("console", keep)
        page.on("pageerror", lambda error: told.append(str(error)))
        page.goto(url)
        yield page
        assert [text for text in told if expects is None or not re.search(expects, text)] == []


@contextlib.contextmanager
def job(server: Server, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A job beside the server with more rows than a test waits for, and one that is none."""
    lines = [json.dumps({"question": "none"}), *(json.dumps({"prompt": f"{QUESTION} {n}"}) for n in range(30_000))]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    environment = os.environ | {"MILLRACE_RUNTIME_DIR": str(server.runtime)}
    command = job_command("run", folder / "prompts.jsonl", folder / "out/answers")
    with started([*command, "--max_tokens=48"], **SILENT, env=environment) as process:
        yield process


@contextlib.contextmanager
def top(runtime: Path) -> Iterator[str]:
    """The page of `millrace top --web`."""
    command = [sys.executable, "-m", "millrace", "top", "--web", "--port", "0"]
    environment = os.environ | {"MILLRACE_RUNTIME_DIR": str(runtime)}
    with started(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        yield process.stdout.readline().rpartition(" ")[2].strip()


def test_a_job_is_seen_from_its_first_row_to_its_end(chromium: Browser, server: Server, tmp_path: Path) -> None:
    with viewed(chromium, server.url) as page:
        expect(page.get_by_role("status").first).to_have_text("live")
        expect(page.get_by_role("heading", name=MODEL)).to_be_visible()
        with job(server, tmp_path) as process:
            bar = page.get_by_role("progressbar", name=re.compile("run to .*answers"))
            expect(bar).to_have_attribute("aria-valuenow", re.compile("^[1-9]"))
            first = bar.get_attribute("aria-valuenow")
            expect(bar).not_to_have_attribute("aria-valuenow", str(first))
            expect(page.locator("#jobs")).to_contain_text("of 30,001 rows")
            expect(page.locator("#jobs")).to_contain_text("left")
            expect(page.locator("#jobs")).to_contain_text("1 failed")
            expect(page.locator("#letters")).to_contain_text("InvalidRequest")
            expect(page.locator("#rows li").first).to_contain_text("tokens")
            expect(page.locator("#tokens")).not_to_have_text(re.compile("^[0–]$"))
            expect(page.locator("#tokens-curve .stroke").first).to_be_attached()
            expect(page.locator("#ttft")).to_contain_text("s")
            process.send_signal(signal.SIGINT)
            assert process.wait(300) == 130
        expect(page.locator("#no-jobs")).to_be_visible()
        expect(page.locator("#letters")).to_contain_text("InvalidRequest")
        expect(page.locator("#other-jobs")).to_contain_text("other job")
        assert QUESTION not in page.locator("body").inner_text()


def test_a_prompt_is_asked_by_keyboard_alone(chromium: Browser, server: Server) -> None:
    with viewed(chromium, server.url) as page:
        expect(page.get_by_label("Prompt", exact=True)).to_be_visible()
        tab_to(page, "prompt")
        page.keyboard.type(QUESTION)
        page.keyboard.press("Shift+Enter")
        page.keyboard.press("Backspace")
        page.keyboard.press("Enter")
        expect(page.get_by_role("region", name="Answer")).to_contain_text("Mexico City")
        expect(page.locator("#asked")).to_contain_text(re.compile("first token after .* tokens in"))
        expect(page.locator("#rows")).to_contain_text("chat/completions")
        for name in ("model", "route", "max_tokens", "temperature", "seed"):
            tab_to(page, name)


def tab_to(page: Page, identity: str) -> None:
    """Press Tab until the element has the focus."""
    for _ in range(40):
        if page.evaluate("document.activeElement.id") == identity:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{identity} cannot be reached by Tab")


def test_a_schema_holds_the_answer(chromium: Browser, server: Server) -> None:
    with viewed(chromium, server.url) as page:
        page.get_by_label("Prompt", exact=True).fill(QUESTION)
        page.get_by_text("JSON Schema", exact=True).click()
        page.get_by_label("JSON Schema of the answer").fill("{")
        page.get_by_role("button", name="Ask").click()
        expect(page.get_by_role("region", name="Answer")).to_contain_text("JSON Schema: ")
        page.get_by_label("JSON Schema of the answer").fill('{"enum": ["Rome", "Mexico City"]}')
        page.get_by_role("button", name="Ask").click()
        expect(page.get_by_role("region", name="Answer")).to_have_text(re.compile('^"(Rome|Mexico City)"$'))


def test_what_is_refused_is_told(chromium: Browser, server: Server) -> None:
    with viewed(chromium, server.url, expects="status of 400") as page:
        page.get_by_label("Prompt", exact=True).fill("a")
        page.locator("#route").select_option("text")
        page.get_by_label("temperature").fill("-3")
        page.evaluate("document.getElementById('prompt-form').noValidate = true")
        page.get_by_role("button", name="Ask").click()
        expect(page.get_by_role("region", name="Answer")).to_contain_text("temperature")
        expect(page.locator("#rows")).to_contain_text("400")


def test_a_form_of_another_sites_page_asks_nothing(chromium: Browser, server: Server) -> None:
    name, value = json.dumps({"model": MODEL, "prompt": "a", "user": ""})[:-2], '"}'
    with contextlib.closing(chromium.new_context()) as opened:
        page = opened.new_page()
        page.set_content(
            f"<form method=post enctype=text/plain action='{server.url}/v1/completions'>"
            f"<input name='{name}' value='{value}'><button>A gift!</button></form>"
        )
        page.get_by_role("button").click()
        expect(page.locator("body")).to_contain_text("'null' is not this server's own page")


def test_an_answer_can_be_stopped(chromium: Browser, tmp_path: Path) -> None:
    with fake_server(tmp_path / "rt", step=0.05) as slow, viewed(chromium, slow.url) as page:
        page.get_by_label("Prompt", exact=True).fill("a")
        page.locator("#route").select_option("text")
        page.get_by_label("max_tokens").fill("1000")
        page.get_by_label("Prompt", exact=True).press("Enter")
        expect(page.locator("#asked")).to_have_text("answering…")
        expect(page.locator("#rows")).to_contain_text("running")
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("#asked")).to_have_text("stopped")
        eventually(lambda: slow.outstanding() == 0)


def test_the_manager_of_a_server_is_replaced_and_the_page_goes_on(chromium: Browser, server: Server) -> None:
    with viewed(chromium, server.url) as page:
        status = server.status()
        expect(page.locator("#manager")).to_contain_text(f"manager {status.pid},")
        os.kill(status.pid, signal.SIGKILL)
        expect(page.get_by_role("status").first).to_have_text("no manager runs")
        page.get_by_label("Prompt", exact=True).fill(QUESTION)
        page.get_by_label("Prompt", exact=True).press("Enter")
        expect(page.get_by_role("region", name="Answer")).to_contain_text("Mexico City")
        expect(page.locator("#manager")).to_contain_text("manager")
        expect(page.locator("#manager")).not_to_contain_text(f"manager {status.pid},")
        expect(page.get_by_role("status").first).to_have_text("live")
        expect(page.locator("#models .pill")).to_have_text("ready")


def test_without_a_manager_the_page_says_so_and_sees_the_next_one(chromium: Browser, tmp_path: Path) -> None:
    runtime = tmp_path / "rt"
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    command = [*job_command("run", tmp_path / "a.txt", tmp_path / "out/c"), "--overwrite", "--backend=fake"]
    environment = os.environ | {"MILLRACE_RUNTIME_DIR": str(runtime)}

    def run_job() -> None:
        assert run([*command, "--linger=300"], env=environment).returncode == 0

    try:
        with top(runtime) as url, viewed(chromium, url) as page:
            state = page.get_by_role("status").first
            expect(state).to_have_text("no manager runs")
            expect(page.get_by_text("Try a prompt")).to_be_hidden()
            run_job()
            expect(state).to_have_text("live")
            os.kill(eventually(lambda: status_of(runtime)).pid, signal.SIGKILL)
            expect(state).to_have_text("no manager runs")
            expect(page.locator("#no-models")).to_be_visible()
            run_job()
            expect(state).to_have_text("live")
    finally:
        stop_models(runtime)


def test_a_server_that_ends_and_begins_again_is_seen_again(chromium: Browser, tmp_path: Path) -> None:
    with (
        fake_server(tmp_path / "rt") as first,
        viewed(chromium, first.url, expects="ERR_CONNECTION_REFUSED") as page,
    ):
        state = page.get_by_role("status").first
        expect(state).to_have_text("live")
        port = str(first.port)
        first.process.terminate()
        assert first.ended() == 0
        expect(state).to_have_text("the server is gone; trying again")
        with contextlib.ExitStack() as stack:
            eventually(lambda: is_started(stack, tmp_path / "rt", port))
            expect(state).to_have_text("live")


def is_started(stack: contextlib.ExitStack, runtime: Path, port: str) -> bool:
    """Whether a server runs on that port, which another program may have for a while."""
    try:
        stack.enter_context(running(runtime, "--backend", "fake", "--port", port))
    except AssertionError as error:
        if "in use" in str(error):
            return False
        raise
    return True


def test_a_key_is_asked_for_and_is_used_for_figures_and_prompts(chromium: Browser, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("sesame\n")
    with (
        fake_server(tmp_path / "rt", "--api_key_file", str(tmp_path / "keys")) as guarded,
        viewed(chromium, guarded.url, expects="status of 401") as page,
    ):
        field = page.get_by_label("This server wants an API key")
        expect(page.get_by_role("status").first).to_have_text("a key is needed")
        field.fill("wrong")
        field.press("Enter")
        expect(page.get_by_role("status").first).to_have_text("the key is wrong")
        field.fill("sesame")
        field.press("Enter")
        expect(page.get_by_role("status").first).to_have_text("live")
        expect(field).to_be_hidden()
        page.get_by_label("Prompt", exact=True).fill("a")
        page.locator("#route").select_option("text")
        page.get_by_label("Prompt", exact=True).press("Enter")
        expect(page.locator("#asked")).to_contain_text("tokens in")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_it_fits_the_screen_and_all_text_stands_out(chromium: Browser, server: Server, scheme: str, width: int) -> None:
    """What the first test has left to see is seen here too."""
    size = {"width": width, "height": 800}
    with viewed(chromium, server.url, color_scheme=scheme, viewport=size) as page:
        page.get_by_label("Prompt", exact=True).fill(QUESTION)
        page.get_by_label("Prompt", exact=True).press("Enter")
        expect(page.locator("#asked")).to_contain_text("tokens in")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert contrasts(page, least=4.5) == []
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 3 * 128) == (scheme == "dark")


def test_names_of_any_length_and_direction_stay_in_their_places(chromium: Browser, server: Server) -> None:
    long = "n" * 200
    file = JobFile(server.runtime)
    letter = msgspec.structs.replace(LETTER, error="E" * 60, source=f"/{long}/in@1", reason=long)
    rows = [msgspec.structs.replace(ROW, id=name) for name in ("rtl\u202elive", long)]
    job = msgspec.structs.replace(JOB, pid=os.getpid(), born=born(os.getpid()), output=f"/{long}/out", model=long)
    file.write(msgspec.structs.replace(job, job="odd", done=0, failed=20, rows=rows, dead_letters=[letter]))
    try:
        with viewed(chromium, server.url, viewport={"width": 380, "height": 800}) as page:
            expect(page.locator("#rows")).to_contain_text("rtl\ufffdlive")
            expect(page.locator("#jobs .track .failed").first).to_have_attribute("style", "left: 0%; width: 100%;")
            assert page.evaluate("document.documentElement.scrollWidth") <= 380
    finally:
        file.remove()


def test_everything_has_a_role_a_name_and_a_place(chromium: Browser, server: Server) -> None:
    with viewed(chromium, server.url) as page:
        expect(page.locator("#models [role=meter]").first).to_be_visible()
        assert unnamed(page) == []
        for role in ("banner", "main", "contentinfo"):
            expect(page.get_by_role(role)).to_have_count(1)
        for name in ("Now", "Jobs", "Models", "Dead letters", "Try a prompt"):
            expect(page.get_by_role("region", name=name, exact=True)).to_have_count(1)
        assert page.evaluate("document.documentElement.lang") == "en"
        levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map((head) => Number(head.tagName[1]))")
        assert levels[0] == 1
        assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
