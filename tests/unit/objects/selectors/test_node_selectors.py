from __future__ import annotations

import pytest

from bayplan.objects.core import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    PreferredSchedulingTerm,
)
from bayplan.objects.selectors.label_selectors import Requirement, SelectorError
from bayplan.objects.selectors.node_selectors import (
    compile_node_selector,
    compile_preferred_terms,
    compile_topology_terms,
    required_node_affinity,
)
from bayplan.objects.storage import TopologySelectorLabelRequirement, TopologySelectorTerm


def needs(key: str, operator: str, *values: str) -> NodeSelectorRequirement:
    return NodeSelectorRequirement(key=key, operator=operator, values=values)


def labels_term(*requirements: NodeSelectorRequirement) -> NodeSelectorTerm:
    return NodeSelectorTerm(match_expressions=requirements)


def fields_term(*requirements: NodeSelectorRequirement) -> NodeSelectorTerm:
    return NodeSelectorTerm(match_fields=requirements)


def selector(*terms: NodeSelectorTerm) -> NodeSelector:
    return NodeSelector(node_selector_terms=terms)


NODE = {"zone": "a", "cores": "16", "empty": ""}
NAME = "metadata.name"


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        pytest.param(labels_term(needs("zone", "In", "a", "b")), True, id="in"),
        pytest.param(labels_term(needs("zone", "In", "c")), False, id="in-others"),
        pytest.param(labels_term(needs("rack", "In", "c")), False, id="in-missing"),
        pytest.param(labels_term(needs("zone", "NotIn", "a")), False, id="notin"),
        pytest.param(labels_term(needs("rack", "NotIn", "a")), True, id="notin-missing"),
        pytest.param(labels_term(needs("empty", "Exists")), True, id="exists"),
        pytest.param(labels_term(needs("rack", "DoesNotExist")), True, id="doesnotexist"),
        pytest.param(labels_term(needs("cores", "Gt", "8")), True, id="gt"),
        pytest.param(labels_term(needs("cores", "Gt", "16")), False, id="gt-equal"),
        pytest.param(labels_term(needs("cores", "Lt", "32")), True, id="lt"),
        pytest.param(labels_term(needs("zone", "Gt", "8")), False, id="gt-of-no-number"),
        pytest.param(labels_term(needs("rack", "Lt", "8")), False, id="lt-missing"),
        pytest.param(labels_term(needs("zone", "In", "a"), needs("cores", "Lt", "8")), False, id="all-must-hold"),
        pytest.param(fields_term(needs(NAME, "In", "n1")), True, id="name"),
        pytest.param(fields_term(needs(NAME, "In", "n2")), False, id="other-name"),
        pytest.param(fields_term(needs(NAME, "NotIn", "n2")), True, id="name-notin"),
        pytest.param(fields_term(needs("spec.x", "In", "")), True, id="other-fields-read-as-empty"),
        pytest.param(fields_term(needs("spec.x", "NotIn", "")), False, id="other-fields-are-empty"),
        pytest.param(
            NodeSelectorTerm(match_expressions=(needs("zone", "In", "a"),), match_fields=(needs(NAME, "In", "n2"),)),
            False,
            id="labels-and-fields",
        ),
    ],
)
def test_one_term(term: NodeSelectorTerm, expected: bool) -> None:
    assert compile_node_selector(selector(term)).matches(NODE, "n1") is expected


def test_terms_are_alternatives() -> None:
    matcher = compile_node_selector(
        selector(labels_term(needs("zone", "In", "x")), fields_term(needs(NAME, "In", "n1")))
    )
    assert matcher.matches(NODE, "n1")
    assert not matcher.matches(NODE, "n2")


def test_an_empty_term_matches_nothing() -> None:
    assert not compile_node_selector(selector()).matches(NODE, "n1")
    empty = compile_node_selector(selector(NodeSelectorTerm()))
    assert empty.terms == ()
    assert not empty.matches(NODE, "n1")


def test_without_a_name_only_labels_count() -> None:
    assert compile_node_selector(selector(fields_term(needs(NAME, "In", "n2")))).matches(NODE)
    assert not compile_node_selector(selector(fields_term(needs(NAME, "Exists")))).matches(NODE)


AT = "nodeSelectorTerms[0]"


