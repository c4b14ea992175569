"""What the YAML loader reads, and what it refuses in one message with file, line and key."""

from __future__ import annotations

import datetime
import math
import pickle
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, model_validator

from hardware_profiles.errors import InputError
from hardware_profiles.strict_yaml import Document, load_model, load_yaml, parse_yaml

CASES = Path(__file__).parent / "cases"


TEN_MILLION_ALIASES = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in pairwise("abcdefg")
)


def parse(text: str) -> Document:
    return parse_yaml(text, Path("some.yaml"))


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse(text)
    return str(caught.value)


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MeanCv(Strict):
    mean: float = Field(gt=0)
    cv: float = Field(ge=0)


class Uniform(Strict):
    uniform: tuple[int, int]


class Slo(Strict):
    ttft_ms: float | None = Field(default=None, gt=0, examples=[500])
    tpot_ms: float | None = Field(default=None, gt=0)


class Workload(Strict):
    isl: int | MeanCv | Uniform
    osl: int = Field(gt=0)
    slo: Slo = Slo()


class Study(Strict):
    name: str
    hardware: tuple[str, ...] = Field(min_length=1)
    workloads: dict[str, Workload] = {}
    routing: Literal["round_robin", "least_outstanding"] = "least_outstanding"
    price: Decimal | None = None
    as_of: datetime.date | None = None

    @model_validator(mode="after")
    def _names_are_short(self) -> Study:
        if len(self.name) > 20:
            raise ValueError(f"name has {len(self.name)} letters; use at most 20")
        return self


def study(text: str) -> Study:
    return load_model(parse(text), Study, what="a study")


def study_refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        study(text)
    return str(caught.value)


# --- scalars ---------------------------------------------------------------------------------------------------------


def test_unquoted_times_and_ratios_stay_text() -> None:
    """Case H01, https://github.com/yaml/pyyaml/issues/272: YAML 1.1 reads 22:00 as 1320 and 1:2 as 62."""
    data = load_yaml(CASES / "H01.yaml").data
    assert data["workloads"] == {
        "batch": {"batch": {"requests": 2_000_000, "within_hours": 8, "starts": "22:00"}, "isl": 512, "osl": 4}
    }
    assert data["search"] == {"disaggregation": ["none", {"prefill_to_decode": ["1:1", "1:2", "1:3"]}]}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("09:30", "09:30"),
        ("1:2:3", "1:2:3"),
        ("yes", "yes"),
        ("No", "No"),
        ("on", "on"),
        ("OFF", "OFF"),
        ("2027-01", "2027-01"),
        ("2026-12-01", "2026-12-01"),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("0b11", "0b11"),
        ("2_000_000", 2_000_000),
        ("2__0", "2__0"),
        ("_1", "_1"),
        ("1_000.5", "1_000.5"),
        ("+7", 7),
        ("-7", -7),
        ("1e3", 1000.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("~", None),
        ("", None),
        ("null", None),
        ("nULL", "nULL"),
        ("TRUE", True),
        ("tRUE", "tRUE"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("=", "="),
        ("1.2.3", "1.2.3"),
        ("nan", "nan"),
        ("!!str 5", "5"),
        ("!!float 5", 5.0),
    ],
)
def test_a_scalar_is_read_as_yaml_1_2_says(written: str, value: object) -> None:
    read = parse(f"key: {written}\n").data["key"]
    assert read == value
    assert type(read) is type(value)


def test_not_a_number_is_read_as_one_so_that_the_checks_can_name_it() -> None:
    assert math.isnan(float(str(parse("key: .nan\n").data["key"])))


def test_keys_are_text_as_written() -> None:
    assert parse("1: a\n0x1: b\ntrue: c\n<<: d\n").data == {"1": "a", "0x1": "b", "true": "c", "<<": "d"}


@settings(max_examples=60, deadline=None)
@given(st.integers(min_value=-(10**30), max_value=10**30))
def test_any_integer_survives(number: int) -> None:
    assert parse(f"a: {number}\nb: {number:_}\n").data == {"a": number, "b": number}


@settings(max_examples=60, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_finite_float_survives(number: float) -> None:
    assert parse(f"a: {number!r}\n").data["a"] == number


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=40))
def test_whatever_the_text_the_answer_is_a_document_or_an_input_error(text: str) -> None:
    try:
        parse(text)
    except InputError as error:
        assert str(error).startswith("some.yaml")


