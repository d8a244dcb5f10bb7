"""Every view of `capelin ui` while a cluster is created, upgraded, blocked and released.

The tests tell one story: each needs those before it.
"""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from capelin.api.capi import Cluster, ClusterClass
from capelin.client import Client, Config
from capelin_cli.clusters.topology import DEMO_CLASS, ClusterOptions, new_cluster, upgrade_patch
from capelin_embedded.management import workload_programs
from capelin_embedded.testing.management import ManagementCluster
from playwright.async_api import Browser, Locator, expect

from tests.integration.lifecycle_stories import AFTER, BEFORE, Stories, stories_in, user_name

from .browser import Ui, View, opened, running_ui

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.needs_programs(*workload_programs(BEFORE), *workload_programs(AFTER)),
]

SPACE = "shop"
NAME = "prod"
OTHER = "stage"
POLICY = "freeze"
SLOW = 300_000
"""Milliseconds for steps of Cluster API, which retries with growing delays."""


@pytest.fixture(scope="module")
async def stories(management_cluster: ManagementCluster) -> AsyncGenerator[Stories]:
    await management_cluster.require("lifecycle")
    async with (
        Client(Config.from_kubeconfig(management_cluster.kubeconfig)) as client,
        stories_in(client, SPACE) as stories,
    ):
        await stories.create_class()
        yield stories


@pytest.fixture(scope="module")
async def ui(
    management_cluster: ManagementCluster,
    stories: Stories,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncGenerator[Ui]:
    # The page shows the name of the file.
    file = tmp_path_factory.mktemp("ui") / "management.kubeconfig"
    file.write_bytes(management_cluster.kubeconfig.read_bytes())
    async with running_ui("--kubeconfig", str(file), "-n", stories.namespace) as ui:
        yield ui


@pytest.fixture(scope="module")
async def view(browser: Browser, ui: Ui) -> AsyncGenerator[View]:
    async with opened(browser, ui.link) as view:
        yield view


async def create(stories: Stories, name: str, workers: int) -> None:
    cluster_class = await stories.client.get(ClusterClass, DEMO_CLASS, SPACE)
    options = ClusterOptions(DEMO_CLASS, BEFORE, 1, workers)
    await stories.create_from(new_cluster(name, SPACE, BEFORE, options, cluster_class))


def entry(view: View, name: str = NAME) -> Locator:
    return view.page.locator(".clusters a", has_text=name)


async def test_a_page_without_clusters(view: View) -> None:
    await expect(view.page.get_by_role("heading", level=1)).to_have_text("No clusters exist")
    await expect(view.page.get_by_role("status").first).to_have_text("live")
    assert "token" not in view.page.url


async def test_a_link_works_once(browser: Browser, ui: Ui) -> None:
    async with opened(browser, ui.link) as other:
        heading = other.page.get_by_role("heading", level=1)
        await expect(heading).to_have_text("This page has no session")
    async with opened(browser, await ui.next_link()) as other:
        heading = other.page.get_by_role("heading", level=1)
        await expect(heading).to_have_text("No clusters exist")
        await other.page.reload()
        await expect(heading).to_have_text("No clusters exist")


async def test_a_cluster_appears_and_becomes_ready(view: View, stories: Stories) -> None:
    await create(stories, NAME, 3)
    await expect(
        entry(view).get_by_label("waiting").or_(entry(view).get_by_label("failed"))
    ).to_be_visible()
    await entry(view).click()
    tree = view.page.locator(".tree")
    await expect(tree).to_contain_text("Workers", timeout=SLOW)
    await expect(entry(view).locator(".icon.good")).to_be_visible(timeout=SLOW)
    await expect(tree).to_contain_text("3 Machines")
    await expect(view.page.locator(".head .state")).to_have_text("ready")
    await expect(view.page.locator(".why")).to_have_count(0)
    await view.check("ready")


async def test_the_timeline_has_the_phases_of_the_creation(view: View) -> None:
    await view.page.get_by_role("link", name="Timeline", exact=True).click()
    lanes = view.page.locator(".lane")
    await expect(lanes.filter(has_text="CapelinControlPlane")).to_have_count(1)
    machines = view.page.locator(".lanes h2", has_text="Machines")
    await expect(machines).to_be_visible()
    await expect(view.page.locator(".span", has_text=f"Running, {BEFORE}")).to_have_count(3)


async def test_the_plan_of_an_upgrade_is_a_picture(view: View, stories: Stories) -> None:
    generation = (await stories.cluster(NAME)).metadata.generation
    await view.page.get_by_role("link", name="Plan", exact=True).click()
    await view.page.get_by_label("Version").select_option(AFTER)
    await view.page.get_by_role("button", name="Plan the upgrade").click()
    path = view.page.get_by_role("list", name="Versions").get_by_role("listitem")
    await expect(path).to_have_text([BEFORE, AFTER], timeout=SLOW)
    machines = view.page.locator(".plan section", has_text="Machines").first
    await expect(machines).to_contain_text("3 replaced")
    await expect(machines.locator(".squares .replaced")).to_have_count(3)
    changed = f"spec.topology.version: {BEFORE} → {AFTER}"
    await expect(view.page.locator(".plan code").first).to_have_text(changed)
    await view.check("plan")
    assert (await stories.cluster(NAME)).metadata.generation == generation


async def test_the_picture_of_a_file(view: View, tmp_path: Path) -> None:
    machines = [
        {"owner": "MachinePool large", "kept": 1, "updated": 2, "created": 3, "deleted": 4},
    ]
    counts = {"replaced": 0, "unknown": ""}
    found: dict[str, Any] = {
        "cluster": {"name": NAME, "namespace": SPACE},
        "machines": [{**counts, **each} for each in machines],
        "unknown": ["the size of the pool <b>large</b>"],
        **{key: list[Any]() for key in ("versions", "hooks", "budgets", "objects")},
    }
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"kind": "Plan", "clusters": [found], "notes": []}))
    await view.page.locator("input[type=file]").set_input_files(file)
    for effect, count in {"kept": 1, "updated": 2, "created": 3, "deleted": 4}.items():
        await expect(view.page.locator(f".squares .{effect}")).to_have_count(count)
    text = "MachinePool large 1 kept, 2 updated in place, 3 created, 4 deleted"
    await expect(view.page.locator(".plan li")).to_have_text(
        [text, "the size of the pool <b>large</b>"]
    )
    await view.check("plan of a file")
    file.write_text("{}")
    await view.page.locator("input[type=file]").set_input_files(file)
    await expect(view.page.get_by_role("alert")).to_have_text("This file is not a plan.")
    await view.page.get_by_role("link", name="Timeline", exact=True).click()


