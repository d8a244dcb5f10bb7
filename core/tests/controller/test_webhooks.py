"""The webhooks of a manager: reviews, bounds, certificates, and a real API server."""

import asyncio
import io
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import pytest
from annotated_types import Ge, Le, MaxLen
from capelin.api import (
    Model,
    Object,
    Problem,
    Resource,
    Unstructured,
    converts,
    kind,
    move_field,
    problems,
    validates,
)
from capelin.api.core import CustomResourceDefinition
from capelin.client import ApiError, Client, Config, Invalid
from capelin.controller import (
    Context,
    Done,
    For,
    Manager,
    Options,
    OptionsError,
    Reconciler,
    Result,
)
from capelin.controller.background import Background
from capelin.controller.webhooks import MAX_BODY_BYTES, Webhooks, convert_review, validate_review
from capelin.provider import Provider, migrate_storage
from capelin.testing.managers import running
from capelin.testing.waiting import until
from capelin.tls import CertificateError
from capelin_embedded.testing.webhooks import (
    LOOPBACK,
    local_crds,
    local_validation,
    write_certificate,
)

GROUP = "webhooks.capelin.test"
Count = Annotated[int, Ge(0), Le(1000)]
CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    namespaced=False,
)


class OldSpec(Model):
    pages: Count = 2


class NewSpec(Model):
    sheets: Count = 1


class Status(Model):
    counted: Count = 0


@kind(group=GROUP, version="v1alpha1", name="Book")
class OldBook(Object[OldSpec, Status]):
    """A book."""


@kind(group=GROUP, version="v1", name="Book")
class Book(Object[NewSpec, Status]):
    """A book."""


@converts(OldBook, Book)
def upgrade(book: Unstructured) -> None:
    move_field(book, "spec.pages", "spec.sheets", to_sheets)


@converts(Book, OldBook)
def downgrade(book: Unstructured) -> None:
    move_field(book, "spec.sheets", "spec.pages", lambda sheets: 2 * sheets)


def to_sheets(pages: int) -> int:
    if pages == 13:
        raise ValueError("13 pages bring bad luck")
    return (pages + 1) // 2


class Books(Reconciler[Book]):
    watches = (For(Book),)

    def __init__(self) -> None:
        self.sheets: dict[str, int] = {}

    async def reconcile(self, ctx: Context, book: Book, /) -> Result:
        self.sheets[book.name] = book.spec.sheets
        await ctx.patch_status(book, Status(counted=book.spec.sheets))
        return Done()


def old_book(name: str, pages: int) -> Unstructured:
    metadata = {"name": name, "namespace": "shelf", "uid": name}
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "Book",
        "metadata": metadata,
        "spec": {"pages": pages},
    }


def review(*objects: Unstructured, version: str = f"{GROUP}/v1") -> Unstructured:
    request = {"uid": "42", "desiredAPIVersion": version, "objects": list(objects)}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "ConversionReview",
        "request": request,
    }


def test_a_review_has_all_objects_in_their_order() -> None:
    new = {**old_book("b", 0), "apiVersion": f"{GROUP}/v1", "spec": {"sheets": 9}}
    made = convert_review(review(old_book("a", 4), new, old_book("c", 6)))
    response = made["response"]
    assert (made["apiVersion"], made["kind"]) == ("apiextensions.k8s.io/v1", "ConversionReview")
    assert (response["uid"], response["result"]) == ("42", {"status": "Success"})
    assert [obj["metadata"]["uid"] for obj in response["convertedObjects"]] == ["a", "b", "c"]
    assert [obj["spec"]["sheets"] for obj in response["convertedObjects"]] == [2, 9, 3]


def test_one_failure_fails_the_review_and_names_the_object() -> None:
    response = convert_review(review(old_book("a", 4), old_book("b", 13)))["response"]
    assert response == {
        "uid": "42",
        "result": {
            "status": "Failed",
            "message": "object 1, Book shelf/b: the conversion from v1alpha1 to v1 failed with "
            "ValueError: 13 pages bring bad luck",
        },
    }


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"apiVersion": "apiextensions.k8s.io/v1beta1", "request": {}},
        {"apiVersion": "apiextensions.k8s.io/v1", "request": {}},
        {"apiVersion": "apiextensions.k8s.io/v1", "request": []},
        {"apiVersion": "apiextensions.k8s.io/v1", "request": {"objects": 1}},
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "request": {"objects": [1], "desiredAPIVersion": "a/b"},
        },
    ],
)
def test_other_requests_are_rejected(broken: Unstructured) -> None:
    with pytest.raises(ValueError, match="ConversionReview"):
        convert_review(broken)


