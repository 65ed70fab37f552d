"""Fields of a user's class: a msgspec Struct, a dataclass, a TypedDict or a pydantic model.

Rules
- A column has the name that the field has outside of Python: a Struct's `field(name=…)` or `rename`, a model's alias.
- The class must be complete and must take each field as an argument, because rows become objects by its constructor.
- pydantic is not imported here. A model is found by the module that its user has imported.
- A default has no effect: it is the constructor's, and a stored row has a value or null in each column.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, repeat
from operator import attrgetter, itemgetter, length_hint
from typing import Any, NamedTuple, NoReturn, NotRequired, Required, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from pyspark_ledger.ledger.errors import Refused

_VALUES = dict, list, tuple, set, frozenset, str, bytes, bytearray, int, float
_MODELS = 256  # models that are validated together, so few that Python's garbage collector does not walk them all

# Makes objects of a list of values for each field.
Build = Callable[[Sequence[list[Any]]], Iterator[Any]]


class ClassField(NamedTuple):
    """Field of a class: its column, how to get its value from an object, and its annotation."""

    column: str
    get: Callable[[Any], Any]
    annotation: Any


class ClassFields(NamedTuple):
    """Fields of a class in order, the function that makes its objects, and whether that runs code of the class."""

    fields: list[ClassField]
    build: Build
    runs_code: bool


class BuildFailure(Exception):
    """The constructor of a class refused the values of a row, counted from 0."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(row, reason)
        self.row = row
        self.reason = reason


def is_row_class(kind: object) -> bool:
    """Return whether objects of a class can be rows."""
    return isinstance(kind, type) and (
        issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or is_typeddict(kind) or _is_model(kind)
    )


def class_fields(kind: type) -> ClassFields:
    """Return the fields of a class. Raises Refused naming the class and the reason if it cannot be one of rows."""
    if getattr(kind, "__parameters__", ()):
        _refuse(kind, "is generic", "Use a class without type parameters")
    if issubclass(kind, _VALUES) and not is_typeddict(kind):
        _refuse(
            kind, "has values outside of its fields, as a subclass of a built-in class", "Leave out this base class"
        )
    try:
        found = _fields(kind)
    except (NameError, TypeError) as wrong:
        _refuse(kind, f"has annotations that cannot be resolved: {wrong}", "Define their types in the same module")
    if not found.fields:
        _refuse(kind, "has no fields", "Give it a field for each column")
    columns = [field.column for field in found.fields]
    if repeated := {name for name in columns if columns.count(name) > 1}:
        _refuse(kind, f"has two fields for the column {min(repeated)!r}", "Give each field its own name")
    return found


def _fields(kind: Any) -> ClassFields:
    if _is_model(kind):
        return _model(kind)
    if is_typeddict(kind):
        return _typed_dict(kind)
    if issubclass(kind, msgspec.Struct):
        names = [
            (field.name, field.encode_name, field.type)
            for field in msgspec.structs.fields(kind)  # resolves type parameters of bases, too
        ]
    else:
        hints = get_type_hints(kind, include_extras=True)
        names = [(field.name, field.name, hints[field.name]) for field in dataclasses.fields(kind)]
    fields = [ClassField(column, attrgetter(name), annotation) for name, column, annotation in names]
    return ClassFields(fields, _constructor(kind, [name for name, _, _ in names]), _runs_code(kind))


def _runs_code(kind: type) -> bool:
    """Return whether a Struct or dataclass may convert or refuse values when an object is made."""
    if hasattr(kind, "__post_init__") or hasattr(kind, "__pydantic_validator__"):
        return True
    # A class below a dataclass may have a constructor of its own.
    return not getattr(vars(kind).get("__dataclass_params__"), "init", issubclass(kind, msgspec.Struct))


