"""A refusal names the keyword or construct, its place and what to write, in no library's words."""

import re
from typing import Any

import pytest

from millrace.model_manager.grammars.compiling import allowed, check
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import InvalidRequest
from tests.model_manager.engine.constraints.schema_corpus import CORPUS, corpus
from tests.model_manager.engine.constraints.unsupported_schemas import UNSUPPORTED

INTERNALS = re.compile(
    r"coerce|Unimplemented|f64|lexer|fuel|ff_tokens|limit \d|llguidance|lookaround|SearchRegex|\(And|registry|Resource|"
    r"json-schema:///|Some\(|None\b|regex parse|unsatisfiable|Unsatisfiable|Expected|Unknown format|error:|serde"
)


def refusal(**fields: Any) -> str:
    with pytest.raises(InvalidRequest) as refused:
        check(Constraint(**fields))
    return str(refused.value)


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.skipif(not CORPUS.is_file(), reason="shared/data/jsonschemas.jsonl.gz is not beside the checkout")
def test_no_reason_of_a_public_schema_has_a_librarys_words() -> None:
    said = []
    for case in corpus():
        try:
            check(Constraint(json_schema=case.schema))
        except InvalidRequest as error:
            said.append(str(error))
    assert len(said) > 50
    assert [reason for reason in said if INTERNALS.search(reason)] == []
    assert [reason for reason in said if "`" not in reason] == []


@pytest.mark.parametrize("entry", UNSUPPORTED, ids=lambda entry: f"{entry.keywords}: {entry.when}"[:60])
def test_no_reason_of_the_table_has_a_librarys_words(entry: Any) -> None:
    assert INTERNALS.search(refusal(json_schema=entry.schema)) is None


SCHEMAS: list[tuple[Any, str]] = [
    (
        {"properties": {"p": {"oneOf": [obj(), obj()]}}},
        "`oneOf` at #/properties/p has schemas that may hold at once: give each `type: object` and a property that "
        "tells them apart, with another `const` in each, and in `required`; or write `anyOf` where an overlap "
        "does no harm",
    ),
    (
        {"properties": {"a": {"items": {"not": {"not": {}}}}}},
        "`not` at #/properties/a/items is not supported: a grammar has no complement; write what is allowed, such as "
        "an `enum` or a `pattern`",
    ),
    ({"items": {"$ref": "#/$defs/a%20b"}, "$defs": {"a b": {"uniqueItems": True}}}, "`uniqueItems` at #/$defs/a b"),
    ({"properties": {"a/b": {"type": "int"}}}, "`type` at #/properties/a~1b: takes one of null, boolean, integer, "
     'number, string, array, object, or a list of them, got `"int"`: did you mean integer?'),
    ({"properties": {"a": {"minLength": -1}}},
     "`minLength` at #/properties/a: takes a whole number of 0 or more, got `-1`"),
    ({"properties": {"a": 5}}, "a schema at #/properties/a: takes an object, true or false, got `5`"),
    ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "`$ref` at #/properties/a: takes a place in this schema, such as "
     '`#/$defs/name`, got `"#/$defs/b"`: there is none'),
    ({"$ref": "https://example.com/a"}, 'got `"https://example.com/a"`: nothing is fetched'),
    ({"type": "object", "properties": {f"p{i}": {"title": "x" * 500} for i in range(1500)} | {"z": {"not": {}}}},
     "`not` at #/properties/z is not supported"),
    ({"type": ""}, '`type`: takes one of null, boolean'),
    ({"properties": {"a": {"patternProperties": 5}}}, "`patternProperties` at #/properties/a: takes an object of"),
    ({"type": "string", "format": "phone"}, '`format`: takes date, date-time, time, duration, email, hostname, ipv4, '
     'ipv6, uuid, uri, got `"phone"`; leave it out, or write a `pattern`'),
    ({"properties": {"a": {"type": "string", "pattern": r"^\d(?=a)"}}},
     "`pattern` at #/properties/a: look-ahead `(?=` at character 4 is not supported: a grammar knows no look-around"),
    ({"patternProperties": {r"\bx": {}}}, r"`patternProperties` `\bx`: word boundary `\b` at character 1 is not"),
    ({"type": "string", "pattern": "a\\"}, "`pattern`: takes an expression that does not end within an escape"),
    ({"properties": {"a": {"pattern": "a++"}}}, "`pattern` at #/properties/a: possessive quantifier `++` at"),
    ({"properties": {"a": {"items": {"x-guidance": {}}}}}, "`x-guidance` at #/properties/a/items: is not supported"),
    (obj(a={"type": "integer", "minimum": 5, "maximum": 2}),
     "takes a schema that something satisfies; the part at #/properties/a allows nothing: `minimum` (5) is greater "
     "than `maximum` (2)"),
    ({"type": "string", "minLength": 2, "pattern": "^a$"}, "takes a schema that something satisfies: no string is as"),
    ({"type": "string", "minLength": 1000, "pattern": "(.*a.{20}b){5}"}, "takes one that makes a smaller automaton"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "said"), SCHEMAS, ids=[str(index) for index in range(len(SCHEMAS))])
