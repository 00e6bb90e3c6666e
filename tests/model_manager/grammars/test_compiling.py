"""Constraints compile to what they say, or are refused in one sentence, whatever the tokenizer."""

import json
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from millrace.model_manager.grammars.compiling import GrammarCompiler, check
from millrace.model_manager.grammars.grammar import Grammar
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import InvalidRequest
from tests.model_manager.client.tokenizers_made_here import KINDS, save

VOCABULARY, ENDS = 1000, [2, 700]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    folder = save(KINDS["byte_level_bpe"](), tmp_path_factory.mktemp("model"))
    return GrammarCompiler(folder, VOCABULARY, ENDS)


def matches(grammar: Grammar, text: str) -> bool:
    """Whether the text is a whole output, as the model's own tokenizer writes it."""
    matcher = grammar.matcher()
    tokens = grammar.tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def allowed(matcher: LLMatcher) -> list[int]:
    mask = matcher.compute_bitmask()
    return [token for token in range(8 * len(mask)) if mask[token // 8] >> token % 8 & 1]


CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"regex": r"\d{4}-\d\d-\d\d"}, ["2026-01-31"], ["2026-1-31", "x2026-01-31", "2026-01-31\n", ""]),
    ({"regex": "(a|b)*"}, ["", "ab"], ["c"]),
    ({"json": True}, ["1", '{"a":[null,true,"x\\n"]}', '"é"', "-1.5e3"], ["", "{", "{a:1}", "[1,]", '{"a": 1}']),
    ({"json_schema": True}, ["1"], ["01"]),
    (
        {"json_schema": {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}, "required": ["b"]}},
        ['{"b":1}', '{"b":1,"a":2}', '{"b":1,"c":[]}'],
        ["{}", '{"b":"1"}', '{"a":2,"b":1}', '{"b": 1}', '{"b":1}\n'],
    ),
    ({"grammar": 'start: "<" NAME ">"\nNAME: /[a-z]+/'}, ["<abc>"], ["<>", "<a", "abc"]),
    ({"choice": ["yes", "no", "né\n\x7f😀", "(a|b)"]}, ["yes", "no", "né\n\x7f😀", "(a|b)"], ["y", "yesno", "a", ""]),
]


@pytest.mark.parametrize(("fields", "valid", "invalid"), CASES, ids=lambda value: next(iter(value)) if value else "")
@pytest.mark.parametrize("kind", ["byte_level_bpe", "metaspace_bpe_with_byte_fallback"])
def test_an_output_is_of_its_constraint(
    kind: str, fields: dict[str, Any], valid: list[str], invalid: list[str], tmp_path: Path
) -> None:
    grammar = GrammarCompiler(save(KINDS[kind](), tmp_path), VOCABULARY, ENDS).compile(Constraint(**fields))
    assert [text for text in valid if not matches(grammar, text)] == []
    assert [text for text in invalid if matches(grammar, text)] == []


def test_pieces_of_a_unigram_tokenizer_hold_their_spaces(tmp_path: Path) -> None:
    compiler = GrammarCompiler(save(KINDS["unigram_with_metaspace"](), tmp_path), VOCABULARY, ENDS)
    grammar = compiler.compile(Constraint(regex="the (lazy )?dog"))
    assert [matches(grammar, text) for text in ("the lazy dog", "the dog", "thedog")] == [True, True, False]


def test_every_token_that_ends_an_output_is_allowed_at_its_end_alone(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(Constraint(regex="a")).matcher()
    (token,) = allowed(matcher)
    matcher.consume_token(token)
    assert allowed(matcher) == ENDS


def test_a_mask_is_as_wide_as_the_logits_and_never_has_what_the_tokenizer_has_not(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(Constraint(regex="(?s:.*)")).matcher()
    known = compiler.tokenizer
    assert len(matcher.compute_bitmask()) == 4 * ((VOCABULARY + 31) // 32)
    assert all(token in ENDS or not known.is_special_token(token) for token in allowed(matcher))


def test_added_tokens_beyond_the_logits_are_left_out(tmp_path: Path) -> None:
    tokenizer = KINDS["byte_level_bpe"]()
    size = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens(["<|beyond|>"])
    compiler = GrammarCompiler(save(tokenizer, tmp_path), size, [2])
    assert matches(compiler.compile(Constraint(regex="a")), "a")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"regex": "(?=a)b"}, "constraint.regex: look-ahead `(?=` at character 1 is not"),
    ({"regex": r"\1"}, "constraint.regex: back-reference `\\1` at character 1 is"),
    ({"regex": "("}, "constraint.regex: unclosed group"),
    ({"regex": "[^\\x00-\\x{10FFFF}]"}, "constraint.regex: takes one that something satisfies"),
    ({"json_schema": False}, "constraint.json_schema: takes a schema that something satisfies"),
    ({"json_schema": {"type": "integer", "minimum": 2, "maximum": 1}}, "constraint.json_schema: "),
    ({"json_schema": {"not": {}}}, "not"),
    ({"json_schema": {"not": {}, "x-guidance": {"lenient": True}}}, "`x-guidance`: is not supported"),
    ({"json_schema": {"type": "text"}}, "text"),
    ({"json_schema": {"$ref": "http://127.0.0.1:9/schema"}}, "http://127.0.0.1:9/schema"),
    ({"json_schema": {"$ref": "#"}}, "constraint.json_schema: "),
    ({"json_schema": {"$ref": "#/$defs/missing"}}, "constraint.json_schema: "),
    ({"grammar": "a"}, "constraint.grammar: "),
    ({"grammar": 'start: "a" b'}, "constraint.grammar: "),
    ({"grammar": "start: start"}, "constraint.grammar: takes one that something satisfies"),
    ({"grammar": "start: A\nA: /a/ & /b/"}, "constraint.grammar: takes one that something satisfies"),
    ({"grammar": "start[max_tokens=3]: /a*/"}, "constraint.grammar: takes rules without the attribute max_tokens"),
    ({"grammar": 'start: %json {"not": {}}'}, "constraint.grammar: "),
    (
        {
            "grammar": f'start: S T\nS: %regex {{"substring_chars": "{"ab" * 150_000}"}}\n'
            f'T: %regex {{ "substring_chars" : "{"ab" * 150_000}"}}'
        },
        "constraint.grammar: substring_chars: takes at most 500000 characters, got 600",
    ),
]


