# /// script
# requires-python = ">=3.11"
# dependencies = ["nox[uv]>=2026.4"]
# ///
"""The menu: `nox -l` lists it, `nox` runs the sessions that need no container engine."""

import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import nox

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "none"

ROOT = Path(__file__).parent
ENVIRONMENT = ROOT / ".nox" / "environment"
"""One virtual environment for all sessions, with every member and the development tools."""
PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
MEMBERS = {
    folder.name: folder.relative_to(ROOT)
    for pattern in PYPROJECT["tool"]["uv"]["workspace"]["members"]
    for folder in sorted(ROOT.glob(pattern))
    if (folder / "pyproject.toml").exists()
}
"""The packages of the workspace, by the names of their folders."""
CODE = (
    "core",
    "embedded",
    "providers",
    "extensions",
    "cli",
    "infra",
    "tools",
    "examples",
    "docs",
    "tests",
    "conftest.py",
    "noxfile.py",
)


SHARED = (
    *("examples", "tests/docs", "tests/test_everything.py", "tests/test_joining.py"),
    *("tests/test_budgets.py", "tests/test_load.py", "tests/test_patterns.py"),
    *("tests/e2e/test_helpers.py", "tests/faults", "tests/providers", "tests/watches"),
)
"""Tests that belong to no package and need neither a cluster nor a container engine."""
QUICK = (
    "core/tests/api/test_model.py",
    "core/tests/contract/test_clusters.py",
    "core/tests/contract/test_conditions.py",
    "core/tests/controller/test_results.py",
    "core/tests/controller/test_runner.py",
    "core/tests/provider/test_reconciler.py",
    "core/tests/runtime/test_extension.py",
    "providers/control-plane/tests/test_status.py",
    "providers/machine-pool/tests/reconcilers/test_machines.py",
    "extensions/lifecycle/tests/test_approval.py",
    "cli/tests/status/test_cluster_tree.py",
)
"""The 200 tests that explain the project, in the order in which to read them."""
PARALLEL = ("-n4", "--dist=worksteal")
"""Four workers keep two processors busy, because many tests wait for processes."""


def install(session: nox.Session, package: str | None = None) -> None:
    """Install every member and the locked development tools, once for all sessions of a run.

    With a package, install only that one, its dependencies and those of its tests.
    """
    environment = ENVIRONMENT if package is None else ENVIRONMENT.with_name(f"tests-{package}")
    programs = str(environment / "bin")
    if programs not in os.environ["PATH"].split(os.pathsep):
        chosen = ("--all-packages", "--all-groups")
        if package is not None:
            project = nox.project.load_toml(ROOT / MEMBERS[package] / "pyproject.toml")
            chosen = (f"--package={project['project']['name']}", "--group=tests")
        session.run_install(
            "uv",
            "sync",
            "--locked",
            "--quiet",
            "--all-extras",
            *chosen,
            f"--python={sys.executable}",
            env={"UV_PROJECT_ENVIRONMENT": str(environment)},
        )
        # nox looks for programs here.
        os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
    session.env["PATH"] = os.environ["PATH"]
    session.env["VIRTUAL_ENV"] = str(environment)
    # Container images like to turn bytecode off. Then each process compiles everything it imports.
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    session.env["PYTHONPYCACHEPREFIX"] = str(session.cache_dir / "bytecode")


def has_tests(folder: str) -> bool:
    """Whether a folder holds tests."""
    return any(Path(folder).rglob("test_*.py"))


def folders_with_tests() -> list[str]:
    """The test folders of all packages."""
    return [f"{folder}/tests" for folder in MEMBERS.values() if has_tests(f"{folder}/tests")]


def imports(folder: Path) -> list[str]:
    """The import names of a package."""
    return [package.name for package in (ROOT / folder / "src").iterdir() if package.is_dir()]