def test_a_schemas_reason_says_keyword_place_and_what_to_write(schema: Any, said: str) -> None:
    found = refusal(json_schema=schema)
    assert said in found
    assert INTERNALS.search(found) is None


REGEXES = {
    r"a\d(?=b)": "look-ahead `(?=` at character 4 is not supported: a grammar knows no look-around",
    r"abc(?<=b)": "look-behind `(?<=` at character 4 is not supported: a grammar knows no look-around",
    "é(?<!b)": "look-behind `(?<!` at character 2",
    r"(a)\1": r"back-reference `\1` at character 4",
    r"(?P<x>a)(?P=x)": "back-reference `(?P=x)` at character 9",
    "(?>a)": "atomic group `(?>` at character 1",
    "[a++]b*+": "possessive quantifier `*+` at character 7",
    "(a)(?(1)b|c)": "conditional `(?(1)` at character 4",
    r"\((?R)?\)": "recursion `(?R)` at character 3",
    "\n\\ba": r"word boundary `\b` at character 2",
    r"\d\h": r"unknown escape at character 3: `\h`",
    "a(b": "unclosed group at character 2: `(`",
    "[[a]": "unclosed character class at character 1: `[`",
    "a|*": "repetition of nothing at character 3: `*`",
    r"\w{3,2}": "invalid repetition count range, the start must be <= the end at character 3: `{3,2}`",
    r"\w\p{Foo}": r"unknown Unicode property at character 3: `\p{Foo}`",
    "a$b": "takes `^` and `$` where the text begins and ends alone, and no flag `m`, got `$` at character 2",
}


@pytest.mark.parametrize("regex", REGEXES)
def test_an_expressions_reason_says_construct_and_position(regex: str) -> None:
    assert REGEXES[regex] in refusal(regex=regex)
    terminal = regex.replace("\n", "\\n")
    found = refusal(grammar=f'start: "x"* A\n\nA: /{terminal}/')
    if "\n" not in regex:
        assert found.startswith(f"constraint.grammar: line 3, column 4: {REGEXES[regex]}")
    assert INTERNALS.search(found) is None


@pytest.mark.parametrize(
    "regex", [r"\++", r"\Aa\z", "[+]+", "[]+]+", r"[\]+]+", "a+?", "(?x)a # C", "(?x) [+]+ b", "a{2}"]
)
def test_what_only_looks_unsupported_is_taken(regex: str) -> None:
    check(Constraint(regex=regex))


FREE_SPACING = {
    "(?x)a++a": "possessive quantifier `++` at character 6",
    "(?x: a ) b*+": "possessive quantifier `*+` at character 11",
    r"(?x)\((?R)?\)": "recursion `(?R)` at character 7",
    "(?x)a+ +a": "free-spacing mode `(?x` at character 1 is not supported beside",
    "(?x)a # [\n b++": "free-spacing mode `(?x`",
    "a(?ix) # C++": "free-spacing mode `(?ix` at character 2",
    "(?x)a # b\n\\": "free-spacing mode",
}


