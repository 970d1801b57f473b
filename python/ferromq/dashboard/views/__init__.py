"""The pages and actions, a module for each part of a cluster. Each asks the cluster and holds nothing."""

from ferromq.dashboard.view import Action, Page
from ferromq.dashboard.views import brokers, clients, dead_letters, groups, messages, topics, waiting

_MODULES = (brokers, topics, groups, messages, dead_letters, waiting, clients)
PAGES: tuple[Page, ...] = tuple(page for module in _MODULES for page in module.PAGES)
ACTIONS: tuple[Action, ...] = tuple(
    action for module in (brokers, topics, groups, dead_letters) for action in module.ACTIONS
)

__all__ = ["ACTIONS", "PAGES"]
