"""How to declare a mapping of the configuration: once, as a frozen dataclass with its keys as fields.

`Annotated` says what a key takes and means. Code builds such a value like that of any dataclass; what is in a file
pydantic validates, and the JSON Schema and the reference are made of the same declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema

from monitor.fields import Text

Where = tuple[str | int, ...]


class Flat:
    """Marks a field with its own keys in the mapping itself."""


class FromFile:
    """Marks a field that a file may hold: `url_file` names one with the `url`."""


class Secret:
    """Marks a field whose values are never shown; one that a file may hold is secret too."""


class Derived:
    """Marks a field that the file may leave out, though it always has a value."""


def key(description: str, **more: Any) -> Any:
    """What is said of a key, for `Annotated`; a default that has a short text is added to it."""
    return Field(description=description, **more)


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a mapping: the kind of its values, what is said of it, and whether it must be there."""

    kind: Any
    info: FieldInfo = FieldInfo()  # noqa: RUF009  never changed
    marks: tuple[Any, ...] = ()
    is_required: bool = False


def keys_of(kind: Any) -> Mapping[str, Key]:
    """The keys of a section by their names in the file, or those that name one of several kinds; else none."""
    for mark in getattr(kind, "__metadata__", ()):
        if isinstance(mark, OneOf):
            return {name: Key(one) for name, one in mark.kinds().items()}
        if isinstance(mark, Converted):
            return keys_of(mark.kind)
    kind = bare(kind)
    is_section = isinstance(kind, type) and issubclass(kind, Section)
    return _keys(kind) if is_section else {}


@cache
def _keys(kind: Any) -> Mapping[str, Key]:
    found, hints = dict[str, Key](), get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        marks = getattr(hints[field.name], "__metadata__", ())
        info = next((m for m in reversed(marks) if isinstance(m, FieldInfo)), FieldInfo())
        is_required = field.default is MISSING and field.default_factory is MISSING
        found[info.alias or field.name] = Key(hints[field.name], info, marks, is_required)
    return dict(sorted(found.items(), key=lambda item: not item[1].is_required))


def written_keys(kind: Any) -> Mapping[str, Key]:
    """The keys as people write them: including those of flat fields, and the file keys of secrets."""
    found: dict[str, Key] = {}
    for name, key in keys_of(kind).items():
        if Flat in key.marks:
            found |= written_keys(key.kind)
        elif not name.startswith("("):
            found[name] = key
        if FromFile in key.marks:
            found[f"{name}_file"] = Key(str)
    return found


def bare(kind: Any) -> Any:
    """A type without its annotations, and without the None that stands for leaving it out."""
    while get_origin(kind) in (Annotated, Union, UnionType):
        kind = get_args(kind)[0]
    return kind


def fault(text: str, *where: str | int) -> InitErrorDetails:
    """A mistake at a place within what is being validated."""
    return InitErrorDetails(type=PydanticCustomError("own", "{text}", {"text": text}), loc=where, input=None)


def refuse(*faults: InitErrorDetails) -> None:
    """Raise the mistakes, if there are any."""
    if faults:
        raise ValidationError.from_exception_data("configuration", list(faults))


def unreadable(name: str, text: str) -> PydanticCustomError:
    """A file that the configuration names cannot be used; `{file}` in the text stands for it."""
    return PydanticCustomError("file", "{text}", {"name": name, "text": text})


def no_file(name: str) -> PydanticCustomError:
    """A file that the configuration names is not there."""
    hint = "" if name.startswith("/") else "; relative paths start at this configuration's folder"
    return unreadable(name, f"there is no file {{file}}{hint}")


