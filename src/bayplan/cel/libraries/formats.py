"""The named formats of the API server: `format.dns1123Label().validate(text)`."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date

from bayplan.cel.types.declarations import Overload, function, method
from bayplan.cel.types.types import FORMAT, STRING, list_of, optional_of
from bayplan.cel.values.urls import parse_request_uri
from bayplan.cel.values.values import NONE, NamedFormat, OptionalValue

Validator = Callable[[str], list[str]]

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_KEY = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LOWERCASE = "lower case alphanumeric characters"
_ENDS = "and must start and end with an alphanumeric character"
_LABEL_TEXT = f"a lowercase RFC 1123 label must consist of {_LOWERCASE} or '-', {_ENDS}"
_SUBDOMAIN_TEXT = f"a lowercase RFC 1123 subdomain must consist of {_LOWERCASE}, '-' or '.', {_ENDS}"
_LABEL_1035_TEXT = (
    f"a DNS-1035 label must consist of {_LOWERCASE} or '-', start with an alphabetic character, "
    "and end with an alphanumeric character"
)
_KEY_TEXT = f"must consist of alphanumeric characters, '-', '_' or '.', {_ENDS}"
_VALUE_TEXT = f"a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', {_ENDS}"
_UUID = "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"
_TIME = "^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$"
_BASE64 = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})"


def _is(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


def _regex_text(message: str, pattern: str, *examples: str) -> str:
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{message} (e.g. {shown}regex used for validation is '{pattern}')"


def _too_long(text: str, limit: int, unit: str = "characters") -> list[str]:
    return [f"must be no more than {limit} {unit}"] if len(text.encode()) > limit else []


def _dns1123_label(text: str) -> list[str]:
    problems = _too_long(text, 63)
    if not _is(_LABEL, text):
        dotted = _is(_SUBDOMAIN, text)
        problems.append("must not contain dots" if dotted else _regex_text(_LABEL_TEXT, _LABEL, "my-name", "123-abc"))
    return problems


def _dns1123_subdomain(text: str, unit: str = "characters") -> list[str]:
    problems = _too_long(text, 253, unit)
    if not _is(_SUBDOMAIN, text):
        problems.append(_regex_text(_SUBDOMAIN_TEXT, _SUBDOMAIN, "example.com"))
    return problems


def _dns1035_label(text: str) -> list[str]:
    problems = _too_long(text, 63)
    if not _is(_LABEL_1035, text):
        problems.append(_regex_text(_LABEL_1035_TEXT, _LABEL_1035, "my-name", "abc-123"))
    return problems


def _prefix(validate: Validator) -> Validator:
    """A prefix may end in a dash, since a name follows it."""

    def run(text: str) -> list[str]:
        return validate(text[:-2] + "a" if len(text) > 1 and text.endswith("-") else text)

    return run


def _qualified_name(text: str) -> list[str]:
    parts = text.split("/")
    key_text = _regex_text(_KEY_TEXT, _KEY, "MyName", "my.name", "123-abc")
    if len(parts) > 2:
        hint = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return [f"a valid label key {key_text} {hint}"]
    problems: list[str] = []
    if len(parts) == 2:
        found = _dns1123_subdomain(parts[0], "bytes") if parts[0] else ["must be non-empty"]
        problems += [f"prefix part {p}" for p in found]
    name = parts[-1]
    if not name:
        problems.append("name part must be non-empty")
    problems += [f"name part {p}" for p in _too_long(name, 63, "bytes")]
    if not _is(_KEY, name):
        problems.append(f"name part {key_text}")
    return problems


def _label_value(text: str) -> list[str]:
    problems = _too_long(text, 63, "bytes")
    if not _is(f"({_KEY})?", text):
        problems.append(_regex_text(_VALUE_TEXT, f"({_KEY})?", "MyValue", "my_value", "12345"))
    return problems


def _uri(text: str) -> list[str]:
    try:
        parse_request_uri(text)
    except ValueError as error:
        return [str(error)]
    return []


def _is_date(text: str) -> bool:
    if not re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", text, re.ASCII):
        return False
    year, month, day = (int(part) for part in text.split("-"))
    try:
        date(year or 2000, month, day)
    except ValueError:
        return False
    return True


def _is_datetime(text: str) -> bool:
    day, separator, rest = text.lower().partition("t")
    found = re.match(_TIME, rest.partition("t")[0]) if separator and _is_date(day) else None
    return found is not None and found[1] <= "23" and found[2] <= "59" and found[3] <= "59"


def _test(holds: Callable[[str], bool], problem: str) -> Validator:
    return lambda text: [] if holds(text) else [problem]


_FORMATS: dict[str, NamedFormat] = {
    "dns1123Label": NamedFormat("DNS1123Label", _dns1123_label, 30),
    "dns1123Subdomain": NamedFormat("DNS1123Subdomain", _dns1123_subdomain, 60),
    "dns1035Label": NamedFormat("DNS1035Label", _dns1035_label, 30),
    "qualifiedName": NamedFormat("QualifiedName", _qualified_name, 60),
    "dns1123LabelPrefix": NamedFormat("DNS1123LabelPrefix", _prefix(_dns1123_label), 30),
    "dns1123SubdomainPrefix": NamedFormat("DNS1123SubdomainPrefix", _prefix(_dns1123_subdomain), 60),
    "dns1035LabelPrefix": NamedFormat("DNS1035LabelPrefix", _prefix(_dns1035_label), 30),
    "labelValue": NamedFormat("LabelValue", _label_value, 40),
    "uri": NamedFormat("URI", _uri, 1103),
    "uuid": NamedFormat(
        "uuid", _test(lambda t: _is(_UUID[:4] + _UUID[5:-1], t), "does not match the UUID format"), len(_UUID)
    ),
    "byte": NamedFormat("byte", _test(lambda t: _is(_BASE64, t), "invalid base64"), 84),
    "date": NamedFormat("date", _test(_is_date, "invalid date"), len(_TIME)),
    "datetime": NamedFormat("datetime", _test(_is_datetime, "invalid datetime"), len(_TIME)),
}


def named_format(name: str) -> OptionalValue:
    found = _FORMATS.get(name)
    return NONE if found is None else OptionalValue(found)


def validate(form: NamedFormat, text: str) -> OptionalValue:
    problems = form.validate(text)
    return OptionalValue(tuple(problems)) if problems else NONE


def _constant(name: str, form: NamedFormat) -> Overload:
    return function(f"format.{name}", f"format.{name}", (), FORMAT, lambda: form)


OVERLOADS: list[Overload] = [
    *(_constant(name, form) for name, form in _FORMATS.items()),
    method("validate", "format-validate", (FORMAT, STRING), optional_of(list_of(STRING)), validate),
    function("format.named", "format-named", (STRING,), optional_of(FORMAT), named_format),
]