def _constructor(kind: type, names: Sequence[str]) -> Build:
    """Return the function that calls the class for each row, with arguments by position if the class allows that."""
    try:
        parameters = inspect.signature(kind).parameters
    except ValueError as wrong:  # such as a name that is a keyword
        _refuse(kind, f"has a constructor without a signature: {wrong}", "Name the field otherwise, and its column so")
    other = {name for name in parameters if name not in names} | set(names) - set(parameters)
    if other:
        _refuse(
            kind, f"has a constructor that differs from its fields in {min(other)!r}", "Leave the constructor alone"
        )
    in_order = all(
        parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.name == name
        for parameter, name in zip(parameters.values(), names, strict=True)
    )
    make = kind if in_order else _by_keywords(kind, names)

    def build(columns: Sequence[list[Any]]) -> Iterator[Any]:
        first, end = iter(columns[0]), iter([None])
        try:
            # `filter` yields nothing, and takes from `end` only after the last row.
            yield from map(make, chain(first, filter(None, end)), *columns[1:])
        except Exception as wrong:  # the class may raise any error
            raise BuildFailure(len(columns[0]) - length_hint(first) - 1, f"{type(wrong).__name__}: {wrong}") from wrong
        if length_hint(end):
            raise BuildFailure(len(columns[0]) - length_hint(first) - 1, "StopIteration")

    return build


def _by_keywords(kind: type, names: Sequence[str]) -> Callable[..., Any]:
    """Return a function of positional arguments that calls a class with keywords. A dictionary takes twice as long."""
    numbered = [f"a{number}" for number in range(len(names))]
    keywords = ", ".join(f"{name}={argument}" for name, argument in zip(names, numbered, strict=True))
    made: Callable[..., Any] = eval(f"lambda {', '.join(numbered)}: kind({keywords})", {"kind": kind})  # noqa: S307 — the names are those of parameters
    return made


def _dictionaries(names: Sequence[str], columns: Sequence[list[Any]]) -> Iterator[dict[str, Any]]:
    return map(dict, map(zip, repeat(names), zip(*columns, strict=True)))


def _typed_dict(kind: Any) -> ClassFields:
    hints = get_type_hints(kind, include_extras=True)
    # Python 3.11 finds no `NotRequired` in an annotation that is text.
    optional = kind.__optional_keys__ | {name for name, hint in hints.items() if get_origin(hint) is NotRequired}
    if optional:
        _refuse(kind, f"need not have the key {min(optional)!r}", "Require each key; its value may be None")
    fields = [
        ClassField(name, itemgetter(name), get_args(hint)[0] if get_origin(hint) is Required else hint)
        for name, hint in hints.items()
    ]
    names = list(hints)
    return ClassFields(fields, lambda columns: _dictionaries(names, columns), runs_code=False)


def _is_model(kind: type) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(kind, pydantic.BaseModel)


def _model(kind: Any) -> ClassFields:
    """Return the fields of a pydantic model. Its validators run for each row that is read."""
    pydantic = sys.modules["pydantic"]
    if not hasattr(kind, "model_fields") or issubclass(kind, pydantic.RootModel):
        _refuse(kind, "is a model of pydantic 1 or a root model", "Use a BaseModel of pydantic 2")
    if kind.model_config.get("extra") == "allow":
        _refuse(kind, "allows extra fields, which have no column", "Forbid or ignore extra fields")
    if not kind.__pydantic_complete__:
        kind.model_rebuild()
    by_alias = kind.model_config.get("validate_by_alias", True)
    fields, names = [], []
    for name, field in kind.model_fields.items():
        column = field.alias or name
        if {field.validation_alias or name, field.serialization_alias or name} != {column}:
            _refuse(kind, f"has several aliases of the field {name!r}", "Give it one alias, for reading and writing")
        annotation = field.annotation
        for item in field.metadata:
            annotation = _annotated(annotation, item)
        fields.append(ClassField(column, attrgetter(name), annotation))
        names.append(column if by_alias else name)
    validate = pydantic.TypeAdapter(list[kind]).validate_python

    def build(columns: Sequence[list[Any]]) -> Iterator[Any]:
        rows = _dictionaries(names, columns)
        for start in range(0, len(columns[0]), _MODELS):
            try:
                models = validate(list(islice(rows, _MODELS)))
            except pydantic.ValidationError as wrong:
                first = wrong.errors(include_url=False, include_input=False)[0]
                path = ".".join(map(str, first["loc"][1:]))
                raise BuildFailure(start + int(first["loc"][0]), f"{path}: {first['msg']}") from wrong
            yield from models

    return ClassFields(fields, build, runs_code=True)


def _annotated(annotation: Any, item: Any) -> Any:
    from typing import Annotated

    return Annotated[annotation, item]


def _refuse(kind: type, why: str, hint: str) -> NoReturn:
    raise Refused(f"class {kind.__name__} {why}, so its objects cannot be rows", hint=hint)
