"""Which settings that are asked for do not hold, and what is said of them."""

from hypothesis import given

from millrace.model_manager.wire.config import SHARED_SETTINGS, ManagerConfig, ModelConfig
from millrace.model_manager.wire.shared_settings import UnmetSetting, sentence, unmet_settings
from tests.model_manager.wire.instances import of_type


@given(of_type(ModelConfig), of_type(ModelConfig))
def test_each_setting_that_is_asked_for_holds_or_is_named(asked: ModelConfig, in_force: ModelConfig) -> None:
    unmet = {each.name: each for each in unmet_settings(asked, in_force)}
    for name in SHARED_SETTINGS:
        wanted, held = getattr(asked, name), getattr(in_force, name)
        if name in unmet:
            assert unmet[name] == UnmetSetting(name, wanted, held)
            assert wanted != held
        else:
            assert wanted in (held, getattr(ModelConfig(), name))


def test_of_differing_settings_those_that_were_asked_for_are_named() -> None:
    first = ModelConfig(max_num_seqs=8, speculation="prompt_lookup", prefix_caching=False)
    asked = ModelConfig(max_num_seqs=16, kv_cache_gib=1.5)
    unmet = [UnmetSetting("max_num_seqs", 16, 8), UnmetSetting("kv_cache_gib", 1.5, None)]
    assert unmet_settings(asked, first) == unmet


def test_all_settings_of_the_manager_are_shared_but_one_that_each_client_decides() -> None:
    asked = ManagerConfig(hang_timeout=60, linger=9, orphan_grace=60)
    in_force = ManagerConfig(linger=9, max_restarts=0)
    assert unmet_settings(asked, in_force) == [UnmetSetting("hang_timeout", 60.0, 10.0)]


def test_the_sentence_names_model_settings_and_what_helps() -> None:
    told = sentence("org/m", [UnmetSetting("max_num_seqs", 16, 8), UnmetSetting("kv_cache_gib", 1.5, None)])
    assert told.startswith("org/m is shared")
    assert "max_num_seqs=8 (asked for: 16), kv_cache_gib=the engine's choice (asked for: 1.5)" in told
    assert "millrace stop" in told
