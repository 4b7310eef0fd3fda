"""The backends' files parse and fit together, and the dashboard asks for what tracekit emits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.exporters.otlp.processes import VERSIONS
from tracekit.exporters._otel import names
from tracekit.model.kinds import CLASSES, KINDS

yaml = pytest.importorskip("yaml")

FOLDER = Path(__file__).parents[2] / "examples" / "observability"
FILES = sorted(path for path in FOLDER.rglob("*.*") if path.suffix in (".yaml", ".json"))
STACKS = ("jaeger", "tempo")

CONVENTIONS = {"service.name", "service.instance.id", "host.name", "host.id"}
OF_POINTS = {names.RANK, names.CLASS}
"""Attributes that only points of metrics have."""
KIND_OF_ROOTS = "run"
PINNED = re.compile(r"[\w./-]+:v?\d+\.\d+\.\d+")
PUBLISHED = re.compile(r"127\.0\.0\.1:(\d+):(\d+)")
LISTENS = {"prometheus": {9090}, "grafana": {3000}}
"""Ports that a program has by default and no file says."""


def read(path: Path) -> Any:
    text = path.read_text()
    return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)


def services(stack: str) -> dict[str, Any]:
    found: dict[str, Any] = read(FOLDER / stack / "compose.yaml")["services"]
    return found


def published(stack: str) -> dict[int, int]:
    """By the port of this machine the one in the container."""
    texts = [text for service in services(stack).values() for text in service["ports"]]
    matches = [PUBLISHED.fullmatch(text) for text in texts]
    assert None not in matches, texts
    return {int(match[1]): int(match[2]) for match in matches if match}


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = read(FOLDER / "tempo/grafana/dashboards/tracekit.json")
    return found


def data_sources() -> dict[str, str]:
    """The addresses that Grafana asks, by the names that panels use."""
    found = read(FOLDER / "tempo/grafana/datasources.yaml")["datasources"]
    return {source["uid"]: source["url"] for source in found}


def queries(key: str) -> list[str]:
    """All queries of the panels, ``query`` for TraceQL and ``expr`` for PromQL."""
    targets = [target for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    return [target[key] for target in targets if key in target]


def texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from texts_in(each)


def emitted() -> set[str]:
    known = {text for value in vars(names).values() for text in texts_in(value)}
    return known | CONVENTIONS


def label(attribute: str) -> str:
    """What Prometheus calls an attribute."""
    return attribute.replace(".", "_")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_file_parses(path: Path) -> None:
    assert read(path)


@pytest.mark.parametrize("stack", STACKS)
def test_images_have_a_version(stack: str) -> None:
    for service in services(stack).values():
        assert PINNED.fullmatch(service["image"])


def test_readme_names_the_versions() -> None:
    text = (FOLDER / "README.md").read_text()
    for stack in STACKS:
        for name, service in services(stack).items():
            version = service["image"].rpartition(":")[2].removeprefix("v")
            assert f"{name.title()} {version}" in text
    assert f"Phoenix {VERSIONS['arize-phoenix']}" in text
    assert f"rotel {VERSIONS['rotel']}" in text


@pytest.mark.parametrize("stack", STACKS)
def test_what_is_mounted_exists(stack: str) -> None:
    declared = set(read(FOLDER / stack / "compose.yaml").get("volumes", ()))
    for service in services(stack).values():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            assert (FOLDER / stack / source).exists() if source[0] == "." else source in declared


@pytest.mark.parametrize("stack", STACKS)
def test_otlp_has_its_usual_ports(stack: str) -> None:
    ports = published(stack)
    assert ports.keys() >= {4317, 4318}
    assert [there for here, there in ports.items() if here != there] == []


def test_tempo_listens_on_the_ports_that_are_published() -> None:
    config = read(FOLDER / "tempo/tempo.yaml")
    protocols = config["distributor"]["receivers"]["otlp"]["protocols"]
    endpoints = {name: protocol["endpoint"] for name, protocol in protocols.items()}
    assert endpoints == {"grpc": "0.0.0.0:4317", "http": "0.0.0.0:4318"}
    listens = {4317, 4318, config["server"]["http_listen_port"]}
    assert set(published("tempo").values()) == listens | LISTENS["prometheus"] | LISTENS["grafana"]


def test_grafana_asks_where_the_servers_listen() -> None:
    tempo = read(FOLDER / "tempo/tempo.yaml")["server"]["http_listen_port"]
    ports = {"tempo": tempo, "prometheus": min(LISTENS["prometheus"])}
    assert data_sources() == {name: f"http://{name}:{port}" for name, port in ports.items()}


def test_readme_leads_to_published_ports() -> None:
    text = (FOLDER / "README.md").read_text()
    assert {int(port) for port in re.findall(r"localhost:(\d+)", text)} <= {
        port for stack in STACKS for port in published(stack)
    }
    assert "--web.enable-otlp-receiver" in services("tempo")["prometheus"]["command"]


def test_dashboard_has_panels_with_ids_and_sources_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    asked = {target["datasource"]["uid"] for panel in panels for target in panel.get("targets", ())}
    assert asked == set(data_sources())


def test_dashboard_asks_tempo_for_attributes_that_exist() -> None:
    asked = {
        name
        for query in queries("query")
        for name in re.findall(r"\b(?:span|resource)\.([a-z][\w.]*)", query)
    }
    assert asked
    assert asked <= emitted()


def test_dashboard_knows_kinds_and_classes() -> None:
    kinds = re.findall(r'kind !?= "(\w+)"', "\n".join(queries("query")))
    assert kinds
    assert set(kinds) <= {*KINDS, KIND_OF_ROOTS}
    classes = re.findall(r'tracekit_class="(\w+)"', "\n".join(queries("expr")))
    assert classes
    assert set(classes) <= set(CLASSES)


def test_dashboard_asks_prometheus_for_metrics_that_exist() -> None:
    labels = {label(name) for name in OF_POINTS}
    asked = set(re.findall(r"\btracekit_\w+", "\n".join(queries("expr")))) - labels
    metrics = {re.sub("_(bucket|sum|count)$", "", name) for name in asked}
    assert metrics == {label(name) for name in names.METRICS}


def test_labels_of_the_dashboard_are_promoted() -> None:
    promoted = read(FOLDER / "tempo/prometheus.yaml")["otlp"]["promote_resource_attributes"]
    assert set(promoted) <= emitted()
    known = {label(name) for name in (*promoted, *OF_POINTS)} | {"job", "le"}
    text = "\n".join(queries("expr"))
    groups = re.findall(r"\bby \(([^)]*)\)", text)
    grouped = {name for group in groups for name in group.split(", ")}
    selected = set(re.findall(r"[{,] ?(\w+)=", text))
    assert grouped
    assert selected
    assert grouped | selected <= known
