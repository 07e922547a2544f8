"""What the package index shows, and what an installation brings."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import yaml

from tests.docs.blocks import ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = SETTINGS["project"]


def test_only_what_users_ask_for_is_an_extra() -> None:
    assert not set(PROJECT["optional-dependencies"]) & set(SETTINGS["dependency-groups"])
    assert set(SETTINGS["dependency-groups"]) == {"bench", "dev", "docs", "integrations"}


def test_links_of_the_readme_lead_somewhere_from_an_index_page() -> None:
    (rule,) = SETTINGS["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    shown = re.sub(rule["pattern"], rule["replacement"], (ROOT / "README.md").read_text("utf-8"))
    links = re.findall(r"\]\(([^)]+)\)", shown)
    assert links
    assert all(link.startswith(PROJECT["urls"]["Source"] + "/blob/main/") for link in links)


def test_all_links_of_the_package_lead_to_one_repository() -> None:
    urls = PROJECT["urls"]
    assert set(urls) == {"Homepage", "Documentation", "Changelog", "Issues", "Source"}
    assert all(url == urls["Source"] or url.startswith(urls["Source"] + "/") for url in urls.values())
    for path in ("Documentation", "Changelog"):
        assert (ROOT / urls[path].partition("/blob/main/")[2]).is_file()


def test_a_release_is_not_built_while_its_links_lead_elsewhere() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))
    (check,) = [step["run"] for step in workflow["jobs"]["build"]["steps"] if "links" in step.get("name", "")]
    server, _, name = PROJECT["urls"]["Source"].partition("//")[2].partition("/")
    for repository, code in ((name, 0), ("somebody/else", 1)):
        here = {"GITHUB_SERVER_URL": f"https://{server}", "GITHUB_REPOSITORY": repository}
        assert subprocess.run(["sh", "-c", check], cwd=ROOT, env=here, check=False).returncode == code


def test_the_workflow_publishes_without_a_token_and_only_when_switched_on() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))
    publish = workflow["jobs"]["publish"]
    assert publish["if"] == "vars.PUBLISH == 'on'"
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets." not in str(workflow)


def test_the_plugin_imports_nothing_until_a_fixture_is_asked_for() -> None:
    # Every pytest run of an environment with the package loads it.
    program = (
        "import sys, pytest; before = set(sys.modules); import pytest_consul_coord; "
        "print(sorted(set(sys.modules) - before - {'pytest_consul_coord'}))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