def pytest(session: nox.Session, *options: str, paths: Sequence[str]) -> None:
    """Run pytest. Paths after `--` on the command line replace the session's own paths."""
    named = [Path(argument.partition("::")[0]) for argument in session.posargs]
    chosen = any(path.suffix == ".py" or path.is_dir() for path in named)
    session.run("pytest", *options, *(() if chosen else paths), *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Formatting, lint rules, directions of imports, workflows, lock file, budgets of lines."""
    install(session)
    session.run("ruff", "format", "--check", *CODE)
    session.run("ruff", "check", *CODE)
    session.run("lint-imports", "--no-cache")
    session.run("zizmor", "--offline", "--quiet", "--no-progress", ".github/workflows")
    session.run("python", "-m", "tools.budgets")


@nox.session
def types(session: nox.Session) -> None:
    """Pyright, strict, over packages and tests alike. Skipped if it accepted the same files."""
    install(session)
    python = f"--pythonpath={ENVIRONMENT / 'bin' / 'python'}"
    run_unless_unchanged(session, "pyright", python, *session.posargs)


def run_unless_unchanged(session: nox.Session, *command: str) -> None:
    """Run a command, unless it succeeded before with exactly these files."""
    accepted = session.cache_dir / f"accepted-by-{session.name}"
    digest = digest_of_code()
    if accepted.exists() and accepted.read_text() == digest and not session.posargs:
        session.log(f"{command[0]} has accepted exactly these files before")
        return
    session.run(*command)
    if not session.posargs:
        accepted.write_text(digest)


def digest_of_code() -> str:
    """A digest of code, settings and the versions of dependencies."""
    digest = hashlib.sha256(sys.version.encode())
    roots = [ROOT / name for name in (*CODE, "pyproject.toml", "uv.lock")]
    files = (file for root in roots for file in ([root] if root.is_file() else root.rglob("*.py")))
    for file in sorted(files):
        digest.update(f"{file}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\0".encode())
    return digest.hexdigest()


@nox.session
def binaries(session: nox.Session) -> None:
    """Download or build the binaries of the default sessions. It takes minutes the first time.

    Skipped after a success with the same files. A binary that was removed since is obtained by
    `all_tests`, before its first test.
    """
    install(session)
    collect = ("pytest", "-q", "--fetch-binaries", "-m", "not integration")
    run_unless_unchanged(session, *collect, *folders_with_tests(), *SHARED)


@nox.session
def all_tests(session: nox.Session) -> None:
    """The tests of all packages and examples in one run: they share an API server."""
    install(session)
    pytest(session, *PARALLEL, "-m", "not integration", paths=(*folders_with_tests(), *SHARED))


@nox.session(default=False)
def everything(session: nox.Session) -> None:
    """All sessions on this commit, each once, and their table. Continues an interrupted run."""
    install(session)
    session.run("python", "-m", "tests.everything", *session.posargs)


@nox.session(default=False)
def shake(session: nox.Session) -> None:
    """The default tests in other orders, users, Pythons and under load (`-- 10 --seed 1`)."""
    install(session)
    words = session.posargs or ["10"]
    session.run("python", "-m", "tests.shake", *words, "--", *folders_with_tests(), *SHARED)


@nox.session(default=False)
@nox.parametrize("package", list(MEMBERS), ids=list(MEMBERS))
def tests(session: nox.Session, package: str) -> None:
    """One package's own tests, with only the dependencies that it declares."""
    install(session, package)
    pytest(session, *PARALLEL, "-m", "not integration", paths=[f"{MEMBERS[package]}/tests"])


@nox.session(default=False)
def quick(session: nox.Session) -> None:
    """The tests that explain the project, in less than a minute. The noxfile lists them."""
    install(session)
    pytest(session, *PARALLEL, "-m", "not integration", paths=QUICK)


@nox.session
def docs(session: nox.Session) -> None:
    """The site, in build/site/html: generated reference, checked links, loads and search."""
    install(session)
    session.run("python", "docs/site/assemble.py", "build/site/pages")
    # In strict mode, an announcement of the theme would count as a broken link.
    session.env["NO_MKDOCS_2_WARNING"] = "1"
    session.run("mkdocs", "build", "--quiet", "-f", "docs/site/mkdocs.yml")
    session.run("python", "docs/site/external_loads.py", "build/site/html")
    session.run("python", "docs/site/search.py", "build/site/html")


@nox.session(default=False, requires=["docs"])
def screens(session: nox.Session) -> None:
    """The site in a browser: widths, palettes, search, in build/site/screens. Needs Chromium."""
    install(session)
    session.run("python", "docs/site/screens.py", "build/site/html", "build/site/screens")


@nox.session(default=False)
@nox.parametrize("package", list(MEMBERS), ids=list(MEMBERS))
def coverage(session: nox.Session, package: str) -> None:
    """The branch coverage of one package's own tests. Takes about twice their time."""
    folder = f"{MEMBERS[package]}/tests"
    if not has_tests(folder):
        session.skip(f"{package} has no tests yet")
    install(session)
    data = Path(session.create_tmp()) / "coverage"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    session.env["COVERAGE_FILE"] = str(data / "data")
    source = f"--source={','.join(imports(MEMBERS[package]))}"
    chosen = (*PARALLEL, "-m", "not integration and not repetitive", folder)
    session.run("coverage", "run", source, "-m", "pytest", *chosen, *session.posargs)
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "report")