@pytest.mark.parametrize(("fields", "said"), REFUSED, ids=lambda value: json.dumps(value)[:60])
def test_the_unsupported_and_the_impossible_are_told_in_a_sentence(
    compiler: GrammarCompiler, fields: dict[str, Any], said: str
) -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=r"^constraint\.\w+: ") as refused:
            compiler.compile(Constraint(**fields))
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 400


def test_a_tokenizer_without_byte_semantics_refuses_constraints_and_says_so(tmp_path: Path) -> None:
    folder = save(KINDS["word_piece"](), tmp_path)
    compiler = GrammarCompiler(folder, VOCABULARY, ENDS)
    for fields in ({"json": True}, {"regex": "a"}):
        with pytest.raises(InvalidRequest, match=r"constraint: not with this model: .*WordPiece"):
            compiler.compile(Constraint(**fields))
        (folder / "tokenizer.json").unlink(missing_ok=True)  # it is read once


@pytest.mark.parametrize("grammar", ['start: "a" </s>', 'start: "a" <[300]>'])
def test_without_a_model_it_is_not_known_which_tokens_there_are(grammar: str) -> None:
    check(Constraint(grammar=grammar))
    with pytest.raises(InvalidRequest, match=r"^constraint\.grammar: "):
        check(Constraint(grammar=grammar.replace('"a"', "a")))


def test_a_constraint_is_compiled_once_and_each_sequence_has_its_own_state(compiler: GrammarCompiler) -> None:
    first, second = (compiler.compile(Constraint(regex="ab")) for _ in range(2))
    assert first is second
    one, other = first.matcher(), second.matcher()
    assert one.consume_tokens(first.tokenizer.tokenize_str("ab"))
    assert one.is_accepting()
    assert not other.is_accepting()
    assert not first.matcher().is_accepting()


def test_threads_share_a_compiler(compiler: GrammarCompiler) -> None:
    constraints = [Constraint(regex=f"x{index % 7}") for index in range(64)]
    with ThreadPoolExecutor(8) as threads:
        grammars = list(threads.map(compiler.compile, constraints))
    assert all(matches(grammar, f"x{index % 7}") for index, grammar in enumerate(grammars))


def span(document: str, pieces: str = "substring_words") -> Constraint:
    return Constraint(grammar=f"start: S\nS: %regex {json.dumps({pieces: document})}")


def wait_for_threads() -> None:
    """Join the threads that compile: each may still hold the grammar that it compiled last."""
    for thread in threading.enumerate():
        if thread.name == "grammar":
            thread.join()


def test_grammars_are_kept_by_the_memory_that_they_take(compiler: GrammarCompiler) -> None:
    """A run of words of 100 kB takes 10.5 MiB, so 256 MiB are some 24."""
    documents = [" ".join(f"{place}.{index}" for index in range(13_000))[:100_000] for place in range(28)]
    used = compiler.compile(span(documents[0]))
    alive = [weakref.ref(compiler.compile(span(document))) for document in documents]
    wait_for_threads()
    assert 20 < sum(each() is not None for each in alive) <= 25
    assert alive[-1]() is not None
    assert compiler.compile(span(documents[0])) is used


def test_what_is_larger_than_all_that_is_kept_goes_with_its_users(tmp_path: Path) -> None:
    small = GrammarCompiler(save(KINDS["byte_level_bpe"](), tmp_path), VOCABULARY, ENDS, most_kept_bytes=2**19)
    kept, lone = weakref.ref(small.compile(Constraint(regex="a"))), small.compile(span("some words " * 300))
    wait_for_threads()
    assert kept() is None
    assert small.compile(span("some words " * 300)) is lone
    gone = weakref.ref(lone)
    del lone
    wait_for_threads()
    assert gone() is None


@pytest.mark.parametrize("pieces", ["substring_words", "substring_chars"])
def test_a_span_of_a_long_document_is_a_grammar(compiler: GrammarCompiler, pieces: str) -> None:
    document = " ".join(f"item {index}: paid 3.50 on 2026-11-{index % 28 + 1:02};" for index in range(3000))[:100_000]
    grammar = compiler.compile(span(document, pieces))
    assert matches(grammar, "item 1420: paid 3.50")
    assert not matches(grammar, "item 1: paid 3.51")


def test_a_constraint_that_took_too_long_is_taken_once_it_is_compiled(tmp_path: Path) -> None:
    hasty = GrammarCompiler(save(KINDS["byte_level_bpe"](), tmp_path), VOCABULARY, ENDS, longest=0.0)
    constraint = span(" ".join(map(str, range(16_000))))
    with pytest.raises(InvalidRequest, match=r"constraint\.grammar: takes one that compiles within 0 seconds"):
        hasty.compile(constraint)
    wait_for_threads()
    assert matches(hasty.compile(constraint), "100 101")