class Section:
    """A mapping of known keys.

    Of JUST_ONE, one has to be there, and no second one. STANDS_FOR: a key that may be there instead of several others,
    and the values that it gives them.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", hide_input_in_errors=True)
    JUST_ONE: ClassVar[tuple[str, ...]] = ()
    STANDS_FOR: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        inner = {**handler(source)}
        inner.pop("ref", None)
        ref = f"{cls.__module__}.{cls.__qualname__}:{id(cls)}"
        schema = core_schema.with_info_wrap_validator_function(cls._validate, inner, ref=ref)
        # A reference with metadata is kept, so that the section gets a definition of its own in the JSON Schema.
        return core_schema.definitions_schema(
            core_schema.definition_reference_schema(ref, metadata={"section": True}), [schema]
        )

    @classmethod
    def _validate(cls, value: Any, handler: Any, info: Any) -> Any:
        if not isinstance(value, dict):
            return handler(value)
        given = _Given(cls, dict(value), info.context)
        try:
            made = handler(given.value)
        except ValidationError as error:
            given.take_over(error)
            made = None
        refuse(*given.faults)
        return made


class _Given:
    """What the file has for a section, as its fields take it, and what is wrong with it."""

    def __init__(self, kind: type[Section], value: dict[str, Any], files: Any) -> None:
        self.value, self.faults = value, list[InitErrorDetails]()
        self._places: dict[str, tuple[str, ...] | None] = {}
        self._files = files
        self._check_choice(kind.JUST_ONE)
        for name, others in kind.STANDS_FOR.items():
            self._stand_in(name, others)
        for name, key in keys_of(kind).items():
            if FromFile in key.marks:
                self._read(name, key.is_required)
            if Flat in key.marks:
                value[name] = {n: value.pop(n) for n in written_keys(key.kind) if n in value}
                self._places[name] = ()

    def _check_choice(self, names: tuple[str, ...]) -> None:
        given = [f"`{n}:`" for n in names if n in self.value]
        if len(given) > 1:
            self.faults.append(fault(f"has {' and '.join(given)}; keep just one of them"))
        elif names and not given:
            *others, last = (f"`{n}:`" for n in names)
            self.faults.append(fault(f"needs {', '.join(others)} or {last}"))

    def _stand_in(self, name: str, others: Mapping[str, Any]) -> None:
        """Give `others` their values if the key `name` stands for them."""
        given = [f"`{n}:`" for n in others if n in self.value]
        if name in self.value and given:
            *first, last = f"`{name}:`", *given
            self.faults.append(fault(f"has {', '.join(first)} and {last}; keep `{name}:` alone, or the others"))
        elif name not in self.value and not given:
            self.faults.append(fault(f"needs {' and '.join(f'`{n}:`' for n in others)}, or `{name}:` instead"))
        if name in self.value or not given:
            self.value |= others

    def _read(self, name: str, is_required: bool) -> None:
        """Replace a file key with the content of its file."""
        value, file = self.value, f"{name}_file"
        if is_required or (name in value and file in value):
            self._check_choice((name, file))
        self._places[name] = (name,) if name in value else (file,) if file in value else None
        if file not in value:
            return
        given, is_alone = value.pop(file), name not in value
        try:
            path = TypeAdapter(Text).validate_python(given)
            value |= {name: self._files.read(path)} if is_alone else {}
        except ValidationError as error:
            self._places[name] = None
            self.faults += _details(error, lambda _: (file,))
        except PydanticCustomError as error:
            self._places[name] = None
            self.faults.append(InitErrorDetails(type=error, loc=(file,), input=None))

    def take_over(self, error: ValidationError) -> None:
        """Record what was found wrong, at its places in the file."""
        is_refused = bool(self.faults)  # then what else is said of the whole would mislead
        self.faults += [d for d in _details(error, self._place) if d.get("loc") or not is_refused]

    def _place(self, where: Where) -> Where | None:
        place = self._places.get(str(where[0]), where[:1]) if where else ()
        return None if place is None else (*place, *where[1:])


def _details(error: ValidationError, place: Callable[[Where], Any]) -> list[InitErrorDetails]:
    return [
        InitErrorDetails(type=PydanticCustomError(e["type"], e["msg"], e.get("ctx")), loc=where, input=e["input"])
        for e in error.errors(include_url=False)
        if (where := place(e["loc"])) is not None
    ]


class Converted:
    """Says that the file gives a value as one of `kind`, of which `convert` makes what code is given."""

    def __init__(self, kind: Any, convert: Callable[[Any], Any]) -> None:
        self.kind, self._convert = kind, convert

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        schema = handler.generate_schema(self.kind)
        return core_schema.no_info_after_validator_function(self._convert, schema)


def _inner(name: str, value: Any) -> Any:
    return value[name] if isinstance(value, dict) else value


def _tag(kinds: Mapping[str, Any], value: Any) -> str:
    if isinstance(value, dict):
        return str(next((n for n in value if n not in kinds), next(iter(value))))
    return next(n for n, kind in kinds.items() if isinstance(value, bare(kind)))


class OneOf:
    """Says that a mapping has just one key of `kinds`, whose value is of that kind; the key itself is left out."""

    def __init__(self, kinds: Callable[[], Mapping[str, Any]]) -> None:
        self.kinds = kinds

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        kinds = self.kinds()
        choices: dict[Any, core_schema.CoreSchema] = {
            name: core_schema.no_info_before_validator_function(partial(_inner, name), handler.generate_schema(kind))
            for name, kind in kinds.items()
        }
        union = core_schema.tagged_union_schema(choices, discriminator=lambda value: _tag(kinds, value))
        return core_schema.no_info_before_validator_function(partial(self._check, kinds), union)

    def _check(self, kinds: Mapping[str, Any], value: Any) -> Any:
        if isinstance(value, tuple(bare(kind) for kind in kinds.values())):
            return value
        if not isinstance(value, dict):
            raise PydanticCustomError("dict_type", "must be a mapping")
        if not value:
            *others, last = (f"`{n}:`" for n in kinds)
            raise ValueError(f"needs {', '.join(others)} or {last}")
        if len(value) > 1 and not value.keys() - kinds.keys():
            given = " and ".join(f"`{n}:`" for n in kinds if n in value)
            raise ValueError(f"has {given}; keep just one of them")
        return value

    def __get_pydantic_json_schema__(self, core: core_schema.CoreSchema, handler: Any) -> dict[str, Any]:
        kinds, choices = self.kinds(), handler(core)
        found = choices.get("oneOf", [choices])
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                name: {**one, "description": (bare(kinds[name]).__doc__ or "").partition("\n")[0]}
                for name, one in zip(kinds, found, strict=True)
            },
            "oneOf": [{"required": [name]} for name in kinds],
        }