@pytest.mark.parametrize("regex", FREE_SPACING)
def test_free_spacing_hides_nothing_that_would_be_misread(regex: str) -> None:
    assert FREE_SPACING[regex] in refusal(regex=regex)


def test_an_expressions_reason_is_of_the_expression_that_is_refused() -> None:
    assert refusal(grammar=r"start: A B C" "\nA: /a/\nB: /[a-z]a/\nC: /a(?=b)/i").startswith(
        "constraint.grammar: line 4, column 4: look-ahead `(?=` at character 2 "
    )


GRAMMARS = {
    'start: A\nA: /[a/i': "line 2, column 4: unclosed character class at character 1: `[`",
    'start: %json {"name": "a", "schema": false}': "line 1, column 8: %json: takes a schema that something satisfies",
    "start: %regex {\n1: 2}": "line 2, column 1: %regex: takes JSON: ",
    'start: A j\nj: %json {\n}\nA: /a/ B': "line 4, column 4: `B` is not defined",
    "start: /a\nb/\n  x": "line 3, column 4: takes `:`, got the end of the line",
    'start: a\na: %json {\n"properties": {"k": {"not": {}}}}': "line 2, column 4: %json: `not` at #/properties/k",
    "START: /a/": "has no rule `start`",
    'start: %regex {"foo": 1}': "%regex: takes one of `substring_chunks`, `substring_words`, `substring_chars`, got",
    'start: "a"\nstart: "b"': "`start` is defined twice",
}  # fmt: skip


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_grammars_reason_says_the_line_as_it_was_given(grammar: str) -> None:
    found = refusal(grammar=grammar)
    assert GRAMMARS[grammar] in found
    assert INTERNALS.search(found) is None


EXCLUSIVE: list[tuple[Any, Any]] = [
    (obj(k={"const": 1}), obj(k={"const": 2})),
    (obj(k={"enum": ["a", "b"]}), obj(k={"const": "c"})),
    ({"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}),
    ({"const": 1}, {"enum": [2, 3]}),
    (obj(k={"type": "integer"}), {"type": "object", "properties": {"k": {"type": "string"}}}),
]
OVERLAPPING: list[tuple[Any, Any]] = [
    (obj(k={"const": 1}), obj(k={"const": 1.0})),
    (obj(k={"type": "integer"}), obj(k={"type": "number"})),
    ({"properties": {"k": {"const": 1}}, "required": ["k"]}, {"properties": {"k": {"const": 2}}, "required": ["k"]}),
    ({"type": "object", "properties": {"k": {"const": 1}}}, {"type": "object", "properties": {"k": {"const": 2}}}),
    ({"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}),
    (obj(a={}), obj(b={})),
    ({"$ref": "#name"}, {"$ref": "#other"}),
]
DEFINITIONS = {
    "$defs": {
        "a": obj(k={"const": "a"}) | {"$anchor": "name"},
        "b": obj(k={"const": "b"}) | {"$anchor": "other"},
    }
}


@pytest.mark.parametrize(("one", "other"), EXCLUSIVE, ids=str)
def test_one_of_is_taken_where_its_schemas_exclude_each_other(one: Any, other: Any) -> None:
    check(Constraint(json_schema=obj(p={"oneOf": [one, other]}) | DEFINITIONS))


@pytest.mark.parametrize(("one", "other"), OVERLAPPING, ids=str)
def test_one_of_is_refused_where_its_schemas_may_overlap(one: Any, other: Any) -> None:
    found = refusal(json_schema=obj(p={"oneOf": [one, other]}) | DEFINITIONS)
    assert re.search("`oneOf`( at #/properties/p)? has schemas that may hold at once", found)


@pytest.mark.parametrize("name", ["$id", "id"])
def test_what_a_reference_below_an_id_leads_to_is_not_guessed(name: str) -> None:
    part = {name: "http://x/y", "$defs": {"a": {"type": "number"}}}
    schema = obj(p=part | {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "number"}]}) | {"$defs": {"a": {"type": "string"}}}
    draft = {"$schema": "http://json-schema.org/draft-04/schema#"} if name == "id" else {}
    assert "`oneOf`" in refusal(json_schema=schema | draft)


ONE_OF = {"oneOf": [{"type": "string"}, {"type": "number"}]}
INTO_ONE_OF: list[tuple[Any, str, str]] = [
    (obj(v=ONE_OF, w={"$ref": "#/properties/v/oneOf/1"}), '{"v":"a","w":1}', '{"v":"a","w":"b"}'),
    ({"oneOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/oneOf/0"}}]}, '["a"]', "[[]]"),
    ({"oneOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/%6FneOf/0"}}]}, '["a"]', "[[]]"),
    ({"$id": "http://x/y", "oneOf": [{"type": "string"}, {"items": {"$ref": "http://x/y#/oneOf/0"}, "type": "array"}]},
     '["a"]', "[[]]"),
    ({"$ref": "#/more/a", "more": {"a": obj(w={"$ref": "#/properties/v/oneOf/1"})}, "properties": {"v": ONE_OF}},
     '{"w":1}', '{"w":"b"}'),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "valid", "invalid"), INTO_ONE_OF, ids=str)
