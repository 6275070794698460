"""Measures as values: `ndcg(gain=exp2,ideal=global)@5` is a hashable value whose text parses back.

The *kernel* half (gain, discount, ideal, cut-off) decides what is computed and stored per request. The *reading* half
(`aggregate`, `empty`) decides how stored sums become one number, so it can change without recomputing anything.
"""

from __future__ import annotations

import difflib
import importlib
import math
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from importlib.metadata import entry_points
from typing import Any, Literal
from urllib.parse import quote, unquote

Table = tuple[tuple[float, float], ...]
Gain = Literal["linear", "exp2"] | Table
Depth = int | Table | None
"""Of the items shown: the first k, those at the ranks of a table, each counting as the table says, or all."""
Discount = Literal["log2", "jarvelin", "reciprocal"]
Ideal = Literal["local", "recall", "global", "max"]
Aggregate = Literal["mean", "pooled"]
Empty = Literal["skip", "zero", "one"]
Unit = Literal["ratio", "gain", "position"]


LEAST_EXAMINATION = 0.01
"""Where people look less often, relative to rank 1, single clicks move a corrected measure: that is warned of."""

HIGHEST_GAIN = 1e100
"""Largest gain: sums over lists and requests, and their squares, cannot overflow."""


ALL_EMPTIES: tuple[Empty, ...] = ("skip", "zero", "one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A kind of measure.

    Attributes:
        option_names: the fields of `Measure` it takes, separated by blanks.
        score: (measure, `GradedRankings`) -> `Scores`.
        sql: (measure, `sql.RequestSums`) -> `sql.Formula`, or why a database cannot compute its sums.
        terms: (measure, rank, grade) of a request's items by rank -> (gain, weight), whose products add up.
        words: names of gain and weight, of the sum and of its divisor; empty where there is none.
        empty: value of a request without a defined one: by default skipped where nothing relevant makes it 0/0, and 0
            where the formula gives 0.
        list_length: when the number of items shown must be known.
        is_of_lists: depends only on what was served, not on labels, and is better when lower.
        is_weighted_by_rank: a database computes the weights of ranks deeper than a table.
        what: its row in the reference, if `title` does not say enough.
        is_over_pool: divides by the number of relevant items that exist.
    """

    name: str
    title: str
    unit: Unit
    option_names: str
    score: Callable[[Measure, Any], Any]
    sql: Callable[[Measure, Any], Any] | str
    terms: Callable[[Measure, Any, Any], tuple[Any, Any]]
    words: tuple[str, str, str, str]
    aggregate: Aggregate = "mean"
    empty: Empty = "zero"
    empties: tuple[Empty, ...] = ("skip", "zero")
    ideals: tuple[Ideal, ...] = ()
    list_length: Literal["never", "uncut", "always"] = "never"
    p: float | None = None
    needs_max_grade: bool = False
    is_of_lists: bool = False
    is_weighted_by_rank: bool = False
    is_over_pool: bool = False
    what: str = ""

    @property
    def options(self) -> frozenset[str]:
        return frozenset(self.option_names.split())


class _Registry(Mapping[str, Spec]):
    """Name -> kind of measure: those of `measures.kinds`, then those of entry points."""

    def __init__(self) -> None:
        self._known: dict[str, Spec] = {}
        self._is_loaded = False

    def add(self, spec: Spec) -> None:
        """Register a kind. Raises ValueError if its name is taken."""
        if self._known.setdefault(spec.name, spec) is not spec:
            raise ValueError(f"there are two measures called {spec.name}")

    def remove(self, name: str) -> None:
        del self._known[name]

    def _load(self) -> dict[str, Spec]:
        if not self._is_loaded:
            package = importlib.import_module(KINDS)
            for module in pkgutil.iter_modules(package.__path__):
                for value in vars(importlib.import_module(f"{KINDS}.{module.name}")).values():
                    if isinstance(value, Spec):
                        self.add(value)
            for entry in entry_points(group=ENTRY_POINTS):
                self.add(entry.load())
            self._is_loaded = True
        return self._known

    def __getitem__(self, name: str) -> Spec:
        return self._load()[name]

    def __iter__(self) -> Iterator[str]:
        """The names in alphabetical order."""
        return iter(sorted(self._load()))

    def __len__(self) -> int:
        return len(self._load())


KINDS = "monitor.measures.kinds"
ENTRY_POINTS = "rankmon.measures"
"""The entry point group by which other packages add a `Spec`."""

SPECS = _Registry()

_TEXT = re.compile(r"\s*(?P<name>[a-z_]+)\s*(?:\((?P<options>.*)\))?\s*(?:@\s*(?P<k>[^@]+?))?\s*", re.DOTALL)
_LIKE_ONE = re.compile(r"\s*(?P<name>[A-Za-z][A-Za-z_ -]*?)(?:\((?P<options>.*)\))?[\s@_-]*(?P<k>\d*)\s*", re.DOTALL)
_OF_SLICE = r"\[\s*(?P<dimension>[^=\[\]]+?)\s*=\s*(?P<of>[^\[\]]+?)\s*\]"
_OPTION = re.compile(rf"\s*(?P<key>\w+)\s*(?:{_OF_SLICE}\s*)?=\s*(?P<value>.*?)\s*", re.DOTALL)
_DISCOUNTS = ("log2", "jarvelin", "reciprocal")


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure. Build it with `parse`, which checks it and fills in the defaults.

    Attributes:
        name: key of `SPECS`.
        k: cut-off rank, 1 or more; None is the whole list.
        gain: `linear` (the grade), `exp2` (2^grade - 1), or pairs (grade, gain) sorted by grade.
        discount: of rank r from 1: `log2` 1/log2(r + 1) (Burges et al. 2005), `jarvelin` 1 up to rank 2 and then
            1/log2(r) (Jarvelin and Kekalainen 2002, base 2), `reciprocal` 1/r.
        ideal: source of the best possible list; see `kernels.score`.
        max_grade: highest possible grade; for `ideal=max` and `err`.
        rel: lowest relevant grade in binary measures; None is any grade above 0.
        p: persistence of `rbp`, between 0 and 1.
        examination: pairs (rank, chance that people look there, usually relative to rank 1), from rank 1 to k at least.
            In `dcg` a gain counts divided by its rank's, so that clicks stand for what people would have clicked had
            they looked everywhere (Joachims et al. 2017). Empty: 1 at each rank.
        by_slice: pairs ((dimension, value), table): the examination of a slice's requests, instead of that of all.
        aggregate: `mean` over requests, or `pooled` = sum of numerators / sum of denominators.
        empty: what a request without a defined value counts as.
    """

    name: str
    k: int | None = None
    gain: Gain = "linear"
    discount: Discount = "log2"
    ideal: Ideal = "recall"
    max_grade: float | None = None
    rel: float | None = None
    p: float | None = None
    examination: Table = ()
    by_slice: tuple[tuple[tuple[str, str], Table], ...] = ()
    aggregate: Aggregate = "mean"
    empty: Empty = "skip"

    @property
    def spec(self) -> Spec:
        return SPECS[self.name]

    @property
    def is_of_lists(self) -> bool:
        """Whether it depends only on what was served, not on labels: it is better when lower."""
        return self.spec.is_of_lists

    @property
    def is_corrected(self) -> bool:
        """Whether each click counts by how seldom people look at its rank; `coec` divides by expected clicks instead.

        >>> [parse(f"{name}(examination={{1:1}})@1").is_corrected for name in ("dcg", "snips", "coec")]
        [True, True, False]
        """
        return bool(self.examination) and "gain" in self.spec.options

    @property
    def dimension(self) -> str:
        """The dimension whose slices have an examination of their own; empty if none have."""
        return self.by_slice[0][0][0] if self.by_slice else ""

    @property
    def parts(self) -> tuple[Measure, ...]:
        """The measures that it is made of, with one examination each: that of all requests, and each of `by_slice`.

        >>> m = parse("dcg(examination={1:1,2:0.5},examination[device=mobile]={1:1,2:0.4})@2")
        >>> [str(part) for part in m.parts]
        ['dcg(examination={1:1,2:0.5})@2', 'dcg(examination={1:1,2:0.4})@2']
        """
        tables = (self.examination, *(table for _, table in self.by_slice))
        return tuple(replace(self, examination=table, by_slice=()) for table in tables) if self.by_slice else (self,)

    @property
    def is_better_lower(self) -> bool:
        """Whether a rise is for the worse.

        >>> [name for name in SPECS if parse(name if name != "err" else "err(max_grade=1)").is_better_lower]
        ['click_position', 'no_results']
        """
        return self.is_of_lists or self.spec.unit == "position"

    @property
    def tells_irrelevant(self) -> bool:
        """Whether its empty requests are those with nothing relevant.

        A share of what was shown is empty if nothing was shown, and one of lists never.

        >>> [parse(t).tells_irrelevant for t in ("ndcg@10", "precision@10", "ctr@10", "no_results")]
        [True, True, False, False]
        """
        return self.spec.list_length != "always" and not self.is_of_lists

    @property
    def kernel(self) -> Measure:
        """The stored half: this measure with a default reading.

        >>> str(parse("ndcg(aggregate=pooled,gain=exp2)@5").kernel)
        'ndcg(gain=exp2)@5'
        """
        return replace(self, aggregate=self.spec.aggregate, empty=self.default_empty)

    @property
    def default_empty(self) -> Empty:
        """What an empty request counts as by default. With `ideal=max` the formula gives 0, not 0/0."""
        return "zero" if self.ideal == "max" else self.spec.empty

    @property
    def leaves_out_empty(self) -> bool:
        """Whether requests without anything relevant do not move it: it can fall as more of them have something.

        >>> [parse(t).leaves_out_empty for t in ("ndcg@10", "ndcg(empty=zero)@10", "recall(aggregate=pooled)", "ctr@9")]
        [True, False, True, False]
        """
        skips = self.spec.empty if self.aggregate == "pooled" else self.empty
        return skips == "skip" and self.spec.list_length != "always"

    @property
    def is_sparse(self) -> bool:
        """Whether items of grade 0 add nothing, so that only relevant rows need to be read."""
        return not isinstance(self.gain, tuple) or dict(self.gain).get(0.0, 0.0) == 0.0

    @property
    def highest_grade(self) -> float:
        """The highest grade that can be scored: `max_grade`, or the one whose gain is `HIGHEST_GAIN`.

        >>> parse("ndcg@10").highest_grade, parse("ndcg(gain=exp2)@10").highest_grade
        (1e+100, 332.0)
        """
        return _limit(self.gain) if self.max_grade is None else self.max_grade

    @property
    def list_lengths(self) -> tuple[Depth, ...]:
        """What must be known of the items shown, relevant or not.

        >>> [parse(t).list_lengths for t in ("ctr@10", "precision@10", "precision", "ndcg@10")]
        [(10,), (), (None,), ()]
        >>> parse("coec(examination={1:0.5,2:0.25,3:0.25,4:0.25})@3").list_lengths
        (((1.0, 0.5), (2.0, 0.25)), ((3.0, 0.25),))
        """
        if self.spec.list_length == "never" or (self.spec.list_length == "uncut" and self.k is not None):
            return ()
        if self.by_slice:
            return tuple(dict.fromkeys(depth for part in self.parts for depth in part.list_lengths))
        if not self.examination:
            return (self.k,)
        parts: list[dict[float, float]] = []  # by value, which a database adds up where they differ
        for rank, looks in self.examination[: self.k]:
            free = next((part for part in parts if looks not in part), None)
            if free is None:
                parts.append(free := {})
            free[looks] = rank
        return tuple(tuple((rank, looks) for looks, rank in part.items()) for part in parts)

    def __str__(self) -> str:
        """Canonical text, which `parse` turns back into the same value."""
        given = {name: getattr(self, name) for name in self._written()}
        given |= {f"examination[{'='.join(map(_quoted, key))}]": table for key, table in self.by_slice}
        options = ",".join(f"{name}={_show(value)}" for name, value in given.items())
        return self.name + (f"({options})" if options else "") + ("" if self.k is None else f"@{self.k}")

    def _written(self) -> list[str]:
        defaults = replace(_defaults(self.name), empty=self.default_empty)
        names = [f.name for f in fields(self) if f.name not in ("name", "k")]
        return [n for n in names if n in self.spec.options and getattr(self, n) != getattr(defaults, n)]


def parse(text: str, max_grade: float | None = None, empty: Empty | None = None) -> Measure:
    """The measure that `text` names.

    Args:
        text: e.g. `ndcg@10`, `ndcg(gain={0:0,1:1,2:3},ideal=max,max_grade=2)@5`, `rbp(p=.8)`, `mrr`.
        max_grade: the label recipe's highest grade, for a measure that needs one and names none.
        empty: what an empty request counts as if the text does not say; ignored, like None, where the measure has no
            such reading, so that its own default holds.

    Raises:
        ValueError: unknown name or option, a value out of range, or contradicting options; the message says what would
            be right.

    >>> parse("ndcg( ideal=global , gain=exp2 )@5")
    Measure(name='ndcg', k=5, gain='exp2', discount='log2', ideal='global', max_grade=None, rel=None, \
p=None, examination=(), by_slice=(), aggregate='mean', empty='skip')
    >>> str(parse("rbp(p=.5)"))
    'rbp(p=0.5)'
    """
    match = _TEXT.fullmatch(text)
    if match is None or match["name"] not in SPECS:
        raise ValueError(f"{text!r} is not a measure; {_meant(text)}")
    name = match["name"]
    options = _options(name, match["options"] or "", text)
    measure = replace(_defaults(name), k=_cutoff(match["k"], text), **options)  # type: ignore[arg-type]
    if "empty" in options and measure.aggregate == "pooled":
        raise ValueError(f"{text!r}: empty has no effect with aggregate=pooled, which adds up all requests; remove it")
    if "empty" not in options:
        is_read_so = empty in measure.spec.empties and measure.aggregate == "mean"
        measure = replace(measure, empty=empty if empty is not None and is_read_so else measure.default_empty)
    if measure.max_grade is None and (measure.ideal == "max" or measure.spec.needs_max_grade):
        measure = replace(measure, max_grade=max_grade)
    _check(measure, text)
    return measure


def _meant(text: str) -> str:
    match = _LIKE_ONE.fullmatch(text)
    if match is None or ("@" in text and not match["k"]):
        return _known()
    known = difflib.get_close_matches(match["name"].strip("_- ").replace("-", "_").lower(), SPECS, 1)
    options = f"({match['options']})" if match["options"] else ""
    for meant in [f"{name}{options}{match['k'] and '@'}{match['k']}" for name in known]:
        with suppress(ValueError):
            return f"did you mean {str(parse(meant))!r}?"
    return _known()


def _known() -> str:
    return f"known are {', '.join(SPECS)}, e.g. ndcg@10"


def _defaults(name: str) -> Measure:
    spec = SPECS[name]
    return Measure(name, p=spec.p, aggregate=spec.aggregate, empty=spec.empty)


def _cutoff(text: str | None, whole: str) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise ValueError(f"{whole!r}: the cut-off must be a whole number from 1 to 999999, not {text!r}")
    return int(text)


def _options(name: str, text: str, whole: str) -> dict[str, object]:
    """Field -> value. A key such as `examination[device=mobile]` is of one slice, and goes to `by_slice`."""
    found: dict[tuple[str, ...], Any] = {}
    outside_braces = r",(?![^{]*\})"
    for part in re.split(outside_braces, text) if text.strip() else []:
        match = _OPTION.fullmatch(part)
        key = tuple(map(unquote, filter(None, match.group("key", "dimension", "of")))) if match else ("",)
        if match is None or key[0] not in SPECS[name].options or (key[1:] and key[0] != "examination"):
            known = ", ".join(sorted(SPECS[name].options))
            raise ValueError(f"{whole!r}: {part.strip()!r} is not an option of {name}; it has {known}")
        if key in found:
            raise ValueError(f"{whole!r}: {part[: match.start('value')].strip(' =')} is given twice")
        found[key] = _value(name, key[0], match["value"], whole)
    by_slice = tuple(sorted((key[1:], table) for key, table in found.items() if key[1:]))
    return {key[0]: value for key, value in found.items() if not key[1:]} | ({"by_slice": by_slice} if by_slice else {})


def _value(name: str, key: str, value: str, whole: str) -> object:
    choices: dict[str, tuple[str, ...]] = {
        "discount": _DISCOUNTS,
        "ideal": SPECS[name].ideals,
        "aggregate": ("mean", "pooled"),
        "empty": SPECS[name].empties,
    }
    if key == "gain":
        return value if value in ("linear", "exp2") else _table(value, f"{whole!r}: gain", "linear, exp2 or a table")
    if key == "examination":
        return _table(value, f"{whole!r}: examination", "a table")
    if key in choices:
        if value not in choices[key]:
            raise ValueError(f"{whole!r}: {key} must be one of {', '.join(choices[key])}, not {value!r}")
        return value
    return _number(value, f"{whole!r}: {key}")


def _table(value: str, what: str, kind: str) -> Table:
    if not (value.startswith("{") and value.endswith("}")):
        raise ValueError(f"{what} must be {kind} like {{0:0,1:1,2:3}}, not {value!r}")
    table: dict[float, float] = {}
    for pair in value[1:-1].split(","):
        key, colon, number = pair.partition(":")
        if not colon:
            raise ValueError(f"{what}: {pair!r} in its table has no colon")
        at = _number(key, what)
        if at in table:
            raise ValueError(f"{what}: {_show(at)} is given twice in its table")
        table[at] = _number(number, what)
    return tuple(sorted(table.items()))


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{what} must be a number, not {text.strip()!r}")
    return value


def _limit(gain: Gain) -> float:
    return float(math.floor(math.log2(HIGHEST_GAIN))) if gain == "exp2" else HIGHEST_GAIN


def _check(m: Measure, text: str) -> None:
    def refuse(why: str) -> None:
        raise ValueError(f"{text!r}: {why}")

    if m.spec.needs_max_grade and m.max_grade is None:
        refuse(f"{m.name} needs the highest possible grade, e.g. {m.name}(max_grade=4)@20")
    if m.is_of_lists and m.k is not None:
        refuse(f"{m.name} covers whole lists; remove @{m.k}")
    if m.ideal == "max" and m.max_grade is None:
        refuse("ideal=max needs the highest possible grade, e.g. ndcg(ideal=max,max_grade=3)@10")
    if m.ideal == "max" and m.k is None:
        refuse("ideal=max needs a cut-off, e.g. @10")
    if "max" in m.spec.ideals and m.max_grade is not None and m.ideal != "max":
        refuse("max_grade goes with ideal=max")
    if m.max_grade is not None and not 0 < m.max_grade <= _limit(m.gain):
        refuse(f"max_grade must be above 0 and at most {_limit(m.gain):g}")
    if m.rel is not None and m.rel <= 0:
        refuse("rel must be above 0: a grade of 0 is not relevant")
    if m.p is not None and not 0 < m.p < 1:
        refuse("p must be between 0 and 1")
    if m.by_slice and not m.examination:
        refuse("the examination of all requests is missing; slices without their own use it")
    if len({dimension for (dimension, _), _ in m.by_slice}) > 1:
        refuse("examination can differ between the values of one slice only")
    for part in m.parts if m.examination else ():
        ranks, chances = zip(*part.examination, strict=True)
        if m.k is None:
            refuse("examination needs a cut-off, e.g. @10")
        if list(ranks) != list(range(1, len(ranks) + 1)) or len(ranks) < (m.k or 0):
            refuse(f"examination must have each rank from 1 to {m.k}")
        if not 1 / HIGHEST_GAIN <= min(chances) <= max(chances) <= HIGHEST_GAIN:
            refuse("examination must be above 0 at each rank; cut the measure off above such a rank")
    if isinstance(m.gain, tuple):
        gains = [gain for _, gain in m.gain]
        if m.gain[0][0] < 0:
            refuse("grades in the gain table must be 0 or more")
        if min(gains) < 0 or max(gains) > HIGHEST_GAIN or gains != sorted(gains):
            refuse(f"gains must be between 0 and {HIGHEST_GAIN:g} and must not decrease with the grade")
        if m.ideal == "max" and m.max_grade not in dict(m.gain):
            refuse("the gain table must include max_grade")


def _quoted(text: str) -> str:
    """A dimension or its value with what would end it, or get lost, as %2C.

    >>> m = replace(parse("dcg(examination={1:1})@1"), by_slice=((("d", " 5%, or [a]"), ((1.0, 1.0),)),))
    >>> str(m), parse(str(m)) == m
    ('dcg(examination={1:1},examination[d=%205%25%2C or %5Ba%5D]={1:1})@1', True)
    """
    return re.sub(r"^\s|\s$|[][{}=,%]", lambda one: quote(one[0], safe=""), text)


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return "{" + ",".join(f"{_show(g)}:{_show(v)}" for g, v in value) + "}"
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value)