async def test_a_hook_blocks_the_upgrade(view: View, stories: Stories) -> None:
    approver = await user_name(stories.client)
    approval = {"approval": {"approvers": [approver]}}
    await stories.apply(POLICY, "BeforeClusterUpgrade", approval)
    await stories.are_called("BeforeClusterUpgrade")
    await stories.client.patch(Cluster, NAME, SPACE, upgrade_patch(AFTER), type="json")
    hook = view.page.locator(".lane", has_text="BeforeClusterUpgrade")
    await expect(hook.locator(".span.waiting.open")).to_be_visible(timeout=SLOW)
    await hook.locator(".span").first.click()
    await expect(view.page.locator(".picked")).to_contain_text(f"approval by {approver}")


async def test_the_page_explains_the_wait(view: View) -> None:
    await view.page.get_by_role("link", name="Overview", exact=True).click()
    chain = view.page.locator(".chain").first
    await expect(chain.locator(".cause")).to_contain_text("Awaits approval", timeout=30_000)
    await expect(chain.locator(".cause")).to_contain_text("an approver")
    await expect(chain.locator("li.last")).to_contain_text(f"LifecyclePolicy {POLICY}")
    await expect(chain.locator(".command code")).to_contain_text(f"kubectl annotate cluster {NAME}")
    await view.check("blocked")
    await view.go("#/")
    await expect(view.page.get_by_role("heading", level=1)).to_contain_text("needs attention")
    await expect(view.page.locator(".card")).to_contain_text("Awaits approval")


async def test_the_release_reaches_every_view(view: View, stories: Stories) -> None:
    await view.go(f"#/clusters/{SPACE}/{NAME}/timeline")
    code = await stories.approval_code(POLICY, NAME)
    annotation = f"approval.runtime.capelin.cluster.x-k8s.io/{POLICY}"
    annotations = {annotation: f"{code}:{await user_name(stories.client)}"}
    await stories.client.patch(Cluster, NAME, SPACE, {"metadata": {"annotations": annotations}})
    hook = view.page.locator(".lane", has_text="BeforeClusterUpgrade")
    await expect(hook.locator(".span.good")).to_contain_text("approved", timeout=SLOW)
    await expect(view.page.locator(".span.open", has_text=f"Running, {AFTER}")).to_have_count(
        3, timeout=SLOW
    )
    await expect(entry(view).locator(".icon.good")).to_be_visible(timeout=SLOW)
    await expect(entry(view)).to_contain_text(AFTER)
    await view.check("timeline")


async def test_the_heat_map_is_usable_by_keyboard(view: View) -> None:
    await view.page.get_by_role("link", name="Machines", exact=True).click()
    cells = view.page.get_by_role("listbox")
    await expect(cells.get_by_role("option")).to_have_count(3)
    await cells.focus()
    await view.page.keyboard.press("End")
    last = cells.get_by_role("option").last
    name = await last.get_attribute("data-name")
    assert name
    await expect(view.page.locator(".machine")).to_contain_text(f"{name} · ready · Running")
    await view.page.get_by_role("button", name="By version").click()
    await expect(view.page.locator(".legend")).to_have_text(f"{AFTER} 3")


async def test_differences_between_clusters_of_one_class(view: View, stories: Stories) -> None:
    await create(stories, OTHER, 1)
    await expect(entry(view, OTHER)).to_be_visible()
    await view.page.get_by_role("link", name="Compare", exact=True).click()
    await expect(view.page.locator(".differences dt").first).to_have_text("version")
    replicas = view.page.locator(".differences > div", has_text="replicas")
    await expect(replicas).to_contain_text("1 of 2")
    await view.check("differences")


async def test_the_filter_and_the_list_by_keyboard(view: View) -> None:
    await view.go("#/")
    await view.page.locator("main").focus()
    await view.page.keyboard.press("/")
    await view.page.keyboard.type(OTHER)
    await expect(view.page.locator(".clusters a")).to_have_count(1)
    await view.page.keyboard.press("Escape")
    await view.page.keyboard.press("Enter")
    await expect(view.page.get_by_role("heading", level=1)).to_have_text(OTHER)
    await view.page.get_by_role("searchbox").fill("")


async def test_a_deleted_cluster_disappears(view: View, stories: Stories) -> None:
    await view.go(f"#/clusters/{SPACE}/{OTHER}")
    await stories.delete(OTHER)
    await expect(entry(view, OTHER)).to_have_count(0)
    await expect(view.page.locator(".notice")).to_have_text("This cluster no longer exists.")
    assert view.problems == []
