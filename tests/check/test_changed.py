"""What changed names the tests to run before a commit."""

from tests.check.changed import ROOT, mirrored


def test_a_module_names_its_own_test_else_those_of_its_room() -> None:
    own, room = "transforms/files/lines.py", "pipelines/job/logs.py"
    assert mirrored([own, room]) == ["tests/pipelines/job/test_logs.py", "tests/transforms/files/test_lines.py"]
    others = mirrored(["model_manager/engine/interface.py"])
    assert "tests/model_manager/engine/test_engine.py" in others
    assert not [test for test in others if "/engine/cpu/" in test], "of that room alone"


def test_a_test_names_itself_and_what_has_no_tests_names_none() -> None:
    changed = [
        "tests/check/test_changed.py",
        "tests/check/changed.py",
        "tests/gone/test_gone.py",
        "README.md",
        "setup.py",
    ]
    assert mirrored(changed) == ["tests/check/test_changed.py"]


def test_every_room_has_a_folder_of_tests() -> None:
    """Otherwise a change there would run none."""
    modules = [path for top in ("transforms", "serving", "pipelines") for path in (ROOT / top).rglob("*.py")]
    without = {path.parent for path in modules if not mirrored([str(path.relative_to(ROOT))])}
    assert without == set()
