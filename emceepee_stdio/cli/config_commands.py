"""`emceepee config`: where the configuration is, what it says, and how to change it."""

from emceepee_stdio.cli.command_group import CommandGroup, LazyCommand

__all__ = ["app"]

app = CommandGroup(
    no_args_is_help=True,
    help="Look at the configuration, and change it.",
    lazy={
        "list": LazyCommand("config_list:list_configured"),
        "show": LazyCommand("config:show"),
        "get": LazyCommand("config_get:get"),
        "add": LazyCommand("config:add", cls="dashed_command:DashedCommand"),
        "add-json": LazyCommand("config_add_json:add_json"),
        "remove": LazyCommand("config:remove"),
        "enable": LazyCommand("config_switch:enable"),
        "disable": LazyCommand("config_switch:disable"),
        "edit": LazyCommand("config_edit:edit"),
        "import": LazyCommand("import_servers:import_servers"),
        "expose": LazyCommand("config_expose:expose"),
        "rules": LazyCommand("config_rules:rules"),
        "check": LazyCommand("config:check"),
        "path": LazyCommand("config:path"),
        "schema": LazyCommand("config:schema"),
    },
)