# --- duplicate keys, tabs, encodings ---------------------------------------------------------------------------------


def test_a_key_written_twice_is_refused_with_its_path_and_both_lines() -> None:
    """Case H03, https://github.com/yaml/pyyaml/issues/165: the last one would win and half the fleet be lost."""
    with pytest.raises(InputError) as caught:
        load_yaml(CASES / "H03.yaml")
    assert "duplicate key workloads.chat, lines 5 and 9" in str(caught.value)
    assert caught.value.line == 9


def test_without_the_duplicate_the_mark_and_crlf_of_that_file_are_harmless(tmp_path: Path) -> None:
    raw = (CASES / "H03.yaml").read_bytes()
    assert raw.startswith(b"\xef\xbb\xbf") and b"\r\n" in raw
    path = tmp_path / "once.yaml"
    path.write_bytes(raw.replace(b"  chat:", b"  other:", 1))
    document = load_yaml(path)
    assert list(document.data) == ["name", "model", "hardware", "workloads"]
    assert document.data["name"] == "twice"
    assert document.line(("workloads", "chat", "slo", "tpot_ms")) == 13


def test_a_tab_is_named_with_its_line() -> None:
    """Case H03-tab."""
    with pytest.raises(InputError) as caught:
        load_yaml(CASES / "H03-tab.yaml")
    assert caught.value.line == 6
    assert "tab" in str(caught.value)


def test_three_equal_keys_are_all_listed_and_keys_in_different_mappings_are_not_equal() -> None:
    assert "duplicate key a.b, lines 2, 3 and 4" in refusal("a:\n  b: 1\n  b: 2\n  'b': 3\n")
    assert parse("a: {x: 1}\nb: {x: 1}\n").data == {"a": {"x": 1}, "b": {"x": 1}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("# only a comment\n", "empty"),
        ("- a\n- b\n", "holds a list"),
        ("just text\n", "single value"),
        ("a: [1, 2\n", "begun in line 1"),
        ("a: b: c\n", "some.yaml:1: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "single document"),
        ("? [1, 2]\n: 3\n", "a key must be plain text"),
        ("a: !!python/object/apply:os.system [ls]\n", "tag"),
        ("a: !!int word\n", "'word' with the tag !!int"),
        ("a: \x07\n", "U+0007"),
        ("a: &x [*x]\n", "an alias (*name) stands inside the value it names"),
        ("a: " + "[" * 200 + "]" * 200, "nested more than 100 levels"),
        ("a: " + "[" * 20_000, "nested too deeply"),
        ("a: " + "9" * 5000, "5000 digits"),
        (TEN_MILLION_ALIASES, "aliases (*name) multiply"),
    ],
)
def test_what_cannot_be_read_is_one_clear_message(text: str, words: str) -> None:
    message = refusal(text)
    assert words in message
    assert message.startswith("some.yaml")


def test_files_that_cannot_be_read_are_input_errors(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none.yaml", "no such file"), (tmp_path, "folder")):
        with pytest.raises(InputError, match=words):
            load_yaml(path)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(InputError, match="not UTF-8") as caught:
        load_yaml(latin)
    assert caught.value.line == 2


def test_the_line_of_a_missing_key_is_that_of_its_nearest_parent() -> None:
    document = parse("a:\n  b:\n    - 1\n    - {c: 2}\n")
    assert document.line(("a",)) == 1
    assert document.line(("a", "b", 1, "c")) == 4
    assert document.line(("a", "b", 7)) == 2
    assert document.line(("a", "z", "y")) == 1
    assert document.line(("z",)) is None
    assert document.line(()) is None


# --- checks against a model ------------------------------------------------------------------------------------------


def test_a_good_file_becomes_its_model_with_tuples_dates_and_decimals() -> None:
    good = study(
        "name: x\nhardware: [mi355x]\nprice: '2.59'\nas_of: 2026-12-01\n"
        "workloads: {chat: {isl: {mean: 256, cv: 0.6}, osl: 4, slo: {ttft_ms: 1_000}}}\n"
    )
    assert good.hardware == ("mi355x",)
    assert good.price == Decimal("2.59")
    assert good.as_of == datetime.date(2026, 12, 1)
    assert good.workloads["chat"] == Workload(isl=MeanCv(mean=256, cv=0.6), osl=4, slo=Slo(ttft_ms=1000))


def test_a_decimal_without_quotes_is_not_a_binary_fraction() -> None:
    assert study("name: x\nhardware: [a]\nprice: 2.59\n").price == Decimal("2.59")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{ttft_msec: 5}", ".ttft_msec: unknown key `ttft_msec`; did you mean `ttft_ms`?"),
        ("{ttft_ms: 0}", ".ttft_ms: 0 is not allowed; it must be greater than 0, e.g. ttft_ms: 500"),
        ("{ttft_ms: .nan}", ".ttft_ms: nan is not allowed; write a finite number"),
        ("{ttft_ms: 1e999}", ".ttft_ms: inf is not allowed; write a finite number"),
        ("{ttft_ms: 22:00}", ".ttft_ms: '22:00' is not allowed; it must be a number without quotes, e.g. ttft_ms: 500"),
        ("5", ": 5 is not allowed; it must be a mapping of keys"),
    ],
)
def test_a_mistake_is_told_with_file_line_key_value_rule_and_cure(text: str, message: str) -> None:
    told = study_refusal(f"name: x\nhardware: [a]\nworkloads:\n  chat: {{isl: 1, osl: 1,\n\n    slo: {text}}}\n")
    assert told == f"some.yaml:6: workloads.chat.slo{message}"