@pytest.mark.parametrize(
    ("term", "error"),
    [
        pytest.param(
            labels_term(needs("a", "In")),
            f"{AT}.matchExpressions[0].values: Invalid value: null: for 'in', 'notin' operators, values set can't be "
            "empty",
            id="in-without-values",
        ),
        pytest.param(
            labels_term(needs("a", "Exists", "1")),
            f'{AT}.matchExpressions[0].values: Invalid value: ["1"]: values set must be empty for exists and does not '
            "exist",
            id="exists-with-values",
        ),
        pytest.param(
            labels_term(needs("a", "Gt", "1", "2")),
            f"{AT}.matchExpressions[0].values: Invalid value: [\"1\",\"2\"]: for 'Gt', 'Lt' operators, exactly one "
            "value is required",
            id="gt-with-two-values",
        ),
        pytest.param(
            labels_term(needs("a", "Lt", "x")),
            f"{AT}.matchExpressions[0].values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an "
            "integer",
            id="lt-of-no-number",
        ),
        pytest.param(
            labels_term(needs("a", "<")),
            rf'{AT}.matchExpressions[0].operator: Unsupported value: "\u003c": supported values: "In", "NotIn", '
            '"Exists", "DoesNotExist", "Gt", "Lt"',
            id="unknown-operator",
        ),
        pytest.param(
            fields_term(needs(NAME, "Exists")),
            f'{AT}.matchFields[0].operator: Unsupported value: "Exists": supported values: "In", "NotIn"',
            id="operator-that-fields-lack",
        ),
        pytest.param(
            fields_term(needs(NAME, "In", "a", "b")),
            f'{AT}.matchFields[0].values: Invalid value: ["a","b"]: must have one element',
            id="field-with-two-values",
        ),
    ],
)
def test_an_error_affects_only_its_term(term: NodeSelectorTerm, error: str) -> None:
    alone = compile_node_selector(selector(term))
    assert alone.errors == (error,)
    assert not alone.matches({"a": "1"}, "n1")
    with pytest.raises(SelectorError) as caught:
        alone.check()
    assert caught.value.reason == error
    assert compile_node_selector(selector(term, fields_term(needs(NAME, "In", "n1")))).matches({}, "n1")


def test_a_negative_threshold_is_no_label_value() -> None:
    matcher = compile_node_selector(selector(labels_term(needs("a", "Gt", "-1"))))
    assert len(matcher.errors) == 1
    assert 'values[0][a]: Invalid value: "-1": a valid label must be' in matcher.errors[0]


def test_requirements_are_public_for_columns() -> None:
    matcher = compile_node_selector(selector(labels_term(needs("z", "In", "b", "a"), needs("cores", "Gt", "8"))))
    (term,) = matcher.terms
    assert term.requirements == (Requirement("cores", "Gt", threshold=8), Requirement("z", "In", frozenset({"a", "b"})))
    assert matcher == compile_node_selector(
        selector(labels_term(needs("cores", "Gt", "8"), needs("z", "In", "a", "b", "a")))
    )
    assert len({matcher, matcher.check()}) == 1


def test_preferred_terms() -> None:
    good, other = labels_term(needs("zone", "In", "a")), labels_term(needs("cores", "Lt", "8"))
    terms = compile_preferred_terms(
        [
            PreferredSchedulingTerm(weight=5, preference=good),
            PreferredSchedulingTerm(weight=0, preference=labels_term(needs("a", "In"))),
            PreferredSchedulingTerm(weight=3),
            PreferredSchedulingTerm(weight=2, preference=other),
        ]
    )
    assert [(term.weight, term.term.matches(NODE, "n1")) for term in terms] == [(5, True), (2, False)]


def test_an_invalid_preferred_term_is_refused() -> None:
    bad = PreferredSchedulingTerm(weight=1, preference=fields_term(needs(NAME, "Exists")))
    with pytest.raises(SelectorError) as caught:
        compile_preferred_terms([PreferredSchedulingTerm(weight=1), bad, bad])
    text = '.matchFields[0].operator: Unsupported value: "Exists": supported values: "In", "NotIn"'
    assert caught.value.reason == f"[[1]{text}, [2]{text}]"


def pod(required: NodeSelector | None = None, **node_selector: str) -> Pod:
    affinity = Affinity(node_affinity=NodeAffinity(required=required)) if required is not None else None
    return Pod(spec=PodSpec(node_selector=node_selector, affinity=affinity))


@pytest.mark.parametrize(
    ("demand", "expected"),
    [
        pytest.param(pod(), True, id="nothing"),
        pytest.param(pod(zone="a"), True, id="selector"),
        pytest.param(pod(zone="b"), False, id="selector-elsewhere"),
        pytest.param(pod(selector(fields_term(needs(NAME, "In", "n1")))), True, id="affinity"),
        pytest.param(pod(selector(fields_term(needs(NAME, "In", "n1"))), zone="b"), False, id="both-must-hold"),
        pytest.param(pod(selector()), False, id="no-terms"),
    ],
)
def test_required_node_affinity_of_a_pod(demand: Pod, expected: bool) -> None:
    assert required_node_affinity(demand).matches(NODE, "n1") is expected


def test_a_pod_without_requirements() -> None:
    assert required_node_affinity(pod()).everything
    assert not required_node_affinity(pod(zone="a")).everything
    assert not required_node_affinity(pod(selector())).everything


def topology(**values: tuple[str, ...]) -> TopologySelectorTerm:
    return TopologySelectorTerm(
        match_label_expressions=tuple(TopologySelectorLabelRequirement(key=k, values=v) for k, v in values.items())
    )


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        pytest.param((), True, id="no-terms-allow-all"),
        pytest.param((topology(zone=("a", "b")),), True, id="one-of-the-values"),
        pytest.param((topology(zone=("b",)),), False, id="none-of-the-values"),
        pytest.param((topology(zone=("b",)), topology(cores=("16",))), True, id="alternatives"),
        pytest.param((topology(zone=("a",), cores=("8",)),), False, id="all-keys-of-a-term"),
        pytest.param((TopologySelectorTerm(),), False, id="empty-term"),
        pytest.param((topology(zone=()),), False, id="mistake"),
    ],
)
def test_allowed_topologies(terms: tuple[TopologySelectorTerm, ...], expected: bool) -> None:
    assert compile_topology_terms(terms).matches(NODE) is expected