async def test_the_server_rejects_what_it_cannot_read(tmp_path: Path) -> None:
    trust = ssl.create_default_context(cadata=write_certificate(tmp_path).decode())
    async with AsyncExitStack() as stack, aiohttp.ClientSession() as session:
        webhooks = Webhooks(LOOPBACK, tmp_path)
        await webhooks.listen(stack, Background())
        assert webhooks.bound is not None
        url = f"https://{webhooks.bound}/convert"

        async def post(body: bytes) -> tuple[int, str]:
            async with session.post(url, data=io.BytesIO(body), ssl=trust) as response:
                return response.status, await response.text()

        status, text = await post(json.dumps(review(old_book("a", 4))).encode())
        assert status == 200
        assert json.loads(text)["response"]["convertedObjects"][0]["spec"] == {"sheets": 2}
        assert await post(b"{") == (400, "it is not JSON")
        assert (await post(b"[]"))[0] == 400
        assert (await post(b"[" * 1000))[0] == 400
        assert (await post(bytes(MAX_BODY_BYTES + 1)))[0] == 413
        async with session.get(url, ssl=trust) as response:
            assert response.status == 405


async def test_slow_callers_do_not_delay_a_review(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capelin.controller.webhooks.MAX_BODY_BYTES", 1000)
    trust = ssl.create_default_context(cadata=write_certificate(tmp_path).decode())
    async with AsyncExitStack() as stack, aiohttp.ClientSession() as session:
        webhooks = Webhooks(LOOPBACK, tmp_path)
        await webhooks.listen(stack, Background())
        assert webhooks.bound is not None
        host, port = webhooks.bound
        head = b"POST /convert HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\n"
        for _ in range(8):
            _, writer = await asyncio.open_connection(host, port, ssl=trust)
            stack.callback(writer.close)
            writer.write(head + b"{" * 800)
            await writer.drain()
        async with (
            asyncio.timeout(5),
            session.post(
                f"https://{webhooks.bound}/convert", json=review(old_book("a", 4)), ssl=trust
            ) as response,
        ):
            assert response.status == 200


async def test_a_renewed_certificate_is_served(tmp_path: Path) -> None:
    write_certificate(tmp_path)
    async with AsyncExitStack() as stack:
        webhooks = Webhooks(LOOPBACK, tmp_path)
        await webhooks.listen(stack, Background())
        assert webhooks.bound is not None
        host, port = webhooks.bound
        trust = ssl.create_default_context(cadata=write_certificate(tmp_path).decode())

        async def accepted() -> bool:
            try:
                _, writer = await asyncio.open_connection(host, port, ssl=trust)
            except ssl.SSLError:
                return False
            writer.close()
            return True

        await until(accepted)


def test_webhooks_need_a_certificate() -> None:
    with pytest.raises(OptionsError, match="--webhook-address needs --cert-dir"):
        Options(webhook_address=LOOPBACK)


async def test_a_manager_without_its_certificate_fails(
    config: Config, tmp_path: Path, namespace: str
) -> None:
    options = Options(
        webhook_address=LOOPBACK,
        cert_dir=tmp_path,
        namespace=namespace,
        health_address=None,
        metrics_address=None,
    )
    with pytest.raises(CertificateError, match=r"tls\.crt is unreadable"):
        await Manager("books", [Books()], options, config).run()


def provider() -> Provider:
    return Provider.of(
        "books",
        "AddonProvider",
        version="v0.1.0",
        module="books",
        reconcilers=[Books],
        kinds=[OldBook],
    )


async def test_an_api_server_converts_with_a_manager(
    client: Client,
    config: Config,
    namespace: str,
    tmp_path: Path,
    install_crds: Callable[..., None],
) -> None:
    async def page(path: str) -> int:
        health = manager.probes.bound["--health-address"]
        async with session.get(f"http://{health}{path}") as response:
            return response.status

    only_old = Provider.of(
        "books", "AddonProvider", version="v0.1.0", module="books", reconcilers=[OldBooks]
    )
    await asyncio.to_thread(install_crds, only_old)
    await client.create(OldBook.of("old", namespace, spec=OldSpec(pages=5)))
    ca, books = write_certificate(tmp_path), Books()
    webhooks: dict[str, Any] = {
        "webhook_address": LOOPBACK,
        "cert_dir": tmp_path,
        "health_address": LOOPBACK,
    }
    try:
        async with (
            aiohttp.ClientSession() as session,
            running(books, config=config, namespace=namespace, **webhooks) as manager,
        ):
            manifests = await local_crds(provider(), manager, ca)
            # It lists its objects only after the API server serves the new version.
            assert (await page("/readyz"), await page("/readyz/webhooks")) == (503, 200)
            await asyncio.to_thread(install_crds, *manifests)
            await until(lambda: books.sheets.get("old") == 3)
            await until(lambda: client.get(OldBook, "old", namespace), lambda book: book.status)
            old = await client.get(OldBook, "old", namespace)
            assert (old.spec.pages, old.status) == (5, Status(counted=3))
            # Each user applies in another version.
            for applied in (
                OldBook.of("mixed", namespace, spec=OldSpec(pages=8)),
                Book.of("mixed", namespace, spec=NewSpec(sheets=2)),
                OldBook.of("mixed", namespace, spec=OldSpec(pages=7)),
            ):
                await client.apply(applied, manager=type(applied).__name__)
            assert (await client.get(Book, "mixed", namespace)).spec.sheets == 4
            await until(lambda: books.sheets.get("mixed") == 4)
            with pytest.raises(ApiError, match=r"object 0, Book .*/bad: .*13 pages bring bad luck"):
                await client.create(OldBook.of("bad", namespace, spec=OldSpec(pages=13)))
            name = f"books.{GROUP}"
            assert (await migrate_storage(client, name)).failures == ()
            crd = await client.get(CustomResourceDefinition, name)
            assert crd.status.stored_versions == ["v1"]
    finally:
        await client.delete(CustomResourceDefinition, f"books.{GROUP}")


class OldBooks(Reconciler[OldBook]):
    watches = (For(OldBook),)

    async def reconcile(self, _: Context, __: OldBook, /) -> Result:
        return Done()


class ShelfSpec(Model):
    books: Annotated[list[Annotated[str, MaxLen(63)]], MaxLen(100)] = []
    width: Count = 1


@kind(group=GROUP, version="v1")
class Shelf(Object[ShelfSpec, Status]):
    """A shelf."""


@validates(Shelf)
def has_different_books(shelf: Shelf, _: Shelf | None) -> Iterator[Problem]:
    for book in sorted({book for book in shelf.spec.books if shelf.spec.books.count(book) > 1}):
        yield Problem("spec.books", f"{book} is on the shelf twice")


@validates(Shelf)
def does_not_shrink(shelf: Shelf, old: Shelf | None) -> Iterator[Problem]:
    if shelf.spec.width == 13:
        raise ValueError("a secret reason")
    if old is not None and shelf.spec.width < old.spec.width:
        yield Problem("spec.width", f"must be at least {old.spec.width}")


class Shelves(Reconciler[Shelf]):
    watches = (For(Shelf),)

    async def reconcile(self, _: Context, __: Shelf, /) -> Result:
        return Done()


def shelf(*books: str, width: int = 1) -> Shelf:
    return Shelf.of("a", "library", spec=ShelfSpec(books=list(books), width=width))


def admission(obj: object, old: object = None) -> Unstructured:
    request = {"uid": "42", "object": obj, "oldObject": old}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def test_problems_of_an_object_come_from_all_its_functions() -> None:
    assert problems(shelf("a", "b"), shelf("a")) == []
    found = problems(shelf("a", "b", "a"), shelf(width=2))
    assert [str(problem) for problem in found] == [
        "spec.books: a is on the shelf twice",
        "spec.width: must be at least 2",
    ]


def test_a_validation_allows_an_object_or_lists_its_problems() -> None:
    valid = validate_review(admission(shelf("a").dump()))
    assert valid == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "42", "allowed": True},
    }
    response = validate_review(admission(shelf("a", "a").dump(), shelf(width=2).dump()))["response"]
    assert response["allowed"] is False
    assert response["status"]["code"] == 422
    assert response["status"]["message"] == (
        "spec.books: a is on the shelf twice; spec.width: must be at least 2"
    )
    assert [cause["field"] for cause in response["status"]["details"]["causes"]] == [
        "spec.books",
        "spec.width",
    ]


