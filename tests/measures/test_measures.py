"""Measures as text: canonical form, parsing, and refusals with a helpful message."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.measures.measure import SPECS, Measure, parse
from tests.support.examples import examples
from tests.support.oracle import measures

TABLE = "{0:0,1:1,2:3}"


@examples(400)
@given(measures())
def test_every_measure_parses_back_from_its_text(m: Measure) -> None:
    assert parse(str(m)) == m
    assert str(parse(str(m))) == str(m)
    assert hash(parse(str(m))) == hash(m)


NUMBERS = st.floats(1e-9, 1e20) | st.integers(1, 10**15).map(float)


@examples(100)
@given(NUMBERS, st.dictionaries(NUMBERS, NUMBERS, min_size=1, max_size=4), st.floats(1e-9, 1 - 1e-9))
def test_any_numbers_parse_back_from_their_text(number: float, table: dict[float, float], share: float) -> None:
    gain = tuple(zip(sorted(table), sorted(table.values()), strict=True))
    for m in (
        Measure("dcg", gain=gain, empty="zero"),
        Measure("mrr", rel=number, empty="zero"),
        Measure("err", 20, max_grade=number, empty="zero"),
        Measure("rbp", p=share, empty="zero"),
    ):
        assert parse(str(m)) == m


@pytest.mark.parametrize("name", SPECS)
def test_a_name_alone_is_a_measure(name: str) -> None:
    assert parse(name, max_grade=4).name == name


CANONICAL = [
    ("a cut-off", " ndcg @ 10 ", "ndcg@10"),
    ("no options", "ndcg()@10", "ndcg@10"),
    ("defaults are not written", "ndcg(gain=linear,discount=log2,ideal=recall,empty=skip)@10", "ndcg@10"),
    ("options in one order", "ndcg( ideal = global , gain = exp2 )@5", "ndcg(gain=exp2,ideal=global)@5"),
    ("a gain table by grade", "ndcg(gain={2:3, 0:0, 1:1.0})", f"ndcg(gain={TABLE})"),
    ("options behind a gain table", f"ndcg(gain={TABLE},ideal=local)", f"ndcg(gain={TABLE},ideal=local)"),
    ("whole numbers without a point", "err(max_grade=4.0)@20", "err(max_grade=4)@20"),
    ("a number without a leading zero", "rbp(p=.95)", "rbp(p=0.95)"),
    ("the usual persistence", "rbp(p=.8)", "rbp"),
    ("the reading", "ndcg(empty=zero,gain=exp2)@5", "ndcg(gain=exp2,empty=zero)@5"),
    ("of ideal=max the formula gives 0", "ndcg(ideal=max,max_grade=2,empty=zero)@5", "ndcg(ideal=max,max_grade=2)@5"),
    ("and may be skipped", "ndcg(ideal=max,max_grade=2,empty=skip)@5", "ndcg(ideal=max,max_grade=2,empty=skip)@5"),
    ("the default reading differs by measure", "mrr(empty=zero)", "mrr"),
    ("ctr is pooled unless told otherwise", "ctr(aggregate=mean)@3", "ctr(aggregate=mean)@3"),
]


@pytest.mark.parametrize(("text", "canonical"), [c[1:] for c in CANONICAL], ids=[c[0] for c in CANONICAL])
def test_one_measure_has_one_text(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical


def test_the_kernel_drops_only_the_reading() -> None:
    for reading in ("aggregate=pooled", "empty=one"):
        m = parse(f"ndcg({reading},discount=jarvelin,gain={TABLE},ideal=global)@7")
        assert str(m.kernel) == f"ndcg(gain={TABLE},discount=jarvelin,ideal=global)@7"
    assert parse("ndcg(ideal=max,max_grade=2,empty=one)@7").kernel == parse("ndcg(ideal=max,max_grade=2)@7")


@examples(100)
@given(measures(), st.sampled_from(["mean", "pooled"]), st.sampled_from(["skip", "zero"]))
def test_readings_of_one_kernel_share_it(m: Measure, aggregate: str, empty: str) -> None:
    assert replace(m, aggregate=aggregate, empty=empty).kernel == m.kernel == m.kernel.kernel  # type: ignore[arg-type]


def test_the_recipes_max_grade_fills_in_where_needed() -> None:
    assert str(parse("err@20", max_grade=4)) == "err(max_grade=4)@20"
    assert str(parse("ndcg(ideal=max)@5", max_grade=3)) == "ndcg(ideal=max,max_grade=3)@5"


def test_an_explicit_max_grade_overrides_the_recipes() -> None:
    assert parse("err(max_grade=2)@20", max_grade=4).max_grade == 2


def test_the_recipes_max_grade_is_omitted_where_it_has_no_effect() -> None:
    assert parse("ndcg@10", max_grade=4) == parse("ndcg@10")


def test_only_a_gain_for_grade_0_makes_a_measure_dense() -> None:
    assert not parse("ndcg(gain={0:0.5,1:1})").is_sparse
    for text in ("ndcg", "dcg(gain=exp2)", f"ndcg(gain={TABLE})", "ndcg(gain={1:1})", "ctr@3"):
        assert parse(text).is_sparse


KNOWN = f"known are {', '.join(sorted(SPECS))}, e.g. ndcg@10"
CUT = "the cut-off must be a whole number from 1 to 999999"
OF_NDCG = "is not an option of ndcg; it has aggregate, discount, empty, gain, ideal, max_grade"
LOOKS = "examination must be a table like {0:0,1:1,2:3}"
RARE = "examination must be above 0 at each rank; cut the measure off above such a rank"
GAIN = "gain must be linear, exp2 or a table like {0:0,1:1,2:3}"
FALL = "gains must be between 0 and 1e+100 and must not decrease with the grade"

WRONG = [
    ("nothing", "", f"'' is not a measure; {KNOWN}"),
    ("an unknown name", "auc@10", f"'auc@10' is not a measure; {KNOWN}"),
    ("a slip in a name", "ndgc@10", "'ndgc@10' is not a measure; did you mean 'ndcg@10'?"),
    ("a name in capitals", "nDCG@10", "'nDCG@10' is not a measure; did you mean 'ndcg@10'?"),
    ("a name without its @", "NDCG10", "'NDCG10' is not a measure; did you mean 'ndcg@10'?"),
    ("a name with a stroke", "Hit-Rate@5", "'Hit-Rate@5' is not a measure; did you mean 'hit_rate@5'?"),
    (
        "a slip and options",
        "NDCG(gain=exp2)@5",
        "'NDCG(gain=exp2)@5' is not a measure; did you mean 'ndcg(gain=exp2)@5'?",
    ),
    ("a slip and a wrong option", "NDCG(k=5)", f"'NDCG(k=5)' is not a measure; {KNOWN}"),
    ("an open bracket", "ndcg(gain=exp2@5", f"'ndcg(gain=exp2@5' is not a measure; {KNOWN}"),
    ("no cut-off after @", "ndcg@", f"'ndcg@' is not a measure; {KNOWN}"),
    ("a cut-off of 0", "ndcg@0", f"'ndcg@0': {CUT}, not '0'"),
    ("a broken cut-off", "mrr@1.5", f"'mrr@1.5': {CUT}, not '1.5'"),
    ("a cut-off that is too long", "mrr@1000000", f"'mrr@1000000': {CUT}, not '1000000'"),
    ("an unknown option", "ndcg(k=5)", f"'ndcg(k=5)': 'k=5' {OF_NDCG}"),
    ("an option of another measure", "ndcg(p=.5)", f"'ndcg(p=.5)': 'p=.5' {OF_NDCG}"),
    ("a word that is no option", "ndcg(exp2)", f"'ndcg(exp2)': 'exp2' {OF_NDCG}"),
    ("a comma too many", "ndcg(gain=exp2,)", f"'ndcg(gain=exp2,)': '' {OF_NDCG}"),
    ("a brace too many", "ndcg({gain=exp2)", f"'ndcg({{gain=exp2)': '{{gain=exp2' {OF_NDCG}"),
    ("an option twice", "mrr(rel=1,rel=2)", "'mrr(rel=1,rel=2)': rel is given twice"),
    (
        "an unknown ideal",
        "map(ideal=max)",
        "'map(ideal=max)': ideal must be one of local, recall, global, not 'max'",
    ),
    (
        "a discount by the wrong name",
        "dcg(discount=log)",
        "'dcg(discount=log)': discount must be one of log2, jarvelin, reciprocal, not 'log'",
    ),
    (
        "an empty policy that changes nothing",
        "ndcg(aggregate=pooled,empty=zero)@5",
        "'ndcg(aggregate=pooled,empty=zero)@5': empty has no effect with aggregate=pooled, which adds up all "
        "requests; remove it",
    ),
    (
        "an empty policy that the measure lacks",
        "mrr(empty=one)",
        "'mrr(empty=one)': empty must be one of skip, zero, not 'one'",
    ),
    ("an unknown gain", "cg(gain=exp)", f"'cg(gain=exp)': {GAIN}, not 'exp'"),
    ("an open gain table", "cg(gain={0:0)", f"'cg(gain={{0:0)': {GAIN}, not '{{0:0'"),
    ("an empty gain table", "cg(gain={})", "'cg(gain={})': gain: '' in its table has no colon"),
    ("a grade without gain", "cg(gain={0:0,1})", "'cg(gain={0:0,1})': gain: '1' in its table has no colon"),
    ("a grade in words", "cg(gain={good:1})", "'cg(gain={good:1})': gain must be a number, not 'good'"),
    ("a gain in words", "cg(gain={1:much})", "'cg(gain={1:much})': gain must be a number, not 'much'"),
    ("a grade twice", "cg(gain={1:1,1.0:2})", "'cg(gain={1:1,1.0:2})': gain: 1 is given twice in its table"),
    ("a grade below 0", "cg(gain={-1:0})", "'cg(gain={-1:0})': grades in the gain table must be 0 or more"),
    ("a gain below 0", "cg(gain={0:-1,1:1})", f"'cg(gain={{0:-1,1:1}})': {FALL}"),
    ("gains that fall", "cg(gain={1:4,2:2})", f"'cg(gain={{1:4,2:2}})': {FALL}"),
    ("a gain that overflows", "cg(gain={1:1e200})", f"'cg(gain={{1:1e200}})': {FALL}"),
    (
        "the examination of a slice alone",
        "dcg(examination[device=tv]={1:1})@1",
        "'dcg(examination[device=tv]={1:1})@1': the examination of all requests is missing; slices without "
        "their own use it",
    ),
    (
        "the examinations of two slices",
        "dcg(examination={1:1},examination[a=x]={1:1},examination[b=y]={1:1})@1",
        "'dcg(examination={1:1},examination[a=x]={1:1},examination[b=y]={1:1})@1': examination can differ between the "
        "values of one slice only",
    ),
    (
        "the examination of a slice twice",
        "dcg(examination={1:1},examination[a=x]={1:1},examination[a=x]={1:1})@1",
        "'dcg(examination={1:1},examination[a=x]={1:1},examination[a=x]={1:1})@1': examination[a=x] is given twice",
    ),
    (
        "a slice at which nobody looks",
        "dcg(examination={1:1},examination[a=x]={1:0})@1",
        f"'dcg(examination={{1:1}},examination[a=x]={{1:0}})@1': {RARE}",
    ),
    ("a gain by slice", "ndcg(gain[a=x]=exp2)", f"'ndcg(gain[a=x]=exp2)': 'gain[a=x]=exp2' {OF_NDCG}"),
    ("no table", "dcg(examination=steep)@2", f"'dcg(examination=steep)@2': {LOOKS}, not 'steep'"),
    ("a rank at which nobody looks", "dcg(examination={1:1,2:0})@2", f"'dcg(examination={{1:1,2:0}})@2': {RARE}"),
    (
        "weights that explode",
        "dcg(examination={1:1,2:1e-200})@2",
        f"'dcg(examination={{1:1,2:1e-200}})@2': {RARE}",
    ),
    (
        "a rank that is left out",
        "dcg(examination={1:1,3:.5})@2",
        "'dcg(examination={1:1,3:.5})@2': examination must have each rank from 1 to 2",
    ),
    (
        "a table that ends too early",
        "dcg(examination={1:1,2:.5})@3",
        "'dcg(examination={1:1,2:.5})@3': examination must have each rank from 1 to 3",
    ),
    (
        "examination without an end",
        "dcg(examination={1:1})",
        "'dcg(examination={1:1})': examination needs a cut-off, e.g. @10",
    ),
    ("a number in words", "mrr(rel=high)", "'mrr(rel=high)': rel must be a number, not 'high'"),
    ("no end of a number", "err(max_grade=inf)", "'err(max_grade=inf)': max_grade must be a number, not 'inf'"),
    ("a threshold of 0", "mrr(rel=0)", "'mrr(rel=0)': rel must be above 0: a grade of 0 is not relevant"),
    ("a persistence of 1", "rbp(p=1)", "'rbp(p=1)': p must be between 0 and 1"),
    (
        "ERR without its highest grade",
        "err@20",
        "'err@20': err needs the highest possible grade, e.g. err(max_grade=4)@20",
    ),
    (
        "a max ideal without its highest grade",
        "ndcg(ideal=max)@5",
        "'ndcg(ideal=max)@5': ideal=max needs the highest possible grade, e.g. ndcg(ideal=max,max_grade=3)@10",
    ),
    (
        "a max ideal without an end",
        "ndcg(ideal=max,max_grade=3)",
        "'ndcg(ideal=max,max_grade=3)': ideal=max needs a cut-off, e.g. @10",
    ),
    (
        "a highest grade that nothing uses",
        "ndcg(max_grade=3)@5",
        "'ndcg(max_grade=3)@5': max_grade goes with ideal=max",
    ),
    (
        "a highest grade of 0",
        "err(max_grade=0)@5",
        "'err(max_grade=0)@5': max_grade must be above 0 and at most 1e+100",
    ),
    (
        "a highest grade whose gain overflows",
        "ndcg(gain=exp2,ideal=max,max_grade=333)@5",
        "'ndcg(gain=exp2,ideal=max,max_grade=333)@5': max_grade must be above 0 and at most 332",
    ),
    (
        "a highest grade that the gain table lacks",
        f"ndcg(gain={TABLE},ideal=max,max_grade=3)@5",
        f"'ndcg(gain={TABLE},ideal=max,max_grade=3)@5': the gain table must include max_grade",
    ),
]


@pytest.mark.parametrize(("text", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_a_wrong_measure_is_refused_with_a_remedy(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["ndcg(gain={)@5", "ndcg((gain=exp2))", "ndcg(gain=exp2)@5)", "@5", "ndcg@5@10"])
def test_stray_punctuation_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)
