"""Which requests CTranslate2 gets together; a generator that answers at once stands in for it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

from millrace.model_manager.backends.ctranslate2 import _CTranslate2
from millrace.model_manager.engine.scheduling.sequence import Sequence
from millrace.model_manager.wire.sampling import SamplingParams
from tests.waiting import eventually


class Generator:
    """Gives each prompt the token 7 until its callback says that it is over; waits for `goes_on` before each batch."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.batches: list[list[int]] = []

    def generate_batch(self, prompts: list[list[str]], *, callback: Any, **_: Any) -> None:
        self.batches.append([len(prompt) for prompt in prompts])
        self.goes_on.wait()
        for place in range(len(prompts)):
            while not callback(SimpleNamespace(batch_id=place, token_id=7)):
                pass


def _submit(library: _CTranslate2, length: int, **params: Any) -> None:
    sequence = SimpleNamespace(
        request_id=f"of {length}",
        token_ids=[1] * length,
        num_output_tokens=0,
        conditions=SimpleNamespace(max_tokens=2),
    )
    library.submit(cast(Sequence, sequence), SamplingParams(max_tokens=2, ignore_eos=True, **params))


def test_prompts_of_like_length_run_together_the_oldest_first() -> None:
    generator = Generator()
    library = _CTranslate2(generator, ["a", "b"], batch_size=2, eos=[])
    _submit(library, 5)
    eventually(lambda: generator.batches)
    for length in (9, 3, 8, 2):
        _submit(library, length)
    generator.goes_on.set()
    eventually(lambda: len(generator.batches) == 3)
    assert generator.batches == [[5], [8, 9], [2, 3]]


def test_a_batch_has_one_set_of_parameters_and_each_request_its_own_tokens() -> None:
    generator = Generator()
    library = _CTranslate2(generator, ["a", "b"], batch_size=8, eos=[])
    _submit(library, 5)
    eventually(lambda: generator.batches)
    for length, temperature in ((4, 0.0), (3, 1.0), (2, 0.0)):
        _submit(library, length, temperature=temperature)
    generator.goes_on.set()
    told: list[tuple[str, bool]] = []

    def all_told() -> bool:
        told.extend((event.request_id, event.finished) for event in library.poll())
        return len(told) == 8

    eventually(all_told)
    assert generator.batches == [[5], [2, 4], [3]]
    assert sorted(told) == sorted((f"of {length}", over) for length in (2, 3, 4, 5) for over in (False, True))