@pytest.mark.parametrize(
    ("isl", "osl", "key", "words"),
    [
        ("'512'", "1", "isl", "'512' is not allowed; it must be a whole number without quotes or a mapping of keys"),
        ("true", "1", "isl", "true is not allowed"),
        ("512.0", "1", "isl", "512.0 is not allowed; it must be a whole number"),
        ("1", "true", "osl", "true is not allowed; it must be a whole number"),
        ("1", "-3", "osl", "-3 is not allowed; it must be greater than 0"),
        ("1", "", "osl", "an empty value is not allowed"),
        ("{mean: 5, cvv: 1}", "1", "isl.cvv", "unknown key `cvv`; did you mean `cv`?"),
        ("{mean: 5}", "1", "isl.cv", "missing; `workloads.chat.isl` needs `cv`"),
        ("{uniform: [1, b]}", "1", "isl.uniform[1]", "'b' is not allowed; it must be a whole number"),
    ],
)
def test_of_a_choice_of_shapes_the_one_the_user_meant_is_reported(isl: str, osl: str, key: str, words: str) -> None:
    text = f"name: x\nhardware: [a]\nworkloads:\n  chat:\n    isl: {isl}\n    osl: {osl}\n"
    first = study_refusal(text).splitlines()[0]
    assert f": workloads.chat.{key}: {words}" in first


def test_all_mistakes_come_in_one_message_in_the_order_of_the_file() -> None:
    message = study_refusal("hardware: []\nextra: 1\nrouting: least_outstandin\nname: 7\nas_of: 2026-13-01\n")
    lines = message.splitlines()
    assert lines[0] == "some.yaml:1: hardware: [] is too short; at least 1 entry is needed"
    assert lines[1] == "and 4 more problems:"
    assert [line.split(":")[1].strip() for line in lines[2:]] == ["extra", "routing", "name", "as_of"]
    assert "did you mean `least_outstanding`?" in message
    assert "7 is not allowed; it must be text; put it in quotes" in message
    assert "it must be a date as YYYY-MM-DD" in message


def test_a_bad_item_does_not_also_make_its_list_too_short() -> None:
    message = study_refusal("name: x\nhardware: [1]\n")
    assert "hardware[0]" in message
    assert "too short" not in message


def test_a_missing_top_level_key_names_the_kind_of_file() -> None:
    assert study_refusal("name: x\n") == "some.yaml: hardware: missing; a study needs `hardware`"


def test_a_rule_of_the_model_itself_keeps_its_own_words() -> None:
    assert study_refusal(f"name: {'x' * 30}\nhardware: [a]\n") == "some.yaml: name has 30 letters; use at most 20"


def test_an_unknown_key_far_from_all_others_lists_them() -> None:
    message = study_refusal("name: x\nhardware: [a]\nqqq: 1\n")
    assert "unknown key `qqq`; remove it, or use one of: name, hardware, workloads" in message


def test_an_input_error_keeps_its_place_between_processes() -> None:
    error = pickle.loads(pickle.dumps(InputError("bad", file="a.yaml", line=3, key="b.c")))
    assert str(error) == "a.yaml:3: b.c: bad"
    assert str(InputError("bad")) == "bad"
    assert str(InputError("bad", key="b")) == "b: bad"
    assert str(InputError("bad", line=2)) == "line 2: bad"
