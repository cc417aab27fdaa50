"""The console on the port of a coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from spark_log.console.http_routes import ConsoleRoutes
from spark_log.console.site import Site
from spark_log.rpc.messages import GroupView
from spark_log.server.coordinator import Coordinator
from spark_log.server.group_coordinator import Groups
from spark_log.server.quorum.coordinator import QuorumCoordinator


def pages_of(coordinator: Coordinator | QuorumCoordinator, groups: Groups, folder: Path | None = None) -> ConsoleRoutes:
    """Pages from the state that the coordinator has in memory, without requests to it over the network.

    folder:  where samples are kept for the next process; None: nowhere.
    """

    def views() -> Mapping[str, GroupView]:
        return {view.group_id: view for view in groups.views()}

    opened = coordinator.open_final if isinstance(coordinator, QuorumCoordinator) else coordinator.open_log
    return ConsoleRoutes(Site(opened, views, lambda: coordinator.duties.last, folder))
