"""A complete provider that counts the fish of each school."""

import sys
from typing import Annotated

from annotated_types import Ge, Le
from capelin.api import Model, Object, kind
from capelin.controller import Context, Done, For, Reconciler, Result, main

FINALIZER = "example.capelin.io/school"


class Spec(Model):
    """Desired state of a school."""

    size: Annotated[int, Ge(0), Le(1000)] = 1


class Status(Model):
    """Observed state of a school."""

    observed_generation: Annotated[int, Ge(0), Le(2**53)] = 0
    fish: Annotated[int, Ge(0), Le(1000)] = 0


@kind(group="example.capelin.io", version="v1alpha1")
class School(Object[Spec, Status]):
    """A school of fish."""


class Schools(Reconciler[School]):
    """Counts the fish."""

    watches = (For(School),)

    async def reconcile(self, ctx: Context, school: School, /) -> Result:
        """Count the fish, or release a deleted school."""
        if school.metadata.deletion_timestamp is not None:
            await ctx.remove_finalizer(school, FINALIZER)
            return Done()
        await ctx.add_finalizer(school, FINALIZER)
        generation = school.metadata.generation
        await ctx.patch_status(
            school, Status(observed_generation=generation, fish=school.spec.size)
        )
        return Done()


if __name__ == "__main__":
    sys.exit(main("capelin-schools", lambda _: [Schools()]))
