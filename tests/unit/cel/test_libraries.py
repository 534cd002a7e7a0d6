"""Strings, lists, sets, regular expressions, quantities, versions, addresses, URLs, formats and times."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Evaluate = Callable[[str], "bool | str"]

HOLDS = [
    # strings
    "'hello'.charAt(1) == 'e' && 'hello'.charAt(5) == ''",
    "'hello'.indexOf('l', 3) == 3 && 'hello'.lastIndexOf('l', 2) == 2 && 'hello'.indexOf('', 4) == 4",
    "'a,b,c'.split(',', 2) == ['a', 'b,c'] && 'abc'.split('', 2) == ['a', 'bc'] && 'abc'.split(',', 0) == []",
    "'hello'.replace('l', 'L', 1) == 'heLlo' && 'hello'.substring(1, 3) == 'el' && ' a\\u2003'.trim() == 'a'",
    "['a', 'b'].join('-') == 'a-b' && 'ÉA'.lowerAscii() == 'Éa' && strings.quote('a\"') == '\"a\\\\\"\"'",
    "'%s %d %.2f %x'.format(['a', 1, 1.5, 255]) == 'a 1 1.50 ff'",
    "'%s'.format([{'b': [1.5], 'a': 'x'}]) == '{\"a\":\"x\", \"b\":[1.500000]}'",
    "'%f'.format([1234567.5]) == '1,234,567.500000' && '%e'.format([1234.5]) == '1.234500×10⁰³'",
    # lists and sets
    "[3, 1, 2].sort() == [1, 2, 3] && [1, 2, 1].distinct() == [1, 2] && [1, 2].reverse() == [2, 1]",
    "[[1], [2, 3]].flatten() == [1, 2, 3] && [1, 2, 3].slice(1, 2) == [2] && lists.range(3) == [0, 1, 2]",
    "[1, 2].sum() == 3 && [1, 3].max() == 3 && ['b', 'a'].min() == 'a' && [1, 2].isSorted() && [1].indexOf(2) == -1",
    "[1].first().value() == 1 && ![].last().hasValue()",
    "sets.contains([1, 2], [2]) && sets.equivalent([1, 2], [2, 1, 1]) && !sets.intersects([1], [2])",
    "attr.model.includes('h100') && dyn([1, 2]).includes(2)",
    # conversions
    "string(1e6) == '1e+06' && string(123456.0) == '123456' && string(duration('90m')) == '5400s'",
    "int('-42') == -42 && uint(1.9) == 1u && double('.5') == 0.5 && bool('T') && bytes('é') == b'\\xc3\\xa9'",
    "uint(1e19) == 10000000000000000000u && uint(0.0) == 0u && int(9.2e18) == 9200000000000000000",
    "1e19 > 9000000000000000000u && dyn(1e19) == 10000000000000000000u && 2e19 > 18446744073709551615u && -0.5 < 0u",
    "{10000000000000000000u: 'a'}[dyn(1e19)] == 'a'",
    # regular expressions
    "'ab12'.find('[0-9]+') == '12' && 'a1b2'.findAll('[0-9]') == ['1', '2'] && 'a1b2'.findAll('[0-9]', 1) == ['1']",
    # quantities
    "device.capacity['gpu.example.com'].memory.compareTo(quantity('40960Mi')) == 0 && sign(quantity('-1')) == -1",
    "quantity('1').add(quantity('1')).sub(1).asInteger() == 1 && !quantity('100m').isInteger() && isQuantity('1Gi')",
    "quantity('1.5').asApproximateFloat() == 1.5",
    # versions
    "attr.firmware.isGreaterThan(semver('1.9.0')) && semver('1.0.0-a.1').isLessThan(semver('1.0.0-a.b'))",
    "semver('v1.02', true).minor() == 2 && !isSemver('v1.2.3') && semver('1.2.3+a') == semver('1.2.3+b')",
    # addresses
    "ip('::1').isLoopback() && ip('10.0.0.1').isGlobalUnicast() && ip.isCanonical('2001:db8::1')",
    "cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8')",
    "cidr('10.0.0.0/8').containsCIDR(cidr('10.1.0.0/16')) && string(cidr('10.1.2.3/8').ip()) == '10.1.2.3'",
    # URLs
    "url('https://u:p@h:80/a b?x=1&x=2').getEscapedPath() == '/a%20b' && url('http://[::1]:8/').getHostname() == '::1'",
    "url('https://h?x=1&x=a+b').getQuery() == {'x': ['1', 'a b']} && isURL('/a') && !isURL('a')",
    # formats
    "!format.dns1123Label().validate('ok').hasValue() && format.named('uuid').value() == format.uuid()",
    "format.dns1123Label().validate('a.b').value() == ['must not contain dots']",
    # times
    "timestamp('2020-02-29T23:30:00Z').getDate('+01:00') == 1 && timestamp(0).getDayOfWeek() == 4",
    "duration('1h') + timestamp(0) == timestamp(3600) && duration('3723s').getMinutes() == 62",
]


@pytest.mark.parametrize("expression", HOLDS)
def test_true_expressions(evaluate: Evaluate, expression: str) -> None:
    assert evaluate(expression) is True


FAILS = {
    "'abc'.charAt(4) == ''": "index out of range: 4",
    "'abc'.substring(2, 1) == ''": "invalid substring range. start: 2, end: 1",
    "[].max() == 1": "max called on empty list",
    "[1].slice(0, 2) == []": "cannot slice(0, 2), list is length 1",
    "[dyn(1), dyn('a')].sort() == []": "list elements must have the same type",
    "quantity('abc').isInteger()": (
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    ),
    "quantity('1.5').asInteger() == 1": "cannot convert value to integer",
    "semver('1.2').major() == 1": "No Major.Minor.Patch elements found",
    "ip('1.2.3').family() == 4": (
        'IP Address "1.2.3" parse error during conversion from string: ParseAddr("1.2.3"): IPv4 address too short'
    ),
    "ip('::ffff:1.2.3.4').family() == 6": 'IPv4-mapped IPv6 address "::ffff:1.2.3.4" is not allowed',
    "url('a').getHost() == ''": 'URL parse error during conversion from string: parse "a": invalid URI for request',
    "timestamp(0).getHours('Nowhere/X') == 0": "unknown time zone Nowhere/X",
    "timestamp('9999-12-31T23:59:59Z') + duration('1s') == timestamp(0)": "timestamp overflow",
    "'a'.matches(attr.model + '(')": "error parsing regexp: missing closing ): `h100(`",
    "('%' + 'z').format([1]) == ''": 'could not parse formatting clause: unrecognized formatting clause "z"',
    "{'a': 1, 'b': 1}.transformMapEntry(k, v, {v: k}) == {}": "insert failed: key 1 already exists",
}


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("uint(18446744073709551616.0) == 0u", "unsigned integer overflow"),
        ("uint(-1.0) == 0u", "unsigned integer overflow"),
        ("uint(-1) == 0u", "unsigned integer overflow"),
        ("int(9223372036854775808.0) == 0", "integer overflow"),
        ("int(9223372036854775808u) == 0", "integer overflow"),
    ],
)
def test_conversions_out_of_range_are_refused(evaluate: Evaluate, expression: str, text: str) -> None:
    assert evaluate(expression) == f"refused: program instantiation failed: {text}"


@pytest.mark.parametrize(("expression", "text"), FAILS.items(), ids=FAILS)
def test_evaluation_errors_are_upstreams(evaluate: Evaluate, expression: str, text: str) -> None:
    assert evaluate(expression) == f"failed: {text}"