def test_a_reference_into_a_one_of_leads_where_it_did(schema: Any, valid: str, invalid: str) -> None:
    assert allowed(Constraint(json_schema=schema), valid) == len(valid)
    assert allowed(Constraint(json_schema=schema), invalid) < len(invalid)


FAULTS: list[tuple[Any, str]] = [
    ({"type": "string", "format": "color"}, "format"),
    ({"not": {}}, "not"),
    ({"type": "int"}, "type"),
    ({"contains": {}}, "contains"),
    ({"uniqueItems": True}, "uniqueItems"),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1}, "minProperties"),
    ({"type": "string", "pattern": "a(?=b)"}, "pattern"),
    ({"oneOf": [{}, {}], "properties": {"up": {"$ref": "#"}}}, "oneOf"),
    ({"$ref": "#/$defs/none"}, "$ref"),
]


@pytest.mark.parametrize(("fault", "keyword"), FAULTS, ids=str)
def test_a_place_is_told_where_what_recurses_stands_before_it(fault: Any, keyword: str) -> None:
    again = {"$ref": "#/$defs/n"}
    node = {"child": {"anyOf": [again, {"type": "null"}]}, "all": {"items": again}, "x": fault}
    of_defs = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": node}}}
    through = {"type": "object", "properties": {"b": {"properties": {"a": {"$ref": "#"}}}, "x": fault}}
    for schema, place in (
        ({"type": "object", "properties": {"child": {"$ref": "#"}, "x": fault}}, "#/properties/x"),
        (through, "#/properties/x"),
        (of_defs, "#/$defs/n/properties/x"),
    ):
        found = refusal(json_schema=schema)
        assert f"`{keyword}` at {place}" in found
        assert keyword != "pattern" or "look-ahead `(?=`" in found


@pytest.mark.parametrize(
    ("regex", "said"),
    [
        (r"\0", r"octal escape; `\x00` is NUL, and others are written likewise, at character 1: `\0`"),
        ("[z-a]", "range whose first character comes after its last at character 2: `z-a`"),
        (r"\x{D800}", "number of no character at character 4: `D800`"),
        ("a(?i", "group that is not closed at the end"),
    ],
)
def test_a_regex_that_cannot_be_read_is_told_in_our_words(regex: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        check(Constraint(regex=regex))
    assert str(raised.value) == f"constraint.regex: {said}"


def test_a_number_that_makes_too_large_an_expression_is_no_patterns_fault() -> None:
    with pytest.raises(InvalidRequest, match="`minimum` or `maximum`"):
        check(Constraint(json_schema={"type": "number", "minimum": 1e-320}))