def test_a_function_that_fails_rejects_the_object_without_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    response = validate_review(admission(shelf(width=13).dump()))["response"]
    assert (response["allowed"], response["status"]["code"]) == (False, 500)
    assert response["status"]["message"] == "the validation of Shelf failed with ValueError"
    assert "a secret reason" in caplog.text
    of_others = validate_review(admission({"apiVersion": "a/v1", "kind": "Box"}))["response"]
    assert (of_others["allowed"], of_others["status"]["message"]) == (
        False,
        "the manager has no function that validates Box",
    )


@pytest.mark.parametrize(
    "broken",
    [{}, review(), admission(None), admission([]), admission({}, 1), {"apiVersion": "v1"}],
)
def test_other_requests_than_validations_are_rejected(broken: Unstructured) -> None:
    with pytest.raises(ValueError, match="AdmissionReview"):
        validate_review(broken)


@kind(group=GROUP, version="v1alpha1", name="Shelf")
class OldShelf(Object[ShelfSpec, Status]):
    """A shelf."""


@validates(OldShelf)
def is_old(_: OldShelf, __: OldShelf | None) -> Iterator[Problem]:
    yield Problem("spec", "is old")


def test_functions_validate_the_stored_version() -> None:
    with pytest.raises(ValueError, match=r"v1 of the kind is stored, so write @validates\(Shelf\)"):
        Provider.of(
            "shelves",
            "AddonProvider",
            version="v0.1.0",
            module="shelves",
            reconcilers=[Shelves],
            kinds=[OldShelf],
        )