@nox.session(default=False)
def seeds(session: nox.Session) -> None:
    """Property tests with many fresh examples. A failure prints an `@example` to store."""
    install(session)
    session.env["CAPELIN_HYPOTHESIS"] = "seeds"
    options = (*PARALLEL, "-m", "hypothesis and not integration", "--timeout=1200")
    pytest(session, *options, paths=folders_with_tests())


@nox.session(default=False)
def mutants(session: nox.Session) -> None:
    """Small changes of the modules in tools/mutants.toml, and those that no test notices."""
    install(session)
    session.run("python", "-m", "tools.mutants", *session.posargs)


@nox.session(default=False)
def integration(session: nox.Session) -> None:
    """All of it together: the real Cluster API core, real control planes. Takes minutes."""
    if not has_tests("tests/integration"):
        session.skip("no integration tests exist yet")
    install(session)
    pytest(session, paths=["tests/integration"])


@nox.session(default=False)
def integration_of_packages(session: nox.Session) -> None:
    """The long tests of packages and documents, one by one: each has the machine to itself."""
    install(session)
    pytest(session, "-m", "integration", paths=(*folders_with_tests(), *SHARED))


@nox.session(default=False, requires=["release"])
def pulumi(session: nox.Session) -> None:
    """The programs on a real Pulumi engine and plugin, which the first run builds, in minutes."""
    install(session)
    pytest(session, "-n0", paths=["tests/pulumi"])


@nox.session(default=False)
def ui(session: nox.Session) -> None:
    """The page of `capelin ui` in Chromium, on a real management cluster. Needs Chromium.

    With `CAPELIN_UI_IMAGES=docs/images/ui` it also writes the pictures of the documents.
    """
    install(session)
    pytest(session, "-n0", paths=["tests/ui"])


@nox.session(default=False)
def alerts(session: nox.Session) -> None:
    """The alert rules of the charts, evaluated by promtool; the first run builds it, in minutes."""
    install(session)
    pytest(session, "-n0", paths=["tests/alerts"])


@nox.session(default=False, requires=["release"])
def e2e(session: nox.Session) -> None:
    """On a kind cluster, with the images of a release. Needs a container engine and kind."""
    install(session)
    pytest(session, "-n0", paths=["tests/e2e"])


@nox.session(default=False)
def providers(session: nox.Session) -> None:
    """Conformance of real providers in Go, for the table in the documents. Takes minutes."""
    install(session)
    session.run("python", "-m", "tests.providers", *session.posargs)


@nox.session(default=False)
def faults(session: nox.Session) -> None:
    """A seeded campaign of faults under load. Takes minutes (`-- --faults 300 --seed 7`)."""
    install(session)
    session.run("python", "-m", "tests.faults", *session.posargs)


@nox.session(default=False)
def fuzz(session: nox.Session) -> None:
    """Sends a running extension requests that its document allows and forbids, for a minute."""
    install(session)
    session.run("python", "-m", "tests.fuzz", *session.posargs)


@nox.session(default=False)
def versions(session: nox.Session) -> None:
    """The versions of all programs, what is newest, and what is past support. Needs Go."""
    install(session)
    session.run("python", "-m", "tools.versions", *session.posargs)


@nox.session(default=False)
def openapi(session: nox.Session) -> None:
    """The OpenAPI document of Cluster API's hooks, in dist/. A release contains it."""
    install(session)
    file = Path("dist", "runtime-sdk-openapi.json")
    file.parent.mkdir(exist_ok=True)
    title = "Cluster API - Runtime SDK"
    with file.open("w") as to:
        session.run("python", "-m", "capelin.runtime", "openapi", f"--title={title}", stdout=to)
    session.log(f"wrote {file}")


@nox.session(default=False)
def release(session: nox.Session) -> None:
    """A release of the commit that is checked out, in dist/. Offline once everything is cached."""
    install(session)
    shutil.rmtree("dist", ignore_errors=True)
    session.run("python", "-m", "capelin_release", "--out=dist", *session.posargs)


@nox.session(default=False)
def airgap(session: nox.Session) -> None:
    """Installs the release in dist/ in a network namespace without a route. Needs root."""
    install(session)
    session.run("python", "-m", "tests.airgap", "dist", *session.posargs)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """The figures that the documents promise, as a table and as JSON (`-- --json FILE`)."""
    install(session)
    session.run("python", "-m", "tests.bench", *session.posargs)


@nox.session(default=False)
def update(session: nox.Session) -> None:
    """Format the code and fix what lint can fix."""
    install(session)
    session.run("ruff", "check", "--fix", *CODE)
    session.run("ruff", "format", *CODE)
