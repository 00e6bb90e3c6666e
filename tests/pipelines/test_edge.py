import os
import signal
from collections.abc import Mapping

import pytest

from millrace.model_manager.wire.errors import ConfigError, EngineLost, InvalidRequest, ModelNotFound
from millrace.pipelines.edge import at_the_edge, unwrapped
from millrace.pipelines.interrupts import STOPPED, TERMINATED, Interrupted, interrupt_held, interruptible

TRACE = """Traceback (most recent call last):
  File "worker.py", line 1, in process
    raise error
millrace.model_manager.wire.errors.ModelNotFound: --model x: no such folder [while running 'Generate/ParDo']
"""


def failing(error: BaseException) -> int:
    def command() -> int:
        raise error

    return at_the_edge(command)


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (ConfigError("wrong flag"), 2, "wrong flag"),
        (ModelNotFound("no such model [while running 'Generate']"), 2, "no such model"),
        (RuntimeError(TRACE), 2, "--model x: no such folder"),
        (EngineLost("died 4 times"), 1, "the job failed: died 4 times"),
        (InvalidRequest("file:3: no prompt"), 1, "the job failed: file:3: no prompt"),
        (ImportError("libtorch.so: failed to map segment from shared object"), 1, "memory ran out: "),
        (OSError("disk\nfull"), 1, "the job failed: OSError: disk full; --verbose shows where"),
        (RuntimeError("Traceback …\nbuiltins.KeyError: 'x' [while running 'a']"), 1, "the job failed: KeyError: 'x'"),
        (Interrupted("interrupted; rows are kept"), 130, "interrupted; rows are kept"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (InvalidRequest("the row \x1b[2Jx"), 1, "the job failed: the row \ufffd[2Jx"),
    ],
)
def test_an_error_is_one_sentence_and_a_status(
    error: BaseException, status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failing(error) == status
    shown = capsys.readouterr()
    assert shown.err.startswith(f"millrace: {told}")
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_what_is_noted_on_an_error_is_told_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    error = RuntimeError("not there")
    error.add_note("look elsewhere")
    assert failing(error) == 1
    assert "RuntimeError: not there; look elsewhere; --verbose" in capsys.readouterr().err


def test_the_stack_is_shown_only_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        raise ConfigError("wrong flag")

    assert at_the_edge(command, verbose=True) == 2
    assert "Traceback" in capsys.readouterr().err


def test_an_error_is_found_as_a_cause() -> None:
    outer = RuntimeError("the pipeline failed")
    outer.__cause__ = ConfigError("wrong")
    assert isinstance(unwrapped(outer), ConfigError)
    assert unwrapped(RuntimeError("else")) is None


def interrupted_within_beam() -> None:
    """Beam makes of an interrupt what it makes of any error in a DoFn."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        raise RuntimeError("KeyboardInterrupt [while running 'Generate']") from None


def test_an_interrupt_is_recognised_whatever_becomes_of_it() -> None:
    with pytest.raises(Interrupted, match="interrupted; 3 rows are kept"), interruptible(lambda: "3 rows are kept"):
        interrupted_within_beam()


@pytest.mark.parametrize(("statuses", "status"), [(TERMINATED, 143), (STOPPED, 130)])
def test_sigterm_interrupts_what_says_so_and_has_its_own_status_where_it_is_no_common_end(
    statuses: Mapping[int, int], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> int:
        with interruptible(lambda: "3 rows are kept", also=statuses):
            os.kill(os.getpid(), signal.SIGTERM)
        return 0

    assert at_the_edge(command) == status
    how = "interrupted by SIGTERM" if status == 143 else "interrupted"
    assert capsys.readouterr().err == f"millrace: {how}; 3 rows are kept\n"


def interrupted_while_held(times: int, failure: Exception | None, reached: list[str]) -> None:
    with interruptible(lambda: "kept"):
        with interrupt_held("held"):
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
            reached.append("the end of the block")
            if failure is not None:
                raise failure
        reached.append("what is after it")


@pytest.mark.parametrize("failure", [None, ValueError("the job failed")])
def test_a_held_interrupt_comes_after_the_block_or_its_failure(failure: Exception | None) -> None:
    reached = list[str]()
    with pytest.raises(Interrupted, match="interrupted; kept"):
        interrupted_while_held(1, failure, reached)
    assert reached == ["the end of the block"]


def test_a_second_interrupt_is_not_held() -> None:
    reached = list[str]()
    with pytest.raises(Interrupted, match="interrupted; kept"):
        interrupted_while_held(2, None, reached)
    assert not reached


def test_other_errors_are_no_interrupts() -> None:
    with pytest.raises(ValueError, match="else"), interruptible(lambda: ""):
        raise ValueError("else")
