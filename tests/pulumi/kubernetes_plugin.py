"""The plugin of pulumi-kubernetes, built from its Go module: the first time takes 10 minutes."""

import asyncio
import tempfile
from pathlib import Path
from typing import Final

from tests.e2e.go_programs import GoModule

_NAME: Final = "pulumi-resource-kubernetes"
_COMMAND: Final = f"cmd/{_NAME}"
_SDK: Final = "github.com/pulumi/pulumi-kubernetes/sdk/v4"
_VERSION: Final = "4.24.0"
"""Its release of this day. Only module proxies know it, by a commit."""
_MODULE: Final = GoModule(
    "github.com/pulumi/pulumi-kubernetes/provider/v4",
    "v4.0.0-20260115033456-f47bc2d6f199",
    replaced=(_SDK,),
    # No proxy has the SDK of the same commit.
    newer=(f"{_SDK}@v4.22.2",),
)


async def kubernetes_plugin() -> Path:
    """The plugin, with the files that its own `go generate` writes."""
    folder = await _MODULE.folder() / _COMMAND
    schema = (folder / "schema.json").read_text().replace("{", f'{{"version": "{_VERSION}",', 1)
    generated = {
        f"{_COMMAND}/schema-embed.json": schema,
        f"{_COMMAND}/terraform-mapping-embed.json": (folder / "terraform-mapping.json").read_text(),
        "pkg/version/release.go": f'package version\n\nfunc init() {{ Version = "{_VERSION}" }}\n',
    }
    with tempfile.TemporaryDirectory() as temporary:
        sources: dict[str, Path] = {}
        for number, (path, text) in enumerate(generated.items()):
            sources[path] = Path(temporary, str(number))
            await asyncio.to_thread(sources[path].write_text, text)
        return (await _MODULE.programs({_NAME: f"./{_COMMAND}"}, sources))[_NAME]