async def test_an_api_server_validates_with_a_manager(
    client: Client,
    config: Config,
    namespace: str,
    tmp_path: Path,
    install_crds: Callable[..., None],
) -> None:
    shelves = Provider.of(
        "shelves", "AddonProvider", version="v0.1.0", module="shelves", reconcilers=[Shelves]
    )
    assert shelves.serves_webhooks
    await asyncio.to_thread(install_crds, shelves)
    ca = write_certificate(tmp_path)
    webhooks: dict[str, Any] = {"webhook_address": LOOPBACK, "cert_dir": tmp_path}
    try:
        async with running(Shelves(), config=config, namespace=namespace, **webhooks) as manager:
            (configuration,) = await local_validation(shelves, manager, ca)
            await client.apply(configuration)

            async def is_rejected() -> bool:
                try:
                    wrong = Shelf.of("b", namespace, spec=ShelfSpec(books=["a", "a"]))
                    await client.create(wrong, dry_run=True)
                except Invalid as error:
                    return str(error).endswith(
                        f'admission webhook "shelves.{GROUP}" denied the request: '
                        "spec.books: a is on the shelf twice"
                    )
                return False

            await until(is_rejected)
            made = Shelf.of("a", namespace, spec=ShelfSpec(books=["a"], width=2))
            made = await client.create(made)
            with pytest.raises(Invalid, match=r"spec\.width: must be at least 2"):
                await client.patch(Shelf, "a", namespace, {"spec": {"width": 1}})
            await client.patch(Shelf, "a", namespace, {"metadata": {"finalizers": ["a.test/b"]}})
        # No manager answers now. Only a new spec needs one.
        with pytest.raises(ApiError, match="failed calling webhook"):
            await client.patch(Shelf, "a", namespace, {"spec": {"width": 3}})
        await client.delete(Shelf, "a", namespace)
        await client.patch(Shelf, "a", namespace, {"metadata": {"finalizers": None}})
        assert await client.find(Shelf, "a", namespace) is None
    finally:
        await client.delete(CONFIGURATIONS, "addon-shelves-validation")
        await client.delete(CustomResourceDefinition, f"shelves.{GROUP}")
