"""Templates of machines: what the autoscaler wants to know of machines that are not there yet."""

from capelin.controller import Context, Done, For, Reconciler, Result

from capelin_machine_pool.api import CapelinMachineTemplate, MachineTemplateStatus


class Templates(Reconciler[CapelinMachineTemplate]):
    """Says what a machine that is made from a template will have to offer."""

    watches = (For(CapelinMachineTemplate),)

    async def reconcile(self, ctx: Context, template: CapelinMachineTemplate) -> Result:
        """Take one step."""
        status = MachineTemplateStatus(capacity=template.spec.template.spec.simulated.capacity)
        wanted = template.model_copy(update={"status": status})
        await ctx.client.apply_status(wanted, live=template)
        return Done()
