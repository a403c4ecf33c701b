"""The lists of requirements can be read, and agree."""

import tomllib

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from tests.conftest import ROOT

FILES = sorted(path.name for path in ROOT.glob("requirements*.txt"))
PYTHONS = [(3, 11), (3, 12), (3, 13)]  # for which exllamav2's release has wheels
COMPILED = {"exllamav2", "flash-attn"}


def requirements(name, python=None):
    """All of a file, or those for one Python."""
    lines = (ROOT / name).read_text().splitlines()
    listed = [Requirement(line) for line in lines if line and not line.startswith("#")]
    if python is None:
        return listed
    environment = default_environment() | {"python_version": "{}.{}".format(*python)}
    return [each for each in listed if not each.marker or each.marker.evaluate(environment)]


def pins(name, python=None):
    """Name to version, without what was added to that for a build (`+cu128`)."""
    return {
        canonicalize_name(each.name): version_of(each).partition("+")[0]
        for each in requirements(name, python)
    }


def version_of(requirement):
    if requirement.url:
        return str(parse_wheel_filename(wheel(requirement))[1])
    [specifier] = requirement.specifier
    assert specifier.operator == "==", requirement
    return specifier.version


def wheel(requirement):
    return requirement.url.partition("#")[0].rpartition("/")[2]


@pytest.mark.parametrize("name", FILES)
def test_each_line_names_one_version(name):
    for each in requirements(name):
        assert version_of(each)


def test_a_package_has_one_version_wherever_it_is_listed():
    """But torch, which differs by what it runs on."""
    seen = {}
    for name in FILES:
        for package, version in pins(name).items():
            if package != "torch":
                assert seen.setdefault(package, version) == version, (package, name)


@pytest.mark.parametrize("name", ["requirements-cuda.txt", "requirements-cuda-source.txt"])
@pytest.mark.parametrize("python", PYTHONS)
def test_those_for_gpus_are_the_usual_ones_and_flash_attn(name, python):
    usual = pins("requirements.txt")
    assert set(pins(name, python)) == {*usual, "flash-attn"}


@pytest.mark.parametrize("python", PYTHONS)
def test_one_wheel_of_each_compiled_package_fits_a_python(python):
    fitting = set(cpython_tags(python, platforms=["linux_x86_64"]))
    listed = [each for each in requirements("requirements-cuda.txt", python) if each.url]
    assert sorted(canonicalize_name(each.name) for each in listed) == sorted(COMPILED)
    for each in listed:
        name, version, _, tags = parse_wheel_filename(wheel(each))
        assert name == canonicalize_name(each.name)
        assert tags & fitting
        assert "torch2.8" in str(version.local), "compiled for the torch of the same list"
    assert pins("requirements-cuda.txt", python)["torch"] == "2.8.0"


@pytest.mark.parametrize("python", [(3, 12), (3, 13)])
def test_the_list_for_exl3_is_the_usual_one_and_a_wheel_for_its_python_and_torch(python):
    listed = pins("requirements-exl3.txt", python)
    assert set(listed) == {*pins("requirements.txt"), "exllamav3"}
    [one] = [each for each in requirements("requirements-exl3.txt", python) if each.url]
    _, version, _, tags = parse_wheel_filename(wheel(one))
    assert tags & set(cpython_tags(python, platforms=["linux_x86_64"]))
    assert f"torch{listed['torch']}" in str(version.local)


def test_no_wheel_is_for_another_python_than_a_server_can_have():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = SpecifierSet(project["requires-python"])
    assert all("{}.{}".format(*python) in allowed for python in PYTHONS)
    listed = [each for each in requirements("requirements-cuda.txt") if each.url]
    assert len(listed) == len(PYTHONS) * len(COMPILED)


def test_a_hash_is_one():
    hashes = [
        each.url.partition("#sha256=")[2]
        for each in requirements("requirements-cuda.txt")
        if each.name == "flash-attn"
    ]
    assert len({*hashes}) == len(PYTHONS)
    assert all(len(bytes.fromhex(each)) == 32 for each in hashes)
