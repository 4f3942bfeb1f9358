"""What docker/ says, held against itself and the code: services, targets, mounts, settings, variables, versions. The schemas are `make check`'s."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from api.admin.metrics import router
from online_sao.cli import app
from online_sao.config import setting_names
from online_sao.runtime.meters import Meters
from online_sao.service.chat_log import SpoolState

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "docker"
COMPOSE = sorted(DOCKER.glob("compose*.yaml"))
DOCKERFILES = sorted([DOCKER / "Dockerfile", *DOCKER.glob("*.Dockerfile")])
SETTING = re.compile(r"ONLINE_SAO_[A-Z_0-9]+")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.fixture
def compose() -> Any:
    return load(DOCKER / "compose.yaml")


def test_prometheus_asks_the_api_at_its_port_and_path_with_the_token_it_mounts(compose: Any) -> None:
    (job,) = load(DOCKER / "prometheus.yml")["scrape_configs"]
    ((target,),) = (config["targets"] for config in job["static_configs"])
    host, port = target.split(":")
    assert compose["services"][host]["ports"][0].endswith(f":{port}")
    assert job["metrics_path"] in [route.path for route in router.routes]
    secret = job["authorization"]["credentials_file"].removeprefix("/run/secrets/")
    assert secret in compose["services"]["prometheus"]["secrets"]
    token = compose["secrets"][secret]["environment"]
    assert compose["services"][host]["environment"]["ONLINE_SAO_SERVER__API_TOKEN"].startswith(f"${{{token}:?")


def test_grafana_reads_from_prometheus_and_finds_the_dashboards(compose: Any) -> None:
    mounts = dict(volume.split(":")[:2] for volume in compose["services"]["grafana"]["volumes"])
    (source,) = load(DOCKER / "grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = load(DOCKER / "grafana/provisioning/dashboards/online-sao.yml")["providers"]
    (folder,) = [host for host, inside in mounts.items() if inside == provider["options"]["path"]]
    dashboards = list((DOCKER / folder).glob("*.json"))
    assert dashboards
    text = dashboards[0].read_text()
    assert set(re.findall(r'"uid": "([^"]*)"', text)) == {source["uid"], json.loads(text)["uid"]}


def test_only_what_each_process_counts_of_its_own_is_summed() -> None:
    """What the database says is told by every process of it alike."""
    meters = Meters().render(load=None, policy_version=None, reading=None, spool=SpoolState(0, 0, 0, has_room=False), leading=False)
    own = {sample.name for family in text_string_to_metric_families(meters.decode()) for sample in family.samples}
    dashboard = load(DOCKER / "grafana/dashboards/online-sao.json")
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    summed = {name for expression in expressions if "sum" in expression for name in re.findall(r"online_sao_\w+", expression)}
    # A counter with labels has no sample before it has counted.
    assert summed - {"online_sao_completions_total"} <= own, summed - own


def test_what_is_mounted_is_there(compose: Any) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DOCKER / source).exists() if source.startswith(".") else source in compose["volumes"], volume


def test_every_variable_without_a_default_is_in_the_example() -> None:
    example = (DOCKER / ".env.example").read_text()
    for path in COMPOSE:
        for name in re.findall(r"\$\{([A-Z_]+):", path.read_text()):
            if name != "RAY_IMAGE":
                assert re.search(rf"^#?{name}=", example, re.MULTILINE), name


def test_every_setting_that_images_and_services_are_given_exists() -> None:
    known = {f"ONLINE_SAO_{name.replace('.', '__')}".upper() for name in setting_names()}
    for path in (*COMPOSE, *DOCKERFILES, DOCKER / "healthcheck.py"):
        assert set(SETTING.findall(path.read_text())) <= known, path


def test_bases_are_pinned_and_the_cuda_one_is_the_vllm_of_the_extra() -> None:
    tags = [image for path in (*COMPOSE, *DOCKERFILES) for image in re.findall(r"(?:^FROM|^\s+image:) (\S+:\S+)", path.read_text(), re.MULTILINE)]
    tags = [image for image in tags if not image.startswith(("online-sao:", "${"))]
    assert len(tags) >= 6
    assert all(re.search(r":v?\d+\.\d+", tag) for tag in tags), tags
    (vllm,) = {tag for tag in tags if tag.startswith("vllm/")}
    (extra,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["vllm"]
    assert vllm.removeprefix("vllm/vllm-openai:v") in SpecifierSet(extra.removeprefix("vllm"))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_images_run_as_nobody_special_with_signals_and_a_healthcheck(path: Path) -> None:
    text = path.read_text()
    runs = text[text.index("ENTRYPOINT") - 4000 :]
    assert re.search(r"^USER 10001", runs, re.MULTILINE)
    assert 'ENTRYPOINT ["tini", "--", "online-sao"]' in runs
    assert re.search(r'^HEALTHCHECK .* CMD \["python3?", "/usr/local/lib/online-sao/healthcheck.py"\]', runs, re.MULTILINE)
    assert "OMP_WAIT_POLICY=PASSIVE" in runs


def test_what_is_copied_is_not_kept_out_of_the_build() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for path in DOCKERFILES:
        for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", path.read_text(), re.MULTILINE):
            for source in sources.split():
                assert source in allowed, source
                assert (ROOT / source).exists()


@pytest.mark.parametrize("command", ["serve", "learn"])
def test_the_commands_are_the_command_lines_own(compose: Any, command: str) -> None:
    assert command in [service.get("command", [None])[0] for service in compose["services"].values()]
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


def test_the_service_that_joins_a_ray_cluster_is_a_node_of_it_first() -> None:
    api = load(DOCKER / "compose.ray.yaml")["services"]["api"]
    assert api["entrypoint"] == ["tini", "--", "sh", "-c"]
    (line,) = api["command"]  # the shell takes one argument as its script, and the others as something else
    (address,) = re.findall(r"--ray-address (\S+)", line)
    assert line.startswith(f"ray start --address={address} ")
    assert "&& exec online-sao serve " in line
    assert api["read_only"] is False
