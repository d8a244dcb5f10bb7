"""Archives with the programs of hosts."""

from pathlib import Path

import pytest
from capelin_machine_pool.bootstrap import Archives, NoArchiveError

from tests.support.archives import add_archive, fake_programs

NEW = "v1.34.4"


async def test_archives_need_their_checksum(tmp_path: Path) -> None:
    with pytest.raises(NoArchiveError, match="start it with --host-bundles"):
        await Archives(None).find(NEW, "amd64")
    archives = Archives(tmp_path)
    with pytest.raises(NoArchiveError, match="no readable file SHA256SUMS"):
        await archives.find(NEW, "amd64")
    path = add_archive(tmp_path, NEW, fake_programs(NEW))
    assert (await archives.find(NEW, "amd64")).size == path.stat().st_size
    for version, architecture in (("v1.34.5", "amd64"), (NEW, "arm64")):
        with pytest.raises(NoArchiveError, match="add it, and its line in SHA256SUMS"):
            await archives.find(version, architecture)
    with pytest.raises(NoArchiveError, match="is not a version"):
        await archives.find("../v1.34.4", "amd64")
    path.write_bytes(b"damaged")
    with pytest.raises(NoArchiveError, match="does not have the checksum"):
        await archives.find(NEW, "amd64")
